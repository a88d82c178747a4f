"""Rows of `sfr-cl cl`, one per strategy and seed, gathered by strategy."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sfr_cl.errors import DataError

Row = Mapping[str, Any]
Array = npt.NDArray[np.float64]

MEASURES = (
    "accuracy",
    "forgetting",
    "nlpd",
    "ece",
    "seconds",
    "stored_samples",
    "state_bytes",
)


@dataclass(frozen=True)
class Spread:
    """One measure over seeds; `sd` is that of the sample, and missing with a single seed."""

    mean: float
    sd: float | None
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread | None":
        """Of the values that are there; `None` if none is.

        >>> Spread.of([1.0, 3.0, None])
        Spread(mean=2.0, sd=1.4142135623730951, low=1.0, high=3.0)
        """
        there = np.array([value for value in values if value is not None], dtype=float)
        there = there[np.isfinite(there)]
        if not there.size:
            return None
        sd = float(there.std(ddof=1)) if there.size > 1 else None
        return cls(float(there.mean()), sd, float(there.min()), float(there.max()))

    def times(self, scale: float) -> "Spread":
        """The same in another unit."""
        sd = None if self.sd is None else scale * self.sd
        return Spread(scale * self.mean, sd, scale * self.low, scale * self.high)


@dataclass(frozen=True)
class Reliability:
    """Predictions by confidence, in the bins that hold any, all seeds together."""

    confidence: Array
    accuracy: Array
    share: Array


@dataclass(frozen=True)
class Strategy:
    """All rows of one strategy."""

    name: str
    seeds: list[int]
    measures: dict[str, Spread | None]
    matrix: Array
    """Mean over seeds of the accuracy [after experience i, on experience j]."""
    curve: Array
    """Mean accuracy on the experiences seen, after each of the last `len(curve)` experiences."""
    reliability: Reliability | None
    rows: list[Row]

    @property
    def accuracy(self) -> float:
        """Final mean accuracy, for sorting."""
        spread = self.measures["accuracy"]
        return spread.mean if spread else -1.0

    @property
    def on_edge(self) -> bool:
        """Whether a better value might lie beyond the grid it was chosen from."""
        return any((row.get("settings") or {}).get("on_edge") for row in self.rows)

    @property
    def experiences(self) -> int:
        """Number of experiences it was tested on."""
        return int(self.matrix.shape[1])


def strategies(rows: Sequence[Row]) -> list[Strategy]:
    """One entry per strategy, the most accurate first."""
    _check(rows)
    names = dict.fromkeys(str(row["strategy"]) for row in rows)
    gathered = [_strategy(name, [r for r in rows if str(r["strategy"]) == name]) for name in names]
    return sorted(gathered, key=lambda strategy: -strategy.accuracy)


def _check(rows: Sequence[Row]) -> None:
    """Means over different problems, or over one seed twice, would mislead."""
    problems = sorted({(str(row["data"]), str(row["scenario"])) for row in rows})
    if len(problems) > 1:
        raise DataError(
            f"expected rows of one data set and scenario, got {problems}: write one report for each"
        )
    often = Counter((str(row["strategy"]), row["seed"]) for row in rows).most_common(1)
    if often and often[0][1] > 1:
        raise DataError(
            f"expected one row per strategy and seed, got {often[0][1]} of {often[0][0]}: "
            "write runs with different options to different folders"
        )


def _strategy(name: str, rows: list[Row]) -> Strategy:
    rows = sorted(rows, key=lambda row: row["seed"])
    shapes = sorted({np.shape(row["accuracy_matrix"]) for row in rows})
    if len(shapes) > 1 or len(shapes[0]) != 2:
        raise DataError(
            f"expected accuracy matrices of one shape for {name}, got {shapes}: "
            "write runs with different options to different folders"
        )
    matrices = np.array([row["accuracy_matrix"] for row in rows], dtype=float)
    matrix = matrices.mean(0)
    return Strategy(
        name=name,
        seeds=[row["seed"] for row in rows],
        measures={key: Spread.of(row.get(key) for row in rows) for key in MEASURES},
        matrix=matrix,
        curve=_curve(matrix),
        reliability=reliability(rows),
        rows=rows,
    )


def _curve(matrix: Array) -> Array:
    """A strategy that trains once on everything has one row: it belongs to the last experience."""
    trained, tested = matrix.shape
    earlier = tested - trained
    return np.array([matrix[i, : earlier + i + 1].mean() for i in range(trained)])


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
