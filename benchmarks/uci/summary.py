"""Rows gathered: each method's mean over seeds beside the published one, and paired differences."""

import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from ..harness.results import Row
from ..report.seeds import Spread

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
            if row.get(measure) is not None
            and (row["data"], row["method"], row["tuned"]) == (data, method, tuned)
        }

    def mean(self, data: str, setting: Setting, measure: str = "nlpd") -> Spread | None:
        """Over seeds, if there are rows."""
        return Spread.of(self.by_seed(data, setting, measure).values())

    def difference(self, data: str, first: Setting, second: Setting) -> Spread | None:
        """Mean of first - second over the seeds both have."""
        ours, theirs = self.by_seed(data, first), self.by_seed(data, second)
        return Spread.of(ours[seed] - theirs[seed] for seed in ours if seed in theirs)

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
