"""The kernel without Jacobians: layer inputs and output gradients, contracted layer by layer.

For a linear layer with inputs a and output gradients g_c,

    kappa_c(x, x') = (a . a' + 1) (g_c . g'_c)

summed over layers: 2 M B (d_in + C d_out) operations instead of 2 M B C d_in d_out. Layers without
a rule in :mod:`sfr_cl.kernel.rules`, tied weights, modules called more than once, and parameters
used without their module are found by looking at the graph of a forward pass, and left to
per-sample Jacobians (:class:`~sfr_cl.kernel.jacobian.JacobianKernel`) of just those parameters. The
sum is exact either way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sfr_cl import memory
from sfr_cl.errors import ArgumentError
from sfr_cl.inputs import Inputs, concat, length, take
from sfr_cl.kernel.factors import Direct, Last, Outer, Stack
from sfr_cl.kernel.interface import InducingKernel, KernelValues
from sfr_cl.kernel.jacobian import JacobianKernel
from sfr_cl.kernel.rules import RULES
from sfr_cl.network import FrozenNetwork, plain_attention, run


@dataclass(frozen=True)
class Layer:
    """A module with a rule, and which of its parameters are differentiated."""

    module: nn.Module
    names: tuple[str, ...]
    is_last: bool


class StructuredKernel:
    """The kernel by rules where there are any, by Jacobians elsewhere.

    Args:
        network: the frozen network.
        num_outputs: outputs the kernel covers.
        shared: one kernel for all outputs, their mean, instead of one for each.
        probe: any input; its first row shows how the network runs.
    """

    def __init__(
        self, network: FrozenNetwork, num_outputs: int, shared: bool, probe: Inputs
    ) -> None:
        self.network = network
        self.num_outputs = num_outputs
        self.shared = shared
        self.num_kernels = 1 if shared else num_outputs
        row = take(probe, slice(0, 1))
        self.layers = _layers(network, row)
        covered = {id(p) for layer in self.layers for p in _parameters(layer)}
        rest = [name for name, p in network.parameters.items() if id(p) not in covered]
        self.fallback = (
            JacobianKernel(network.restricted(rest), num_outputs, shared) if rest else None
        )
        self._probe = self._stack(row)[1]

    def bytes_per_input(self, num_inducing: int) -> int:
        numbers = 4 * self.num_kernels * num_inducing
        for factor in self._probe:
            if isinstance(factor, Outer):
                numbers += 2 * (factor.a.numel() + factor.g.numel())
                if factor.pairs_pay(num_inducing):
                    positions = factor.g.shape[2]
                    numbers += 2 * self.num_kernels * num_inducing * (positions**2 - 1)
                else:
                    numbers += factor.g.shape[0] * factor.width * factor.g.shape[3]
            elif isinstance(factor, Direct):
                numbers += 2 * factor.rows.numel()
        return numbers * self.network.dtype.itemsize

    def gram(self, x: Inputs) -> Tensor:
        memory.require(
            length(x) * self.bytes_per_input(length(x)),
            f"the kernel of {length(x)} inputs",
            "lower inducing or the candidates of greedy, or predict fewer inputs at once",
            self.network.device,
        )
        stack = self.stack(x, length(x))[1]
        return self.inner(stack, stack)

    def inducing(self, z: Inputs, batch_size: int) -> InducingKernel:
        return _AtInducing(self, z, batch_size)

    def stack(self, x: Inputs, num_others: int) -> tuple[Tensor, Stack]:
        """f ``[B, C]``, and the gradients of its parameters, ready to meet M other inputs."""
        outputs, stack = self._stack(x)
        return outputs, tuple(
            factor.written_out()
            if isinstance(factor, Outer)
            and isinstance(shown, Outer)
            and not shown.pairs_pay(num_others)
            else factor
            for factor, shown in zip(stack, self._probe, strict=True)
        )

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

    @torch.no_grad()
    def norms(self, stack: Stack) -> Tensor:
        """kappa(x, x), ``[K, B]``."""
        norms = torch.stack([factor.norms() for factor in stack]).sum(0)
        return norms.mean(0, keepdim=True) if self.shared else norms

    def _stack(self, x: Inputs) -> tuple[Tensor, Stack]:
        factors: list[Outer | Last | Direct] = []
        with plain_attention(), torch.enable_grad(), _recorded(self.layers) as calls:
            outputs = run(self.network.module, x)
        inner = [layer for layer in self.layers if not layer.is_last]
        gradients = self._gradients(outputs, [calls[layer.module].output for layer in inner])
        with torch.no_grad():
            for layer, g in zip(inner, gradients, strict=True):
                a = calls[layer.module].input
                made = RULES[type(layer.module)](layer.module, layer.names, a, g)
                assert made is not None
                factors.extend(made)
            factors.extend(
                Last(_with_bias(layer, calls[layer.module].input), self.num_outputs)
                for layer in self.layers
                if layer.is_last
            )
            if self.fallback is not None:
                rows = self.fallback.jacobian(x)
                factors.append(Direct(rows.transpose(0, 1)))
        return outputs.detach(), tuple(factors)

    @torch.enable_grad()
    def _gradients(self, outputs: Tensor, layers: list[Tensor]) -> list[Tensor]:
        """Of every output with respect to every layer's, ``[C, B, ...]``: C backward passes."""
        found = [
            torch.empty(self.num_outputs, *layer.shape, dtype=layer.dtype, device=layer.device)
            for layer in layers
        ]
        if not layers:
            return []
        for c in range(self.num_outputs):
            rows = torch.autograd.grad(
                outputs[:, c].sum(),
                layers,
                retain_graph=c + 1 < self.num_outputs,
                allow_unused=True,
            )
            for store, row in zip(found, rows, strict=True):
                store[c] = 0 if row is None else row
        return found


