"""How a stream ages, what it stores, and how often it works: checked once, stored in its file."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from sfr_cl.data.arguments import choice, fraction, whole
from sfr_cl.errors import ArgumentError, MismatchError

BLOCK = 256
"""Samples flushed into the sums, and then factored, together."""

SHARE_OF_LIFETIME = 1 / 8
"""A block is at most this share of the samples a discount lets live."""

CLOCKS = ("sample", "second")


@dataclass(frozen=True)
class Settings:
    """See :class:`~sfr_cl.StreamingPosterior`, whose keywords they are."""

    discount: float
    discount_per: str
    window: int | None
    staleness: int
    swap: bool
    calibrate: bool
    budget: int
    """M, which the number of inducing inputs never exceeds."""
    learns_precision: bool
    """Whether the prior precision is that of greatest evidence."""

    def __post_init__(self) -> None:
        fraction("discount", self.discount)
        choice("discount_per", self.discount_per, CLOCKS)
        if self.window is not None:
            whole("window", self.window)
        if self.staleness != 0:
            whole("staleness", self.staleness)
        for name in ("swap", "calibrate", "learns_precision"):
            if not isinstance(value := getattr(self, name), bool):
                raise ArgumentError(f"expected {name} to be True or False, got {value!r}")
        whole("number of inducing inputs", self.budget)

    @property
    def block(self) -> int:
        """Samples that may wait before they are flushed."""
        size = min(BLOCK, self.window or BLOCK)
        if self.discount < 1 and self.discount_per == "sample":
            size = min(size, math.ceil(SHARE_OF_LIFETIME / (1 - self.discount)))
        return size

    @property
    def candidates(self) -> int:
        """Samples stored at the start of a stream, for inducing inputs to be chosen from."""
        return min(2 * self.budget, self.window or 2 * self.budget)

    @property
    def lifetime(self) -> int | None:
        """Samples after which what was learned before hardly counts; ``None`` if that is open."""
        limits = [] if self.window is None else [self.window]
        if self.ages and self.discount_per == "sample":
            limits.append(math.ceil(1 / (1 - self.discount)))
        return min(limits, default=None)

    @property
    def ages(self) -> bool:
        """Whether samples lose weight as time passes."""
        return self.discount < 1

    @staticmethod
    def from_plain(values: dict[str, Any]) -> Settings:
        """From the fields as a file holds them."""
        names = [field.name for field in fields(Settings)]
        if sorted(values) != sorted(names):
            raise MismatchError(f"expected the settings {', '.join(names)}, got {sorted(values)}")
        return Settings(**values)
