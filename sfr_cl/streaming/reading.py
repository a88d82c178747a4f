"""The sums of a stream solved, and kept up to date while a few more rows wait to be folded.

With R R' = delta I + W of the folded sums, and every row whitened by R, the rows that wait are a
low-rank term: a sample costs two products with R instead of a factorisation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sfr_cl.errors import DataError
from sfr_cl.evidence import SEEN, Natural
from sfr_cl.inputs import Inputs, length, take
from sfr_cl.likelihoods import GaussianLikelihood, Likelihood, PriorReading
from sfr_cl.linalg import FewRows, Precision
from sfr_cl.solution import mean_vectors
from sfr_cl.state import State
from sfr_cl.streaming.rows import Rows, alike


@dataclass(frozen=True)
class Reading:
    """Mean and variance of f, as :class:`~sfr_cl.solution.Solution` gives them."""

    state: State
    precision: Precision
    vectors: Tensor
    """R^-1 of what the precision is solved for, ``[C, M]``."""
    few: FewRows
    prior: PriorReading
    """How terms made at f = 0 were read."""
    noise: float

    @staticmethod
    def of(state: State, prior_precision: float) -> Reading:
        """Of the sums of a state, whose likelihood has a fixed noise."""
        natural = Natural.read(state.sums, state.likelihood, at_prior=state.options.at_prior)
        reference, noise = state.reference, 1.0
        if isinstance(state.likelihood, GaussianLikelihood):
            noise = state.likelihood.noise_variance
            natural, reference = natural.with_noise(noise), reference / noise
        precision = Precision(natural.weight, prior_precision)
        vectors = precision.whiten_vectors(mean_vectors(state.options.mean, natural, reference))
        return Reading(
            state, precision, vectors, FewRows.none(precision.factor), _prior(state), noise
        )

    @property
    def likelihood(self) -> Likelihood:
        """With the noise used."""
        return self.state.likelihood

    def can_take(self, rows: Rows) -> bool:
        """Whether the rows leave the reading of all other data as it is: no class is new."""
        if not self.state.options.at_prior:
            return True
        return not bool(((self.state.sums.seen <= SEEN) & (rows.sites.seen > 0).any(0)).any())

    def with_rows(self, rows: Rows) -> Reading:
        """With more rows, each once."""
        options, sites = self.state.options, rows.sites
        a, b = sites.gradient.double(), sites.curvature.double()
        if options.at_prior:
            a, b = a - self.prior.offset, b * self.prior.scale
        elif options.mean == "natural":
            a = a + b * sites.point
        a, b = a / self.noise, b / self.noise
        white = self.precision.whiten(rows.features)
        if len(white) == 1:
            vectors = self.vectors + a.mT @ white[0]
        else:
            vectors = self.vectors + torch.einsum("bc,cbm->cm", a, white)
        few = self.few.with_rows(white * b.mT[: len(white), :, None].sqrt())
        return replace(self, vectors=vectors, few=few)

    def mean(self, outputs: Tensor | None, features: Tensor) -> Tensor:
        """Mean of f, ``[B, C]``; ``outputs`` is the prior mean's part, if there is one."""
        white, columns = self.precision.whiten(features), self._columns()
        mean = white @ columns
        mean = mean - self.few.explained(white) @ self.few.explained(columns.mT).mT
        mean = mean[0] if len(features) == 1 else mean[:, :, 0].mT
        return mean if outputs is None else outputs.double() + mean

    def variance(self, features: Tensor, diagonal: Tensor) -> Tensor:
        """Variance of f, ``[B, K]``."""
        unexplained = (diagonal - features.square().sum(2)).clamp_min(0)
        white = self.precision.whiten(features)
        within = white.square().sum(2) - self.few.explained(white).square().sum(2)
        return (unexplained / self.precision.prior_precision + within.clamp_min(0)).mT

    def at(self, x: Inputs, *, variance: bool) -> tuple[Tensor, Tensor]:
        """Mean and variance of f at inputs, ``[B, C]``; zeros if no variance is asked for."""
        state = self.state
        x = alike(state, state.network.prepare(x, "inputs to predict"))
        means, variances = [], []
        for start in range(0, length(x), state.batch_size):
            batch = take(x, slice(start, start + state.batch_size))
            outputs, features, diagonal = state.features(batch, diagonal=variance)
            means.append(self.mean(self._prior_mean(outputs), features))
            spread = torch.zeros_like(means[-1])
            if diagonal is not None:
                spread = self.variance(features, diagonal).expand_as(spread)
            variances.append(spread)
        mean, spread = torch.cat(means), torch.cat(variances)
        if not bool(torch.isfinite(mean).all() and torch.isfinite(spread).all()):
            raise DataError(
                "expected inputs with finite predictions, got an overflow: they are too large"
            )
        return mean, spread

    def _prior_mean(self, outputs: Tensor) -> Tensor | None:
        return outputs if self.state.options.mean == "network" else None

    def moments(self, rows: Rows, link: str) -> tuple[Tensor, Tensor]:
        """Mean and variance of f, ``[B, C]``; no variance where the link does not ask for it."""
        mean = self.mean(self._prior_mean(rows.outputs), rows.features)
        if link == "map" and self.likelihood.has_logits:
            return mean, torch.zeros_like(mean)
        return mean, self.variance(rows.features, rows.diagonal).expand_as(mean)

    def _columns(self) -> Tensor:
        """The vectors as columns of their kernels, ``[K, M, C / K]``."""
        if len(self.precision.factor) == 1:
            return self.vectors.mT[None]
        return self.vectors[:, :, None]


def _prior(state: State) -> PriorReading:
    seen = int((state.sums.seen > SEEN).sum())
    return state.likelihood.prior_reading(seen)
