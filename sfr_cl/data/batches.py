"""Data as validated batches: loaders, data sets and pairs, cut into pieces of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sfr_cl.data.inputs import Inputs, as_tensor, leaves, length, take, tree_map
from sfr_cl.errors import DataError, DataTypeError

Data = Any
"""A ``DataLoader``, a ``Dataset``, one pair ``(x, y)``, or an iterable of such pairs."""


class Batches:
    """Data as re-iterable pairs ``(x, y)`` of at most ``size`` rows."""

    def __init__(self, data: Data, size: int) -> None:
        self._source = _source(data, size)
        self.size = size

    @property
    def one_shot(self) -> bool:
        """Whether the data can be walked through only once, like a generator."""
        return iter(self._source) is self._source

    def __iter__(self) -> Iterator[tuple[Inputs, Any]]:
        empty = True
        for batch in self._source:
            if not _is_pair(batch):
                raise DataTypeError(
                    f"expected batches that are pairs (x, y), got {_describe(batch)}: "
                    f"{_remedy(batch)}"
                )
            x, y = tree_map(lambda leaf: leaf, batch[0]), as_tensor(batch[1])
            if not leaves(x) or any(leaf.ndim == 0 for _, leaf in leaves(x)) or y.ndim == 0:
                raise DataError("expected inputs and targets with a batch dimension, got a scalar")
            if length(x) != len(y):
                raise DataError(
                    f"expected one target for each input, got {length(x)} inputs and {len(y)} "
                    f"targets"
                )
            for start in range(0, len(y), self.size):
                empty = False
                rows = slice(start, start + self.size)
                yield take(x, rows), y[rows]
        if empty:
            raise DataError(
                "expected data, got none: the loader or tensor is empty, or a generator that has "
                "been walked through already"
            )


def _source(data: Data, size: int) -> Iterable[Any]:
    if _is_pair(data):
        return [data]
    if isinstance(data, Dataset):
        # A generator of its own: iterating must not draw from the caller's.
        return DataLoader(data, batch_size=size, generator=torch.Generator())
    if isinstance(data, Iterable) and not isinstance(data, Tensor | np.ndarray | dict | str):
        return data
    raise DataTypeError(
        f"expected a DataLoader, a Dataset, a pair (x, y) or an iterable of pairs, "
        f"got {_describe(data)}"
    )


def _is_pair(batch: Any) -> bool:
    """A pair ends in an array of targets; a list of two batches ends in a batch."""
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        return False
    inputs, targets = batch
    numbers = isinstance(targets, list) and isinstance(inputs, Tensor | np.ndarray | Mapping)
    return numbers or isinstance(targets, Tensor | np.ndarray)


def _describe(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _remedy(batch: Any) -> str:
    """How to make pairs of a batch of another kind."""
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    if isinstance(parts, list | tuple) and any(isinstance(part, Tensor) for part in parts):
        return (
            "give a DataLoader whose collate_fn returns (x, y), with x what the network takes as "
            "one argument, or a list of such pairs"
        )
    return (
        "give a DataLoader, a Dataset or (x, y), lists and DataFrames as tensors: "
        "torch.as_tensor(x), torch.as_tensor(frame.to_numpy())"
    )
