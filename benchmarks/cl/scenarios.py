"""The three scenarios as Avalanche benchmarks over tensors in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from avalanche.benchmarks import ClassificationScenario
from avalanche.benchmarks.utils import DataAttribute, TaskLabels
from avalanche.benchmarks.utils.classification_dataset import (
    TaskAwareSupervisedClassificationDataset,
)
from avalanche.benchmarks.utils.flat_data import ConstantSequence
from torch import Tensor
from torch.utils.data import Dataset

from sfr_cl.errors import ArgumentError, DataError

from ..harness.images import Data
from .names import PERMUTED, check_scenario

NUM_PERMUTATIONS = 10
TASKS = 5

Item = tuple[Tensor, int]


@dataclass(frozen=True)
class Scenario:
    """A benchmark, and what a network needs to know of it."""

    benchmark: ClassificationScenario
    name: str
    input_shape: tuple[int, ...]
    num_outputs: int
    """Of the network's one head, or of each."""
    train_sizes: tuple[int, ...]
    """Inputs per experience."""

    @property
    def multi_head(self) -> bool:
        return self.name == "task"

    @property
    def num_experiences(self) -> int:
        return len(self.train_sizes)


def check_tasks(data: Data, tasks: int | None) -> None:
    """Refuse a number of tasks, `None` for all, that the data does not have."""
    permuted = data.name == PERMUTED
    known = NUM_PERMUTATIONS if permuted else len(groups(data.num_classes))
    if tasks is not None and not 2 <= tasks <= known:
        raise ArgumentError(f"expected 2 to {known} tasks of {data.name}, got {tasks}")


def classes_per_task(data: Data) -> int:
    """The most classes of any task: what a memory must hold one sample of each."""
    if data.name == PERMUTED:
        return data.num_classes
    return max(len(group) for group in groups(data.num_classes))


def groups(num_classes: int) -> list[list[int]]:
    """Classes in order, in about five tasks of at least two.

    >>> groups(10)
    [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    >>> groups(5)
    [[0, 1, 2], [3, 4]]
    """
    tasks = num_classes // max(2, num_classes // TASKS)
    if tasks < 2:
        raise DataError(
            f"expected at least four classes, two for each of two tasks, got {num_classes}: "
            "use other data"
        )
    return [part.tolist() for part in np.array_split(np.arange(num_classes), tasks)]


def make(data: Data, name: str, seed: int, tasks: int | None = None) -> Scenario:
    """The benchmark of a scenario, or its first `tasks`.

    `seed` draws the permutations where there are any.
    """
    check_scenario(data.name, name)
    if data.name == PERMUTED:
        return _permuted(data, seed, tasks)
    split = groups(data.num_classes)
    from_zero = name != "class"
    outputs = max(map(len, split)) if from_zero else data.num_classes
    train = [_of_classes(data.x_train, data.y_train, group, from_zero) for group in split[:tasks]]
    test = [_of_classes(data.x_test, data.y_test, group, from_zero) for group in split[:tasks]]
    return _scenario(data, name, train, test, outputs)


def _permuted(data: Data, seed: int, tasks: int | None) -> Scenario:
    generator = torch.Generator().manual_seed(seed)
    pixels = data.x_train[0].numel()
    orders = [torch.randperm(pixels, generator=generator) for _ in range(NUM_PERMUTATIONS)][:tasks]
    train = [PermutedItems(data.x_train, data.y_train, order) for order in orders]
    test = [PermutedItems(data.x_test, data.y_test, order) for order in orders]
    return _scenario(data, "domain", train, test, data.num_classes)


def _scenario(
    data: Data, name: str, train: Sequence["Items"], test: Sequence["Items"], outputs: int
) -> Scenario:
    streams = {
        "train": (_experiences(train, task_labels=name == "task"),),
        "test": (_experiences(test, task_labels=name == "task"),),
    }
    return Scenario(
        benchmark=ClassificationScenario(stream_definitions=streams),
        name=name,
        input_shape=tuple(data.x_train.shape[1:]),
        num_outputs=outputs,
        train_sizes=tuple(map(len, train)),
    )


def _of_classes(x: Tensor, y: Tensor, classes: list[int], from_zero: bool) -> "Items":
    chosen = torch.isin(y, torch.tensor(classes))
    missing = sorted(set(classes) - set(y[chosen].tolist()))
    if missing:
        raise DataError(
            f"expected samples of every class in training and test data, got none of {missing}: "
            "number the classes 0, 1, ... without gaps"
        )
    return Items(x[chosen], y[chosen] - classes[0] if from_zero else y[chosen])


class Items(Dataset[Item]):
    """Samples taken apart once: indexing a list is all an item costs."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.targets: list[int] = y.tolist()
        self.x = x

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.x.unbind(0)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> Item:
        return self.inputs[index], self.targets[index]


class PermutedItems(Items):
    """Samples whose pixels change places, all at once when the first is asked for.

    Ten permuted copies of 60,000 images need 2 GB; one image at a time would double the time of
    a training step.
    """

    def __init__(self, x: Tensor, y: Tensor, order: Tensor) -> None:
        super().__init__(x, y)
        self.order = order

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.x.flatten(1)[:, self.order].view(self.x.shape).unbind(0)


def collate(items: Sequence[Sequence[Any]]) -> list[Tensor]:
    """A mini-batch: stacked inputs, then one tensor for each number the samples carry."""
    inputs, *numbers = zip(*items, strict=True)
    return [torch.stack(inputs), *map(torch.tensor, numbers)]


def _experiences(
    parts: Sequence[Items], *, task_labels: bool
) -> list[TaskAwareSupervisedClassificationDataset[Item]]:
    # Without transforms: their machinery would cost more than the items.
    return [
        TaskAwareSupervisedClassificationDataset(
            [part],
            data_attributes=[
                DataAttribute(part.targets, "targets"),
                TaskLabels(ConstantSequence(index if task_labels else 0, len(part))),
            ],
            collate_fn=collate,
        )
        for index, part in enumerate(parts)
    ]
