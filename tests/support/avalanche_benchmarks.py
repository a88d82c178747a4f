"""Small Avalanche benchmarks and models for the tests of the strategies."""

from __future__ import annotations

from typing import Any

import torch
from avalanche.benchmarks import benchmark_from_datasets, nc_benchmark
from avalanche.benchmarks.scenarios.online import split_online_stream
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.benchmarks.utils.data import AvalancheDataset
from avalanche.logging import BaseLogger
from avalanche.models import IncrementalClassifier, MultiHeadClassifier, MultiTaskModule
from avalanche.training.plugins import EvaluationPlugin
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

FEATURES, CLASSES, HIDDEN = 4, 6, 16
ROWS = 20
"""Samples of a class."""


class Labelled(TensorDataset):
    """Tensors with the attribute Avalanche reads classes from."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__(x, y)
        self.targets = y.tolist()


def blobs(seed: int, rows: int = ROWS, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    """Classes that can be told apart, as images of one channel and 2 x 2 pixels."""
    centres = 3 * torch.randn(classes, FEATURES, generator=torch.Generator().manual_seed(7))
    y = torch.arange(classes).repeat_interleave(rows)
    noise = torch.randn(len(y), FEATURES, generator=torch.Generator().manual_seed(seed))
    return (centres[y] + noise).reshape(-1, 1, 2, 2), y


def class_benchmark(*, task_labels: bool = False, order: list[int] | None = None) -> Any:
    """Three experiences of two classes each, old style: batches (x, y, t)."""
    return nc_benchmark(
        Labelled(*blobs(1)),
        Labelled(*blobs(2)),
        3,
        task_labels=task_labels,
        fixed_class_order=order or list(range(CLASSES)),
        class_ids_from_zero_in_each_exp=task_labels,
    )


def domain_benchmark() -> Any:
    """The same classes, features in another order each time; new style: batches (x, y)."""

    def part(seed: int, shift: int) -> Any:
        x, y = blobs(seed, classes=2)
        x = x.flatten(1).roll(shift, 1).reshape(-1, 1, 2, 2)
        return as_classification_dataset(Labelled(x, y))

    train = [part(1, shift) for shift in range(3)]
    return benchmark_from_datasets(train=train, test=[part(2, shift) for shift in range(3)])


def regression_benchmark() -> Any:
    """One function, seen part by part; new style."""

    def part(seed: int, low: float) -> Any:
        generator = torch.Generator().manual_seed(seed)
        x = low + torch.rand(40, 1, 2, 2, generator=generator)
        return AvalancheDataset([TensorDataset(x, x.flatten(1).sum(1, keepdim=True).sin())])

    train = [part(1, low) for low in (-1.5, -0.5, 0.5)]
    return benchmark_from_datasets(train=train, test=[part(2, low) for low in (-1.5, -0.5, 0.5)])


def online(benchmark: Any, size: int = 10, *, ends: bool = True) -> list[Any]:
    """The training stream in parts."""
    stream = split_online_stream(
        benchmark.train_stream, size, access_task_boundaries=ends, shuffle=False
    )
    return list(stream)


def body() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, HIDDEN), nn.Tanh())


def single_head(outputs: int = CLASSES, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(body(), nn.Linear(HIDDEN, outputs))


class Growing(nn.Module):
    """A head that grows with the classes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = body(), IncrementalClassifier(HIDDEN, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(x))
        return found


class MultiHead(MultiTaskModule):  # type: ignore[misc]
    """A head for every task label."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = body(), MultiHeadClassifier(HIDDEN, 2)

    def forward(self, x: Tensor, task_labels: Tensor | int) -> Tensor:
        found: Tensor = self.head(self.body(x), task_labels)
        return found


def silent(*metrics: Any) -> EvaluationPlugin:
    """An evaluator that prints nothing."""
    return EvaluationPlugin(*metrics, loggers=[BaseLogger()])


def dataset_of(experience: Any) -> Dataset[Any]:
    found: Dataset[Any] = experience.dataset
    return found
