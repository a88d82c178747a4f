"""Samples that are stored as they came, those of a window and the first of a stream; their sums.

The sums of a window are rebuilt: beside those that samples enter and leave, others are summed that
hold the samples since some moment. Once all earlier ones have left, they are the sums, and others
are begun: so rounding, and what an outlier left of it, never lasts longer than three windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sfr_cl.core.sums import DualSums
from sfr_cl.data.inputs import Inputs, leaves, take
from sfr_cl.errors import DataError
from sfr_cl.streaming.inducing import NO_RESIDUAL, ResidualBound
from sfr_cl.streaming.samples import Batch, Samples


@dataclass(frozen=True)
class Window:
    """Samples in the order they came, in chunks."""

    chunks: tuple[Samples, ...] = ()

    def __len__(self) -> int:
        return sum(len(chunk) for chunk in self.chunks)

    def all(self) -> Samples:
        """In one piece."""
        return Samples.join(self.chunks)

    def with_samples(self, samples: Samples) -> Window:
        """With more of them at the end."""
        return Window((*self.chunks, samples))

    def between(self, start: int, stop: int) -> Window:
        """Those from one position up to another, not copied."""
        parts = []
        for chunk in self.chunks:
            if start < len(chunk) and stop > 0:
                parts.append(chunk.take(slice(max(0, start), stop)))
            start, stop = start - len(chunk), stop - len(chunk)
        return Window(tuple(parts))

    def scaled(self, gamma: float) -> Window:
        """With another share of their weight."""
        return Window(tuple(chunk.scaled(gamma) for chunk in self.chunks))

    def find(self, x: Inputs, y: Tensor, at: float | None, taken: set[int]) -> int:
        """Position of a sample given as a batch of one; of equal ones, the oldest."""
        start = 0
        for chunk in self.chunks:
            match = _rows_equal(chunk.y, y)
            for (_, mine), (_, theirs) in zip(leaves(chunk.x), leaves(x), strict=True):
                match &= _rows_equal(mine, theirs)
            if at is not None:
                match &= chunk.times == at
            for row in match.nonzero()[:, 0].tolist():
                if start + row not in taken:
                    return start + row
            start += len(chunk)
        raise DataError(
            "expected a sample that is still stored, got one that is not: it was never learned, "
            "was forgotten, or has left the window by itself"
        )

    def without(self, positions: list[int]) -> Window:
        """All but those at some positions."""
        samples = self.all()
        stays = torch.ones(len(samples), dtype=torch.bool, device=samples.times.device)
        stays[positions] = False
        return Window((samples.take(stays.nonzero()[:, 0]),) if bool(stays.any()) else ())


@dataclass(frozen=True)
class Totals:
    """The sums of samples, and the Nystrom residuals that go with them."""

    sums: DualSums
    residual: ResidualBound = NO_RESIDUAL
    count: int = 0
    """Samples, whatever their weight."""

    @staticmethod
    def of(batch: Batch, weights: Tensor | None) -> Totals:
        """Of some samples; each once, or with its weight."""
        sums = DualSums.of(batch.features.phi, batch.terms, weights)
        return Totals(sums, ResidualBound.of(batch, weights), len(batch))

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.sums + other.sums, self.residual + other.residual, self.count + other.count
        )

    def __sub__(self, other: Totals) -> Totals:
        return Totals(
            self.sums - other.sums, self.residual - other.residual, self.count - other.count
        )

    def __mul__(self, factor: float) -> Totals:
        if factor == 1:
            return self
        return Totals(self.sums * factor, self.residual * factor, self.count)

    def to(self, device: torch.device) -> Totals:
        """The same on another device."""
        return Totals(self.sums.to(device), self.residual, self.count)


def _rows_equal(many: Tensor, one: Tensor) -> Tensor:
    """Which rows of ``many`` equal the only row of ``one``."""
    if many.shape[1:] != one.shape[1:]:
        return torch.zeros(len(many), dtype=torch.bool, device=many.device)
    return (many == take(one, slice(0, 1))).reshape(len(many), -1).all(1)
