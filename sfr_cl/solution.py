"""The sums solved: what prediction needs, computed once after any number of updates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sfr_cl.evidence import Natural, learn
from sfr_cl.inputs import take
from sfr_cl.likelihoods import GaussianLikelihood, Likelihood
from sfr_cl.linalg import Precision
from sfr_cl.state import State


@dataclass(frozen=True)
class Solution:
    """Mean coefficients and factored precision at one delta.

    With phi = L^-1 kappa(Z, x) and p(x) the prior mean's part,

        mean = p(x) + phi' v         variance = (kappa(x, x) - phi' phi) / delta
                                                + phi' (delta I + W)^-1 phi

    where v = (delta I + W)^-1 eta for ``"natural"``, (delta I + W)^-1 (alpha - alpha_ref) with
    p = f for ``"network"``, and alpha / delta for ``"dual"``.
    """

    coefficients: Tensor
    """v, ``[C, M]``."""
    weight: Tensor
    """W at the likelihood's noise, ``[K, M, M]``."""
    precision: Precision
    likelihood: Likelihood
    """With its noise learned, if it learns it."""
    log_evidence: float

    @staticmethod
    def of(state: State, prior_precision: float | None) -> Solution:
        """Solve the sums of a state; ``None`` learns delta where the likelihood allows it."""
        natural = Natural.read(state.sums, state.likelihood, at_prior=state.options.at_prior)
        prior_precision, likelihood = learn(natural, state.likelihood, prior_precision)
        reference = state.reference
        if isinstance(likelihood, GaussianLikelihood):
            natural = natural.with_noise(likelihood.noise_variance)
            reference = reference / likelihood.noise_variance
        precision = Precision(natural.weight, prior_precision)
        vectors = mean_vectors(state.options.mean, natural, reference)
        dual = state.options.mean == "dual"
        coefficients = vectors / prior_precision if dual else precision.solve(vectors)
        evidence = natural.log_evidence(precision)
        return Solution(coefficients, natural.weight, precision, likelihood, evidence)

    def direction(self, state: State) -> dict[str, Tensor] | None:
        """v in weight space, J(Z)' L^-T v by parameter, if the mean is J(x) times it.

        That is so for one output. The mean of each of several outputs has a direction of its own.
        """
        if state.num_outputs > 1:
            return None
        upper, column = state.factor[0].mT, self.coefficients.mT
        weights = torch.linalg.solve_triangular(upper, column, upper=True)
        total: dict[str, Tensor] = {}
        for start in range(0, len(weights), state.batch_size):
            rows = slice(start, start + state.batch_size)
            part = weights[rows].to(state.network.dtype)
            for name, value in state.network.gradient(take(state.z, rows), part).items():
                total[name] = total[name] + value if name in total else value
        return total

    def mean(self, outputs: Tensor | None, features: Tensor) -> Tensor:
        """Mean of f, ``[B, C]``; ``outputs`` is the prior mean's part, if there is one."""
        mean = project(features, self.coefficients)
        return mean if outputs is None else outputs.double() + mean

    def variance(self, features: Tensor, diagonal: Tensor) -> Tensor:
        """Variance of f, ``[B, K]``."""
        unexplained = (diagonal - features.square().sum(2)).clamp_min(0)
        within = self.precision.whiten(features).square().sum(2)
        return (unexplained / self.precision.prior_precision + within).mT

    def covariance(self, features: Tensor, gram: Tensor) -> Tensor:
        """Covariance of f over a batch, ``[K, B, B]``."""
        unexplained = gram - features @ features.mT
        half = self.precision.whiten(features)
        return unexplained / self.precision.prior_precision + half @ half.mT


def mean_vectors(mean: str, natural: Natural, reference: Tensor) -> Tensor:
    """What the precision is solved for, ``[C, M]``; for ``"dual"``, what delta divides."""
    if mean == "natural":
        return natural.eta
    return natural.alpha if mean == "dual" else natural.alpha - reference


def project(features: Tensor, vectors: Tensor) -> Tensor:
    """phi' v for features ``[K, B, M]`` and vectors ``[C, M]``: ``[B, C]``."""
    if len(features) == 1:
        return features[0] @ vectors.mT
    return torch.einsum("cbm,cm->bc", features, vectors)
