"""One method led through one stream, predicted before it learns, at every sample."""

import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..harness.results import Row
from ..harness.run import ShowShare
from . import methods
from .data import Stream
from .settings import Setting

MARKS = 40
"""Points of a curve over the stream."""

FLOOR = 1e-6
"""Probabilities below this count as this: trees give 0 to what they have not seen."""


@dataclass(frozen=True)
class Case:
    """One row."""

    stream: Stream
    method: str
    seed: int
    setting: Setting

    fixed: ClassVar[Sequence[str]] = ()
    varies: ClassVar[Sequence[str]] = ("data", "method", "seed")

    @property
    def key(self) -> Row:
        return {
            "data": self.stream.name,
            "method": self.method,
            "seed": self.seed,
            "num_samples": len(self.stream.y),
            "settings": self.setting,
        }

    @property
    def label(self) -> str:
        return f"{self.stream.name} {self.method} {self.seed}"

    def run(self, show: ShowShare) -> Row:
        stream = self.stream
        method = methods.make(self.method, stream, self.setting, self.seed)
        right, nats, sizes = [], [], []
        every = max(1, len(stream.y) // MARKS)
        start = time.process_time()
        aside = 0.0  # measuring sizes is not the method's time
        for position, (x, y) in enumerate(zip(stream.x, stream.y.tolist(), strict=True)):
            p = method.predict(x[None])[0]
            right.append(float(int(p.argmax()) == y))
            nats.append(-float(p[y].clamp_min(FLOOR).log()))
            method.learn(x, y)
            if (position + 1) % every == 0:
                before = time.process_time()
                sizes.append(len(pickle.dumps(method.state)))
                aside += time.process_time() - before
                show((position + 1) / len(stream.y))
        seconds = time.process_time() - start - aside
        scored = slice(stream.scored_from, None)
        row: Row = {
            **self.key,
            "accuracy": _mean(right[scored]),
            "nlpd": _mean(nats[scored]),
            "samples_per_second": len(stream.y) / max(seconds, 1e-9),
            "scored_from": stream.scored_from,
            "accuracy_curve": _means(right, every),
            "nlpd_curve": _means(nats, every),
            "state_bytes_curve": sizes,
            "curve_every": every,
        }
        if stream.test is not None:
            row |= _test(method, *stream.test)
        return row

    def line(self, row: Row) -> str:
        """The row in short."""
        return (
            f"accuracy {row['accuracy']:.3f}  NLPD {row['nlpd']:.3f}  "
            f"{row['samples_per_second']:,.0f} samples/s"
        )


def _test(method: methods.Method, x: Tensor, y: Tensor) -> Row:
    p = method.predict(x)
    own = p[torch.arange(len(y)), y].clamp_min(FLOOR)
    return {
        "test_accuracy": float((p.argmax(1) == y).double().mean()),
        "test_nlpd": -float(own.log().mean()),
    }


def _mean(values: list[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).mean())


def _means(values: list[float], every: int) -> list[float]:
    """Of every so many values, one after the other."""
    complete = len(values) - len(values) % every
    parts = torch.tensor(values[:complete], dtype=torch.float64).reshape(-1, every).mean(1)
    found: list[float] = parts.tolist()
    return found
