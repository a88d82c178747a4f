"""The sums solved: the mean and variance of f. This is the only place that has them.

With phi the features and p(x) the prior mean's part,

    mean = p(x) + phi' v
    variance = (kappa(x, x) - phi' phi) / delta + phi' (delta I + W)^-1 phi

where v = (delta I + W)^-1 eta for ``"natural"``, (delta I + W)^-1 (alpha - alpha_ref) with p = f
for ``"network"``, and alpha / delta for ``"dual"``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sfr_cl.core.basis import Features
from sfr_cl.core.discriminant import Discriminant
from sfr_cl.core.evidence import Natural, learn
from sfr_cl.core.linalg import Precision, Spectrum
from sfr_cl.core.modes import Conditional
from sfr_cl.core.state import State
from sfr_cl.core.sums import SEEN, Terms
from sfr_cl.data.inputs import Inputs
from sfr_cl.errors import ArgumentError
from sfr_cl.kernel.tangent import times
from sfr_cl.likelihoods import Likelihood, Noise


@dataclass(frozen=True)
class Solved:
    """Mean and variance of f, from the sums of a state at one delta."""

    state: State
    natural: Natural
    """The sums as they were read, at the noise used."""
    likelihood: Likelihood
    """With its noise learned, if it learns it."""
    precision: Precision
    vectors: Tensor
    """R^-1 of what the precision R R' is solved for, ``[C, M]``; for ``"dual"``, alpha."""

    @staticmethod
    def of(state: State) -> Solved:
        """The sums of a state solved, with delta and the noise learned where they are."""
        natural, spec = Natural.of(state), state.spec
        delta, likelihood = learn(
            natural, spec.likelihood, spec.prior_precision, learn_precision=False
        )
        return Solved._at(state, natural, delta, likelihood)

    @staticmethod
    def as_given(state: State) -> Solved:
        """The sums of a state solved at the delta and the noise that it has."""
        delta = state.spec.prior_precision or 1.0
        return Solved._at(state, Natural.of(state), delta, state.likelihood)

    @staticmethod
    def _at(state: State, natural: Natural, delta: float, likelihood: Likelihood) -> Solved:
        natural = natural.with_noise(likelihood.noise_scale)
        precision = Precision(natural.weight, delta)
        vectors = _solved_for(natural, precision, state.spec.mean)
        return Solved(state, natural, likelihood, precision, vectors)

    def grown(self, state: State) -> Solved:
        """With classes that no datum has observed: W, and so delta and the factor, are the same."""
        natural = Natural.of(state)
        vectors = _solved_for(natural, self.precision, state.spec.mean)
        return replace(self, state=state, natural=natural, vectors=vectors)

    @property
    def prior_precision(self) -> float:
        """delta."""
        return self.precision.prior_precision

    @property
    def weight(self) -> Tensor:
        """W at the likelihood's noise, ``[K, M, M]``."""
        return self.natural.weight

    @cached_property
    def coefficients(self) -> Tensor:
        """v, ``[C, M]``, of the sums; terms of low rank have no part in it."""
        if self.state.spec.mean == "dual":
            return self.vectors / self.prior_precision
        return self.precision.solve_whitened(self.vectors)

    @cached_property
    def discriminant(self) -> Discriminant | None:
        """What reads logits from f; ``None`` where f is the logits."""
        natural, sums = self.natural, self.state.sums
        if natural.prior.discriminant is None:
            return None
        scale = natural.prior.scale
        return Discriminant.of(sums, sums.gradient, natural.eta, self.coefficients, scale)

    @cached_property
    def log_evidence(self) -> float:
        """log Z of all data in the sums."""
        if self.precision.is_updated:
            raise ArgumentError(
                "expected all data in the sums, got terms of low rank beside them: add them to the "
                "state, and solve it"
            )
        return self.natural.log_evidence(self.precision)

    @cached_property
    def direction(self) -> dict[str, Tensor] | None:
        """v in weight space by parameter, if the mean is J(x) times it.

        That is so for one output. The mean of each of several outputs has a direction of its own.
        """
        if self.state.num_outputs > 1:
            return None
        return self.state.basis.direction(self.coefficients)

    @cached_property
    def _along(self) -> Callable[[Inputs], tuple[Tensor, Tensor]]:
        return self.state.basis.along(self.coefficients)

    def mean_at(self, x: Inputs) -> Tensor:
        """Mean of f at prepared inputs, ``[B, C]``: what :meth:`mean` gives, without phi."""
        if self.precision.is_updated:
            return self.mean(self.state.basis.features(x))
        outputs, mean = self._along(x)
        return _with_prior(self.state, outputs, mean)

    def mean(self, features: Features) -> Tensor:
        """Mean of f, ``[B, C]``."""
        if self.precision.is_updated:
            mean = self.precision.products(features.phi, self.vectors)
            return _with_prior(self.state, features.outputs, mean)
        return _mean(self.state, features, self.coefficients)

    def variance(self, features: Features) -> Tensor:
        """Variance of f, ``[B, C]``."""
        within = self.precision.quadratic(features.phi)
        return _variance(self.state, features, within, self.prior_precision)

    def moments(self, features: Features, link: str) -> tuple[Tensor, Tensor | None]:
        """Mean and variance of f, ``[B, C]``; no variance where no prediction depends on it."""
        needed = self.likelihood.needs_variance(link)
        return self.mean(features), self.variance(features) if needed else None

    def logits(self, mean: Tensor, variance: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Mean and variance of the logits at scale 1, ``[B, C]``, of those of f."""
        found = self.discriminant
        if found is None:
            return mean, variance
        return found.mean(mean), None if variance is None else found.variance(variance)

    def covariance(self, phi: Tensor, gram: Tensor) -> Tensor:
        """Covariance of f over a batch with some features and prior kernel, ``[K, B, B]``."""
        unexplained = gram - phi @ phi.mT
        return unexplained / self.prior_precision + self.precision.covariance(phi)

    # One sample more ----------------------------------------------------------------------------

    def terms_of_row(self, features: Features, y: Tensor) -> Terms:
        """Terms of one sample at its mode given all others, those of low rank too."""
        variance = self.precision.quadratic(features.phi)
        conditional = Conditional.of_row(self.mean(features), variance)
        return Terms.at_mode(
            self.likelihood, conditional.mode(self.likelihood, y), y, shared=self.state.spec.shared
        )

    def can_take(self, terms: Terms) -> bool:
        """Whether terms leave the reading of all other data as it is.

        A new class does not, and no datum does where it moves the means of a discriminant.
        """
        if not self.state.spec.at_prior:
            return True
        if self.natural.prior.discriminant is not None:
            return False
        new = (self.state.sums.seen <= SEEN) & (terms.seen > 0).any(0)
        return not bool(new.any())

    def with_terms(self, phi: Tensor, terms: Terms) -> Solved:
        """With the terms of a few more rows, of low rank: mean and variance are of all of them.

        The state, and what was read of its sums, stay those without them.
        """
        spec, natural = self.state.spec, self.natural
        a, b = terms.gradient.double(), terms.curvature.double()
        if spec.at_prior:
            a, b = a - natural.prior.offset, b * natural.prior.scale
        elif spec.mean == "natural":
            a = a + b * terms.point
        a, b = a / natural.noise, b / natural.noise
        rows = self.precision.whiten(phi)
        if len(rows) == 1:
            vectors = self.vectors + a.mT @ rows[0]
        else:
            vectors = self.vectors + torch.einsum("bc,cbm->cm", a, rows)
        rows = rows * b.mT[: len(rows), :, None].sqrt()
        return replace(self, vectors=vectors, precision=self.precision.with_rows(rows))


class Sweep:
    """The sums solved at many deltas after one eigendecomposition W = U diag(lambda) U'.

    Each delta costs products only: no pass over data, and no factorisation, is repeated.
    """

    def __init__(self, state: State, deltas: Sequence[float]) -> None:
        natural, likelihood = Natural.of(state), state.likelihood
        spectrum = Spectrum(natural.weight)
        self.state, self.deltas, self._coordinates = state, deltas, spectrum.vectors
        self.likelihoods = [
            learn(natural, likelihood, delta, spectrum=spectrum)[1] for delta in deltas
        ]
        """With the noise of greatest evidence at each delta, if it is learned."""
        self._noises = [_as_column(each.noise_scale, natural.eta) for each in self.likelihoods]
        self._vectors = spectrum.rotate_vectors(natural.mean_vectors(state.spec.mean))
        pairs = zip(deltas, self._noises, strict=True)
        inverses = [1 / (delta + spectrum.values / noise) for delta, noise in pairs]
        self._inverses = torch.stack(inverses, 2) if inverses else spectrum.vectors[:, :, :0]
        """Eigenvalues of (delta I + W)^-1, ``[K, M, D]``."""
        self._natural, self._gradient = natural, spectrum.rotate_vectors(state.sums.gradient)

    def logits(self, features: Features) -> Iterator[tuple[Tensor, Tensor]]:
        """Mean and variance of the logits at scale 1, ``[B, C]``, at each delta."""
        moments = self.moments(features)
        for found, (mean, variance) in zip(self._discriminants, moments, strict=True):
            if found is None:
                yield mean, variance
            else:
                yield found.mean(mean), found.variance(variance)

    @cached_property
    def _discriminants(self) -> list[Discriminant | None]:
        """By delta; ``None`` where f is the logits."""
        sums, prior = self.state.sums, self._natural.prior
        if prior.discriminant is None:
            return [None] * len(self.deltas)
        return [
            Discriminant.of(
                sums,
                self._gradient,
                self._vectors,
                self._vectors * self._inverses[:, :, index],
                prior.scale,
            )
            for index in range(len(self.deltas))
        ]

    def moments(self, features: Features) -> Iterator[tuple[Tensor, Tensor]]:
        """Mean and variance ``[B, C]`` at each delta."""
        rotated = features.rotated(self._coordinates)
        within = rotated.phi.square() @ self._inverses
        for index, (delta, noise) in enumerate(zip(self.deltas, self._noises, strict=True)):
            inverse = 1 / delta if self.state.spec.mean == "dual" else self._inverses[:, :, index]
            mean = _mean(self.state, rotated, self._vectors / noise * inverse)
            yield mean, _variance(self.state, rotated, within[:, :, index], delta)


def _solved_for(natural: Natural, precision: Precision, mean: str) -> Tensor:
    """:attr:`Solved.vectors`."""
    vectors = natural.mean_vectors(mean)
    return vectors if mean == "dual" else precision.whiten_vectors(vectors)


def _as_column(noise: Noise | None, like: Tensor) -> Tensor:
    """A noise by output, ``[C, 1]``, or one for all, ``[1, 1]``."""
    value = 1.0 if noise is None else noise
    return torch.as_tensor(value, dtype=like.dtype, device=like.device).reshape(-1, 1)


def _mean(state: State, features: Features, coefficients: Tensor) -> Tensor:
    return _with_prior(state, features.outputs, times(features.phi, coefficients))


def _with_prior(state: State, outputs: Tensor, mean: Tensor) -> Tensor:
    return outputs.double() + mean if state.spec.mean == "network" else mean


def _variance(state: State, features: Features, within: Tensor, delta: float) -> Tensor:
    return (features.unexplained / delta + within).mT.expand(-1, state.num_outputs)
