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
        units = torch.arange(known, device=outputs.device)
        return Penalties.of([(self, units)]).at(outputs)


@dataclass(frozen=True)
class Penalties:
    """Several penalties on one network: their Z is one batch, and their sum a node of the graph.

    Beside a mini-batch of ten, the number of operations is what takes time.
    """

    z: list[Inputs]
    columns: Tensor
    """The units that any of them is over, ``[C]``."""
    targets: Tensor
    """f(Z; w*) at these, ``[M, C]``."""
    pinned: Tensor
    """What the change of an output counts for where P is a multiple of the identity, or zero."""
    places: Tensor
    """Where the columns with a P of their own are in ``targets``, flat, one after the other."""
    precision: list[Tensor]
    """P of each of these."""
    sizes: Tensor
    """How many inducing inputs the mean is over, for each of them, ``[M, 1]``."""

    @staticmethod
    def of(parts: Sequence[tuple[Penalty, Tensor]]) -> Penalties:
        """Penalties on one device and in one precision, each with the units it is over."""
        columns = torch.cat([units for _, units in parts]).unique()
        width, start = len(columns), 0
        targets, pinned, places, sizes = [], [], [], []
        precision: list[Tensor] = []
        for penalty, units in parts:
            size, own = len(penalty.targets), torch.searchsorted(columns, units)
            empty = penalty.targets.new_zeros(size, width)
            targets.append(empty.index_copy(1, own, penalty.targets))
            observed = own[penalty.observed]
            pinned.append(empty.index_fill(1, own, penalty.pin).index_fill(1, observed, 0.0))
            rows = torch.arange(start, start + size, device=own.device)
            places.append((rows * width + observed[:, None]).flatten())
            precision += penalty.precision.expand(len(observed), -1, -1).unbind()
            sizes.append(empty.new_full((size, 1), size))
            start += size
        return Penalties(
            [penalty.z for penalty, _ in parts],
            columns,
            torch.cat(targets),
            torch.cat(pinned),
            torch.cat(places),
            precision,
            torch.cat(sizes),
        )

    @without_autocast()
    def at(self, outputs: Tensor) -> Tensor:
        """The sum of all, of f at all Z, ``[M, C]`` or with more columns."""
        outputs = outputs.to(self.targets.dtype)
        total: Tensor = _QuadraticForms.apply(outputs, self)[0]  # type: ignore[no-untyped-call]
        return total

    def values(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of all, and its derivative with respect to the outputs."""
        change = outputs.index_select(1, self.columns) - self.targets
        product = self.pinned * change
        if self.precision:
            # One by one: batched products with single columns are slower on CPUs.
            every = change.flatten().index_select(0, self.places)
            columns = every.split([len(matrix) for matrix in self.precision])
            pairs = zip(self.precision, columns, strict=True)
            found = torch.cat([matrix @ column for matrix, column in pairs])
            product = product.flatten().index_copy(0, self.places, found).view_as(change)
        product = product / self.sizes
        derivative = torch.zeros_like(outputs).index_copy(1, self.columns, product)
        return 0.5 * (change * product).sum(), derivative


class _QuadraticForms(torch.autograd.Function):
    """1/(2M) sum_c d_c' P_c d_c for symmetric P, of several: P d serves value and derivative."""

    @staticmethod
    def forward(outputs: Tensor, penalties: Penalties) -> tuple[Tensor, Tensor]:
        return penalties.values(outputs)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Penalties], output: tuple[Tensor, Tensor]
    ) -> None:
        outputs, ctx.penalties = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(outputs, output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        outputs, derivative = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody will differentiate the derivative
            with without_autocast():
                _, derivative = ctx.penalties.values(outputs)
        return gradients[0] * derivative, None
