"""Rows of `sfr-cl cl`, one per strategy and seed, gathered by strategy."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sfr_cl.errors import DataError

from ..harness.results import Row
from ..report.seeds import Array, Reliability, Spread, mean_array, reliability

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
    def untuned(self) -> bool:
        """Whether it ran with the defaults for any data, which no one chose for this."""
        return any((row.get("settings") or {}).get("chosen_by") == "default" for row in self.rows)

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


def _measure(row: Row, key: str) -> float | None:
    """A figure of a row; rows of version 0.1.0 have zero where they did not count all data kept."""
    value: float | None = row.get(key)
    at_once = len(row["accuracy_matrix"]) == 1 and key in ("stored_samples", "state_bytes")
    return None if at_once and not value else value


def _strategy(name: str, rows: list[Row]) -> Strategy:
    rows = sorted(rows, key=lambda row: row["seed"])
    shapes = sorted({np.shape(row["accuracy_matrix"]) for row in rows})
    if len(shapes) > 1 or len(shapes[0]) != 2:
        raise DataError(
            f"expected accuracy matrices of one shape for {name}, got {shapes}: "
            "write runs with different options to different folders"
        )
    matrix = mean_array(rows, "accuracy_matrix")
    return Strategy(
        name=name,
        seeds=[row["seed"] for row in rows],
        measures={key: Spread.of(_measure(row, key) for row in rows) for key in MEASURES},
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
