"""The last layer of a network, found by the graph of a forward pass.

It is the innermost module through whose output every path from f to a parameter goes. Several
modules count together where each makes outputs of its own: heads side by side, or one of which an
input takes. A single number that f is multiplied with, a temperature say, may lie outside; its
value stays fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn.utils import parametrize

from sfr_cl.errors import ArgumentError

Run = Callable[[], Tensor]
"""A forward pass of the network, the graph recorded, ``[B, C]``."""

Change = Callable[[Tensor], Tensor]


def last_layer(network: nn.Module, run: Run) -> list[str]:
    """Names of the parameters of the last layer, of its parametrizations included.

    Args:
        network: the module.
        run: runs it on some inputs.

    Raises:
        ArgumentError: no layer is clearly the last.
    """
    with _differentiable(network):
        layers, outside = _nearest(network, run)
        if any(p.numel() > 1 for p in outside):
            named = [n for n, p in network.named_parameters() if any(p is o for o in outside)]
            raise _unclear(f"outputs that also depend on {', '.join(named[:4])} by other ways")
        if outside and not _scales(run, layers):
            raise _unclear("outputs that are more than a layer's, times a number")
        if not _separate(run, layers):
            raise _unclear("outputs that mix those of several layers")
    for layer in layers:
        matrices = sum(p.ndim > 1 for p in layer.parameters())
        if not matrices:
            raise _unclear(f"a {type(layer).__name__} at the end, which has no weight matrix")
        if layer is network and matrices > 1:
            raise _unclear(f"a {type(layer).__name__} without modules in it")
    ids = {id(p) for layer in layers for p in layer.parameters()}
    return [name for name, p in network.named_parameters() if id(p) in ids]


def _unclear(got: str) -> ArgumentError:
    return ArgumentError(
        f"expected a network one of whose layers makes the outputs, for parameters='last_layer', "
        f"got {got}: give the names of the parameters instead"
    )


def _nearest(network: nn.Module, run: Run) -> tuple[list[nn.Module], list[Tensor]]:
    """The layers met first on the way back from f, and the parameters met before any layer."""
    made: dict[Any, nn.Module] = {}

    def record(module: nn.Module, _: Any, output: Any) -> None:
        for value in _tensors(output):
            if value.grad_fn is not None:
                made.setdefault(value.grad_fn, module)  # a later one let it through

    handles = [layer.register_forward_hook(record) for layer in _layers(network)]
    try:
        outputs = run()
    finally:
        for handle in handles:
            handle.remove()
    layers: list[nn.Module] = []
    outside: list[Tensor] = []
    seen, pending = set(), [outputs.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node in made:
            layers.append(made[node])
        elif isinstance(node, BackwardCFunction):
            raise _unclear("an autograd.Function after the last layer, whose inside is not shown")
        elif hasattr(node, "variable"):
            outside.append(node.variable)
        else:
            pending.extend(following for following, _ in node.next_functions)
    if not layers and any(isinstance(part, torch.jit.ScriptModule) for part in network.modules()):
        raise _unclear("a scripted one, which does not show its layers")
    if not layers:
        raise _unclear("outputs that no module with parameters makes")
    return list(dict.fromkeys(layers)), outside


def _tensors(output: Any) -> Iterator[Tensor]:
    """All that a module returned."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, list | tuple | Mapping):
        for part in output.values() if isinstance(output, Mapping) else output:
            yield from _tensors(part)


def _layers(network: nn.Module) -> Iterator[nn.Module]:
    """Modules all of whose parameters are their own, or those of their parametrizations.

    A temperature in a module of its own is no layer, and scripted ones take no hooks.
    """
    for module in network.modules():
        if isinstance(module, parametrize.ParametrizationList | torch.jit.ScriptModule):
            continue
        inner = {name for name, _ in module.named_children() if name != "parametrizations"}
        own = [
            name
            for name, p in module.named_parameters()
            if name.split(".")[0] not in inner and p.numel() > 1
        ]
        children = [child for name, child in module.named_children() if name in inner]
        if own and not any(True for child in children for _ in child.parameters()):
            yield module


def _scales(run: Run, layers: Sequence[nn.Module]) -> bool:
    """Whether twice the layers' outputs give twice f, but for outputs that are constant."""
    with _changed(layers, lambda output: 2 * output):
        doubled = run()
    f = run()
    return bool((torch.isclose(doubled, 2 * f, rtol=1e-4, atol=0) | (doubled == f)).all())


def _separate(run: Run, layers: Sequence[nn.Module]) -> bool:
    """Whether no output of any input depends on two layers."""
    if len(layers) == 1:
        return True
    before, moved = run(), []
    for layer in layers:
        with _changed([layer], lambda output: 2 * output + 1):
            moved.append(run() != before)
    return not any(bool((one & other).any()) for one, other in combinations(moved, 2))


@contextmanager
def _changed(layers: Sequence[nn.Module], change: Change) -> Iterator[None]:
    """Let modules give other outputs."""
    handles = [layer.register_forward_hook(lambda *call: change(call[-1])) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _differentiable(network: nn.Module) -> Iterator[None]:
    """Let every parameter be part of the graph."""
    flags = [(p, p.requires_grad) for p in network.parameters()]
    try:
        for p, _ in flags:
            if p.is_floating_point() or p.is_complex():
                p.requires_grad_(True)
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for p, flag in flags:
            p.requires_grad_(flag)
