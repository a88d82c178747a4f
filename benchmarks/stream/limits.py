"""What endless data costs: a million samples, and the time between a sample and an answer."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import ClassVar

import torch
from torch import Tensor, nn

from sfr_cl import SFRPosterior, StreamingPosterior

from ..harness.memory import resident_megabytes
from ..harness.networks import mlp
from ..harness.results import Row
from ..harness.run import Job, ShowShare

SAMPLES, BATCH, MARKS = 1_000_000, 1_000, 10
FEATURES, CLASSES = 32, 10
LATENCIES = 1_000
SEEN = (1_000, 10_000, 100_000)
"""Samples learned before latencies are measured."""


def network() -> nn.Module:
    """Of the size of a small tabular problem."""
    torch.manual_seed(0)
    return mlp(FEATURES, 64, 64, CLASSES)


def batch(index: int, size: int = BATCH) -> tuple[Tensor, Tensor]:
    """Made when it is asked for, so that no data set is ever in memory."""
    generator = torch.Generator().manual_seed(index)
    x = torch.randn(size, FEATURES, generator=generator, dtype=torch.float64)
    return x, x[:, :CLASSES].argmax(1)


def inducing(count: int) -> Tensor:
    return torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(-1))


@dataclass(frozen=True)
class Million:
    """A million samples through `learn_many`, against a fit to the same."""

    samples: int = SAMPLES
    num_inducing: int = 200

    fixed: ClassVar[Sequence[str]] = ()
    varies: ClassVar[Sequence[str]] = ("case", "num_inducing", "samples")

    @property
    def key(self) -> Row:
        return {"case": "learn_many", "num_inducing": self.num_inducing, "samples": self.samples}

    @property
    def label(self) -> str:
        return f"{self.samples:,} samples"

    def run(self, show: ShowShare) -> Row:
        z = inducing(self.num_inducing)
        live = StreamingPosterior(SFRPosterior(network(), "classification", inducing=z))
        batches = self.samples // BATCH
        seconds, megabytes = [], []
        for mark in range(MARKS):
            start = time.process_time()
            for index in range(mark * batches // MARKS, (mark + 1) * batches // MARKS):
                live.learn_many(*batch(index))
            seconds.append(time.process_time() - start)
            megabytes.append(resident_megabytes())
            show((mark + 1) / MARKS / 2)
        fitted = SFRPosterior(network(), "classification", inducing=z)
        fitted.fit(batch(index) for index in range(batches))
        pairs = zip(live.posterior.state.sums.tensors(), fitted.state.sums.tensors(), strict=True)
        share = self.samples / MARKS
        return {
            **self.key,
            "microseconds_per_sample": [1e6 * part / share for part in seconds],
            "resident_mb": megabytes,
            "memory_growth": megabytes[-1] / megabytes[0] - 1,
            "difference_from_fit": max(
                float((a - b).abs().max() / b.abs().max().clamp_min(1)) for a, b in pairs
            ),
        }

    def line(self, row: Row) -> str:
        """The row in short."""
        first, last = row["microseconds_per_sample"][0], row["microseconds_per_sample"][-1]
        return (
            f"{first:.0f} us a sample at first, {last:.0f} at last; memory "
            f"{100 * row['memory_growth']:+.1f} %; {row['difference_from_fit']:.0e} from a fit"
        )


@dataclass(frozen=True)
class Latency:
    """`learn_one`, then a prediction, after some samples."""

    num_inducing: int
    seen: int

    fixed: ClassVar[Sequence[str]] = ()
    varies: ClassVar[Sequence[str]] = ("case", "num_inducing", "samples")

    @property
    def key(self) -> Row:
        return {
            "case": "learn_one, predict_one",
            "num_inducing": self.num_inducing,
            "samples": self.seen,
        }

    @property
    def label(self) -> str:
        return f"latency, M = {self.num_inducing}, after {self.seen:,}"

    def run(self, show: ShowShare) -> Row:
        z = inducing(self.num_inducing)
        live = StreamingPosterior(SFRPosterior(network(), "classification", inducing=z))
        for index in range(self.seen // BATCH):
            live.learn_many(*batch(index))
            show(index * BATCH / self.seen)
        x, y = batch(-2, LATENCIES)
        milliseconds = []
        for row in range(LATENCIES):
            start = time.perf_counter()
            live.learn_one(x[row], int(y[row]))
            live.predict_one(x[row])
            milliseconds.append(1000 * (time.perf_counter() - start))
        return {
            **self.key,
            "median_ms": median(milliseconds),
            "p99_ms": quantiles(milliseconds, n=100)[-1],
        }

    def line(self, row: Row) -> str:
        """The row in short."""
        return f"median {row['median_ms']:.2f} ms, 99 % below {row['p99_ms']:.2f} ms"


def jobs() -> list[Job]:
    """All that is measured."""
    return [Million(), *(Latency(m, seen) for m in (200, 1000) for seen in SEEN)]
