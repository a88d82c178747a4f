"""f(x; w*) and its derivatives: passes through a frozen module that leave it as it was."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sfr_cl.data.inputs import Inputs, length, prepare, take, tree_map
from sfr_cl.errors import DataError
from sfr_cl.kernel.copies import cast_dtype, cast_module, copied
from sfr_cl.kernel.passes import alone, as_matrix, asking, no_lost_gradients, run, untouched

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
"""How far two ways to compute the same may be apart, relative to its size."""


@dataclass
class Call:
    """What one module saw in one forward pass."""

    input: Tensor
    output: Tensor
    passed: Tensor
    """The copy that flowed on: an operation in place on it leaves the recorded output alone."""
    version: int
    """Of the input: an operation in place after the call would change what the layer saw."""

    def is_plain(self, batch: int) -> bool:
        """Real, batch first on both sides, its input still what it was."""
        leading = self.input.ndim > 0 and len(self.input) == batch == len(self.output)
        real = self.output.is_floating_point() and not self.input.is_complex()
        return leading and real and self.input._version == self.version


class Frozen:
    """A module at the weights w*, and names of the parameters it is differentiated by.

    Args:
        module: in eval mode, without gradients; passes leave it as it is.
        names: as in ``module.named_parameters()``; ``None`` if they are yet to be chosen.
        dtype: precision of the module.
    """

    _changing: Sequence[str] = ()
    """Parameters and buffers that a forward pass changes."""
    _asks_default = True
    """Whether torch's default precision matters to what is made on the way."""

    def __init__(self, module: nn.Module, names: list[str] | None, dtype: torch.dtype) -> None:
        self._names = names
        self.module = module
        self.dtype = dtype
        self.device = next(module.parameters()).device

    def choose(self, names: list[str]) -> None:
        """Differentiate by these parameters from now on."""
        self._names = names

    def watch(self, x: Inputs) -> None:
        """Learn which weights a forward pass changes: each pass gets copies of its own.

        And whether torch's default precision matters: if not, other threads keep theirs.
        """
        self._asks_default = True
        before = {name: value.clone() for name, value in self.weights().items()}
        outputs = self(x)
        after = self.weights()
        self._changing = [n for n, value in before.items() if not torch.equal(value, after[n])]
        with torch.no_grad():
            for name in self._changing:
                after[name].copy_(before[name])
        if self.dtype != torch.get_default_dtype():
            self._asks_default = not self._is_same_by_default(x, outputs)

    def _is_same_by_default(self, x: Inputs, outputs: Tensor) -> bool:
        """Whether outputs are the same to the bit in torch's default precision as it is."""
        as_it_is = copy.copy(self)
        as_it_is._asks_default = False
        try:
            found = as_it_is(x)
        except DataError:
            return False
        return found.dtype == outputs.dtype and torch.equal(found, outputs)

    @property
    def names(self) -> list[str]:
        """Names of the differentiated parameters."""
        return cast("list[str]", self._names)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The differentiated parameters by name."""
        known = dict(self.module.named_parameters())
        return {name: known[name] for name in self.names}

    def weights(self) -> dict[str, Tensor]:
        """Every parameter and buffer by name."""
        return {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}

    def prepare(self, x: Inputs, what: str = "inputs") -> Inputs:
        """Inputs, checked, on the copy's device and in its dtype."""
        return prepare(x, self.device, self.dtype, what)

    @torch.no_grad()
    def __call__(self, x: Inputs) -> Tensor:
        """f(x; w*), ``[B, C]``."""
        with self.passing():
            return self.run(x).detach()

    def run(self, x: Inputs) -> Tensor:
        """f(x; w*), ``[B, C]``, checked, with whatever of its graph is recorded."""
        return run(self._forward, x)

    def _forward(self, x: Inputs, values: dict[str, Tensor] | None = None) -> Tensor:
        """A forward pass that leaves the module as it was.

        Args:
            x: inputs.
            values: parameters and buffers by name, instead of the module's.
        """
        with untouched(self.module):
            if not values and not self._changing:
                return cast(Tensor, self.module(x))
            every = self._everywhere(values or {})
            return cast(Tensor, functional_call(self.module, every, (x,), tie_weights=False))

    def _everywhere(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Values by every name that tied tensors have, but one for each module.

        With copies of the other weights that a forward pass changes.
        """
        weights = self.weights()
        values = {name: weights[name].clone() for name in self._changing} | values
        by_id = {id(weights[name]): value for name, value in values.items()}
        every = dict(values)
        for prefix, part in self.module.named_modules():
            own = [*part.named_parameters(prefix, recurse=False, remove_duplicate=False)]
            own += part.named_buffers(prefix, recurse=False, remove_duplicate=False)
            every |= {name: by_id[id(value)] for name, value in own if id(value) in by_id}
        return every

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Forward and backward passes, :func:`alone`.

        Tensors made on the way, and again in a checkpoint, have the precision of the weights.
        """
        with alone():
            before = torch.get_default_dtype()
            if self._asks_default:
                torch.set_default_dtype(self.dtype)
            try:
                yield
            finally:
                torch.set_default_dtype(before)

    @contextmanager
    def differentiable(
        self, parameters: Sequence[Tensor] | None = None
    ) -> Iterator[Sequence[Tensor]]:
        """The differentiated parameters, or some, part of the graph of what is run inside."""
        if parameters is None:
            parameters = list(self.parameters.values())
        with torch.inference_mode(False), torch.enable_grad(), self.passing():
            try:
                for parameter in parameters:
                    parameter.requires_grad_(True)
                yield parameters
            finally:
                for parameter in parameters:
                    parameter.requires_grad_(False)
                    parameter.grad = None

    def recorded(
        self, modules: Sequence[nn.Module], x: Inputs
    ) -> tuple[Tensor, dict[nn.Module, Call]]:
        """f(x; w*), and these modules' inputs and outputs, the outputs as places to differentiate.

        Only those that run once, on all rows.
        """
        calls: dict[nn.Module, Call] = {}
        times: Counter[nn.Module] = Counter()

        def record(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            times[module] += 1
            if not inputs:
                return output
            if not output.requires_grad:
                output.requires_grad_(True)
            calls[module] = Call(inputs[0], output, output.clone(), inputs[0]._version)
            return calls[module].passed

        handles = [module.register_forward_hook(record) for module in modules]
        try:
            with self.passing(), torch.enable_grad():
                outputs = self.run(x)
        finally:
            for handle in handles:
                handle.remove()
        return outputs, {
            module: call
            for module, call in calls.items()
            if times[module] == 1 and call.is_plain(len(outputs))
        }

    def single(self, parameters: dict[str, Tensor], x: Inputs) -> Tensor:
        """f(x; parameters) of one input without a batch dimension, ``[C]``, for ``torch.func``."""
        batch = tree_map(lambda leaf: leaf[None], x)
        return as_matrix(self._forward(batch, parameters))[0]

    def tangent(self, x: Inputs, direction: dict[str, Tensor] | None = None) -> Tensor:
        """J(x) v, ``[B, C]``, for a direction v by parameter; by default w* itself.

        Reverse mode twice (J' u is linear in u, and its transpose is J), since more operations
        have a reverse derivative than a forward one; row by row where they don't have it twice.
        """
        vectors = [(direction or self.parameters)[name].detach() for name in self.names]
        try:
            return self._pushed(x, vectors)
        except RuntimeError:
            flat = torch.cat([as_real(vector).flatten() for vector in vectors])
            return (self.rows(x)[0] @ flat).T

    def _pushed(self, x: Inputs, vectors: list[Tensor]) -> Tensor:
        """J(x) v, refused unless u' (J v) = (J' u)' v."""
        with self.differentiable() as parameters:
            outputs = self.run(x)
            weights = mixture(outputs).requires_grad_(True)
            pulled = torch.autograd.grad(
                outputs, parameters, weights, create_graph=True, allow_unused=True
            )
            (pushed,) = torch.autograd.grad(_inner(pulled, vectors), weights)
        expected = _inner(list(self.gradient(x, weights.detach()).values()), vectors)
        parts = pushed * weights.detach()
        if (parts.sum() - expected).abs() > TOLERANCE[self.dtype] * parts.norm():
            raise RuntimeError("expected a derivative that is linear, got another")
        return pushed.detach()

    def gradient(self, x: Inputs, weights: Tensor) -> dict[str, Tensor]:
        """J(x)' u by parameter, for one weight u for each input and output, ``[B, C]``."""
        with self.differentiable() as parameters, no_lost_gradients():
            outputs = asking(self.run, x)
            total = (outputs * weights.to(outputs)).sum()
            return dict(zip(self.names, _backward(total, parameters), strict=True))

    def rows(self, x: Inputs, num_outputs: int | None = None) -> tuple[Tensor, Tensor]:
        """J(x) of the first outputs by plain autograd, output by output, ``[C, B, P]``; and f."""
        values, made = [], []
        for row in range(length(x)):
            with self.differentiable() as parameters, no_lost_gradients():
                (outputs,) = asking(self.run, take(x, slice(row, row + 1)))
                found = [flattened(_backward(f, parameters)) for f in outputs[:num_outputs]]
            values.append(outputs.detach())
            made.append(torch.stack(found))
        return torch.stack(made, dim=1), torch.stack(values)

    def computed_in(self, dtype: torch.dtype, x: Inputs) -> Tensor:
        """f(x; w*) in another precision, ``[B, C]``."""
        other = copy.copy(self)
        other.dtype = dtype
        every = self.weights()
        numbers = {n: t for n, t in every.items() if t.is_floating_point() or t.is_complex()}
        values = {n: t.to(cast_dtype(t, dtype)) for n, t in numbers.items()}
        x = other.prepare(x)
        try:
            with torch.no_grad(), other.passing():
                return run(lambda x: other._forward(x, values), x)
        except DataError:  # compiled by torch.jit, it takes no other weights
            return self.cast_to(dtype)(x)

    def restricted(self, names: Sequence[str]) -> Self:
        """The same, differentiated by fewer parameters."""
        part = copy.copy(self)
        part._names = list(names)
        return part

    def through(self, module: nn.Module) -> Self:
        """The same weights, read through another module that holds them under the same names."""
        other = copy.copy(self)
        other.module = module.eval()
        return other

    def cast_to(self, dtype: torch.dtype) -> Self:
        """A copy in another precision."""
        other = copy.copy(self)
        other.module, other.dtype = cast_module(copied(self.module), dtype), dtype
        return other

    def double(self) -> Self:
        """The same in float64."""
        return self if self.dtype == torch.float64 else self.cast_to(torch.float64)

    def to(self, device: torch.device) -> Self:
        """The same on another device."""
        moved = copy.copy(self)
        moved.module = copied(self.module).to(device)
        moved.device = device
        return moved


def as_real(values: Tensor) -> Tensor:
    """Complex numbers as pairs of real ones, which is what a kernel's inner products are of."""
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


def flattened(gradients: Sequence[Tensor]) -> Tensor:
    """Gradients by parameter as one vector, ``[P]``."""
    return torch.cat([as_real(part).flatten() for part in gradients])


@lru_cache(maxsize=64)
def _pattern(batch: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(batch)
    rows = 1 + torch.rand(batch, generator=generator, dtype=torch.float64)
    signs = torch.randint(2, (batch,), generator=generator) * 2 - 1
    return (rows * signs)[:, None] * torch.linspace(1, 2, count, dtype=torch.float64)


def mixture(outputs: Tensor, num_outputs: int | None = None) -> Tensor:
    """Weights of no pattern for every output of every row, ``[B, C]``, zero beyond the first C."""
    with torch.inference_mode(False):
        weights = _pattern(*outputs.shape).to(outputs, copy=True)
    weights[:, num_outputs:] = 0
    return weights


def _backward(value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The derivative of a number, by ``backward``: a reentrant checkpoint knows no other way."""
    if value.requires_grad:
        value.backward(retain_graph=True)
    found = [
        torch.zeros_like(p) if p.grad is None else p.grad.detach().to_dense() for p in parameters
    ]
    for parameter in parameters:
        parameter.grad = None
    return found


def _inner(gradients: Sequence[Tensor | None], vectors: Sequence[Tensor]) -> Tensor:
    """The inner product of gradients, of which some may be none, and vectors."""
    pairs = zip(gradients, vectors, strict=True)
    parts = [(as_real(g) * as_real(v)).sum() for g, v in pairs if g is not None]
    return torch.stack(parts).sum()
