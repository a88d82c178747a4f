"""Small Avalanche benchmarks of every kind, and a model for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sfr_cl import torchvision_operators

torchvision_operators.declare()  # before the first import of Avalanche, which imports torchvision

# isort: split

from avalanche.benchmarks import (  # noqa: E402
    benchmark_from_datasets,
    class_incremental_benchmark,
    data_incremental_benchmark,
    nc_benchmark,
    task_incremental_benchmark,
)
from avalanche.benchmarks.scenarios.online import (  # noqa: E402
    split_continuous_linear_decay_stream,
    split_online_stream,
)
from avalanche.benchmarks.utils import as_classification_dataset  # noqa: E402
from avalanche.benchmarks.utils.data import AvalancheDataset  # noqa: E402
from avalanche.logging import BaseLogger  # noqa: E402
from avalanche.models import (  # noqa: E402
    IncrementalClassifier,
    MultiHeadClassifier,
    MultiTaskModule,
)
from avalanche.training.plugins import EvaluationPlugin  # noqa: E402

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


def class_benchmark(
    *, task_labels: bool = False, order: list[int] | None = None, rows: int = ROWS
) -> Any:
    """Three experiences of two classes each, old style: batches (x, y, t)."""
    return nc_benchmark(
        Labelled(*blobs(1, rows)),
        Labelled(*blobs(2)),
        3,
        task_labels=task_labels,
        fixed_class_order=order or list(range(CLASSES)),
        class_ids_from_zero_in_each_exp=task_labels,
    )


def new_class_benchmark(*, task_labels: bool = False) -> Any:
    """The same, new style: batches (x, y), or (x, y, t)."""
    datasets = {
        name: as_classification_dataset(Labelled(*blobs(seed)))
        for name, seed in (("train", 1), ("test", 2))
    }
    found = class_incremental_benchmark(
        datasets, class_order=list(range(CLASSES)), num_experiences=3
    )
    return task_incremental_benchmark(found) if task_labels else found


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


def repeated(benchmark: Any) -> list[Any]:
    """The training stream, whose first experience comes back."""
    first, second, *others = benchmark.train_stream
    return [first, second, first, *others]


def blurred(benchmark: Any, size: int = 20) -> list[Any]:
    """Nine parts of the training stream; at its boundaries two experiences share a part."""
    torch.manual_seed(0)
    stream = split_continuous_linear_decay_stream(
        benchmark.train_stream, size, iters_per_virtual_epoch=3, beta=3, shuffle=True
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


@dataclass(frozen=True)
class Stream:
    """A benchmark, what is trained on in its order, and what learns it."""

    benchmark: Any
    experiences: list[Any]
    model: Callable[[], nn.Module]
    criterion: nn.Module
    epochs: int = 2

    boundaries: bool = True
    """Whether it says where a task ends."""

    @property
    def is_regression(self) -> bool:
        """Whether targets are numbers."""
        return isinstance(self.criterion, nn.MSELoss)


def _stream(
    benchmark: Any,
    model: Callable[[], nn.Module] = single_head,
    split: Callable[[Any], list[Any]] = lambda benchmark: list(benchmark.train_stream),
    criterion: nn.Module | None = None,
    **options: Any,
) -> Stream:
    experiences = split(benchmark)
    return Stream(benchmark, experiences, model, criterion or nn.CrossEntropyLoss(), **options)


STREAMS: dict[str, Callable[[], Stream]] = {
    "class": lambda: _stream(class_benchmark()),
    "class, new style": lambda: _stream(new_class_benchmark()),
    "task": lambda: _stream(class_benchmark(task_labels=True), MultiHead),
    "task, new style": lambda: _stream(new_class_benchmark(task_labels=True)),
    "growing head": lambda: _stream(class_benchmark(), Growing),
    "domain": lambda: _stream(domain_benchmark(), lambda: single_head(2)),
    "repetition": lambda: _stream(class_benchmark(), split=repeated),
    "data-incremental": lambda: _stream(data_incremental_benchmark(class_benchmark(), 15)),
    "online": lambda: _stream(class_benchmark(), split=lambda b: online(b, 20), epochs=1),
    "online, uneven parts": lambda: _stream(
        class_benchmark(), split=lambda b: online(b, 15), epochs=1
    ),
    "online, no boundaries": lambda: _stream(
        class_benchmark(),
        split=lambda b: online(b, 20, ends=False),
        epochs=1,
        boundaries=False,
    ),
    "blurred": lambda: _stream(class_benchmark(rows=40), split=blurred, epochs=1, boundaries=False),
    "regression": lambda: _stream(
        regression_benchmark(), lambda: single_head(1), criterion=nn.MSELoss()
    ),
}
"""Kinds of streams by name."""
