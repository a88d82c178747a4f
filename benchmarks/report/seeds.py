"""Rows of several seeds taken together: every page and table has its means from here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..harness.results import Row

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """One measure over seeds; `sd` is that of the sample, and missing with a single seed."""

    mean: float
    sd: float | None
    low: float
    high: float
    count: int = 1

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread | None":
        """Of the values that are there; `None` if none is.

        >>> Spread.of([1.0, 3.0, None])
        Spread(mean=2.0, sd=1.4142135623730951, low=1.0, high=3.0, count=2)
        """
        there = np.array([value for value in values if value is not None], dtype=float)
        there = there[np.isfinite(there)]
        if not there.size:
            return None
        sd = float(there.std(ddof=1)) if there.size > 1 else None
        return cls(float(there.mean()), sd, float(there.min()), float(there.max()), there.size)

    @property
    def error(self) -> float:
        """The standard error of the mean; zero with a single seed."""
        return (self.sd or 0.0) / float(self.count) ** 0.5

    def times(self, scale: float) -> "Spread":
        """The same in another unit."""
        sd = None if self.sd is None else scale * self.sd
        return Spread(scale * self.mean, sd, scale * self.low, scale * self.high, self.count)


def mean_array(rows: Sequence[Row], column: str) -> Array:
    """Mean over seeds of a column that holds a curve, or a matrix, of one shape."""
    values: Array = np.array([row[column] for row in rows], dtype=float)
    return values.mean(0)


@dataclass(frozen=True)
class Reliability:
    """Predictions by confidence, in the bins that hold any, all seeds together."""

    confidence: Array
    accuracy: Array
    share: Array


def reliability(rows: Sequence[Row]) -> Reliability | None:
    """Bins of all seeds, weighted by their counts."""
    kept = [row for row in rows if row.get("reliability_count")]
    if not kept:
        return None
    count = np.array([row["reliability_count"] for row in kept], dtype=float)
    total = count.sum(0)
    filled = total > 0

    def mean(key: str) -> Array:
        values = np.array([row[key] for row in kept], dtype=float)  # empty bins become NaN
        sums: Array = (np.nan_to_num(values) * count).sum(0)
        return sums[filled] / total[filled]

    if not filled.any():
        return None
    confidence, accuracy = mean("reliability_confidence"), mean("reliability_accuracy")
    return Reliability(confidence, accuracy, total[filled] / total.sum())
