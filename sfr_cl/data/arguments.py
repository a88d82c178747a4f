"""Checks of single arguments; each raises an :class:`~sfr_cl.errors.ArgumentError`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real

from sfr_cl.errors import ArgumentError


def positive(name: str, value: float) -> float:
    """A positive finite number."""
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ArgumentError(f"expected a positive {name}, got {value!r}")
    return float(value)


def fraction(name: str, value: float) -> float:
    """A number in (0, 1]."""
    if positive(name, value) > 1:
        raise ArgumentError(f"expected {name} in (0, 1], got {value}")
    return float(value)


def whole(name: str, value: int) -> int:
    """A positive integer."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ArgumentError(f"expected a positive {name}, got {value!r}: a whole number")
    return int(value)


def choice(name: str, value: str, known: Iterable[str]) -> str:
    """One of some names."""
    if not isinstance(value, str) or value not in known:
        raise ArgumentError(f"expected {name} to be one of {', '.join(known)}; got {value!r}")
    return value