class _AtInducing:
    def __init__(self, kernel: StructuredKernel, z: Inputs, batch_size: int) -> None:
        self._kernel = kernel
        exact = kernel.network.double()
        z = exact.prepare(z)
        if exact is kernel.network:
            self._stack = self._stack_of(kernel, z, batch_size)
            self.gram = kernel.inner(self._stack, self._stack)
        else:
            double = StructuredKernel(exact, kernel.num_outputs, kernel.shared, z)
            stack = self._stack_of(double, z, batch_size)
            self.gram = double.inner(stack, stack)
            self._stack = self._stack_of(kernel, kernel.network.prepare(z), batch_size)
        self._size = length(z)

    @staticmethod
    def _stack_of(kernel: StructuredKernel, z: Inputs, batch_size: int) -> Stack:
        size = length(z)
        parts = [
            kernel.stack(take(z, slice(start, start + batch_size)), size)[1]
            for start in range(0, size, batch_size)
        ]
        return tuple(_joined(column) for column in zip(*parts, strict=True))

    def __call__(self, x: Inputs, *, diagonal: bool = False) -> KernelValues:
        outputs, stack = self._kernel.stack(x, self._size)
        cross = self._kernel.inner(stack, self._stack)
        return KernelValues(outputs, cross, self._kernel.norms(stack) if diagonal else None)


@dataclass
class _Call:
    """What one module saw in one forward pass."""

    input: Tensor
    output: Tensor
    version: int
    """Of the input: an operation in place after the call would change what the layer saw."""
    times: int = 1

    def is_plain(self, batch: int) -> bool:
        """Called once, batch first on both sides, its input still what it was."""
        leading = self.input.ndim > 0 and len(self.input) == batch == len(self.output)
        return self.times == 1 and leading and self.input._version == self.version


