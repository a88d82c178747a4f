"""Which layers a rule covers exactly, found by watching the network run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sfr_cl.errors import ArgumentError
from sfr_cl.inputs import Inputs, concat
from sfr_cl.kernel.rules import RULES
from sfr_cl.network import FrozenNetwork, plain_attention, run


@dataclass(frozen=True)
class Layer:
    """A module with a rule, and which of its parameters are differentiated."""

    module: nn.Module
    names: tuple[str, ...]
    is_last: bool
    """Its output is the network's."""

    @property
    def parameters(self) -> list[Tensor]:
        """The differentiated parameters themselves."""
        return [getattr(self.module, name) for name in self.names]


@dataclass
class Call:
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
def recorded(layers: Sequence[Layer]) -> Iterator[dict[nn.Module, Call]]:
    """Record these layers' inputs and outputs, the outputs as places to differentiate at.

    What flows on is a copy, so that an activation in place leaves the recorded output alone.
    """
    calls: dict[nn.Module, Call] = {}

    def record(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        if not output.requires_grad:
            output.requires_grad_(True)
        calls[module] = Call(inputs[0], output, inputs[0]._version)
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


def covered_layers(network: FrozenNetwork, row: Inputs) -> list[Layer]:
    """Layers called once, with parameters used nowhere else, that a rule knows.

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
    calls: dict[nn.Module, Call] = {}

    def watch(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if module in calls:
            calls[module].times += 1
        elif len(inputs) == 1 and isinstance(inputs[0], Tensor) and isinstance(output, Tensor):
            calls[module] = Call(inputs[0], output, inputs[0]._version)

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
