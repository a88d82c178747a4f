"""Logits read from f by a linear discriminant: with many classes, better than f itself.

A ridge regression on many classes masks them: f of one class is large where that of its neighbours
is, too. The discriminant measures how far f is from what it is on average in each class, in units
of its spread within classes. Both follow from the sums. With S_c the sum of phi over the n_c data
of class c, and v the coefficients of f = v phi,

    mean of class c:  m_c = v S_c / n_c
    scatter of all:   T = v (sum phi phi' + C delta I) v' = C v eta'
    within classes:   S_w = (T - sum_c n_c m_c m_c') / n

where the ridge's own penalty keeps S_w from vanishing in directions that exist; the others, of
which the sum of f is one, have no part. A logit is m_c' S_w^-1 f - m_c' S_w^-1 m_c / 2, centred,
and made as large as f: on average over the data, the logit of a class at its own mean is what f is
there. Else its size would be that of the errors f makes on data that the network may have been
trained on: the best scale was .06 there, and near 1 elsewhere.

Counts of classes are no part of it: log n_c lowered held-out NLPD by less than .01 where a third of
the classes had a tenth of the data of others, and not at all otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sfr_cl.core.sums import SEEN, DualSums

EXISTS = 1e-10
"""Spread within classes, relative to that of f, below which a direction is rounding."""


@dataclass(frozen=True)
class Discriminant:
    """Logits A f + b. Outputs that no datum has observed have no part in them."""

    matrix: Tensor
    """A, ``[C, C]``."""
    offset: Tensor
    """b, ``[C]``."""

    @staticmethod
    def of(
        sums: DualSums, gradient: Tensor, eta: Tensor, coefficients: Tensor, curvature: float
    ) -> Discriminant:
        """Of the f of some coefficients.

        Args:
            sums: of all data.
            gradient: S, ``[C, M]``, in the coordinates of the coefficients.
            eta: what the precision was solved for, ``[C, M]``, in these coordinates.
            coefficients: v, ``[C, M]``.
            curvature: b of every datum, 1/C.
        """
        known = sums.seen > SEEN
        counts = sums.seen.where(known, 0)
        gradient, eta, coefficients = (v * known[:, None] for v in (gradient, eta, coefficients))
        total = counts.sum()
        summed = gradient @ coefficients.mT
        means = summed / counts.where(known, 1)[:, None]
        scatter = coefficients @ eta.mT / curvature
        within = scatter - summed.mT @ means
        values, directions = torch.linalg.eigh((within + within.mT) / 2)
        exist = values > EXISTS * scatter.trace()
        inverse = (directions / values.where(exist, torch.inf)) @ directions.mT
        # One more datum at the mean of all: a class of few is near it, and one of none is there.
        centres = (summed + summed.sum(0) / total) / (counts + 1)[:, None]
        matrix = centres @ inverse
        offset = -(matrix * centres).sum(1) / 2
        matrix, offset = matrix - matrix[known].mean(0), offset - offset[known].mean()
        own = (matrix * means).sum(1) + offset
        tiny = torch.finfo(own.dtype).tiny
        size = (counts @ means.diagonal()) / (counts @ own).clamp_min(tiny)
        return Discriminant(size * matrix, size * offset)

    def mean(self, f: Tensor) -> Tensor:
        """Logits at scale 1, ``[B, C]``, of f."""
        return f @ self.matrix.mT + self.offset

    def variance(self, variance: Tensor) -> Tensor:
        """Of the logits at scale 1, ``[B, C]``, of that of f, whose outputs are independent."""
        return variance @ self.matrix.square().mT
