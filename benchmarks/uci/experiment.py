"""One row: one method on one data set and seed, with delta tuned or not."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from ..harness import measure
from ..harness.results import Row
from ..harness.run import ShowShare
from ..harness.timing import processor_timed
from . import laplace, methods, training
from .methods import Method, Outcomes
from .networks import Networks

METHODS: dict[str, Method] = {
    "nn map": methods.nn_map,
    "bnn": laplace.bnn,
    "glm": laplace.glm,
    "gp subset": methods.gp_subset,
    "sfr": methods.sfr,
    "sfr (ours)": methods.sfr_ours,
}
SPARSE = ("gp subset", "sfr", "sfr (ours)")
"""Methods with inducing inputs."""
SLOW = ("bnn", "glm")


class Results:
    """What methods gave. The untuned and the tuned row of a method come from one computation."""

    def __init__(self, networks: Networks) -> None:
        self.networks = networks
        self._last: tuple[tuple[str, str, int, int | None], Outcomes, float] | None = None

    def outcomes(
        self, data: str, method: str, seed: int, m_percent: int | None, show: ShowShare
    ) -> tuple[Outcomes, Tensor, float]:
        """Of one method, the labels of the test part, and the method's processor seconds."""
        problem = self.networks.problem(data, seed, show)
        key = (data, method, seed, m_percent)
        if self._last is None or self._last[0] != key:
            shared = laplace.seconds_of_posterior(problem) if method in SLOW else 0.0
            found, seconds = processor_timed(lambda: METHODS[method](problem, m_percent))
            self._last = key, found, shared + seconds
        _, outcomes, seconds = self._last
        return outcomes, problem.split.test[1], seconds


@dataclass(frozen=True)
class Case:
    """What a row is the result of."""

    data: str
    method: str
    tuned: bool
    seed: int
    m_percent: int | None
    results: Results = field(repr=False)

    fixed: ClassVar[Sequence[str]] = ()
    varies: ClassVar[Sequence[str]] = ("data", "method", "tuned", "seed", "m_percent")

    @property
    def key(self) -> Row:
        """What tells this row from others; also its first columns."""
        return {
            "data": self.data,
            "method": self.method,
            "tuned": self.tuned,
            "seed": self.seed,
            "m_percent": self.m_percent,
            "settings": {
                **training.protocol(self.data),
                "deltas": len(methods.GRID),
                "networks_drawn": laplace.NETWORKS,
            },
        }

    @property
    def label(self) -> str:
        parts = [self.data, self.method, f"seed {self.seed}"]
        if self.m_percent is not None:
            parts.insert(2, f"M {self.m_percent} %")
        return ", ".join(parts) + (", tuned" if self.tuned else "")

    def run(self, show: ShowShare) -> Row:
        """The row."""
        outcomes, y, seconds = self.results.outcomes(
            self.data, self.method, self.seed, self.m_percent, show
        )
        outcome = outcomes[self.tuned]
        accuracy = measure.accuracy(outcome.log_probs, y)
        bins = measure.reliability(outcome.log_probs, y)
        return self.key | {
            "nlpd": measure.nlpd(outcome.log_probs, y),
            "accuracy": accuracy,
            "ece": bins.ece,
            "nlpd_valid": outcome.nlpd_valid,
            "prior_precision": outcome.prior_precision,
            "seconds": seconds,
            "state_bytes": outcome.state_bytes,
            **bins.columns,
        }

    def line(self, row: Row) -> str:
        """The row in short."""
        return f"NLPD {row['nlpd']:.3f}  accuracy {row['accuracy']:.3f}"


def table_cases(names: list[str], seeds: list[int], results: Results, m_percent: int) -> list[Case]:
    """Every method, untuned and tuned; the slow ones last, so that the others are there early."""
    return [
        Case(name, method, tuned, seed, m_percent if method in SPARSE else None, results)
        for group in (set(METHODS) - set(SLOW), SLOW)
        for name in names
        for seed in seeds
        for method in METHODS
        if method in group
        for tuned in (False, True)
    ]


def figure_cases(
    names: list[str], seeds: list[int], results: Results, percents: list[int]
) -> list[Case]:
    """The sparse methods of the paper over M, tuned."""
    return [
        Case(name, method, True, seed, m_percent, results)
        for name in names
        for seed in seeds
        for m_percent in percents
        for method in ("gp subset", "sfr")
    ]
