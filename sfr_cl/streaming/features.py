"""Features by name as a vector: river's dictionaries for networks that take tensors."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from sfr_cl.errors import DataError, DataTypeError


def are_features(x: Any) -> bool:
    """Whether an input is features by name, rather than a tree of tensors."""
    return isinstance(x, Mapping) and not any(_is_tree(value) for value in x.values())


def _is_tree(value: Any) -> bool:
    return isinstance(value, Tensor | Mapping | list | tuple) or getattr(value, "ndim", 0) > 0


@dataclass(frozen=True)
class FeatureOrder:
    """Names in a fixed order: those of the first sample.

    A feature that is missing counts as 0, and one that the first sample did not have is ignored.
    """

    names: tuple[Hashable, ...]

    @staticmethod
    def of(x: Mapping[Hashable, Any]) -> FeatureOrder:
        """The order for samples like this one, however it is sorted itself."""
        _require_names(x)
        if not x:
            raise DataError("expected a first sample with features, got none")
        return FeatureOrder(tuple(sorted(x, key=lambda name: (type(name).__name__, str(name)))))

    def vector(self, x: Mapping[Hashable, Any]) -> Tensor:
        """One sample as ``[d]``."""
        _require_names(x)
        return _vector([_number(name, x.get(name, 0.0)) for name in self.names])

    def matrix(self, table: Any) -> Tensor:
        """The rows of a data frame as ``[B, d]``."""
        columns = [
            _vector([_number(name, value) for value in table[name].tolist()])
            if name in table
            else _vector([0.0] * len(table))
            for name in self.names
        ]
        return torch.stack(columns, dim=1)


def _vector(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _require_names(x: Any) -> None:
    if not isinstance(x, Mapping):
        raise DataTypeError(f"expected a dictionary of features, got {type(x).__name__}")


def plain(value: Any) -> Any:
    """A number of numpy's or torch's as one of Python's; anything else as it is."""
    try:
        return value.item() if hasattr(value, "item") else value
    except (TypeError, ValueError, RuntimeError):  # not one number, but several or none
        return value


def _number(name: Hashable, value: Any) -> float:
    value = plain(value)
    if not isinstance(value, Real):
        raise DataTypeError(
            f"expected numbers as features, got {value!r:.60} for {name!r}: encode it first, for "
            f"instance with river's OneHotEncoder"
        )
    try:
        return float(value)
    except OverflowError as error:
        raise DataError(f"expected a feature that fits a float, got one for {name!r}") from error
