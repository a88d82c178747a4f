"""Streams of labelled samples, in the order they are learned in."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfr_cl.errors import DataError

from ..harness.datasets import find
from ..harness.images import idx_parts

VALIDATION = 6000
"""Samples of Elec2 that hyperparameters are chosen on: they are learned, but not scored."""

PER_CLASS = 600
TUNING_PER_CLASS = 200
TUNING_TEST = slice(-2000, None)
"""Images of the training data that are never in the stream: asked for at the end of a trial."""
CLASSES_AT_A_TIME = 2
NUM_TEST = 2000


@dataclass(frozen=True)
class Stream:
    """Samples in order, and held-out ones to ask about at the end."""

    name: str
    x: Tensor
    """``[N, d]``."""
    y: Tensor
    num_classes: int
    scored_from: int = 0
    test: tuple[Tensor, Tensor] | None = None
    tuning: "Stream | None" = None
    """Samples that hyperparameters are chosen on."""

    def first(self, count: int | None) -> "Stream":
        """The beginning of it."""
        if count is None:
            return self
        kept = min(count, len(self.y))
        return Stream(
            self.name,
            self.x[:kept],
            self.y[:kept],
            self.num_classes,
            min(self.scored_from, kept // 2),
            self.test,
            None if self.tuning is None else self.tuning.first(count),
        )


def load(name: str, data_root: Path | None) -> Stream:
    """A stream by name."""
    return LOADERS[name](data_root)


def elec2(data_root: Path | None) -> Stream:
    """Half-hourly prices of electricity in New South Wales: will they rise? In order of time."""
    path = find("stream/elec2.csv", data_root, "rows of numbers, the class last, no header")
    table = torch.from_numpy(np.loadtxt(path, delimiter=","))
    if table.ndim != 2 or table.shape[1] < 2 or not bool(torch.isfinite(table).all()):
        raise DataError(f"expected rows of finite numbers in {path}, the class last, got others")
    x, y = standardised_so_far(table[:, :-1]), table[:, -1].long()
    tuning = Stream("elec2", x[:VALIDATION], y[:VALIDATION], 2)
    return Stream("elec2", x, y, 2, VALIDATION, tuning=tuning)


def mnist(data_root: Path | None) -> Stream:
    """Handwritten digits, 14 x 14, two classes after two others; at the end, all are asked for."""
    file = "MNIST/raw/train-images-idx3-ubyte"
    root = find(file, data_root, "as torchvision downloads it").parents[2]
    train, test = idx_parts(root)
    held_out = _pixels(test.data[:NUM_TEST]), test.targets[:NUM_TEST]
    left = _pixels(train.data[TUNING_TEST]), train.targets[TUNING_TEST]
    tuning = _by_class(train, slice(PER_CLASS, PER_CLASS + TUNING_PER_CLASS))
    return Stream(
        "mnist",
        *_by_class(train, slice(0, PER_CLASS)),
        10,
        test=held_out,
        tuning=Stream("mnist", *tuning, 10, test=left),
    )


def _by_class(images: Any, part: slice) -> tuple[Tensor, Tensor]:
    """A part of each class, two classes after two others."""
    order = []
    generator = torch.Generator().manual_seed(0)
    for start in range(0, 10, CLASSES_AT_A_TIME):
        classes = range(start, start + CLASSES_AT_A_TIME)
        rows = torch.cat([(images.targets == label).nonzero()[part, 0] for label in classes])
        order.append(rows[torch.randperm(len(rows), generator=generator)])
    rows = torch.cat(order)
    return _pixels(images.data[rows]), images.targets[rows]


LOADERS: dict[str, Callable[[Path | None], Stream]] = {"elec2": elec2, "mnist": mnist}


def standardised_so_far(x: Tensor) -> Tensor:
    """Each row by mean and deviation of the rows up to it: nothing is known in advance."""
    count = torch.arange(1, len(x) + 1, dtype=x.dtype)[:, None]
    mean = x.cumsum(0) / count
    variance = (x.square().cumsum(0) / count - mean.square()).clamp_min(0)
    return torch.where(variance > 1e-12, (x - mean) / variance.clamp_min(1e-12).sqrt(), 0.0)


def _pixels(images: Tensor) -> Tensor:
    """Means of two by two pixels: trees take a tenth of a second for a sample of all."""
    return nn.functional.avg_pool2d(images.double() / 255, 2).flatten(1)
