"""Rows of `sfr-cl ood` gathered by direction and method; and what they were to show."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..harness.results import Row
from ..report.checks import Check
from ..report.seeds import Reliability, Spread, reliability

SCORES = {
    "auroc_entropy": "entropy",
    "auroc_variance": "variance",
    "auroc_novelty": "novelty",
}
MEASURES = ("accuracy", "nlpd", "ece", *SCORES, "seconds", "state_bytes")
OURS, NETWORK, BASELINE = "sfr", "map", "kron-glm"
ACCURACY_MARGIN = 0.005
AIM = 0.97


@dataclass(frozen=True)
class Method:
    """All seeds of one method in one direction."""

    name: str
    measures: dict[str, Spread | None]
    reliability: Reliability | None
    choices: str
    """Prior precision and link of each seed."""

    def at(self, measure: str) -> float | None:
        """The mean over seeds, of what the method has."""
        spread = self.measures[measure]
        return None if spread is None else spread.mean


@dataclass(frozen=True)
class Direction:
    """One data set trained on, one out-of-distribution."""

    data: str
    ood: str
    methods: dict[str, Method]

    @property
    def name(self) -> str:
        return f"{self.data}, {self.ood} as OOD"


def directions(rows: Sequence[Row]) -> list[Direction]:
    """One entry per direction, in the order of the rows."""
    pairs = dict.fromkeys((row["data"], row["ood"]) for row in rows)
    return [
        Direction(*pair, _methods([r for r in rows if (r["data"], r["ood"]) == pair]))
        for pair in pairs
    ]


def _methods(rows: Sequence[Row]) -> dict[str, Method]:
    names = dict.fromkeys(row["method"] for row in rows)
    return {name: _method(name, [r for r in rows if r["method"] == name]) for name in names}


def _method(name: str, rows: list[Row]) -> Method:
    measures = {key: Spread.of(row.get(key) for row in rows) for key in MEASURES}
    choices = [
        f"{row['prior_precision']:.3g}, {row['link']}"
        for row in rows
        if row["prior_precision"] is not None
    ]
    return Method(name, measures, reliability(rows), "; ".join(choices))


def checks(found: Sequence[Direction]) -> list[Check]:
    """Of our method in every direction, against those that have a row."""
    return [check for one in found if OURS in one.methods for check in _of(one)]


def _of(one: Direction) -> list[Check]:
    ours = one.methods[OURS]
    made = []
    if NETWORK in one.methods:
        network = one.methods[NETWORK]
        made.append(_accuracy(one, ours, network))
        made.append(_above(one, "auroc_entropy", ours, network, "above", strictly=True))
    if BASELINE in one.methods:
        made += [_above(one, score, ours, one.methods[BASELINE], "not below") for score in SCORES]
    best = max(value for score in SCORES if (value := ours.at(score)) is not None)
    made.append(Check(f"{one.name}: our best AUROC", f"{AIM} or more", f"{best:.4f}", best >= AIM))
    return made


def _accuracy(one: Direction, ours: Method, network: Method) -> Check:
    mine, theirs = ours.at("accuracy"), network.at("accuracy")
    assert mine is not None
    assert theirs is not None
    return Check(
        f"{one.name}: accuracy, against the network's",
        f"within half a point of {100 * theirs:.2f} %",
        f"{100 * mine:.2f} %",
        abs(mine - theirs) <= ACCURACY_MARGIN,
    )


def _above(
    one: Direction, score: str, ours: Method, other: Method, word: str, *, strictly: bool = False
) -> Check:
    mine, theirs = ours.at(score), other.at(score)
    assert mine is not None
    assert theirs is not None
    return Check(
        f"{one.name}: AUROC of {SCORES[score]}, against {other.name}",
        f"{word} {theirs:.4f}",
        f"{mine:.4f}",
        mine > theirs if strictly else mine >= theirs,
    )
