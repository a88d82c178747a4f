"""How confident predictions are: a scale of the logits, from predictions made before absorbing.

Data that was absorbed can't tell how good predictions are: it has to be predicted first. Scores
keep what each scale of a grid would have cost, and no sample. The scale read from them is that of
least cost, under a weak prior on its logarithm.

The grid is in one-hot units, so that scores outlive new classes: f read at the prior is some number
of times the ridge regression on one-hot targets (:attr:`PriorReading.unit`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sfr_cl.core.sums import SEEN
from sfr_cl.errors import MismatchError
from sfr_cl.likelihoods import Likelihood, PriorReading
from sfr_cl.predictive import log_density

GRID = torch.logspace(-1, 2.5, 22, dtype=torch.float64)
"""Scales of logits in one-hot units."""

GROWTH = 1.5
"""Data, and targets of an output, that are predicted without being absorbed: this many times those
that were."""

GROWTH_OF_A_BOUND = 4.0
"""The same of data that the network was trained on, of all outputs together: a bound needs less."""

CAUTION = 20.0
"""Nats that speak against a scale of e, or of 1/e, times the usual one, before any sample does."""

WORKING_NUMBERS = 2**20


@dataclass(frozen=True)
class Scores:
    """Nats that each scale of :data:`GRID` would have cost."""

    costs: Tensor
    """``[S]``, on the CPU."""
    num_seen: int = 0
    """Outputs seen when they were made: with more of them, earlier scores say little."""

    @staticmethod
    def of(
        likelihood: Likelihood,
        reading: PriorReading,
        num_seen: int,
        mean: Tensor,
        variance: Tensor | None,
        y: Tensor,
        link: str,
        keep: float = 1.0,
    ) -> Scores:
        """Of samples whose logits were predicted to have some mean and variance, ``[B, C]``.

        Args:
            likelihood: that predicts.
            reading: of the sums that f was predicted by.
            num_seen: outputs they have seen.
            mean: of logits at scale 1.
            variance: of these logits; ``None`` for zero.
            y: targets.
            link: as of the posterior.
            keep: weight that is left of a sample's nats when the next one comes.
        """
        scales = (GRID / reading.unit).to(mean)[:, None, None]
        variance = torch.zeros_like(mean) if variance is None else variance
        ages = torch.arange(len(y) - 1, -1, -1, dtype=torch.float64)
        total = torch.zeros_like(GRID)
        size = max(1, WORKING_NUMBERS // (len(GRID) * mean.shape[1]))
        for start in range(0, len(y), size):
            rows = slice(start, start + size)
            means = (scales * mean[rows]).flatten(0, 1)
            variances = (scales**2 * variance[rows]).flatten(0, 1)
            targets = y[rows].repeat(len(GRID), *[1] * (y.ndim - 1))
            gained = log_density(likelihood.predictive(means, variances, link), targets)
            total -= (gained.reshape(len(GRID), -1).cpu() * keep ** ages[rows]).sum(1)
        return Scores(total, num_seen)

    def __add__(self, other: Scores) -> Scores:
        if self.num_seen != other.num_seen:
            return max(self, other, key=lambda scores: scores.num_seen)
        return Scores(self.costs + other.costs, self.num_seen)

    def __mul__(self, factor: float) -> Scores:
        return Scores(self.costs * factor, self.num_seen)

    def scale(self, reading: PriorReading, usual: float) -> float:
        """The scale of f of least cost: the best of the grid, then the parabola beside it.

        Args:
            reading: of the sums that f is predicted by.
            usual: the scale where nothing was scored.
        """
        logs = GRID.log()
        costs = self.costs + CAUTION * (logs - math.log(usual * reading.unit)).square()
        best = int(costs.argmin().clamp(1, len(GRID) - 2))
        left, middle, right = costs[best - 1 : best + 2].tolist()
        bend, step = left - 2 * middle + right, float(logs[1] - logs[0])
        shift = (left - right) / (2 * bend) if bend > 0 else 0.0
        return math.exp(float(logs[best]) + step * min(max(shift, -1.0), 1.0)) / reading.unit

    def plain(self) -> dict[str, Any]:
        """Values a JSON file can hold."""
        return {"costs": self.costs.tolist(), "num_seen": self.num_seen}

    @staticmethod
    def from_plain(values: Mapping[str, Any]) -> Scores:
        """The inverse of :meth:`plain`."""
        costs, num_seen = values.get("costs"), values.get("num_seen")
        if isinstance(costs, list) and len(costs) == len(GRID) and isinstance(num_seen, int):
            found = Scores(torch.tensor(costs, dtype=torch.float64), num_seen)
            if bool(torch.isfinite(found.costs).all()):
                return found
        raise MismatchError(
            f"expected {len(GRID)} finite scores of scales of logits, got {values!r:.60}"
        )


NO_SCORES = Scores(torch.zeros_like(GRID))


@dataclass(frozen=True)
class Forecast:
    """What data is predicted by before it is absorbed: the sums of some earlier moment, solved."""

    coefficients: Tensor
    """v, ``[C, M]``: logits at scale 1 are phi' v + b."""
    offset: Tensor
    """b, ``[C]``: of a discriminant; 0 where f is the logits."""
    seen: Tensor
    """Targets that had observed each output, ``[C]``."""
    prior_precision: float
    """delta."""
    learned_at: float
    """Data there was when delta was learned."""

    def is_outdated(self, seen: Tensor, *, bound: bool = False) -> bool:
        """Whether some output, or for a bound all of them, were observed so much more by now."""
        if len(seen) != len(self.seen):
            return True
        if bound:
            return bool(seen.sum() >= GROWTH_OF_A_BOUND * self.seen.sum())
        return bool(((seen > SEEN) & (seen >= GROWTH * self.seen)).any())

    def logits(self, phi: Tensor) -> Tensor:
        """The mean of logits at scale 1, ``[B, C]``."""
        if len(phi) == 1:
            return phi[0] @ self.coefficients.mT + self.offset
        return torch.einsum("cbm,cm->bc", phi, self.coefficients) + self.offset

    def outdated(self, num_outputs: int) -> Forecast:
        """One that is made again before it is used, with outputs to come; delta stays learned."""
        size = self.coefficients.shape[1]
        return replace(
            self,
            coefficients=self.coefficients.new_zeros(num_outputs, size),
            offset=self.offset.new_zeros(num_outputs),
            seen=self.seen.new_zeros(num_outputs),
        )

    def discount(self, gamma: float) -> Forecast:
        """The same of data that has a share of its weight left."""
        return replace(self, seen=self.seen * gamma, learned_at=self.learned_at * gamma)

    def to(self, device: torch.device) -> Forecast:
        """The same on another device."""
        return replace(
            self,
            coefficients=self.coefficients.to(device),
            offset=self.offset.to(device),
            seen=self.seen.to(device),
        )
