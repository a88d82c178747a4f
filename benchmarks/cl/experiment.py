"""One row: one strategy, one seed, over the complete stream."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TextIO

from avalanche.core import SupervisedPlugin
from avalanche.training.determinism.rng_manager import RNGManager
from avalanche.training.supervised import JointTraining
from avalanche.training.templates import SupervisedTemplate

from ..harness import measure
from ..harness.images import Data
from ..harness.results import Row
from ..harness.run import ShowShare
from ..harness.timing import processor_seconds
from . import footprint, predictions, scenarios, strategies
from .scenarios import Scenario
from .settings import Setting, Values

AVALANCHE = "avalanche"


@dataclass(frozen=True)
class Case:
    """What a row is the result of."""

    data: Data
    scenario: str
    strategy: str
    seed: int
    memory: int
    setting: Setting
    tasks: int | None = None
    """The first so many tasks only."""

    fixed: ClassVar[Sequence[str]] = ("data", "scenario", "memory")
    varies: ClassVar[Sequence[str]] = ("strategy", "seed")

    @property
    def values(self) -> Values:
        """All the strategy is run with."""
        return strategies.values_of(self.strategy, self.setting)

    @property
    def key(self) -> Row:
        """What tells this row from others; also the row's first columns."""
        return {
            "data": self.data.name,
            "scenario": self.scenario,
            "strategy": self.strategy,
            "seed": self.seed,
            "memory": self.memory,
            "settings": {**self.values, **self.setting.chosen},
        }

    @property
    def label(self) -> str:
        return f"{self.strategy}, seed {self.seed}"

    def run(self, show: ShowShare) -> Row:
        """The row."""
        return run(self, show)

    def line(self, row: Row) -> str:
        """The row in short."""
        return f"accuracy {row['accuracy']:.4f}  {row['seconds']:.1f} s"


def run(case: Case, show: ShowShare = lambda _: None) -> Row:
    """Train on the stream, evaluate on all its test experiences after each: the row."""
    scenario = scenarios.make(case.data, case.scenario, case.seed, case.tasks)
    RNGManager.set_random_seeds(case.seed)
    recorder = predictions.Recorder()
    watch = Watch(case.values, scenario, show)
    strategy = strategies.make(case.strategy, case.values, scenario, case.memory, [recorder, watch])
    matrix, seconds = [], 0.0
    trained = stages(strategy, scenario)
    with avalanche_calls_its_old_functions():
        for stage in trained:
            seconds += processor_seconds(partial(strategy.train, stage, reset_optimizer_state=True))
            strategy.eval(scenario.benchmark.test_stream)
            matrix.append([measure.accuracy(*part) for part in recorder.by_experience()])
    pooled = predictions.pooled(recorder.by_experience())
    bins = measure.reliability(*pooled)
    return case.key | {
        "accuracy": sum(matrix[-1]) / len(matrix[-1]),
        "accuracy_matrix": matrix,
        "forgetting": predictions.forgetting(matrix),
        "nlpd": measure.nlpd(*pooled),
        "ece": bins.ece,
        "seconds": seconds,
        "stored_samples": footprint.stored_samples(strategy, trained),
        "state_bytes": footprint.state_bytes(strategy, trained),
        **bins.columns,
    }


@contextmanager
def avalanche_calls_its_old_functions() -> Iterator[None]:
    """Silence what that warns of; for its own functions past any filter, for it resets them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=rf"{AVALANCHE}\.")
        show = warnings.showwarning

        def show_others(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if not (issubclass(category, DeprecationWarning) and AVALANCHE in Path(filename).parts):
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = show_others
        yield


def stages(strategy: SupervisedTemplate, scenario: Scenario) -> list[Any]:
    """What is trained on in turn: each experience, or for joint training all at once."""
    stream = scenario.benchmark.train_stream
    return [stream] if isinstance(strategy, JointTraining) else list(stream)


class Watch(SupervisedPlugin):  # type: ignore[misc] # Avalanche ships no types
    """Reports the training's progress, by samples and epochs."""

    def __init__(self, values: Values, scenario: Scenario, show: ShowShare) -> None:
        super().__init__()
        self.show = show
        self.total = sum(scenario.train_sizes) * values.get("epochs", 1)
        self.batch = values["batch"]
        self.done = 0
        self.sizes = scenario.train_sizes
        self.epochs = values.get("epochs", 1)
        self.experiences = 0

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        self.done += self.batch
        self.show(min(1.0, self.done / self.total))

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Right again, where a strategy's steps are not those of one epoch after another."""
        self.experiences += 1
        if not isinstance(strategy, JointTraining):
            self.done = sum(self.sizes[: self.experiences]) * self.epochs
        self.show(min(1.0, self.done / self.total))
