"""Sums read as natural parameters, and the evidence they give.

log Z = sum_i (log p - a f~ - b f~^2 / 2) + eta' (delta I + W)^-1 eta / 2 - log|I + W / delta| / 2
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sfr_cl.core.linalg import Precision, Spectrum
from sfr_cl.core.state import State
from sfr_cl.core.sums import SEEN
from sfr_cl.likelihoods import Likelihood, PriorReading

TAU = 2 * math.pi
SMALLEST_NOISE = 1e-10
"""Relative to the targets' mean square: below it, rounding."""


@dataclass(frozen=True)
class Natural:
    """The sums at reading time: classes counted, noise applied."""

    alpha: Tensor
    """``[C, M]``."""
    eta: Tensor
    """``[C, M]``."""
    reference: Tensor
    """The part of alpha that the network was trained on, ``[C, M]``."""
    weight: Tensor
    """W, ``[K, M, M]``."""
    constant: float
    """Part of the evidence that no solve changes."""
    terms: float
    """Number of scalar observations: data times outputs they observe."""
    observed: Tensor
    """Outputs that are part of the model, ``[C]``: at the prior, those some datum observed."""
    prior: PriorReading
    """How terms made at f = 0 were read."""
    noise: float = 1.0
    """The Gaussian's noise variance; 1 for other likelihoods."""

    @staticmethod
    def of(state: State) -> Natural:
        """Natural parameters of a state's sums, at unit noise."""
        sums, at_prior = state.sums, state.spec.at_prior
        seen = sums.seen > SEEN
        prior = state.likelihood.prior_reading(int(seen.sum())) if at_prior else PriorReading()
        alpha = sums.gradient - prior.offset * sums.mass if prior.offset else sums.gradient
        return Natural(
            alpha=alpha,
            eta=alpha if at_prior else alpha + sums.point,
            reference=state.reference,
            weight=sums.weight if prior.scale == 1 else prior.scale * sums.weight,
            constant=float(sums.constant + prior.log_prob * sums.count),
            terms=float(sums.seen.sum()),
            observed=seen if at_prior else torch.ones_like(seen),
            prior=prior,
        )

    def with_noise(self, variance: float | None) -> Natural:
        """At a noise variance; ``None`` where the likelihood has none."""
        if variance is None:
            return self
        return replace(
            self,
            alpha=self.alpha / variance,
            eta=self.eta / variance,
            reference=self.reference / variance,
            weight=self.weight / variance,
            constant=self.constant / variance - self.terms / 2 * math.log(TAU * variance),
            noise=variance,
        )

    def mean_vectors(self, mean: str) -> Tensor:
        """What the precision is solved for, ``[C, M]``; for ``"dual"``, what delta divides."""
        if mean == "natural":
            return self.eta
        return self.alpha if mean == "dual" else self.alpha - self.reference

    def log_evidence(self, precision: Precision) -> float:
        """log Z for a factored precision."""
        fit = precision.whiten_vectors(self.eta).square().sum(1)
        volume = precision.log_determinant().expand(len(self.eta))
        return self.constant + float((fit - volume)[self.observed].sum() / 2)


class SpectralEvidence:
    """The evidence as a function of delta and the noise, after one eigendecomposition.

    With W = U diag(lambda) U' and p = U' eta at unit noise, at noise s2

        log Z = constant / s2 + sum p^2 / (s2^2 (delta + lambda / s2)) / 2
                - sum log(1 + lambda / (s2 delta)) / 2 - n log(2 pi s2) / 2
    """

    def __init__(self, natural: Natural, spectrum: Spectrum, *, gaussian: bool) -> None:
        # Few numbers, read a thousand times: on the CPU, wherever the sums are.
        observed = natural.observed.cpu()
        squares = spectrum.rotate_vectors(natural.eta).square().cpu()[observed]
        self._values, self._copies = spectrum.values.cpu(), 1
        if len(self._values) == 1:  # outputs that share a kernel share lambda
            self._copies, squares = len(squares), squares.sum(0, keepdim=True)
        else:
            self._values = self._values[observed]
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
        if not self._says_something():
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
        if not (typical and self._says_something()):
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

    def _says_something(self) -> bool:
        """Whether any data is left in W."""
        return self._values.numel() > 0 and float(self._values.max()) > 0

    def _range_of_product(self) -> tuple[float, float]:
        """log delta s2 matters only relative to the eigenvalues it is added to."""
        top = math.log(float(self._values.max()))
        return top - 26, top + 5


@torch.inference_mode(False)
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
    natural: Natural,
    likelihood: Likelihood,
    prior_precision: float | None,
    *,
    learn_precision: bool = True,
    spectrum: Spectrum | None = None,
) -> tuple[float, Likelihood]:
    """Delta and the likelihood, with whatever of delta and the noise is to be learned.

    Args:
        natural: at unit noise.
        likelihood: tells whether its noise is learned.
        prior_precision: delta, or ``None`` to learn it.
        learn_precision: whether delta is learned where the likelihood has no noise.
        spectrum: of W, if it is there already.
    """
    noise = likelihood.noise_scale
    if prior_precision is None and noise is None and not learn_precision:
        return 1.0, likelihood
    if prior_precision is not None and not likelihood.learns_noise:
        return prior_precision, likelihood
    spectrum = spectrum or Spectrum(natural.weight)
    evidence = SpectralEvidence(natural, spectrum, gaussian=noise is not None)
    if prior_precision is not None:
        return prior_precision, likelihood.with_noise(evidence.best_noise(prior_precision))
    if not likelihood.learns_noise:
        return evidence.best_precision(noise or 1.0), likelihood
    prior_precision, noise = evidence.best_both()
    return prior_precision, likelihood.with_noise(noise)
