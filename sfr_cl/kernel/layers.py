"""Which layers a rule covers exactly, found by watching the network run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sfr_cl.data.inputs import Inputs, concat, length, take, tree_map
from sfr_cl.errors import ArgumentError
from sfr_cl.kernel.factors import Outer
from sfr_cl.kernel.network import Call, FrozenNetwork, plain_attention, run
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


def activations(network: FrozenNetwork, row: Inputs) -> int:
    """Numbers a forward pass makes on the way for one input, patches of convolutions included."""
    total = 0

    def count(module: nn.Module, _: Any, output: Any) -> None:
        nonlocal total
        if isinstance(output, Tensor) and not list(module.children()):
            total += output.numel()
            if isinstance(module, nn.Conv1d | nn.Conv2d):
                positions = output[0, 0].numel()
                total += positions * module.weight[0].numel()

    handles = [module.register_forward_hook(count) for module in network.module.modules()]
    try:
        network(row)
    finally:
        for handle in handles:
            handle.remove()
    return total


def covered_layers(network: FrozenNetwork, probe: Inputs) -> list[Layer]:
    """Layers called once, with parameters used nowhere else, that a rule knows.

    The network is watched on two batches of different size and order, which tells the batch
    dimension from any other and a layer that sees its rows in another order from one that does
    not; and what a rule makes of a layer is compared with the gradient autograd finds.
    """
    rows = _distinct(probe)
    parameters = list(network.parameters.values())
    with torch.inference_mode(False):
        for parameter in parameters:
            parameter.requires_grad_(True)
        try:
            forward = _watched(network, take(rows, slice(0, 2)))
            backward = _watched(network, take(rows, torch.tensor([2, 1, 0])))
        finally:
            for parameter in parameters:
                parameter.requires_grad_(False)
    return [layer for layer in forward if layer in backward]


def _distinct(probe: Inputs) -> Inputs:
    """Three rows, different ones if they hold real numbers."""
    row = take(probe, slice(0, 1))
    generator = torch.Generator().manual_seed(0)

    def vary(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        noise = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
        return leaf + (leaf.abs().mean() + 0.1) * noise.to(leaf)

    return concat([row, tree_map(vary, row), tree_map(vary, row)])


def _watched(network: FrozenNetwork, x: Inputs) -> list[Layer]:
    """The layers that run plainly on one batch."""
    batch = length(x)
    calls: dict[nn.Module, Call] = {}
    times: Counter[nn.Module] = Counter()

    def watch(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        times[module] += 1
        if len(inputs) == 1 and isinstance(inputs[0], Tensor) and isinstance(output, Tensor):
            calls[module] = Call(inputs[0], output, output.clone(), inputs[0]._version)
            return calls[module].passed
        return output

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
    _require_independent(network, x, outputs)
    uses = _uses(outputs)
    chosen = {id(p) for p in network.parameters.values()}
    candidates = []
    for module, call in calls.items():
        names = tuple(
            name
            for name, p in module.named_parameters(recurse=False)
            if id(p) in chosen and uses[id(p)] == 1
        )
        if names and times[module] == 1 and call.is_plain(batch):
            last = call.passed is outputs and call.passed._version == 0
            candidates.append((Layer(module, names, last and type(module) is nn.Linear), call))
    for row in (0, batch - 1):
        candidates = _verified(candidates, outputs, row)
    return [layer for layer, _ in candidates]


def _require_independent(network: FrozenNetwork, x: Inputs, outputs: Tensor) -> None:
    """Refuse a network whose answer to one input depends on the others."""
    alone = network(take(x, slice(0, 1)))
    scale = float(outputs.detach().abs().max())
    if not torch.allclose(alone[0], outputs[0].detach(), rtol=1e-3, atol=1e-3 * scale):
        raise ArgumentError(
            "expected a network that treats every input by itself, got outputs that depend on the "
            "rest of the batch: normalise with running statistics, not those of the batch"
        )


def _verified(
    candidates: list[tuple[Layer, Call]], outputs: Tensor, row: int
) -> list[tuple[Layer, Call]]:
    """Those whose rule, fed with one row's output gradients, makes autograd's own gradient."""
    places = [call.output for _, call in candidates]
    parameters = [p for layer, _ in candidates for p in layer.parameters]
    if not candidates:
        return []
    weights = torch.linspace(1, 2, outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
    with torch.enable_grad():
        gradients = torch.autograd.grad(
            (outputs[row] * weights).sum(),
            [*places, *parameters],
            retain_graph=True,
            allow_unused=True,
        )
    found, expected = gradients[: len(places)], iter(gradients[len(places) :])
    verified = []
    for (layer, call), g in zip(candidates, found, strict=True):
        own = [next(expected) for _ in layer.names]
        if g is not None and all(part is not None for part in own):
            norm = sum(float(part.double().square().sum()) for part in own)
            if _makes(layer, call, g, row, norm):
                verified.append((layer, call))
    return verified


def _makes(layer: Layer, call: Call, g: Tensor, row: int, norm: float) -> bool:
    """Whether a rule's gradient has the squared norm of autograd's, and is that row's alone."""
    if g[:row].any() or g[row + 1 :].any():  # the layer sees its rows in another order
        return False
    with torch.no_grad():
        made = RULES[type(layer.module)](layer.module, layer.names, call.input, g[None])
        if made is None:
            return False
        parts = [
            part
            for factor in made
            for part in (factor.materialised() if isinstance(factor, Outer) else [factor])
        ]
        found = sum(float(part.rows.sum(1).double().square().sum()) for part in parts)
    return abs(found - norm) <= 1e-3 * norm


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
