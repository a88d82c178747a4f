"""Samples as the sums take them, evaluated when they come, so that errors come with them."""

from __future__ import annotations

import time as system
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sfr_cl.core.basis import Features
from sfr_cl.core.state import State
from sfr_cl.core.sums import Terms
from sfr_cl.data.inputs import Inputs, concat, take, tree_map
from sfr_cl.errors import ArgumentError, DataError, DataTypeError
from sfr_cl.streaming.features import FeatureOrder, are_features
from sfr_cl.streaming.settings import Settings

LARGEST = 1e75
"""Numbers beyond this overflow once they are squared twice."""

LARGEST_SCALE = 1e8
"""kappa(x, x) beyond this times that of the inducing inputs leaves others too few digits."""


@dataclass(frozen=True)
class Samples:
    """Inputs and targets, checked, with the time each was learned at."""

    x: Inputs
    y: Tensor
    times: Tensor
    """On the stream's clock, ``[B]``."""
    scale: Tensor
    """What :meth:`StreamingPosterior.discount` has left of each, ``[B]``."""

    @staticmethod
    def of(
        state: State, settings: Settings, n_seen: int, x: Inputs, y: Tensor, time: Any
    ) -> Samples:
        """Those that come after ``n_seen`` others, checked."""
        x, y = checked(state, x, y)
        times = _times(settings, n_seen, len(y), time).to(y.device)
        return Samples(x, y, times, torch.ones_like(times))

    def __len__(self) -> int:
        return len(self.times)

    @property
    def tree(self) -> tuple[Inputs, Tensor, Tensor, Tensor]:
        """The fields, as inputs that are taken, joined and copied row by row."""
        return self.x, self.y, self.times, self.scale

    def take(self, index: slice | Tensor) -> Samples:
        """Some of them."""
        return Samples(*take(self.tree, index))

    def scaled(self, gamma: float) -> Samples:
        """With another share of their weight."""
        return replace(self, scale=self.scale * gamma)

    def copied(self) -> Samples:
        """In memory of their own, whatever becomes of the caller's."""
        return Samples(*tree_map(torch.clone, self.tree))

    @staticmethod
    def join(parts: Sequence[Samples]) -> Samples:
        """One after the other."""
        return parts[0] if len(parts) == 1 else Samples(*concat([part.tree for part in parts]))


@dataclass(frozen=True)
class Batch:
    """Samples with their features, and the terms they add to the sums."""

    samples: Samples
    features: Features
    """With kappa(x, x), in float64."""
    terms: Terms

    @staticmethod
    def of(state: State, samples: Samples) -> Batch:
        """Evaluate checked samples."""
        size = state.basis.batch_size
        if len(samples) > size:
            starts = range(0, len(samples), size)
            return Batch.join([Batch.of(state, samples.take(slice(s, s + size))) for s in starts])
        features = state.basis.features(samples.x, diagonal=True)
        return Batch(samples, features, state.terms(samples.x, features, samples.y))

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, index: slice) -> Batch:
        """Some of them."""
        return Batch(self.samples.take(index), self.features.take(index), self.terms.take(index))

    @staticmethod
    def join(parts: Sequence[Batch]) -> Batch:
        """One after the other."""
        if len(parts) == 1:
            return parts[0]
        return Batch(
            Samples.join([part.samples for part in parts]),
            Features.join([part.features for part in parts]),
            Terms.join([part.terms for part in parts]),
        )

    def require_moderate(self, state: State) -> None:
        """Refuse numbers that no sum can hold beside others."""
        _require_moderate_inputs(state, self.features)
        terms = self.terms
        _require_moderate(terms.gradient, terms.curvature, terms.constant)

    @property
    def curvature(self) -> Tensor:
        """b of each kernel, ``[K, B]``."""
        return self.terms.curvature.double().mT[: len(self.features.phi)]


def rows(state: State, samples: Samples) -> Iterator[tuple[Samples, Features]]:
    """Checked samples one by one, with their features."""
    size = state.basis.batch_size
    for start in range(0, len(samples), size):
        part = samples.take(slice(start, start + size))
        features = state.basis.features(part.x, diagonal=True)
        _require_moderate_inputs(state, features)
        for row in range(len(part)):
            yield part.take(slice(row, row + 1)), features.take(slice(row, row + 1))


def _require_moderate_inputs(state: State, features: Features) -> None:
    assert features.diagonal is not None
    _require_moderate(features.phi, features.diagonal)
    typical, found = state.basis.scale, float(features.diagonal.amax())
    if found > LARGEST_SCALE * typical:
        raise DataError(
            f"expected inputs of the size of the inducing inputs, got some with a kernel of "
            f"{found:.0e} beside {typical:.0e}: scale them"
        )


def _require_moderate(*values: Tensor) -> None:
    largest = max(float(value.abs().amax()) for value in values)
    if not all(bool(torch.isfinite(value).all()) for value in values) or largest > LARGEST:
        raise DataError(
            f"expected inputs and targets of moderate size, got some whose kernel or likelihood "
            f"reaches {largest:.0e}: scale them"
        )


def checked(state: State, x: Inputs, y: Tensor) -> tuple[Inputs, Tensor]:
    """One batch of inputs and targets in the form of those before, or an error."""
    inputs, targets = state.checked_pair(x, y)
    return state.basis.like(inputs), targets


# What people give ---------------------------------------------------------------------------------


def one_input(x: Inputs, order: FeatureOrder | None) -> Inputs:
    """One input as a batch."""
    if isinstance(x, Tensor):
        return x[None]
    if are_features(x):
        return (order or FeatureOrder.of(x)).batch(x)
    return tree_map(lambda leaf: leaf[None], x)


def one_target(y: Any) -> Tensor:
    """One target as a batch."""
    return _tensor("a target that is a number", y)[None]


def _tensor(what: str, given: Any, dtype: torch.dtype | None = None) -> Tensor:
    try:
        return torch.as_tensor(given, dtype=dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataTypeError(f"expected {what}, got {given!r:.60}") from error


def _times(settings: Settings, n_seen: int, count: int, time: Any) -> Tensor:
    """When each of the next samples was learned, on the stream's clock."""
    if settings.discount_per == "sample":
        if time is not None:
            raise ArgumentError(
                "expected no time, since samples age by number, got one: use discount_per='second'"
            )
        return torch.arange(n_seen, n_seen + count, dtype=torch.float64)
    times = as_times(system.time() if time is None else time)
    if len(times) not in (1, count):
        raise DataError(f"expected one time, or {count} for as many samples, got {len(times)}")
    return times.expand(count).clone()


def as_times(given: Any) -> Tensor:
    """Times or positions as a vector."""
    times = _tensor("times or positions", given, torch.float64).reshape(-1)
    if not bool(torch.isfinite(times).all()):
        raise DataError("expected finite times or positions, got others")
    return times
