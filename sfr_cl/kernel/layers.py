"""Which layers a rule covers exactly, found by watching the network run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sfr_cl.data.inputs import Inputs
from sfr_cl.kernel.frozen import Call, Frozen
from sfr_cl.kernel.passes import graph_leaves, no_lost_gradients
from sfr_cl.kernel.rules import RULES


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


def activations(network: Frozen, row: Inputs) -> int:
    """Numbers a forward pass makes on the way for one input, patches of convolutions included."""
    total = 0

    def count(module: nn.Module, _: Any, output: Any) -> None:
        nonlocal total
        if isinstance(output, Tensor) and not list(module.children()):
            total += output.numel()
            if isinstance(module, nn.Conv1d | nn.Conv2d):
                positions = output[0, 0].numel()
                total += positions * module.weight[0].numel()

    modules = [m for m in network.module.modules() if not isinstance(m, torch.jit.ScriptModule)]
    handles = [module.register_forward_hook(count) for module in modules]
    try:
        network(row)
    finally:
        for handle in handles:
            handle.remove()
    return total


def covered_layers(network: Frozen, x: Inputs) -> list[Layer]:
    """Layers that a rule knows, called once on all rows, with parameters used nowhere else."""
    modules = [
        module
        for module in network.module.modules()
        if type(module) in RULES and "forward" not in vars(module) and not _has_hooks(module)
    ]
    with network.differentiable() as parameters, no_lost_gradients():
        outputs, calls = network.recorded(modules, x)
    uses = Counter(id(leaf) for leaf in graph_leaves(outputs))
    chosen = {id(p) for p in parameters}
    layers = []
    for module, call in calls.items():
        names = tuple(
            name
            for name, p in module.named_parameters(recurse=False)
            if id(p) in chosen and uses[id(p)] == 1 and p.is_floating_point()
        )
        if names:
            layers.append(
                Layer(module, names, is_last(call, outputs) and isinstance(module, nn.Linear))
            )
    return layers


def is_last(call: Call, outputs: Tensor) -> bool:
    """Whether a module's output is the network's."""
    return call.passed is outputs and call.passed._version == 0


def _has_hooks(module: nn.Module) -> bool:
    """A hook may change what goes in or comes out."""
    return bool(module._forward_hooks or module._forward_pre_hooks)