@contextmanager
def _recorded(layers: list[Layer]) -> Iterator[dict[nn.Module, _Call]]:
    """Record these layers' inputs and outputs, the outputs as places to differentiate at.

    What flows on is a copy, so that an activation in place leaves the recorded output alone.
    """
    calls: dict[nn.Module, _Call] = {}

    def record(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        if not output.requires_grad:
            output.requires_grad_(True)
        calls[module] = _Call(inputs[0], output, inputs[0]._version)
        return output.clone()

    handles = [layer.module.register_forward_hook(record) for layer in layers]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
    for module, call in calls.items():
        if call.input._version != call.version:
            raise ArgumentError(
                f"expected a network that runs alike on all inputs, got one that sometimes changes "
                f"the input of {type(module).__name__} in place"
            )


def _layers(network: FrozenNetwork, row: Inputs) -> list[Layer]:
    """Layers a rule covers exactly, found by watching the network run.

    Two batch sizes tell the batch dimension from any other.
    """
    parameters = list(network.parameters.values())
    for parameter in parameters:
        parameter.requires_grad_(True)
    try:
        found = [_watched(network, concat([row] * batch), batch) for batch in (2, 3)]
    finally:
        for parameter in parameters:
            parameter.requires_grad_(False)
    return [layer for layer in found[0] if layer in found[1]]


def _watched(network: FrozenNetwork, x: Inputs, batch: int) -> list[Layer]:
    """The layers that run plainly on one batch."""
    calls: dict[nn.Module, _Call] = {}

    def watch(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if module in calls:
            calls[module].times += 1
        elif len(inputs) == 1 and isinstance(inputs[0], Tensor) and isinstance(output, Tensor):
            calls[module] = _Call(inputs[0], output, inputs[0]._version)

    modules = [
        module
        for module in network.module.modules()
        if type(module) in RULES and "forward" not in vars(module) and not _has_hooks(module)
    ]
    handles = [module.register_forward_hook(watch) for module in modules]
    try:
        with plain_attention(), torch.enable_grad():
            outputs = run(network.module, x)
    finally:
        for handle in handles:
            handle.remove()
    uses = _uses(outputs)
    chosen = {id(p) for p in network.parameters.values()}
    layers = []
    for module, call in calls.items():
        names = tuple(
            name
            for name, p in module.named_parameters(recurse=False)
            if id(p) in chosen and uses[id(p)] == 1
        )
        if not names or not call.is_plain(batch):
            continue
        shown = call.output.detach()[None]
        with torch.no_grad():
            if RULES[type(module)](module, names, call.input.detach(), shown) is None:
                continue
        is_last = call.output is outputs and type(module) is nn.Linear and call.output._version == 0
        layers.append(Layer(module, names, is_last))
    return layers


def _has_hooks(module: nn.Module) -> bool:
    """A hook may change what goes in or comes out."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _uses(outputs: Tensor) -> Counter[int]:
    """How often each parameter enters the graph of a forward pass, by id."""
    uses: Counter[int] = Counter()
    seen, pending = set(), [outputs.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for following, _ in node.next_functions:
            variable = getattr(following, "variable", None)
            if variable is not None:
                uses[id(variable)] += 1
            else:
                pending.append(following)
    return uses


def _parameters(layer: Layer) -> list[Tensor]:
    return [getattr(layer.module, name) for name in layer.names]


def _with_bias(layer: Layer, a: Tensor) -> Tensor:
    """The last layer's input, with a one for its bias."""
    parts = {"weight": a, "bias": torch.ones_like(a[:, :1])}
    return torch.cat([parts[name] for name in layer.names], dim=1)


def _joined(parts: tuple[Outer | Last | Direct, ...]) -> Outer | Last | Direct:
    """One factor of several batches."""
    first = parts[0]
    if isinstance(first, Direct):
        return Direct(torch.cat([part.rows for part in parts if isinstance(part, Direct)], dim=1))
    a = torch.cat([part.a for part in parts if not isinstance(part, Direct)])
    if isinstance(first, Last):
        return Last(a, first.num_outputs)
    return Outer(
        a, torch.cat([part.g for part in parts if isinstance(part, Outer)], dim=1), first.width
    )
