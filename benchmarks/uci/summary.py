"""Rows gathered: each method's mean over seeds beside the published one, and paired differences."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import fmean, stdev
from typing import Any

Row = Mapping[str, Any]
Setting = tuple[str, bool]
"""A method, and whether delta was tuned."""

TITLES = {
    "australian": "Australian",
    "breast_cancer": "Breast cancer",
    "digits": "Digits",
    "glass": "Glass",
    "ionosphere": "Ionosphere",
    "satellite": "Satellite",
    "vehicle": "Vehicle",
    "waveform": "Waveform",
}
METHODS = ("nn map", "bnn", "glm", "gp subset", "sfr", "sfr (ours)")
M_PERCENT = 20
"""Of the table."""


@dataclass(frozen=True)
class Mean:
    """Over seeds; the standard error is zero for one seed."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        """Of at least one value.

        >>> Mean.of([1.0, 3.0])
        Mean(mean=2.0, error=1.0)
        """
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        return cls(fmean(values), error)


class Table:
    """The rows of the table, not those of the figure."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = [row for row in rows if row["m_percent"] in (None, M_PERCENT)]
        self.data = [name for name in TITLES if any(row["data"] == name for row in self.rows)]
        self.seeds = sorted({row["seed"] for row in self.rows})

    def by_seed(self, data: str, setting: Setting, measure: str = "nlpd") -> dict[int, float]:
        """A measure of one method on one set."""
        method, tuned = setting
        return {
            row["seed"]: row[measure]
            for row in self.rows
            if (row["data"], row["method"], row["tuned"]) == (data, method, tuned)
        }

    def mean(self, data: str, setting: Setting, measure: str = "nlpd") -> Mean | None:
        """Over seeds, if there are rows."""
        values = list(self.by_seed(data, setting, measure).values())
        return Mean.of(values) if values else None

    def difference(self, data: str, first: Setting, second: Setting) -> Mean | None:
        """Mean of first - second over the seeds both have."""
        ours, theirs = self.by_seed(data, first), self.by_seed(data, second)
        both = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        return Mean.of(both) if both else None

    def settings(self, *, tuned: bool) -> list[Setting]:
        """Those with rows, in the order of the paper."""
        found = [(name, tuned) for name in METHODS]
        return [s for s in found if any(self.by_seed(data, s) for data in self.data)]


@cache
def published() -> dict[tuple[str, str, bool], float]:
    """NLPD by data, method and whether delta was tuned."""
    text = files(__package__).joinpath("published.json").read_text(encoding="utf-8")
    rows = json.loads(text)["rows"]
    return {(row["data"], row["method"], row["tuned"]): row["nlpd"] for row in rows}
