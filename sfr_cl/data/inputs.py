"""Inputs: what a network takes.

An input is whatever the network takes as its one argument: a tensor, or a dict, tuple or list of
tensors, all with the batch as the leading dimension. It is called a tree here, its tensors leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfr_cl.errors import DataError, DataTypeError

Inputs = Any
"""A tensor, or a dict, tuple or list of inputs."""


def tree_map(function: Callable[[Tensor], Tensor], x: Inputs) -> Inputs:
    """Apply ``function`` to every leaf; arrays become tensors, mappings plain dicts."""
    if isinstance(x, Tensor | np.ndarray):
        return function(as_tensor(x))
    if isinstance(x, Mapping):
        return {key: tree_map(function, value) for key, value in x.items()}
    if type(x) in (list, tuple):
        return type(x)(tree_map(function, value) for value in x)
    raise DataTypeError(
        f"expected inputs that are a tensor, or a dict, tuple or list of tensors; got "
        f"{type(x).__name__}: convert it with torch.as_tensor"
    )


def as_tensor(x: Tensor | np.ndarray | list[Any]) -> Tensor:
    """An array as a tensor; read-only and reversed arrays are copied."""
    if isinstance(x, Tensor):
        return x
    try:
        array = np.asarray(x)
        usable = array.flags.writeable and array.flags.c_contiguous
        return torch.from_numpy(array if usable else array.copy())
    except (TypeError, ValueError) as error:
        raise DataTypeError(
            f"expected inputs and targets that are numbers, got {np.asarray(x, object).dtype} "
            f"values of another kind: {error}"
        ) from error


def leaves(x: Inputs, name: str = "") -> list[tuple[str, Tensor]]:
    """Leaves with their dotted names; a lone tensor has the empty name."""
    if isinstance(x, Tensor):
        return [(name, x)]
    items = x.items() if isinstance(x, dict) else enumerate(x)
    prefix = f"{name}." if name else ""
    return [leaf for key, value in items for leaf in leaves(value, f"{prefix}{key}")]


def length(x: Inputs) -> int:
    """Size of the batch."""
    return len(leaves(x)[0][1])


def take(x: Inputs, index: slice | Tensor) -> Inputs:
    """Rows of every leaf."""
    return tree_map(
        lambda leaf: leaf[index.to(leaf.device) if isinstance(index, Tensor) else index], x
    )


def concat(parts: Sequence[Inputs]) -> Inputs:
    """Join batches along their leading dimension."""
    try:
        return _concat(parts)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        shapes = [[list(leaf.shape) for _, leaf in leaves(part)] for part in parts]
        raise DataError(
            f"expected inputs of one form, got shapes {' and '.join(map(str, shapes))}"
        ) from error


def _concat(parts: Sequence[Inputs]) -> Inputs:
    first = parts[0]
    if isinstance(first, dict):
        return {key: _concat([part[key] for part in parts]) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(_concat(column) for column in zip(*parts, strict=True))
    return torch.cat(list(parts))


def same(x: Inputs, y: Inputs) -> bool:
    """Whether two trees hold the same names and the same values, bit for bit."""
    left, right = leaves(x), leaves(y)
    return [name for name, _ in left] == [name for name, _ in right] and all(
        torch.equal(a.cpu(), b.cpu()) for (_, a), (_, b) in zip(left, right, strict=True)
    )


def matching(x: Inputs, others: Inputs) -> Tensor:
    """Which rows of ``x`` equal a row of ``others``, of the same form: in every leaf, ``[B]``."""
    found, wanted = _keys(x, others)
    device = leaves(x)[0][1].device
    return torch.tensor([row in wanted for row in found], dtype=torch.bool, device=device)


def _keys(x: Inputs, others: Inputs) -> tuple[list[bytes], set[bytes]]:
    """Rows as bytes that are equal where the rows are."""
    left, right = leaves(x), leaves(others)
    if any(a.shape[1:] != b.shape[1:] for (_, a), (_, b) in zip(left, right, strict=True)):
        return [b""] * length(x), set()
    kinds = [
        torch.promote_types(a.dtype, b.dtype) for (_, a), (_, b) in zip(left, right, strict=True)
    ]

    def rows(named: list[tuple[str, Tensor]]) -> list[bytes]:
        columns = []
        for (_, leaf), kind in zip(named, kinds, strict=True):
            flat = leaf.detach().resolve_conj().resolve_neg().cpu().to(kind)
            array = flat.reshape(len(leaf), -1).numpy()
            array = array + array.dtype.type(0)  # -0 is 0
            columns.append([row.tobytes() for row in array])
        return [b"".join(parts) for parts in zip(*columns, strict=True)]

    return rows(left), set(rows(right))


def prepare(
    x: Inputs,
    device: torch.device,
    dtype: torch.dtype,
    what: str = "inputs",
    *,
    like: Inputs | None = None,
) -> Inputs:
    """Check a batch of inputs and move it: floating leaves to ``dtype``, all to ``device``.

    ``like`` are inputs whose form they must have: the same leaves, and dimensions.
    """

    def move(leaf: Tensor) -> Tensor:
        leaf = leaf.detach()
        if leaf.is_inference():
            leaf = leaf.clone()
        if leaf.is_complex():
            return leaf.to(device, dtype.to_complex())
        return leaf.to(device, dtype) if leaf.is_floating_point() else leaf.to(device)

    with torch.inference_mode(False):
        x = tree_map(move, x)
    named = leaves(x)
    if not named:
        raise DataError("expected inputs with at least one tensor; got an empty tree")
    for name, leaf in named:
        where = f"{what}[{name}]" if name else what
        if leaf.ndim == 0:
            raise DataError(
                f"expected {where} with a batch dimension, got a scalar: add one with x[None]"
            )
        if not torch.isfinite(leaf).all():
            row = int((~torch.isfinite(leaf.reshape(len(leaf), -1)).all(1)).nonzero()[0])
            raise DataError(
                f"expected finite {where}, got NaN or infinity in row {row} of the batch: "
                f"drop or impute such rows"
            )
    sizes = {len(leaf) for _, leaf in named}
    if len(sizes) > 1:
        raise DataError(f"expected leaves with one batch size, got sizes {sorted(sizes)}")
    if sizes == {0}:
        raise DataError(f"expected {what}, got none")
    if like is not None:
        _require_form(named, leaves(like))
    return x


def _require_form(found: list[tuple[str, Tensor]], expected: list[tuple[str, Tensor]]) -> None:
    if [name for name, _ in found] != [name for name, _ in expected]:
        raise DataError(
            f"expected inputs of the form of the inducing inputs, got leaves "
            f"{[name for name, _ in found]} instead of {[name for name, _ in expected]}"
        )
    for (_, leaf), (_, known) in zip(found, expected, strict=True):
        if leaf.ndim != known.ndim:
            raise DataError(
                f"expected inputs with {known.ndim} dimensions, the batch first, got shape "
                f"{list(leaf.shape)}"
            )


def as_like(x: Inputs, like: Inputs) -> Inputs:
    """Inputs of one form with others, in their dtype, if they have their shape too."""
    dtypes = []
    for (_, leaf), (_, known) in zip(leaves(x), leaves(like), strict=True):
        dtypes.append(known.dtype)
        if leaf.shape[1:] != known.shape[1:]:
            raise DataError(
                f"expected inputs of shape {list(known.shape[1:])} like those before, got "
                f"{list(leaf.shape[1:])}"
            )
    remaining = iter(dtypes)
    return tree_map(lambda leaf: leaf.to(next(remaining)), x)
