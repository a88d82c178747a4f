"""The neural tangent kernel: layer inputs and output gradients, contracted layer by layer.

kappa_c(x, x') = J_c(x) J_c(x')' with J_c(x) the derivative of output c with respect to the
parameters at w*. There are K kernels: one per output (``"per_output"``, K = C), or one for all
outputs, their mean (``"shared"``, K = 1). The prior precision is not part of it: k = kappa / delta.

For a linear layer with inputs a and output gradients g_c,

    kappa_c(x, x') = (a . a' + 1) (g_c . g'_c)

summed over layers: 2 M B (d_in + C d_out) operations instead of 2 M B C d_in d_out.
Parameters no rule of :mod:`sfr_cl.kernel.rules` covers (other layers, tied weights, a module called
twice, a parameter used without its module) are left to per-sample Jacobians of just those
parameters, so that the sum is exact for any network ``torch.func`` can differentiate.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sfr_cl.data import memory
from sfr_cl.data.inputs import Inputs, length, take
from sfr_cl.kernel.factors import Direct, Last, Outer, Stack, joined
from sfr_cl.kernel.jacobian import jacobian
from sfr_cl.kernel.layers import Layer, activations, covered_layers
from sfr_cl.kernel.network import FrozenNetwork
from sfr_cl.kernel.precision import without_autocast
from sfr_cl.kernel.rules import RULES

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


class TangentKernel:
    """kappa of a network's first outputs, by rules where there are any, by Jacobians elsewhere.

    Args:
        network: the frozen network.
        num_outputs: outputs the kernel covers. A shared kernel keeps this number, and so its
            values, when a head grows.
        shared: one kernel for all outputs, their mean, instead of one for each.
        probe: any input; its first row shows how the network runs.
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
        self._row = take(probe, slice(0, 1))
        self._given = layers
        self._found: _Plan | None = None

    @property
    @without_autocast()
    def _plan(self) -> _Plan:
        """How gradients are made: found once, when the kernel is first used."""
        if self._found is None:
            try:
                layers = self._given
                if layers is None:
                    layers = covered_layers(self.network, self._row)
                self._found = self._planned(list(layers))
            except RuntimeError:  # an operation whose graph autograd does not show
                self._found = self._planned([])
        return self._found

    def _planned(self, layers: list[Layer]) -> _Plan:
        """Rules for these layers, Jacobians for the rest of the parameters."""
        covered = {id(p) for layer in layers for p in layer.parameters}
        rest = [name for name, p in self.network.parameters.items() if id(p) not in covered]
        plan = _Plan(layers, self.network.restricted(rest) if rest else None)
        plan.shown = self._stack(plan, self._row)[1]
        plan.activations = activations(self.network, self._row)
        return plan

    @property
    def layers(self) -> list[Layer]:
        """The layers that rules are used for."""
        return self._plan.layers

    @property
    def fallback(self) -> FrozenNetwork | None:
        """The network differentiated by the parameters that no rule covers, if there are any."""
        return self._plan.fallback

    def __getstate__(self) -> dict[str, Any]:
        """For pickles and copies: the plan is found again."""
        return {**vars(self), "_found": None}

    def bytes_per_input(self, num_inducing: int) -> int:
        """Working memory of one row of a batch evaluated against M inducing inputs."""
        plan = self._plan
        numbers = 2 * self._numbers(num_inducing) + 4 * self.num_kernels * num_inducing
        gradients = 1 if all(layer.is_last for layer in plan.layers) else self.num_outputs
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
            for factor in self._plan.shown
        )

    def at(self, network: FrozenNetwork, probe: Inputs) -> TangentKernel:
        """The kernel of the same outputs of another network."""
        return TangentKernel(network, self.num_outputs, self.shared, probe)

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
        outputs, made = self._stack(self._plan, x)
        stack: list[Outer | Last | Direct] = []
        for factor, shown in zip(made, self._plan.shown, strict=True):
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
        """The same in float64."""
        if self.network.dtype == torch.float64:
            return self
        network = self.network.double()
        return self.at(network, network.prepare(probe))

    def _stack(self, plan: _Plan, x: Inputs) -> tuple[Tensor, Stack]:
        factors: list[Outer | Last | Direct] = []
        inner = [layer for layer in plan.layers if not layer.is_last]
        with torch.inference_mode(False):
            outputs, calls = self.network.recorded([layer.module for layer in plan.layers], x)
            places = [calls[layer.module].output for layer in inner]
            gradients = self._gradients(plan, outputs, places)
        with torch.no_grad():
            for layer, g in zip(inner, gradients, strict=True):
                a = calls[layer.module].input
                made = RULES[type(layer.module)](layer.module, layer.names, a, g)
                assert made is not None
                factors.extend(made)
            factors.extend(
                Last(_with_bias(layer, calls[layer.module].input), self.num_outputs)
                for layer in plan.layers
                if layer.is_last
            )
        if plan.fallback is not None:
            factors.append(Direct(jacobian(plan.fallback, self.num_outputs, x)))
        return outputs.detach(), tuple(factors)

    @torch.enable_grad()
    def _gradients(self, plan: _Plan, outputs: Tensor, layers: list[Tensor]) -> list[Tensor]:
        """Of every output with respect to every layer's, ``[C, B, ...]``.

        One backward pass for all outputs at once, or one for each where an operation can't.
        """
        if not layers:
            return []
        eye = torch.eye(outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
        directions = eye[: self.num_outputs, None].expand(-1, len(outputs), -1)
        if plan.one_pass is None:
            plan.one_pass = _batches(outputs, layers, directions)
        found: Sequence[Tensor | None]
        if plan.one_pass:
            found = torch.autograd.grad(
                outputs, layers, directions, is_grads_batched=True, allow_unused=True
            )
        else:
            rows = [
                torch.autograd.grad(outputs, layers, row, retain_graph=True, allow_unused=True)
                for row in directions
            ]
            found = [
                None if column[0] is None else torch.stack(column)
                for column in zip(*rows, strict=True)
            ]
        return [
            layer.new_zeros(self.num_outputs, *layer.shape) if g is None else g
            for g, layer in zip(found, layers, strict=True)
        ]


@dataclass
class _Plan:
    """How a kernel makes gradients."""

    layers: list[Layer]
    """Layers that rules are used for."""
    fallback: FrozenNetwork | None
    """The network, differentiated by the other parameters."""
    shown: Stack = ()
    """The gradients at one input."""
    activations: int = 0
    """Numbers a forward pass of one input makes on the way."""
    one_pass: bool | None = None
    """Whether one backward pass can serve all outputs."""


def _batches(outputs: Tensor, layers: list[Tensor], directions: Tensor) -> bool:
    """Whether the backward pass of every operation can be batched, and without a detour."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            torch.autograd.grad(
                outputs,
                layers,
                directions,
                is_grads_batched=True,
                allow_unused=True,
                retain_graph=True,
            )
        except (RuntimeError, Warning):
            return False
    return True


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
            return exact.symmetric(self._gradients)
        z = exact.network.prepare(self._z)
        return exact.symmetric(_Gradients(exact, z, self._batch_size, self._size))

    @cached_property
    def _gradients(self) -> _Gradients:
        return _Gradients(self._kernel, self._z, self._batch_size, self._size)

    def __getstate__(self) -> dict[str, Any]:
        """For pickles and copies: what is made from the rest is made again."""
        names = ("_kernel", "_z", "_batch_size", "_size")
        return {name: value for name, value in vars(self).items() if name in names}

    def __call__(self, x: Inputs, *, diagonal: bool = False) -> KernelValues:
        outputs, stack = self._kernel.stack(x, self._size)
        parts = [self._kernel.inner(stack, part) for part in self._gradients]
        cross = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
        return KernelValues(outputs, cross, self._kernel.norms(stack) if diagonal else None)


class _Gradients:
    """The gradients at many inputs, in parts: joined and kept if they fit, else made each time."""

    def __init__(self, kernel: TangentKernel, x: Inputs, size: int, num_others: int) -> None:
        self._kernel, self._num_others = kernel, num_others
        self._chunks = [take(x, slice(at, at + size)) for at in range(0, length(x), size)]
        self._kept: list[Stack] | None = None
        if kernel.bytes_at_inducing(length(x)):
            parts = list(self._made())
            self._kept = [tuple(joined(column) for column in zip(*parts, strict=True))]

    def _made(self) -> Iterator[Stack]:
        return (self._kernel.stack(chunk, self._num_others)[1] for chunk in self._chunks)

    def __iter__(self) -> Iterator[Stack]:
        return self._made() if self._kept is None else iter(self._kept)


def _with_bias(layer: Layer, a: Tensor) -> Tensor:
    """The last layer's input, with a one for its bias."""
    parts = {"weight": a, "bias": torch.ones_like(a[:, :1])}
    return torch.cat([parts[name] for name in layer.names], dim=1)
