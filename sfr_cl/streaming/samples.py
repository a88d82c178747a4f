"""What people give, as batches: one sample, features by name, times."""

from __future__ import annotations

import time as system
from typing import Any

import torch
from torch import Tensor

from sfr_cl.errors import ArgumentError, DataError, DataTypeError
from sfr_cl.inputs import Inputs, tree_map
from sfr_cl.streaming.features import FeatureOrder, are_features
from sfr_cl.streaming.settings import Settings


def one_input(x: Inputs, order: FeatureOrder | None) -> Inputs:
    """One input as a batch."""
    if are_features(x):
        return (order or FeatureOrder.of(x)).vector(x)[None]
    return tree_map(lambda leaf: leaf[None], x)


def one_target(y: Any) -> Tensor:
    """One target as a batch."""
    try:
        return torch.as_tensor(y)[None]
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataTypeError(f"expected a target that is a number, got {y!r:.60}") from error


def times_of(settings: Settings, learned: int, count: int, time: Any) -> Tensor:
    """When each of the next samples was learned, on the stream's clock."""
    if settings.discount_per == "sample":
        if time is not None:
            raise ArgumentError(
                "expected no time, since samples age by number, got one: use discount_per='second'"
            )
        return torch.arange(learned, learned + count, dtype=torch.float64)
    times = moments(system.time() if time is None else time)
    if len(times) not in (1, count):
        raise DataError(f"expected one time, or {count} for as many samples, got {len(times)}")
    return times.expand(count).clone()


def moments(given: Any) -> Tensor:
    """Times or positions as a vector."""
    try:
        times = torch.as_tensor(given, dtype=torch.float64).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataTypeError(f"expected times or positions, got {given!r:.60}") from error
    if not bool(torch.isfinite(times).all()):
        raise DataError("expected finite times or positions, got others")
    return times
