"""What SFR costs in training: a step beside replay's, and a posterior beside an epoch."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.logging import BaseLogger
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
from avalanche.training.supervised import Naive
from torch import nn

from sfr_cl.strategies import SFR

from ..cl.experiment import avalanche_calls_its_old_functions
from ..cl.scenarios import Items
from ..harness.networks import mlp
from .experiment import Case

BATCH, STEPS, POINTS = 32, 50, 200
SIZES = (784, 256, 256, 10)
OURS = {"num_inducing": POINTS, "likelihood": "classification", "verbose": False}
SCHEDULES: dict[str, tuple[dict[str, Any], int]] = {
    "800 points a step": ({}, 4),
    "400 points a step": ({"points_per_step": 400}, 2),
    "all tasks": ({"points_per_step": None}, 50),
    "consolidated": ({"consolidated": True}, 1),
}
"""The options of SFR, and how many sets of M samples a step forwards at most."""


def training_cases() -> Iterator[Callable[[], Case]]:
    """Every case, made when its turn comes."""
    for schedule in SCHEDULES:
        for tasks in (2, 50):
            yield partial(step, schedule, tasks)
    yield building


def step(schedule: str, tasks: int) -> Case:
    """Steps of SFR with that many tasks behind it; of replay with as many samples forwarded."""
    options, sets = SCHEDULES[schedule]
    sfr = strategy_of(SFR, **OURS, **options)
    for index in range(tasks):
        sfr.sfr.end_task(sfr.model, images(2 * POINTS, seed=index))
    forwarded = POINTS * min(tasks, sets)
    replay = strategy_of(Naive, plugins=[ReplayPlugin(tasks * POINTS, batch_size_mem=forwarded)])
    with avalanche_calls_its_old_functions():
        replay.train(experience(tasks * POINTS))
    return Case(
        case=f"{STEPS} training steps, MLP 784-256-256-10, M = 200, {tasks} tasks, {schedule}",
        baseline=f"Avalanche's replay, {forwarded:,} stored samples a step",
        ours=epoch_of(sfr),
        theirs=epoch_of(replay),
        target=1 / 1.5,
    )


def building() -> Case:
    """The posterior of a task, and one epoch of its training."""
    data = images(12_000)
    naive = strategy_of(Naive)

    def ours() -> None:
        strategy_of(SFR, **OURS).sfr.end_task(naive.model, data)

    return Case(
        case="posterior of a task, MLP 784-256-256-10, N = 12,000, M = 200",
        baseline=f"one epoch of its training, batches of {BATCH}",
        ours=ours,
        theirs=epoch_of(naive, len(data)),
        target=1,
    )


def images(count: int, seed: int = 0) -> Items:
    """Noise in the form of MNIST: a step's time does not depend on its content."""
    generator = torch.Generator().manual_seed(seed)
    return Items(torch.rand(count, 1, 28, 28, generator=generator), torch.arange(count) % 2)


def experience(count: int) -> Any:
    """One experience of that many images."""
    part = as_classification_dataset(images(count))
    return benchmark_from_datasets(train=[part]).train_stream[0]


def strategy_of(kind: Callable[..., Any], **options: Any) -> Any:
    """A strategy on an MLP, trained by Adam, that prints nothing."""
    model = nn.Sequential(nn.Flatten(), mlp(*SIZES))
    return kind(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), 1e-4),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=BATCH,
        evaluator=EvaluationPlugin(loggers=BaseLogger()),
        **options,
    )


def epoch_of(strategy: Any, count: int = BATCH * STEPS) -> Callable[[], None]:
    """One epoch over an experience, and nothing of what comes before and after it."""
    strategy.is_training = True
    strategy.model.train()
    strategy.experience = experience(count)
    strategy._before_training()
    strategy._before_training_exp()
    found: Callable[[], None] = strategy.training_epoch
    return found
