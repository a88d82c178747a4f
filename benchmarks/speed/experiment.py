"""One row: our work and a baseline's, timed in one process."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..harness.baselines import quiet
from ..harness.memory import peak_megabytes
from ..harness.timing import timed

Work = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """One row: our work, a baseline's, and what was promised."""

    case: str
    baseline: str
    ours: Work
    theirs: Work
    target: float
    """The least ratio of the baseline's time to ours."""
    flops: float | None = None
    """Operations of the formulas our work stands for."""
    dtype: torch.dtype = torch.float64
    baseline_share: float = 1.0
    """The part of the job the baseline was given; its time is scaled up by it."""


@dataclass(frozen=True)
class Row:
    """A line of the table, and of `results.json`, where a baseline is a `peer`."""

    case: str
    peer: str
    seconds: float
    peer_seconds: float
    ratio: float
    target: float
    flop_share: float | None
    peak_mb: float | None
    peer_peak_mb: float | None


def measure(case: Case, rates: dict[torch.dtype, float]) -> Row:
    """Our time and memory, and the baseline's."""
    with quiet():
        seconds, peak = time_and_memory(case.ours, repeats=7)
        peer_seconds, peer_peak = time_and_memory(case.theirs, repeats=3)
    peer_seconds /= case.baseline_share
    share = case.flops / seconds / rates[case.dtype] if case.flops else None
    return Row(
        case=case.case,
        peer=case.baseline,
        seconds=seconds,
        peer_seconds=peer_seconds,
        ratio=peer_seconds / seconds,
        target=case.target,
        flop_share=share,
        peak_mb=peak,
        peer_peak_mb=peer_peak,
    )


def time_and_memory(work: Work, repeats: int) -> tuple[float, float | None]:
    """Median seconds after a first run, which shows the peak; work of many seconds is run once."""
    peak, first = timed(lambda: peak_megabytes(work))
    if first > 3:
        return first, peak
    return statistics.median(timed(work)[1] for _ in range(repeats)), peak


def product_rate(dtype: torch.dtype) -> float:
    """Operations per second of a large matrix product."""
    a = torch.randn(2000, 2000, dtype=dtype)
    return 2 * 2000**3 / time_and_memory(lambda: a @ a, repeats=9)[0]
