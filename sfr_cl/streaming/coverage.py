"""How much of the data the inducing inputs see, and what exchanging them has cost at most.

Write k for a datum's kernel function, P for the projection onto those of the inducing inputs: its
feature phi is P k, and |P k|^2 = phi' phi. An exchange of inducing inputs projects what was kept
of k, so that after some of them g = P_n ... P_1 k is left instead of P_n k. With b the curvature
and norms over all data, |k|^2 = sum_i b_i |k_i|^2 and so on,

    |k - g| grows by the triangle inequality, at most |g_before - P g_before| at every exchange,
    |P_n k - g| = |P_n (k - g_before)| <= |k - g_before|: the error of the features themselves.

|g|^2 is the trace of W, so that each is known without any datum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from sfr_cl.duals import DualSums
from sfr_cl.streaming.rows import Rows


@dataclass(frozen=True)
class Coverage:
    """Sums over the data, on the scale of W."""

    total: float = 0.0
    """|k|^2."""
    missed: float = 0.0
    """A bound on |k - g|^2."""
    exchanged: float = 0.0
    """A bound on |P k - g|^2: zero for data that came after the last exchange."""

    @staticmethod
    def of(rows: Rows, weights: Tensor | None) -> Coverage:
        """The part of some rows."""
        b = rows.curvature if weights is None else rows.curvature * weights
        return Coverage(float((b * rows.diagonal).sum()), float((b * rows.unexplained).sum()))

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(
            self.total + other.total,
            self.missed + other.missed,
            self.exchanged + other.exchanged,
        )

    def __sub__(self, other: Coverage) -> Coverage:
        return Coverage(
            max(0.0, self.total - other.total), max(0.0, self.missed - other.missed), self.exchanged
        )

    def __mul__(self, factor: float) -> Coverage:
        return Coverage(self.total * factor, self.missed * factor, self.exchanged * factor)

    def after_exchange(self, before: DualSums, after: DualSums) -> Coverage:
        """Inducing inputs exchanged, and the sums projected."""
        lost = max(0.0, _trace(before) - _trace(after))
        missed = (math.sqrt(self.missed) + math.sqrt(lost)) ** 2
        # Projections shorten: |g| <= |k|, and so |k - g| <= 2 |k|.
        return Coverage(self.total, min(missed, 4 * self.total), self.missed)

    @property
    def unexplained(self) -> float:
        """A bound on |k - g| / |k|: what no inducing input sees, or an exchange has lost."""
        return math.sqrt(self.missed / self.total) if self.total else 0.0

    @property
    def exchange_error(self) -> float:
        """A bound on |P k - g| / |k|, the relative error of the features in the sums."""
        return math.sqrt(self.exchanged / self.total) if self.total else 0.0


NO_COVERAGE = Coverage()
"""Of no data."""


def _trace(sums: DualSums) -> float:
    return float(sums.weight.diagonal(dim1=-2, dim2=-1).sum())
