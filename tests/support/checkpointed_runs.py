"""Runs of Avalanche's Naive: never stopped, stopped at a checkpoint, and resumed from it.

No test module, so that a new process can import the classes a checkpoint names.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dill
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sfr_cl.strategies.checkpoints import maybe_load_checkpoint, save_checkpoint
from sfr_cl.strategies.metrics import brier_metrics, ece_metrics, nlpd_metrics

# isort: split
# Avalanche comes after the package that makes torchvision, which it imports, work.
from avalanche.benchmarks import nc_benchmark
from avalanche.checkpointing import constructor_based_serialization
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.logging import InteractiveLogger
from avalanche.models import IncrementalClassifier
from avalanche.training import Naive
from avalanche.training.plugins import (
    EarlyStoppingPlugin,
    EvaluationPlugin,
    EWCPlugin,
    LRSchedulerPlugin,
    ReplayPlugin,
)

FEATURES, CLASSES, EXPERIENCES, STOP = 4, 6, 3, 1
"""A run of three experiences is stopped after the first."""

Metrics = dict[str, tuple[list[int], list[float]]]
"""All values of each metric, with the iteration each was emitted at."""


class Labelled(TensorDataset):
    """With the targets where Avalanche looks for them."""

    def __init__(self, seed: int) -> None:
        x = torch.randn(36, FEATURES, generator=torch.Generator().manual_seed(seed))
        y = torch.arange(36) % CLASSES
        super().__init__(x + nn.functional.one_hot(y, CLASSES)[:, :FEATURES], y)
        self.seed, self.targets = seed, y.tolist()


@dill.register(Labelled)
def _save_labelled(pickler: Any, data: Labelled) -> None:
    """As Avalanche registers its own data sets: found in ``unique_objects``, or made again."""
    constructor_based_serialization(
        pickler, data, Labelled, deduplicate=True, kwargs={"seed": data.seed}
    )


def benchmark() -> Any:
    return nc_benchmark(Labelled(0), Labelled(1), EXPERIENCES, task_labels=False, shuffle=False)


class Growing(nn.Module):
    """Dropout, so that the random state counts, and a head that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Dropout(0.2))
        self.head = IncrementalClassifier(8, initial_out_features=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def fixed(bias: bool = True) -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 8, bias=bias),
        nn.Tanh(),
        nn.Dropout(0.2),
        nn.Linear(8, CLASSES, bias=bias),
    )


def naive(optimizer: str, plugins: str = "none", grow: bool = False) -> Any:
    """A strategy as a user's script makes it, at each start with other random weights."""
    # Muon takes matrices only.
    network = Growing() if grow else fixed(bias=optimizer != "Muon")
    options = {"momentum": 0.9} if optimizer == "SGD" else {}
    stepper = getattr(torch.optim, optimizer)(network.parameters(), lr=0.05, **options)
    levels = {"experience": True, "stream": True}
    evaluator = EvaluationPlugin(
        accuracy_metrics(epoch=True, **levels),
        loss_metrics(minibatch=True, **levels),
        nlpd_metrics(**levels),
        ece_metrics(**levels),
        brier_metrics(**levels),
        loggers=[InteractiveLogger()],
    )
    return Naive(
        model=network,
        optimizer=stepper,
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=4,
        train_epochs=3,
        eval_every=1 if plugins == "early stopping" else -1,
        evaluator=evaluator,
        plugins=PLUGINS[plugins](stepper),
    )


def schedulers(optimizer: torch.optim.Optimizer) -> list[Any]:
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.7)
    return [LRSchedulerPlugin(decay, reset_scheduler=False, reset_lr=False)]


PLUGINS: dict[str, Callable[[torch.optim.Optimizer], list[Any]]] = {
    "none": lambda _: [],
    "replay and EWC": lambda _: [ReplayPlugin(mem_size=10), EWCPlugin(ewc_lambda=1.0)],
    "LR scheduler": schedulers,
    "early stopping": lambda _: [EarlyStoppingPlugin(1, "test_stream", "Loss_Stream", mode="min")],
}


def advance(strategy: Any, scenario: Any, first: int, end: int) -> None:
    for experience in scenario.train_stream[first:end]:
        strategy.train(experience, eval_streams=[scenario.test_stream])
        strategy.eval(scenario.test_stream)


def outcome(strategy: Any) -> dict[str, Any]:
    """All that was measured, the final weights, and the next random numbers."""
    weights = {name: value.tolist() for name, value in strategy.model.state_dict().items()}
    measured: Metrics = strategy.evaluator.get_all_metrics()
    return {
        "metrics": {name: [list(part) for part in values] for name, values in measured.items()},
        "weights": weights,
        "random": [torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()],  # noqa: NPY002
    }


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


def straight(**options: Any) -> dict[str, Any]:
    """The run that is never stopped, nor saved."""
    seed_all(0)
    strategy = naive(**options)
    advance(strategy, benchmark(), 0, EXPERIENCES)
    return outcome(strategy)


def stopped(path: Path, **options: Any) -> Any:
    """The same run up to its checkpoint."""
    seed_all(0)
    strategy = naive(**options)
    advance(strategy, benchmark(), 0, STOP)
    save_checkpoint(strategy, path)
    return strategy


def resumed(path: Path, **options: Any) -> dict[str, Any]:
    """The rest of the run, by new objects that start from other random states."""
    seed_all(1)
    strategy, scenario = naive(**options), benchmark()
    strategy, first = maybe_load_checkpoint(strategy, path)
    assert first == STOP
    advance(strategy, scenario, first, EXPERIENCES)
    return outcome(strategy)
