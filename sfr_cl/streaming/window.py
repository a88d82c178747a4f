"""Samples that are stored as they came: those of a sliding window, and the first of a stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from sfr_cl.core.sums import DualSums
from sfr_cl.data.inputs import Inputs, leaves, take
from sfr_cl.errors import DataError
from sfr_cl.streaming.inducing import NO_RESIDUAL, ResidualBound
from sfr_cl.streaming.samples import Samples


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

    def oldest(self, count: int) -> Samples:
        """The first ``count``."""
        parts, left = [], count
        for chunk in self.chunks:
            if left <= 0:
                break
            parts.append(chunk.take(slice(0, left)))
            left -= len(chunk)
        return Samples.join(parts)

    def without_oldest(self, count: int) -> Window:
        """All but the first ``count``."""
        ends = list(accumulate(len(chunk) for chunk in self.chunks))
        left = [
            chunk.take(slice(max(0, count - (end - len(chunk))), None))
            for chunk, end in zip(self.chunks, ends, strict=True)
            if end > count
        ]
        return Window(tuple(left))

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
class Rebuilt:
    """An accumulator that is rebuilt: the sums of the window's samples since some moment.

    Once all earlier samples have left, they are the sums, and others are begun: so rounding, and
    what an outlier left of it, never lasts longer than three windows.
    """

    sums: DualSums
    residual: ResidualBound = NO_RESIDUAL
    count: int = 0

    def with_samples(self, sums: DualSums, residual: ResidualBound, count: int) -> Rebuilt:
        """With more samples."""
        return Rebuilt(self.sums + sums, self.residual + residual, self.count + count)

    def without(self, sums: DualSums, residual: ResidualBound, count: int) -> Rebuilt:
        """Without some samples."""
        return Rebuilt(self.sums - sums, self.residual - residual, self.count - count)

    def scaled(self, gamma: float) -> Rebuilt:
        """With another share of their weight."""
        return replace(self, sums=self.sums * gamma, residual=self.residual * gamma)


def _rows_equal(many: Tensor, one: Tensor) -> Tensor:
    """Which rows of ``many`` equal the only row of ``one``."""
    if many.shape[1:] != one.shape[1:]:
        return torch.zeros(len(many), dtype=torch.bool, device=many.device)
    return (many == take(one, slice(0, 1))).reshape(len(many), -1).all(1)
