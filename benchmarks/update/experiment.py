"""One row: one data set, seed, kernel and mean form."""

import copy
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from sfr_cl import SFRPosterior

from ..harness.memory import posterior_bytes
from ..harness.results import Row
from ..harness.run import ShowShare
from ..harness.timing import processor_seconds, processor_timed
from . import data, training
from .data import Halves, Pairs, Table
from .training import Trained

NUM_INDUCING = {"airfoil": 128, "boston": 128, "protein": 1024}
KERNELS = ("last_layer", "all")
MEANS = ("natural", "network", "dual")
FIRST_READ = 100
"""Test inputs of the first prediction after an update."""
REPEATS = 15
LONG = 0.5
"""Seconds of an update that is not repeated as often."""
REPEATS_IF_LONG = 3


class Problem:
    """A data set split by a seed, with its two networks: trained once, when first asked for."""

    def __init__(self, table: Table, seed: int) -> None:
        self.name, self.seed = table.name, seed
        self.halves: Halves = data.halves(table, seed)
        self.show: ShowShare = lambda _: None

    @cached_property
    def before(self) -> Trained:
        """The network of D1."""
        return training.train(self.halves.first, self.seed, lambda share: self.show(share / 2))

    @cached_property
    def retrained(self) -> tuple[Trained, float]:
        """The network of D1 and D2, and the processor seconds of its training."""
        return processor_timed(
            lambda: training.train(
                self.halves.both, self.seed, lambda share: self.show((1 + share) / 2)
            )
        )


@dataclass(frozen=True)
class Case:
    """What a row is the result of."""

    problem: Problem
    kernel: str
    mean: str

    fixed: ClassVar[Sequence[str]] = ()
    varies: ClassVar[Sequence[str]] = ("data", "seed", "parameters", "mean")

    @property
    def key(self) -> Row:
        """What tells this row from others; also the row's first columns."""
        settings = {
            "num_inducing": NUM_INDUCING[self.problem.name],
            "hidden": training.HIDDEN,
            "learning_rate": training.LEARNING_RATE,
            "noise_rate": training.NOISE_RATE,
            "weight_decay": training.WEIGHT_DECAY,
            "batch": training.BATCH,
            "patience": training.PATIENCE,
        }
        return {
            "data": self.problem.name,
            "seed": self.problem.seed,
            "parameters": self.kernel,
            "mean": self.mean,
            "settings": settings,
        }

    @property
    def label(self) -> str:
        return f"{self.problem.name}, seed {self.problem.seed}, {self.kernel}, {self.mean}"

    def run(self, show: ShowShare) -> Row:
        """The row."""
        problem, halves = self.problem, self.problem.halves
        problem.show = show
        posterior = self.posterior(problem.before, halves.first.train)
        retrained, seconds_retrain = problem.retrained
        test, valid = halves.both.test, halves.both.valid
        before = posterior.nlpd(test)
        seconds = update_seconds(posterior, halves.second.train, test.x[:FIRST_READ])
        posterior.update(halves.second.train)
        again = self.posterior(retrained, halves.both.train)
        return self.key | {
            "nlpd_before": before,
            "nlpd_updated": posterior.nlpd(test),
            "nlpd_retrained": again.nlpd(test),
            "seconds_update": seconds[0],
            "seconds_first_prediction": seconds[1],
            "seconds_retrain": seconds_retrain,
            "nlpd_updated_validation": posterior.nlpd(valid),
            "nlpd_network_before": problem.before.nlpd(test),
            "nlpd_network_retrained": retrained.nlpd(test),
            "steps_retrain": retrained.steps,
            "inducing_used": len(posterior.inducing_inputs),
            "state_bytes": posterior_bytes(posterior),
        }

    def posterior(self, trained: Trained, train: Pairs) -> SFRPosterior:
        """The network's posterior over what it was trained on, inducing inputs from there too."""
        torch.manual_seed(self.problem.seed)
        return SFRPosterior(
            trained.network,
            "regression",
            inducing=NUM_INDUCING[self.problem.name],
            parameters=self.kernel,
            mean=self.mean,
        ).fit(train)

    def line(self, row: Row) -> str:
        """The row in short."""
        names = ("nlpd_before", "nlpd_updated", "nlpd_retrained")
        return "  ".join(f"{row[name]:.4g}" for name in names)


def update_seconds(posterior: SFRPosterior, late: Pairs, x: torch.Tensor) -> tuple[float, float]:
    """Medians of the processor seconds of `update(late)`, and of the first prediction after it.

    The posterior stays as it is: copies are updated. The first prediction learns noise and prior
    precision again, and factors.
    """

    def once() -> tuple[float, float]:
        updated = copy.copy(posterior)
        return (
            processor_seconds(lambda: updated.update(late)),
            processor_seconds(lambda: updated.predict(x)),
        )

    found = [once()]
    repeats = REPEATS_IF_LONG if found[0][0] > LONG else REPEATS
    found += [once() for _ in range(repeats - 1)]
    update, read = (statistics.median(seconds) for seconds in zip(*found, strict=True))
    return update, read
