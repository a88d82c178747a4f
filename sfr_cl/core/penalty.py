"""The function-space regulariser: what training on the next task may not change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from sfr_cl.core.linalg import sites
from sfr_cl.core.solve import Solved
from sfr_cl.core.sums import SEEN
from sfr_cl.core.transfer import inducing
from sfr_cl.data.inputs import Inputs, leaves, length, prepare
from sfr_cl.errors import ArgumentError, MismatchError
from sfr_cl.kernel.network import asking, dtype_of, run
from sfr_cl.kernel.passes import own_statistics
from sfr_cl.kernel.precision import without_autocast


@dataclass(frozen=True)
class Penalty:
    """1/(2M) sum_c d_c' P_c d_c with d = f(Z; w) - f(Z; w*) and P = L^-T W L^-1.

    f is that of eval mode, but for batch norm: Z is normalised by its own statistics, at w as at
    w*. Running ones belong to the weights they were collected at, and to the data.
    """

    z: Inputs
    targets: Tensor
    """f(Z; w*), ``[M, C]``."""
    observed: Tensor
    """Indices of the outputs that data has observed, ``[H]``."""
    precision: Tensor
    """P of the observed outputs, ``[H, M, M]``, or one for all, ``[1, M, M]``."""
    pin: float = 1.0
    """P of the other outputs, times the identity."""

    @staticmethod
    def of(solved: Solved) -> Penalty:
        """The penalty of a solved posterior."""
        basis = inducing(solved.state)
        observed = (solved.state.sums.seen > SEEN).nonzero()[:, 0]
        network = basis.network
        with network.passing(), own_statistics(network.module, length(basis.z)):
            targets = network.run(basis.z).detach()
        if bool((observed >= targets.shape[1]).any()):
            raise MismatchError(
                f"expected a posterior whose network has an output for each class it has seen, got "
                f"class {int(observed.max())} and {targets.shape[1]} outputs: the penalty is about "
                f"the network's outputs; fit a network that has all of them"
            )
        precision = sites(basis.factor, solved.weight)
        if len(precision) > 1:
            precision = precision[observed]
        return Penalty(basis.z, targets, observed, precision)

    @cached_property
    def unobserved(self) -> Tensor:
        """Indices of the outputs that no data has observed: the identity holds them."""
        free = torch.ones(self.targets.shape[1], dtype=torch.bool, device=self.observed.device)
        free[self.observed] = False
        return free.nonzero()[:, 0]

    def like(self, network: nn.Module) -> Penalty:
        """The same on the device and in the precision of a network's parameters.

        P has too great a range for less than single precision.
        """
        if not isinstance(network, nn.Module) or not any(True for _ in network.parameters()):
            raise ArgumentError(
                f"expected a torch.nn.Module with parameters, got {type(network).__name__}"
            )
        device, dtype = next(network.parameters()).device, dtype_of(network)
        floats = [leaf for _, leaf in leaves(self.z) if leaf.is_floating_point()]
        exact = torch.promote_types(dtype, torch.float32)
        known = [(x, dtype) for x in floats] + [(x, exact) for x in (self.targets, self.precision)]
        if all(x.device == device and x.dtype == wanted for x, wanted in known):
            return self
        return replace(
            self,
            z=prepare(self.z, device, dtype),
            targets=self.targets.to(device, exact),
            observed=self.observed.to(device),
            precision=self.precision.to(device, exact),
        )

    def __call__(self, network: nn.Module) -> Tensor:
        """The penalty of a network's current weights, differentiable with respect to them."""
        mine = self.like(network)
        with own_statistics(network, length(mine.z)):
            return mine.at(asking(partial(run, network), mine.z))

    @without_autocast()
    def at(self, outputs: Tensor) -> Tensor:
        """The penalty of f(Z; w), ``[M, C]`` or with more columns, on its device."""
        known = self.targets.shape[1]
        if outputs.shape[1] < known:
            raise MismatchError(
                f"expected a network with at least {known} outputs, got {outputs.shape[1]}"
            )
        change = outputs[:, :known].to(self.targets.dtype) - self.targets
        observed = change[:, self.observed].mT
        total, _ = _QuadraticForm.apply(observed, self.precision)  # type: ignore[no-untyped-call]
        if len(self.observed) < known:
            total = total + self.pin * change[:, self.unobserved].square().sum()
        penalty: Tensor = total / (2 * length(self.z))
        return penalty


class _QuadraticForm(torch.autograd.Function):
    """sum_c d_c' P_c d_c for symmetric P: one product serves value and derivative, 2 P d."""

    @staticmethod
    def forward(columns: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
        product = _products(columns, precision)
        return (columns * product).sum(), product

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]
    ) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        columns, precision, product = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody will differentiate the derivative
            with without_autocast():
                product = _products(columns, precision)
        return 2 * gradients[0] * product, None


def _products(columns: Tensor, precision: Tensor) -> Tensor:
    """P_c d_c, ``[H, M]``, one by one: batched products with single columns are slower on CPUs."""
    if not len(columns):
        return torch.zeros_like(columns)
    every = precision.expand(len(columns), -1, -1)
    return torch.stack([matrix @ column for matrix, column in zip(every, columns, strict=True)])
