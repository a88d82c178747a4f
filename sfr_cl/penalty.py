"""The function-space regulariser: what training on the next task may not change."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfr_cl.errors import ArgumentError, MismatchError
from sfr_cl.evidence import SEEN
from sfr_cl.inputs import Inputs, length, prepare
from sfr_cl.linalg import sites
from sfr_cl.network import eval_mode, run
from sfr_cl.state import State


@dataclass(frozen=True)
class Penalty:
    """1/(2M) sum_c d_c' P_c d_c with d = f(Z; w) - f(Z; w*) and P = L^-T W L^-1."""

    z: Inputs
    targets: Tensor
    """f(Z; w*), ``[M, C]``."""
    sites: Tensor
    """P, ``[K, M, M]``."""
    seen: Tensor
    """Outputs that data has spoken of, ``[C]``; the others are pinned by the identity."""

    @staticmethod
    def of(state: State, weight: Tensor) -> Penalty:
        """The penalty of a state whose sums read as W = ``weight``."""
        seen = state.sums.seen > SEEN
        return Penalty(state.z, state.network(state.z), sites(state.factor, weight), seen)

    def __call__(self, network: nn.Module) -> Tensor:
        """The penalty of a network's current weights, differentiable with respect to them."""
        if not isinstance(network, nn.Module) or not any(True for _ in network.parameters()):
            raise ArgumentError(
                f"expected a torch.nn.Module with parameters, got {type(network).__name__}"
            )
        parameter = next(network.parameters())
        with eval_mode(network):
            outputs = run(network, prepare(self.z, parameter.device, parameter.dtype))
        if outputs.shape[1] < len(self.seen):
            raise MismatchError(
                f"expected a network with at least {len(self.seen)} outputs, got {outputs.shape[1]}"
            )
        targets = self.targets.to(outputs.device)
        change = outputs[:, : len(self.seen)].to(targets.dtype) - targets
        precision, seen = self.sites.to(outputs.device), self.seen.to(outputs.device)
        columns = change.mT[:, :, None]
        held = (columns * (precision @ columns)).sum((1, 2))
        pinned = change.square().sum(0)
        total = torch.where(seen, held, pinned).sum() / (2 * length(self.z))
        return total.to(outputs.dtype)
