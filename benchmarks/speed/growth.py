"""How time and memory grow with a stream that never stops: they should not."""

import gc
from dataclasses import dataclass

import torch

from sfr_cl import SFRPosterior

from ..harness.memory import peak_megabytes
from ..harness.networks import mlp
from ..harness.timing import timed

LENGTHS = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
BATCH = 1_000


@dataclass(frozen=True)
class Length:
    """One length of stream."""

    case: str
    num_data: int
    microseconds_per_sample: float
    peak_mb: float | None


def growth() -> list[Length]:
    """Streams made as they are absorbed, so that no data set is ever in memory."""
    posterior = SFRPosterior(mlp(32, 64, 64, 10), "classification", inducing=torch.randn(200, 32))

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
