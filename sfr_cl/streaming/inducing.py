"""Inducing inputs for endless data: chosen from the first samples, exchanged for new regions.

Variances are relative to kappa(x, x), so that large inputs are not mistaken for new ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sfr_cl.core.basis import InducingInputs
from sfr_cl.core.linalg import JITTER, cholesky
from sfr_cl.core.sums import DualSums
from sfr_cl.data.inputs import Inputs, concat, matching, take
from sfr_cl.inducing import pivots
from sfr_cl.streaming.samples import Batch

POOL = 32
"""Candidates for an exchange, and so the most that are exchanged at a time."""

NEW = 2.0
"""A candidate takes the place of an inducing input that has less than 1/NEW of its variance."""

DISTINCT = 1e-6
"""The conditional variance below which an input adds little but rounding."""


@dataclass(frozen=True)
class Candidates:
    """The inputs the inducing inputs explain least, of those that came since the last exchange."""

    pool: tuple[Inputs, Tensor] | None = None
    """The inputs, and their relative conditional variance ``[P]``."""
    looked_at: int = 0
    """Samples since the last exchange was considered."""

    def having_seen(self, batch: Batch) -> Candidates:
        """With the least explained inputs of some samples."""
        features = batch.features
        assert features.diagonal is not None
        tiny = torch.finfo(torch.float64).tiny
        variance = (features.unexplained / features.diagonal.clamp_min(tiny)).mean(0)
        pool = batch.samples.x, variance
        pool = pool if self.pool is None else concat([self.pool, pool])
        best = pool[1].argsort(descending=True, stable=True)[:POOL]
        return Candidates(take(pool, best), self.looked_at + len(batch))

    def without(self, x: Inputs) -> Candidates:
        """Without those that equal one of some inputs."""
        if self.pool is None:
            return self
        stays = (~matching(self.pool[0], x)).nonzero()[:, 0]
        return replace(self, pool=take(self.pool, stays) if len(stays) else None)


NO_CANDIDATES = Candidates()


def first(basis: InducingInputs, x: Inputs, count: int) -> Inputs:
    """At most ``count`` of some inputs, by greatest conditional variance."""
    chosen = pivots(_correlation(basis.gram(x).double().mean(0)), count, DISTINCT)
    return take(x, chosen)


def exchanged(basis: InducingInputs, candidates: Inputs, budget: int) -> Inputs | None:
    """Inducing inputs with some exchanged for candidates, or ``None`` if none is worth it."""
    size = basis.size
    joint = concat([basis.z, candidates])
    gram = _correlation(basis.gram(joint).double().mean(0))
    inverse = torch.cholesky_inverse(_factor(gram[:size, :size]))
    cross = gram[size:, :size]
    news = gram[size:, size:] - cross @ inverse @ cross.mT
    order = pivots(news, POOL, DISTINCT)
    if not len(order):
        return None
    variances = _factor(news[order][:, order]).diagonal().square()
    staying = list(range(size))
    added: list[int] = []
    for entry, variance in zip(order.tolist(), variances.tolist(), strict=True):
        if len(staying) + len(added) >= budget:
            alone = 1 / inverse.diagonal()
            least = int(alone.argmin())
            if NEW * float(alone[least]) > variance:
                break
            del staying[least]
            inverse = _without(inverse, least)
        added.append(size + entry)
    return take(joint, torch.tensor(staying + added)) if added else None


def _correlation(gram: Tensor) -> Tensor:
    scale = gram.diagonal().clamp_min(torch.finfo(gram.dtype).tiny).rsqrt()
    return scale[:, None] * gram * scale


def _factor(gram: Tensor) -> Tensor:
    return cholesky(gram[None], "the kernel matrix of candidates", JITTER[torch.float64])[0]


def _without(inverse: Tensor, index: int) -> Tensor:
    """The inverse of a matrix whose row and column ``index`` are deleted."""
    others = torch.arange(len(inverse), device=inverse.device) != index
    column = inverse[others, index]
    return inverse[others][:, others] - torch.outer(column, column) / inverse[index, index]


@dataclass(frozen=True)
class ResidualBound:
    """Nystrom residuals of the data, with bounds on what exchanges have cost; sums on W's scale.

    Write k for a datum's kernel function, P for the projection onto those of the inducing inputs:
    its feature phi is P k, and |P k|^2 = phi' phi. An exchange of inducing inputs projects what was
    left of k, so that after some of them g = P_n ... P_1 k is in the sums instead of P_n k. With b
    the curvature and norms over all data, |k|^2 = sum_i b_i |k_i|^2 and so on,

        |k - g| grows by the triangle inequality, at most |g_before - P g_before| at every exchange,
        |P_n k - g| = |P_n (k - g_before)| <= |k - g_before|: the error of the features themselves.

    |g|^2 is the trace of W, so that each is known without any datum.

    Args:
        total: |k|^2.
        missed: a bound on |k - g|^2.
        exchanged: a bound on |P k - g|^2: zero for data that came after the last exchange.

    >>> bound = ResidualBound(total=100.0, missed=4.0, exchanged=1.0)
    >>> bound.unexplained, bound.exchange_error
    (0.2, 0.1)
    """

    total: float = 0.0
    missed: float = 0.0
    exchanged: float = 0.0

    @staticmethod
    def of(batch: Batch, weights: Tensor | None) -> ResidualBound:
        """The part of some samples."""
        features, b = batch.features, batch.curvature
        assert features.diagonal is not None
        b = b if weights is None else b * weights
        return ResidualBound(
            float((b * features.diagonal).sum()), float((b * features.unexplained).sum())
        )

    def __add__(self, other: ResidualBound) -> ResidualBound:
        return ResidualBound(
            self.total + other.total,
            self.missed + other.missed,
            self.exchanged + other.exchanged,
        )

    def __sub__(self, other: ResidualBound) -> ResidualBound:
        return ResidualBound(
            max(0.0, self.total - other.total), max(0.0, self.missed - other.missed), self.exchanged
        )

    def __mul__(self, factor: float) -> ResidualBound:
        return ResidualBound(self.total * factor, self.missed * factor, self.exchanged * factor)

    def after_exchange(self, before: DualSums, after: DualSums) -> ResidualBound:
        """Inducing inputs exchanged, and the sums projected."""
        lost = max(0.0, before.trace() - after.trace())
        missed = (math.sqrt(self.missed) + math.sqrt(lost)) ** 2
        # Projections shorten: |g| <= |k|, and so |k - g| <= 2 |k|.
        return ResidualBound(self.total, min(missed, 4 * self.total), self.missed)

    def after_drop(self, before: DualSums, after: DualSums) -> ResidualBound:
        """Inducing inputs dropped: P k and g lose the same directions, g the trace of W there."""
        lost = max(0.0, before.trace() - after.trace())
        missed = self.missed + lost + 2 * math.sqrt(self.exchanged * lost)
        return replace(self, missed=min(missed, 4 * self.total))

    @property
    def unexplained(self) -> float:
        """A bound on |k - g| / |k|: what no inducing input explains, or an exchange has lost.

        0 without data.
        """
        return math.sqrt(self.missed / self.total) if self.total else 0.0

    @property
    def exchange_error(self) -> float:
        """A bound on |P k - g| / |k|, the relative error of the features in the sums.

        0 without data.
        """
        return math.sqrt(self.exchanged / self.total) if self.total else 0.0


NO_RESIDUAL = ResidualBound()
"""Of no data."""
