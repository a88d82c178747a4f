"""Sums read as natural parameters, and the evidence they give.

log Z = sum_i (log p - a f~ - b f~^2 / 2) + eta' (delta I + W)^-1 eta / 2 - log|I + W / delta| / 2
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sfr_cl.duals import DualSums
from sfr_cl.likelihoods import GaussianLikelihood, Likelihood
from sfr_cl.linalg import Precision, Spectrum

TAU = 2 * math.pi
SMALLEST_NOISE = 1e-10
"""Relative to the targets' mean square: below it, rounding."""

SEEN = 1e-9
"""A class counts as seen above this weight: discounting and forgetting leave rounding behind."""


@dataclass(frozen=True)
class Natural:
    """The sums at reading time: classes counted, noise applied."""

    alpha: Tensor
    """``[C, M]``."""
    eta: Tensor
    """``[C, M]``."""
    weight: Tensor
    """W, ``[K, M, M]``."""
    constant: float
    """Part of the evidence that no solve changes."""
    terms: float
    """Number of scalar observations: data times outputs they speak of."""
    spoken_of: Tensor
    """Outputs that are part of the model, ``[C]``: at the prior, those some datum spoke of."""

    @staticmethod
    def read(sums: DualSums, likelihood: Likelihood, *, at_prior: bool) -> Natural:
        """Natural parameters at unit noise."""
        terms, seen = float(sums.seen.sum()), sums.seen > SEEN
        if not at_prior:
            eta, all_outputs = sums.gradient + sums.point, torch.ones_like(seen)
            constant = float(sums.constant)
            return Natural(sums.gradient, eta, sums.weight, constant, terms, all_outputs)
        reading = likelihood.prior_reading(int(seen.sum()))
        alpha = sums.gradient - reading.offset * sums.mass
        constant = float(sums.constant + reading.log_prob * sums.count)
        return Natural(alpha, alpha, reading.scale * sums.weight, constant, terms, seen)

    def with_noise(self, variance: float) -> Natural:
        """The Gaussian likelihood's parameters at a noise variance."""
        return replace(
            self,
            alpha=self.alpha / variance,
            eta=self.eta / variance,
            weight=self.weight / variance,
            constant=self.constant / variance - self.terms / 2 * math.log(TAU * variance),
        )

    def log_evidence(self, precision: Precision) -> float:
        """log Z for a factored precision."""
        fit = (self.eta * precision.solve(self.eta)).sum(1)
        volume = precision.log_determinant().expand(len(self.eta))
        return self.constant + float((fit - volume)[self.spoken_of].sum() / 2)


class SpectralEvidence:
    """The evidence as a function of delta and the noise, after one eigendecomposition.

    With W = U diag(lambda) U' and p = U' eta at unit noise, at noise s2

        log Z = constant / s2 + sum p^2 / (s2^2 (delta + lambda / s2)) / 2
                - sum log(1 + lambda / (s2 delta)) / 2 - n log(2 pi s2) / 2
    """

    def __init__(self, natural: Natural, spectrum: Spectrum, *, gaussian: bool) -> None:
        squares = spectrum.rotate_vectors(natural.eta).square()[natural.spoken_of]
        self._values, self._copies = spectrum.values, 1
        if len(self._values) == 1:  # outputs that share a kernel share lambda
            self._copies, squares = len(squares), squares.sum(0, keepdim=True)
        else:
            self._values = self._values[natural.spoken_of]
        self._squares = squares
        self._constant = natural.constant
        self._terms = natural.terms if gaussian else 0.0

    def at(self, delta: Tensor, noise: Tensor) -> Tensor:
        """log Z for any number of pairs, ``[G]``."""
        product = (delta * noise)[:, None, None] + self._values
        fit = (self._squares / product).sum((1, 2)) / noise / 2
        ratio = self._values / (delta * noise)[:, None, None]
        volume = self._copies * torch.log1p(ratio).sum((1, 2)) / 2
        return self._constant / noise + fit - volume - self._terms / 2 * torch.log(TAU * noise)

    def best_noise(self, delta: float) -> float:
        """The noise of greatest evidence at delta."""
        typical = self._typical()
        if not typical:
            return 1.0
        spread = (math.log(typical * SMALLEST_NOISE), math.log(typical * 10))
        return math.exp(_maximum(lambda t: self.at(torch.full_like(t, delta), t.exp()), *spread))

    def best_precision(self, noise: float) -> float:
        """The delta of greatest evidence at a noise."""
        if not float(self._values.max()) > 0:
            return 1.0
        low, high = self._range_of_product()
        shift = math.log(noise)
        return math.exp(
            _maximum(
                lambda t: self.at(t.exp(), torch.full_like(t, noise)), low - shift, high - shift
            )
        )

    def best_both(self) -> tuple[float, float]:
        """Delta and noise of greatest evidence.

        For a fixed product g = delta s2 the best noise is in closed form, so that the search has
        one dimension: s2 = (-2 constant - sum p^2 / (g + lambda)) / n.
        """
        typical = self._typical()
        if not (typical and float(self._values.max()) > 0):
            return 1.0, typical or 1.0

        def noise(product: Tensor) -> Tensor:
            explained = (self._squares / (product[:, None, None] + self._values)).sum((1, 2))
            residual = (-2 * self._constant - explained) / self._terms
            return residual.clamp_min(typical * SMALLEST_NOISE)

        def profile(t: Tensor) -> Tensor:
            return self.at(t.exp() / noise(t.exp()), noise(t.exp()))

        product = math.exp(_maximum(profile, *self._range_of_product()))
        best = float(noise(torch.tensor([product], dtype=torch.float64)))
        return product / best, best

    def _typical(self) -> float:
        """The mean square of the targets, less the prior mean; zero if there are none."""
        if not self._terms > SEEN:
            return 0.0
        return max(-2 * self._constant / self._terms, torch.finfo(torch.float64).tiny ** 0.5)

    def _range_of_product(self) -> tuple[float, float]:
        """log delta s2 matters only relative to the eigenvalues it is added to."""
        top = math.log(float(self._values.max()))
        return top - 26, top + 5


def _maximum(function: Callable[[Tensor], Tensor], low: float, high: float) -> float:
    """Argmax on [low, high]: the best of a grid, then the root of the slope, to rounding.

    Following the slope, not the value, makes the answer a smooth function of the sums.
    """
    grid = torch.linspace(low, high, 129, dtype=torch.float64)
    best = int(function(grid).argmax())
    low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)])
    for _ in range(8):
        points = torch.linspace(low, high, 33, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            (slopes,) = torch.autograd.grad(function(points).sum(), points)
        rising = int((slopes > 0).cumprod(0).sum())
        points = points.detach()
        low, high = float(points[max(rising - 1, 0)]), float(points[min(rising, 32)])
    return (low + high) / 2


def learn(
    natural: Natural, likelihood: Likelihood, prior_precision: float | None
) -> tuple[float, Likelihood]:
    """Delta and the likelihood, with whatever of delta and the noise is to be learned."""
    if not isinstance(likelihood, GaussianLikelihood):
        return prior_precision or 1.0, likelihood
    if prior_precision is not None and not likelihood.learn:
        return prior_precision, likelihood
    evidence = SpectralEvidence(natural, Spectrum(natural.weight), gaussian=True)
    noise = likelihood.noise_variance
    if prior_precision is not None:
        noise = evidence.best_noise(prior_precision)
    elif likelihood.learn:
        prior_precision, noise = evidence.best_both()
    else:
        prior_precision = evidence.best_precision(noise)
    return prior_precision, GaussianLikelihood(noise, learn=likelihood.learn)
