"""Inducing inputs for endless data: chosen from the first samples, exchanged for new regions.

Variances are relative to kappa(x, x), so that large inputs are not mistaken for new ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sfr_cl.inducing import pivots
from sfr_cl.inputs import Inputs, concat, length, take
from sfr_cl.kernel import Kernel
from sfr_cl.linalg import JITTER, cholesky
from sfr_cl.state import State
from sfr_cl.streaming.rows import Rows

POOL = 32
"""Candidates for an exchange, and so the most that are exchanged at a time."""

NEW = 2.0
"""A candidate takes the place of an inducing input that has less than 1/NEW of its variance."""

DISTINCT = 1e-6
"""The conditional variance below which an input adds little but rounding."""


@dataclass(frozen=True)
class Candidates:
    """The inputs the inducing inputs say least about, of those that came since the last look."""

    x: Inputs | None = None
    variance: Tensor | None = None
    """Relative conditional variance, ``[P]``."""
    looked_at: int = 0
    """Samples since the last look."""

    def having_seen(self, rows: Rows) -> Candidates:
        """With the most surprising inputs of some rows."""
        tiny = torch.finfo(torch.float64).tiny
        variance = (rows.unexplained / rows.diagonal.clamp_min(tiny)).mean(0)
        x = rows.samples.x
        if self.x is not None and self.variance is not None:
            x, variance = concat([self.x, x]), torch.cat([self.variance, variance])
        best = variance.argsort(descending=True, stable=True)[:POOL]
        return Candidates(take(x, best), variance[best], self.looked_at + len(rows))


NO_CANDIDATES = Candidates()


def first(kernel: Kernel, x: Inputs, count: int) -> Inputs:
    """At most ``count`` of some inputs, by greatest conditional variance."""
    chosen = pivots(_correlation(kernel.gram(x).double().mean(0)), count, DISTINCT)
    return take(x, chosen)


def exchanged(state: State, candidates: Inputs, budget: int) -> Inputs | None:
    """Inducing inputs with some exchanged for candidates, or ``None`` if none is worth it."""
    size = length(state.z)
    joint = concat([state.z, candidates])
    gram = _correlation(state.kernel.gram(joint).double().mean(0))
    inverse = torch.cholesky_inverse(_factor(gram[:size, :size]))
    cross = gram[size:, :size]
    news = gram[size:, size:] - cross @ inverse @ cross.mT
    order = pivots(news, POOL, DISTINCT)
    if not len(order):
        return None
    variances = _factor(news[order][:, order]).diagonal().square()
    kept = list(range(size))
    added: list[int] = []
    for entry, variance in zip(order.tolist(), variances.tolist(), strict=True):
        if len(kept) + len(added) >= budget:
            alone = 1 / inverse.diagonal()
            least = int(alone.argmin())
            if NEW * float(alone[least]) > variance:
                break
            del kept[least]
            inverse = _without(inverse, least)
        added.append(size + entry)
    return take(joint, torch.tensor(kept + added)) if added else None


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
