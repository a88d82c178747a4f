"""Small streams, and what they should know: every sample stored, with its weight, and summed."""

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from sfr_cl import SFRPosterior, StreamingPosterior
from sfr_cl.core.state import State
from sfr_cl.core.sums import DualSums
from support.posteriors import OUTPUTS, data, inputs, mlp

ROWS = 90


def posterior(kind: str = "classification", **options: Any) -> SFRPosterior:
    """Not fitted, over eight given inducing inputs."""
    options.setdefault("inducing", inputs(8, seed=2))
    return SFRPosterior(mlp(OUTPUTS[kind]), kind, **options)


def stream(kind: str = "classification", **settings: Any) -> StreamingPosterior:
    """Over eight given inducing inputs."""
    return StreamingPosterior(posterior(kind), **settings)


def samples(kind: str = "classification", rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Samples of a stream."""
    return data(kind, rows, seed=5)


@dataclass
class Naive:
    """Samples as a list of (x, y, time, weight), each in the sums by itself."""

    discount: float = 1.0
    window: int | None = None
    now: float = -math.inf
    stored: list[tuple[Tensor, Tensor, float, float]] = field(default_factory=list)

    def learn(self, x: Tensor, y: Tensor, time: float) -> None:
        self._age_to(max(self.now, time))
        self.stored.append((x, y, time, self.discount ** (self.now - time)))
        if self.window is not None:
            self.stored = self.stored[-self.window :]

    def forget(self, index: int) -> tuple[Tensor, Tensor, float]:
        x, y, time, _ = self.stored.pop(index)
        return x, y, time

    def scale(self, gamma: float) -> None:
        self.stored = [(x, y, time, gamma * weight) for x, y, time, weight in self.stored]

    def merge(self, other: "Naive") -> None:
        self.stored += [(x, y, self.now, weight) for x, y, _, weight in other.stored]

    def _age_to(self, now: float) -> None:
        if self.stored and self.now > -math.inf:
            self.scale(self.discount ** (now - self.now))
        self.now = now

    def sums(self, state: State) -> DualSums:
        total = state.no_sums()
        for x, y, _, weight in self.stored:
            total = total + state.sums_of([(x[None], y[None])]) * weight
        return total


def sums(of: StreamingPosterior) -> DualSums:
    """All a stream remembers."""
    found: DualSums = of.posterior.state.sums
    return found


def assert_same_sums(found: DualSums, expected: DualSums, tolerance: float = 1e-9) -> None:
    """Each sum, relative to the largest of its kind."""
    for mine, theirs in zip(found.tensors(), expected.tensors(), strict=True):
        scale = max(1.0, float(theirs.abs().max()))
        assert float((mine - theirs).abs().max()) <= tolerance * scale
