"""The neural tangent kernel: layer inputs and output gradients, contracted layer by layer.

kappa_c(x, x') = J_c(x) J_c(x')' with J_c(x) the derivative of output c with respect to the
parameters at w*. There are K kernels: one per output (``"per_output"``, K = C), or one for all
outputs, their mean (``"shared"``, K = 1). The prior precision is not part of it: k = kappa / delta.

For a linear layer with inputs a and output gradients g_c,

    kappa_c(x, x') = (a . a' + 1) (g_c . g'_c)

summed over layers: 2 M B (d_in + C d_out) operations instead of 2 M B C d_in d_out.
Parameters no rule of :mod:`sfr_cl.kernel.rules` covers (other layers, tied weights, a module called
twice, a parameter used without its module) are left to per-sample Jacobians of just those
parameters, so that the sum is exact for any network torch can differentiate.

Every batch is checked, see :mod:`sfr_cl.kernel.plan`; where a rule fails, what was made with it is
made again without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from sfr_cl.data import memory
from sfr_cl.data.inputs import Inputs, length, take, tree_map
from sfr_cl.errors import DataError
from sfr_cl.kernel.factors import Direct, Last, Outer, Stack, joined
from sfr_cl.kernel.layers import Layer
from sfr_cl.kernel.network import FrozenNetwork
from sfr_cl.kernel.passes import LOCK
from sfr_cl.kernel.plan import Plan, Unfit
from sfr_cl.kernel.precision import without_autocast

P = ParamSpec("P")
R = TypeVar("R")

ROWS = 4
"""Rows that show how a network runs."""

CACHE_BYTES = 2**31
"""The gradients at the inducing inputs are kept between batches up to this size."""

BLOCK_BYTES = 2**30
"""A gram matrix is made in blocks whose gradients are below this."""


class KernelValues(NamedTuple):
    """A batch evaluated against the inducing inputs."""

    outputs: Tensor
    """f(x; w*), ``[B, C]``."""
    cross: Tensor
    """kappa(x, Z), ``[K, B, M]``."""
    diagonal: Tensor | None
    """kappa(x, x), ``[K, B]``, when asked for."""


class Replanned(Exception):
    """Gradients are made in another way from now on: those made before do not go with them."""


def settled(method: Callable[P, R]) -> Callable[P, R]:
    """Start again where the plan changed meanwhile; each change leaves fewer layers to rules.

    One thread at a time: another may change it.
    """

    @wraps(method)
    def again(*args: P.args, **kwargs: P.kwargs) -> R:
        with LOCK:
            while True:
                try:
                    return method(*args, **kwargs)
                except Replanned:
                    continue

    return again


class TangentKernel:
    """kappa of a network's first outputs, by rules where there are any, by Jacobians elsewhere.

    Args:
        network: the frozen network.
        num_outputs: outputs the kernel covers. A shared kernel keeps this number, and so its
            values, when a head grows.
        shared: one kernel for all outputs, their mean, instead of one for each.
        probe: some inputs, whose first rows show how the network runs.
        layers: the layers to use rules for; by default all that can be.
    """

    def __init__(
        self,
        network: FrozenNetwork,
        num_outputs: int,
        shared: bool,
        probe: Inputs,
        layers: Sequence[Layer] | None = None,
    ) -> None:
        self.network = network
        self.num_outputs = num_outputs
        self.shared = shared
        self.num_kernels = 1 if shared else num_outputs
        self._rows = tree_map(torch.clone, take(probe, slice(0, ROWS)))  # and nothing beside them
        self._given = layers
        self._found: Plan | None = None

    @property
    @without_autocast()
    def plan(self) -> Plan:
        """How gradients are made: found once, when the kernel is first used."""
        with LOCK:
            if self._found is None:
                self._found = Plan.found(self.network, self.num_outputs, self._rows, self._given)
            return self._found

    @property
    def layers(self) -> list[Layer]:
        """The layers that rules are used for."""
        return self.plan.layers

    @property
    def fallback(self) -> FrozenNetwork | None:
        """The network differentiated by the parameters that no rule covers, if there are any."""
        return self.plan.fallback

    def __getstate__(self) -> dict[str, Any]:
        """For pickles and copies: the plan is found again."""
        return {**vars(self), "_found": None}

    def bytes_per_input(self, num_inducing: int) -> int:
        """Working memory of one row of a batch evaluated against M inducing inputs."""
        plan = self.plan
        numbers = 2 * self._numbers(num_inducing) + 4 * self.num_kernels * num_inducing
        gradients = 1 if all(layer.is_last for layer in plan.layers) else self.num_outputs + 1
        numbers += (2 + (self.num_outputs if plan.fallback else gradients)) * plan.activations
        for factor in plan.shown:
            if isinstance(factor, Outer) and factor.use_gram_trick(num_inducing):
                pairs = factor.g.shape[2] ** 2 - 1
                numbers += 2 * self.num_kernels * num_inducing * pairs
        return numbers * self.network.dtype.itemsize

    def bytes_at_inducing(self, num_inducing: int) -> int:
        """Memory that stays taken by the side of M inducing inputs."""
        size = num_inducing * self._numbers(num_inducing) * torch.float64.itemsize
        return size if size <= CACHE_BYTES else 0

    def _numbers(self, num_others: int) -> int:
        """Size of one input's gradients, ready to meet M others."""
        return sum(
            factor.g.shape[0] * factor.width * factor.g.shape[3]
            if isinstance(factor, Outer) and not factor.use_gram_trick(num_others)
            else factor.size()
            for factor in self.plan.shown
        )

    def at(self, network: FrozenNetwork, probe: Inputs) -> TangentKernel:
        """The kernel of the same outputs of another network."""
        return TangentKernel(network, self.num_outputs, self.shared, probe)

    def probing(self, probe: Inputs) -> TangentKernel:
        """The same kernel, which keeps other inputs to show how the network runs."""
        other = self.at(self.network, probe)
        other._given, other._found = self._given, self._found
        return other

    def gram(self, x: Inputs) -> Tensor:
        """kappa(x, x), ``[K, B, B]``."""
        count = length(x)
        size = max(1, BLOCK_BYTES // self.bytes_per_input(count))
        memory.require(
            2 * self.num_kernels * count**2 * self.network.dtype.itemsize,
            f"the kernel matrix of {count} inputs",
            "lower inducing or the candidates of greedy, or predict fewer inputs at once",
            self.network.device,
        )
        return self.symmetric(_Gradients(self, x, size, count))

    def inducing(self, z: Inputs, batch_size: int) -> AtInducing:
        """Fix one side at Z. Rows of Z are worked through ``batch_size`` at a time."""
        return AtInducing(self, z, batch_size)

    @settled
    def symmetric(self, gradients: _Gradients) -> Tensor:
        """kappa(x, x) from blocks of rows: those below the diagonal, and their mirror images."""
        blocks: list[list[Tensor]] = []
        for row, left in enumerate(gradients):
            earlier = zip(range(row), gradients, strict=False)
            blocks.append([self.inner(left, right) for _, right in earlier])
            blocks[-1].append(self.inner(left, left))
        rows = [
            torch.cat([*blocks[i], *(later[i].mT for later in blocks[i + 1 :])], dim=2)
            for i in range(len(blocks))
        ]
        return torch.cat(rows, dim=1)

    @without_autocast()
    def stack(self, x: Inputs, num_others: int) -> tuple[Tensor, Stack]:
        """f ``[B, C]``, and the gradients of its parameters, ready to meet M other inputs."""
        plan = self.plan
        try:
            outputs, made = plan.made(x)
        except Unfit as unfit:
            self._found = plan.without(unfit.layers, self._rows)
            raise Replanned from unfit
        stack: list[Outer | Last | Direct] = []
        for factor, shown in zip(made, plan.shown, strict=True):
            pairs = not isinstance(shown, Outer) or shown.use_gram_trick(num_others)
            stack += [factor] if pairs or not isinstance(factor, Outer) else factor.materialised()
        return outputs, tuple(stack)

    @without_autocast()
    @torch.no_grad()
    def inner(self, left: Stack, right: Stack) -> Tensor:
        """kappa, ``[K, B, B']``."""
        total: Tensor | None = None
        for a, b in zip(left, right, strict=True):
            part = a.inner(b, self.shared)  # type: ignore[arg-type]
            if total is None:
                total = part
            elif len(total) < len(part):
                total = part.add_(total)
            else:
                total += part
        assert total is not None
        if self.shared:
            return total / self.num_outputs
        return total if len(total) == self.num_kernels else total.repeat(self.num_kernels, 1, 1)

    @without_autocast()
    @torch.no_grad()
    def norms(self, stack: Stack) -> Tensor:
        """kappa(x, x), ``[K, B]``."""
        norms = torch.stack([factor.norms() for factor in stack]).sum(0)
        return norms.mean(0, keepdim=True) if self.shared else norms

    def double(self, probe: Inputs) -> TangentKernel:
        """The same in float64, unless the network can't compute in it."""
        if self.network.dtype == torch.float64:
            return self
        network = self.network.double()
        probe = network.prepare(probe)
        try:
            network(take(probe, slice(0, 1)))
        except DataError:
            return self
        return self.at(network, probe)


class AtInducing:
    """kappa with one side fixed at Z, whose gradients are made once, unless they are too large."""

    def __init__(self, kernel: TangentKernel, z: Inputs, batch_size: int) -> None:
        self._kernel, self._z, self._batch_size = kernel, z, batch_size
        self._size = length(z)

    @cached_property
    def gram(self) -> Tensor:
        """kappa(Z, Z), ``[K, M, M]``, in float64."""
        exact = self._kernel.double(self._z)
        if exact is self._kernel:
            return exact.symmetric(self._gradients).double()
        z = exact.network.prepare(self._z)
        return exact.symmetric(_Gradients(exact, z, self._batch_size, self._size))

    @cached_property
    def _gradients(self) -> _Gradients:
        return _Gradients(self._kernel, self._z, self._batch_size, self._size)

    def __getstate__(self) -> dict[str, Any]:
        """For pickles and copies: what is made from the rest is made again."""
        names = ("_kernel", "_z", "_batch_size", "_size")
        return {name: value for name, value in vars(self).items() if name in names}

    def along(self, vectors: Tensor) -> Along:
        """kappa(x, Z) v for vectors v, ``[C, M]``."""
        return Along(self._kernel, self._gradients, vectors)

    @settled
    def __call__(self, x: Inputs, *, diagonal: bool = False) -> KernelValues:
        outputs, stack = self._kernel.stack(x, self._size)
        parts = [self._kernel.inner(stack, part) for part in self._gradients]
        cross = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
        return KernelValues(outputs, cross, self._kernel.norms(stack) if diagonal else None)


class Along:
    """kappa(x, Z) v for C vectors v that are fixed: derivatives of f along sum_m v_m J(z_m).

    These directions are made once, one for each vector and layer, where an inner product with them
    costs less than kappa(x, Z) and its product with v.
    """

    def __init__(self, kernel: TangentKernel, at_z: _Gradients, vectors: Tensor) -> None:
        self._kernel, self._at_z, self._vectors = kernel, at_z, vectors
        self._made: tuple[Plan, list[Tensor | None]] | None = None

    @settled
    @without_autocast()
    @torch.no_grad()
    def __call__(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """f ``[B, C]``, and kappa(x, Z) v ``[B, C]`` in float64."""
        kernel, vectors = self._kernel, self._vectors
        outputs, stack = kernel.stack(x, vectors.shape[1])
        directions = self._directions(stack)
        total = vectors.new_zeros(len(outputs), len(vectors))
        for factor, direction in zip(stack, directions, strict=True):
            if direction is not None and not isinstance(factor, Outer):
                total += factor.along(direction, kernel.shared)
        if kernel.shared:
            total /= kernel.num_outputs
        rest = [index for index, direction in enumerate(directions) if direction is None]
        if rest:
            own = tuple(stack[index] for index in rest)
            for part, columns in zip(self._at_z, self._at_z.split(vectors), strict=True):
                cross = kernel.inner(own, tuple(part[index] for index in rest)).double()
                total += times(cross, columns)
        return outputs, total

    def _directions(self, stack: Stack) -> list[Tensor | None]:
        """By layer; ``None`` where kappa(x, Z) costs less."""
        plan, vectors, shared = self._kernel.plan, self._vectors, self._kernel.shared
        if self._made is None or self._made[0] is not plan:
            found: list[Tensor | None] = [None] * len(stack)
            chosen = [i for i, factor in enumerate(stack) if self._pays(factor)]
            if chosen:
                for part, columns in zip(self._at_z, self._at_z.split(vectors), strict=True):
                    for index in chosen:
                        factor, before = part[index], found[index]
                        assert not isinstance(factor, Outer)
                        more = factor.directions(columns, shared)
                        found[index] = more if before is None else before + more
            self._made = plan, found
        return self._made[1]

    def _pays(self, factor: Outer | Last | Direct) -> bool:
        size = factor.direction_size(self._kernel.shared)
        count, others = self._vectors.shape
        if size is None or count * size * torch.float64.itemsize > CACHE_BYTES:
            return False
        return count * size <= others * (count + size)


def times(rows: Tensor, vectors: Tensor) -> Tensor:
    """Rows ``[K, B, M]`` times vectors ``[C, M]``, ``[B, C]``; one matrix serves all C if K = 1."""
    if len(rows) == 1:
        return rows[0] @ vectors.mT
    return torch.einsum("cbm,cm->bc", rows, vectors)


class _Gradients:
    """The gradients at many inputs, in parts: joined and kept if they fit, else made each time."""

    def __init__(self, kernel: TangentKernel, x: Inputs, size: int, num_others: int) -> None:
        self._kernel, self._num_others, self._size = kernel, num_others, length(x)
        self._chunks = [take(x, slice(at, at + size)) for at in range(0, self._size, size)]
        self._kept: tuple[Plan, Stack] | None = None

    def _made(self) -> Iterator[Stack]:
        return (self._kernel.stack(chunk, self._num_others)[1] for chunk in self._chunks)

    def split(self, vectors: Tensor) -> Sequence[Tensor]:
        """Columns of ``[C, M]`` as the parts of the gradients are."""
        if self._are_kept:
            return [vectors]
        return vectors.split([length(chunk) for chunk in self._chunks], dim=1)

    @property
    def _are_kept(self) -> bool:
        return bool(self._kernel.bytes_at_inducing(self._size))

    def __iter__(self) -> Iterator[Stack]:
        plan = self._kernel.plan
        if not self._are_kept:
            return self._made()
        if self._kept is None or self._kept[0] is not plan:
            parts = list(self._made())
            self._kept = plan, tuple(joined(column) for column in zip(*parts, strict=True))
        return iter([self._kept[1]])
