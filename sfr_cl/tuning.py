"""Choosing delta, and for logits the scale of f, from one pass over validation data.

With W = U diag(lambda) U' every delta costs a division per feature: no pass over training data, and
no factorisation, is repeated.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sfr_cl.errors import SFRWarning
from sfr_cl.evidence import Natural, SpectralEvidence, learn
from sfr_cl.inputs import Inputs
from sfr_cl.likelihoods import GaussianLikelihood
from sfr_cl.linalg import Spectrum
from sfr_cl.solution import mean_vectors, project
from sfr_cl.state import State

DELTAS = [10 ** (step / 8) for step in range(-48, 49)]
SCALES = [10 ** (step / 10) for step in range(-10, 11)]


class Tuned(NamedTuple):
    """The winner."""

    prior_precision: float
    logit_scale: float


class Sweep:
    """Mean and variance of f under many prior precisions, each for products only."""

    def __init__(self, state: State, deltas: Sequence[float]) -> None:
        self.state = state
        self.deltas = deltas
        natural = Natural.read(state.sums, state.likelihood, at_prior=state.options.at_prior)
        self.likelihoods = [learn(natural, state.likelihood, delta)[1] for delta in deltas]
        """With the noise of greatest evidence at each delta, if it is learned."""
        self._spectrum = Spectrum(natural.weight)
        vectors = mean_vectors(state.options.mean, natural, state.reference)
        self._vectors = self._spectrum.rotate_vectors(vectors)
        self._noises = [
            likelihood.noise_variance if isinstance(likelihood, GaussianLikelihood) else 1.0
            for likelihood in self.likelihoods
        ]
        shrinks = [
            1 / (delta + self._spectrum.values / noise)
            for delta, noise in zip(deltas, self._noises, strict=True)
        ]
        self._shrinks = torch.stack(shrinks, 2)
        """Eigenvalues of (delta I + W)^-1, ``[K, M, D]``."""

    def moments(self, x: Inputs) -> Iterator[tuple[Tensor, Tensor]]:
        """Mean and variance ``[B, C]`` of prepared inputs at each delta."""
        outputs, features, diagonal = self.state.features(x, diagonal=True)
        assert diagonal is not None
        rotated = self._spectrum.rotate(features)
        squares = rotated.square()
        unexplained = (diagonal - squares.sum(2)).clamp_min(0)
        within = squares @ self._shrinks
        for index, delta in enumerate(self.deltas):
            mean = project(rotated, self._coefficients(index))
            if self.state.options.mean == "network":
                mean = outputs + mean
            variance = unexplained / delta + within[:, :, index]
            yield mean, variance.mT.expand_as(mean)

    def _coefficients(self, index: int) -> Tensor:
        """v of the mean, rotated, ``[C, M]``."""
        vectors = self._vectors / self._noises[index]
        if self.state.options.mean == "dual":
            return vectors / self.deltas[index]
        return vectors * self._shrinks[:, :, index]


def by_evidence(state: State) -> Tuned:
    """The delta of greatest log marginal likelihood, along with the noise if that is learned."""
    natural = Natural.read(state.sums, state.likelihood, at_prior=state.options.at_prior)
    if isinstance(state.likelihood, GaussianLikelihood):
        return Tuned(learn(natural, state.likelihood, None)[0], 1.0)
    evidence = SpectralEvidence(natural, Spectrum(natural.weight), gaussian=False)
    return Tuned(evidence.best_precision(1.0), 1.0)


def by_validation(state: State, batches: Iterable[tuple[Inputs, Tensor]], link: str) -> Tuned:
    """The delta, and scale of logits, of least validation NLPD."""
    sweep = Sweep(state, DELTAS)
    scales = SCALES if state.likelihood.has_logits else [1.0]
    totals = torch.zeros(len(DELTAS), len(scales), dtype=torch.float64)
    for x, y in batches:
        pairs = zip(sweep.likelihoods, sweep.moments(x), strict=True)
        for row, (likelihood, (mean, variance)) in enumerate(pairs):
            for column, scale in enumerate(scales):
                predictive = likelihood.predictive(mean * scale, variance * scale**2, link)
                totals[row, column] -= float(predictive.log_prob(y).double().sum())
    totals = totals.nan_to_num(nan=math.inf)
    best = int(totals.argmin())
    _warn_at_edge(best // len(scales))
    return Tuned(DELTAS[best // len(scales)], scales[best % len(scales)])


def _warn_at_edge(index: int) -> None:
    if index in (0, len(DELTAS) - 1):
        warnings.warn(
            f"the best prior precision lies at the edge of the range tried, {DELTAS[index]:.0e}: "
            f"the kernel, or the data, says little",
            SFRWarning,
            stacklevel=4,
        )
