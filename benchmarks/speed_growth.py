"""How time and memory grow with a stream that never stops: they should not."""

import gc
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn

from sfr_cl import SFRPosterior

from .memory import peak_megabytes
from .timing import timed

LENGTHS = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
BATCH = 1_000
BLUE, VERMILLION = "#0072B2", "#D55E00"


@dataclass(frozen=True)
class Length:
    """One length of stream."""

    case: str
    num_data: int
    microseconds_per_sample: float
    peak_mb: float | None


def growth() -> list[Length]:
    """Streams made as they are absorbed, so that no data set is ever in memory."""
    network = nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    posterior = SFRPosterior(network, "classification", inducing=torch.randn(200, 32))

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(BATCH, 32), torch.randint(10, (BATCH,))

    posterior.fit(batch())
    points = []
    for length in LENGTHS:
        stream = (batch() for _ in range(length // BATCH))
        _, seconds = timed(lambda stream=stream: posterior.update(stream))  # type: ignore[misc]
        gc.collect()
        again = (batch() for _ in range(length // BATCH))
        peak = peak_megabytes(lambda again=again: posterior.update(again))  # type: ignore[misc]
        name = "stream, MLP 32-64-64-10, M = 200, shared"
        points.append(Length(name, length, 1e6 * seconds / length, peak))
    return points


def draw(points: list[Length], path: Path) -> Path:
    """Cost per sample and peak memory against the length of the stream."""
    figure = Figure(figsize=(7, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    lengths = [point.num_data for point in points]
    left.plot(lengths, [point.microseconds_per_sample for point in points], "o-", color=BLUE)
    left.set_ylabel("microseconds per sample")
    right.plot(lengths, [point.peak_mb or 0.0 for point in points], "D-", color=VERMILLION)
    right.set_ylabel("peak MB above the start")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
        axes.set_xlabel("samples in the stream")
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
