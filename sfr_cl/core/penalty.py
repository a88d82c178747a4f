"""The function-space regulariser: what training on the next task may not change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
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

    def like(self, network: nn.Module) -> Penalty:
        """The same on the device and in the precision of a network's parameters."""
        if not isinstance(network, nn.Module) or not any(True for _ in network.parameters()):
            raise ArgumentError(
                f"expected a torch.nn.Module with parameters, got {type(network).__name__}"
            )
        return self.to(next(network.parameters()).device, dtype_of(network))

    def to(self, device: torch.device, dtype: torch.dtype) -> Penalty:
        """The same on a device, for a network of some precision.

        P has too great a range for less than single precision.
        """
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

    def at(self, outputs: Tensor) -> Tensor:
        """The penalty of f(Z; w), ``[M, C]`` or with more columns, on its device."""
        known = self.targets.shape[1]
        if outputs.shape[1] < known:
            raise MismatchError(
                f"expected a network with at least {known} outputs, got {outputs.shape[1]}"
            )
        return together(outputs, [(self, torch.arange(known, device=outputs.device))])

    def product(self, change: Tensor) -> Tensor:
        """P_c d_c, ``[M, C]``: one by one, batched products with one column are slower on CPUs."""
        product = self.pin * change
        if len(self.observed):
            columns = change[:, self.observed].mT
            every = self.precision.expand(len(columns), -1, -1)
            parts = [matrix @ column for matrix, column in zip(every, columns, strict=True)]
            product[:, self.observed] = torch.stack(parts, dim=1)
        return product


@without_autocast()
def together(outputs: Tensor, parts: Sequence[tuple[Penalty, Tensor]]) -> Tensor:
    """The sum of penalties, whose f(Z; w) are the rows of one matrix, one after the other.

    Args:
        outputs: f at all Z, with a column for each unit.
        parts: the penalties, on its device, each with the units it is over.
    """
    outputs = outputs.to(parts[0][0].targets.dtype)
    total: Tensor = _QuadraticForms.apply(outputs, parts)[0]  # type: ignore[no-untyped-call]
    return total


class _QuadraticForms(torch.autograd.Function):
    """1/(2M) sum_c d_c' P_c d_c for symmetric P, of several: P d serves value and derivative.

    One node of the graph for all: beside a mini-batch of ten, nodes are what takes time.
    """

    @staticmethod
    def forward(outputs: Tensor, parts: Sequence[tuple[Penalty, Tensor]]) -> tuple[Tensor, Tensor]:
        return _values(outputs, parts)

    @staticmethod
    def setup_context(
        ctx: Any,
        inputs: tuple[Tensor, Sequence[tuple[Penalty, Tensor]]],
        output: tuple[Tensor, Tensor],
    ) -> None:
        outputs, ctx.parts = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(outputs, output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        outputs, derivative = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody will differentiate the derivative
            with without_autocast():
                _, derivative = _values(outputs, ctx.parts)
        return gradients[0] * derivative, None


def _values(outputs: Tensor, parts: Sequence[tuple[Penalty, Tensor]]) -> tuple[Tensor, Tensor]:
    """The sum of penalties, and its derivative with respect to the outputs."""
    total, derivative, start = outputs.new_zeros(()), torch.zeros_like(outputs), 0
    for penalty, units in parts:
        size = len(penalty.targets)
        rows = slice(start, start + size)
        change = outputs[rows].index_select(1, units) - penalty.targets
        product = penalty.product(change)
        total = total + (change * product).sum() / (2 * size)
        derivative[rows].index_copy_(1, units, product / size)
        start += size
    return total, derivative
