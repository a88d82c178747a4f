"""Copies of a network: frozen, in another precision, without what it keeps of its passes."""

from __future__ import annotations

import copy
from types import CellType, FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn

from sfr_cl.kernel.passes import LOCK


def frozen(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy in eval mode, without gradients, and without hooks that change derivatives."""
    with torch.no_grad():
        module = cast_module(copied(network), dtype).eval()
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    for part in module.modules():
        part._backward_hooks.clear()
        part._backward_pre_hooks.clear()
    return module


def cast_module(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """All numbers in one precision, complex ones too, in place."""
    return module._apply(
        lambda t: t.to(cast_dtype(t, dtype)) if t.is_floating_point() or t.is_complex() else t
    )


def dtype_of(network: nn.Module) -> torch.dtype:
    """The precision of a network's parameters, as one for real values."""
    numbers = [p.dtype for p in network.parameters() if p.is_floating_point() or p.is_complex()]
    return numbers[0].to_real()


def cast_dtype(values: Tensor, dtype: torch.dtype) -> torch.dtype:
    """A precision for real values as one for these, which may be complex."""
    return dtype.to_complex() if values.is_complex() else dtype


def copied(module: nn.Module) -> nn.Module:
    """A copy, without the history of activations that some networks keep on themselves."""
    kept = [value for part in module.modules() for value in vars(part).values()]
    known = {
        id(value): value.detach().clone()
        for value in kept
        if isinstance(value, Tensor) and value.grad_fn is not None
    }
    with LOCK:  # a pass leaves hooks and flags on it until it ends
        copied = copy.deepcopy(module, memo=known)
    for part in copied.modules():
        for hooks in (part._forward_hooks, part._forward_pre_hooks):
            hooks.update({key: _rebound(hook, known) for key, hook in hooks.items()})
        if type(part).__name__ == "OptimizedModule":  # run as it was before torch.compile
            part.forward = cast(nn.Module, part._orig_mod).__call__
    return copied


def _rebound(hook: Any, copies: dict[int, Any]) -> Any:
    """A hook with the copies of what its closure holds: copying a function copies none of it."""
    if not isinstance(hook, FunctionType) or not hook.__closure__:
        return hook
    closure = tuple(_rebound_cell(cell, copies) for cell in hook.__closure__)
    made = FunctionType(hook.__code__, hook.__globals__, hook.__name__, hook.__defaults__, closure)
    made.__kwdefaults__ = hook.__kwdefaults__
    return made


def _rebound_cell(cell: CellType, copies: dict[int, Any]) -> CellType:
    try:
        return CellType(copies[id(cell.cell_contents)])
    except (KeyError, ValueError):  # nothing of the network's, or nothing at all
        return cell
