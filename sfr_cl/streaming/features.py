"""Features by name as rows of numbers: river's dictionaries for networks that take tensors."""

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
    def of(x: Any) -> FeatureOrder:
        """The order for samples like this one, or like the rows of a data frame."""
        _require_features(x)
        names = tuple(sorted(x, key=lambda name: (type(name).__name__, str(name))))
        if not names:
            raise DataError("expected a first sample with features, got none")
        return FeatureOrder(names)

    def batch(self, x: Any) -> Tensor:
        """One sample, or the rows of a data frame, as ``[B, d]``."""
        _require_features(x)
        rows = [x] if isinstance(x, Mapping) else x.to_dict("records")
        numbers = [[_number(name, row.get(name, 0.0)) for name in self.names] for row in rows]
        return torch.tensor(numbers, dtype=torch.float64).reshape(len(rows), len(self.names))


def require_one(x: Any) -> None:
    """Refuse what is not one sample."""
    if not isinstance(x, Mapping):
        raise DataTypeError(f"expected a dictionary of features, got {type(x).__name__}")


def _require_features(x: Any) -> None:
    if not isinstance(x, Mapping) and not hasattr(x, "columns"):  # which data frames have
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
