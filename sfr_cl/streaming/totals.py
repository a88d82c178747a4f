"""What samples come to, as one record that is added, subtracted and scaled."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sfr_cl.core.sums import DualSums
from sfr_cl.streaming.inducing import NO_RESIDUAL, ResidualBound
from sfr_cl.streaming.samples import Batch


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
