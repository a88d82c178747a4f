"""Rows of `sfr-cl update` gathered by data set, kernel and mean form; and the choice among them."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..harness.results import Row
from ..report.checks import Check
from ..report.seeds import Spread

MEASURES = (
    "nlpd_before",
    "nlpd_updated",
    "nlpd_retrained",
    "nlpd_updated_validation",
    "nlpd_network_before",
    "nlpd_network_retrained",
    "seconds_update",
    "seconds_first_prediction",
    "seconds_retrain",
)
GAP_WANTED = 0.7
MOST_SECONDS = {"airfoil": 0.010, "boston": 0.010, "protein": 0.500}
PUBLISHED_RATIOS = {"airfoil": 455, "boston": 374, "protein": 37}


@dataclass(frozen=True)
class Form:
    """All seeds of one data set, kernel and mean form."""

    data: str
    kernel: str
    mean: str
    seeds: list[int]
    inducing: int
    measures: dict[str, Spread]
    state_bytes: Spread | None
    """Kept beside the network; rows of earlier versions do not say."""

    def at(self, measure: str) -> float:
        """The mean over seeds."""
        return self.measures[measure].mean

    @property
    def name(self) -> str:
        return f"{self.kernel.replace('_', ' ')}, {self.mean}"

    @property
    def closed(self) -> float:
        """Share of the gap between D1 alone and retraining, in the same form."""
        return share_closed(*(self.at(f"nlpd_{when}") for when in WHEN))

    @property
    def ratio(self) -> float:
        """Seconds of retraining over those of the update and the first prediction after it."""
        return self.at("seconds_retrain") / (
            self.at("seconds_update") + self.at("seconds_first_prediction")
        )


WHEN = ("before", "updated", "retrained")


@dataclass(frozen=True)
class DataSet:
    """All forms of one data set."""

    name: str
    forms: list[Form]

    @property
    def chosen(self) -> Form:
        """The least validation NLPD after the update."""
        return min(self.forms, key=lambda form: form.at("nlpd_updated_validation"))

    @property
    def best_before(self) -> float:
        """The best that any form, or the network itself, makes of D1 alone."""
        return min(
            min(form.at("nlpd_before"), form.at("nlpd_network_before")) for form in self.forms
        )

    @property
    def best_retrained(self) -> float:
        """The best that any form, or the network itself, makes of retraining."""
        return min(
            min(form.at("nlpd_retrained"), form.at("nlpd_network_retrained")) for form in self.forms
        )

    @property
    def closed_between_bests(self) -> float:
        """Share of the gap between the bests that the chosen form closes: a harder question."""
        return share_closed(self.best_before, self.chosen.at("nlpd_updated"), self.best_retrained)


def share_closed(before: float, updated: float, retrained: float) -> float:
    """How far an update gets from `before` to `retrained`.

    >>> share_closed(2.0, 1.25, 1.0)
    0.75
    """
    return (before - updated) / (before - retrained)


def data_sets(rows: Sequence[Row]) -> list[DataSet]:
    """One entry per data set, in the order of the rows."""
    keys = dict.fromkeys((row["data"], row["parameters"], row["mean"]) for row in rows)
    forms = [
        _form(key, [r for r in rows if (r["data"], r["parameters"], r["mean"]) == key])
        for key in keys
    ]
    names = dict.fromkeys(form.data for form in forms)
    return [DataSet(name, [form for form in forms if form.data == name]) for name in names]


def _form(key: tuple[str, str, str], rows: list[Row]) -> Form:
    measures = {}
    for name in MEASURES:
        spread = Spread.of(row[name] for row in rows)
        assert spread is not None  # results hold finite numbers only
        measures[name] = spread
    kept = Spread.of(row.get("state_bytes") for row in rows)
    seeds = sorted(row["seed"] for row in rows)
    return Form(*key, seeds, max(row["inducing_used"] for row in rows), measures, kept)


def checks(sets: Sequence[DataSet]) -> list[Check]:
    """For each data set: the gap closed by the chosen form, and the time it takes."""
    return [check for one in sets for check in (_gap(one), _time(one))]


def _gap(one: DataSet) -> Check:
    closed = one.chosen.closed
    return Check(
        f"{one.name}: share of the NLPD gap between D1 alone and retraining that the update closes",
        f"{GAP_WANTED:.0%} or more",
        f"{closed:.0%}",
        closed >= GAP_WANTED,
    )


def _time(one: DataSet) -> Check:
    seconds, most = one.chosen.at("seconds_update"), MOST_SECONDS[one.name]
    return Check(
        f"{one.name}: time of the update",
        f"{1000 * most:.0f} ms or less",
        f"{1000 * seconds:.1f} ms",
        seconds <= most,
    )
