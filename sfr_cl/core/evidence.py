"""Sums read as natural parameters, and the evidence they give.

log Z = sum_i (log p - a f~ - b f~^2 / 2) + eta' (delta I + W)^-1 eta / 2 - log|I + W / delta| / 2

A noise that is learned, one for each output, is that of greatest evidence times a weak prior:
log s2 ~ N(log(0.3 typical), 2^2), where typical is the mean square of the output's targets less the
prior mean. Without it the noise of up to three targets goes to zero. Centre and width were chosen
on draws of 1 to 50 rows of three UCI sets and three synthetic ones; from 50 on they change little.

Delta is learned with one noise for all outputs, then the noise of each at this delta. Of all these
together, delta would be that of the smallest targets: those of zeros, or in other units, are the
likelier without bound the larger delta is, which leaves nothing of f for the others.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sfr_cl.core.linalg import Precision, Spectrum
from sfr_cl.core.state import State
from sfr_cl.core.sums import SEEN
from sfr_cl.likelihoods import GaussianLikelihood, Likelihood, Noise, PriorReading

TAU = 2 * math.pi
SMALLEST_NOISE, SMALLEST_SINGLE_NOISE = 1e-14, 1e-10
"""Relative to the targets' mean square: below it, rounding. The second is version 0.1.0's."""

LARGEST_NOISE = 10.0
"""Relative to the targets' mean square."""

PRIOR_CENTRE, PRIOR_WIDTH = 0.3, 2.0
"""Of the noise: relative to the targets' mean square, and of its logarithm."""

PRODUCT_WIDTH = 3.0
"""Of the logarithm of a delta that is learned for classes."""

STEP = 0.25
"""Of the grids of logarithms that searches start from."""


ONE_NOISE = GaussianLikelihood(1.0, learn=True).with_settings(
    {"noise_variance": 1.0, "learn": True, "by_output": False}
)
"""Whose noise is that of all outputs, without a prior."""


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
    constant: Tensor
    """Part of the evidence that no solve changes, by output, ``[C]``."""
    terms: Tensor
    """Number of targets that observe each output, ``[C]``."""
    observed: Tensor
    """Outputs that are part of the model, ``[C]``: at the prior, those some datum observed."""
    prior: PriorReading
    """How terms made at f = 0 were read."""
    noise: Tensor
    """The Gaussian's noise variance by output; 1 for other likelihoods, ``[C]``."""
    squares: Tensor | None
    """sum a^2 / b by output, ``[C]``, at the prior, of a likelihood that knows it."""
    count: Tensor
    """Number of data."""

    @staticmethod
    def of(state: State) -> Natural:
        """Natural parameters of a state's sums, at unit noise."""
        sums, at_prior, prior, squares = state.sums, state.spec.at_prior, state.reading, None
        seen = sums.seen > SEEN
        if at_prior:
            squares = state.likelihood.prior_squares(sums.seen, sums.count, int(seen.sum()))
        alpha = sums.gradient - prior.offset * sums.mass if prior.offset else sums.gradient
        return Natural(
            alpha=alpha,
            eta=alpha if at_prior else alpha + sums.point,
            reference=state.reference,
            weight=sums.weight if prior.scale == 1 else prior.scale * sums.weight,
            constant=sums.constant + prior.log_prob * sums.count / len(seen),
            terms=sums.seen,
            observed=seen if at_prior else torch.ones_like(seen),
            prior=prior,
            noise=torch.ones_like(sums.seen),
            squares=squares,
            count=sums.count,
        )

    def as_regression(self) -> Natural | None:
        """The same, read as a regression of a / b whose noise is some number times 1 / b."""
        if self.squares is None:
            return None
        return replace(self, constant=-self.squares / 2, terms=self.count.expand_as(self.squares))

    def with_noise(self, variance: Noise | None) -> Natural:
        """At a noise variance; ``None`` where the likelihood has none.

        Outputs that share a kernel, and have noises of their own, have a W of their own.
        """
        if variance is None:
            return self
        noise = torch.as_tensor(variance, dtype=torch.float64, device=self.eta.device)
        weight = self.weight / noise.reshape(-1, 1, 1)
        noise = noise.expand(len(self.eta))
        return replace(
            self,
            alpha=self.alpha / noise[:, None],
            eta=self.eta / noise[:, None],
            reference=self.reference / noise[:, None],
            weight=weight,
            constant=self.constant / noise - self.terms / 2 * (TAU * noise).log(),
            noise=noise,
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
        return float(self.constant.sum() + (fit - volume)[self.observed].sum() / 2)


class SpectralEvidence:
    """The evidence as a function of delta and the noise, after one eigendecomposition.

    With W = U diag(lambda) U' and p = U' eta at unit noise, an output with noise s2 adds

        constant / s2 + sum p^2 / (s2 (delta s2 + lambda)) / 2
            - sum log(1 + lambda / (s2 delta)) / 2 - n log(2 pi s2) / 2

    to log Z. Outputs of one noise are one group, G groups in all. Searches are over logarithms: the
    best of a grid, then the root of the slope, so that the answer is a smooth function of the sums.
    """

    def __init__(self, natural: Natural, spectrum: Spectrum, likelihood: Likelihood) -> None:
        # Few numbers, read a thousand times: on the CPU, wherever the sums are.
        terms, constant = natural.terms.cpu(), natural.constant.cpu()
        self._used = natural.observed.cpu() & (terms > SEEN)
        terms, constant = terms[self._used], constant[self._used]
        squares = spectrum.rotate_vectors(natural.eta).square().cpu()[self._used]
        values = spectrum.values.cpu()
        values = values if len(values) == 1 else values[self._used]
        self._by_output = likelihood.noise_by_output
        self._squares, self._values, self._copies = squares, values, 1
        self._set_targets(constant, terms * (likelihood.noise_scale is not None))
        if not self._by_output:
            self._pool()

    def _set_targets(self, constant: Tensor, terms: Tensor) -> None:
        self._constant, self._terms = constant, terms
        typical = (-2 * constant / terms).clamp_min(torch.finfo(torch.float64).tiny ** 0.5)
        self._typical = typical.log()

    def _pool(self) -> None:
        """Make one group of all outputs."""
        if len(self._values) == 1:
            self._copies = len(self._squares)
            self._squares = self._squares.sum(0, keepdim=True)
        else:
            self._squares, self._values = self._squares.reshape(1, -1), self._values.reshape(1, -1)
        self._set_targets(self._constant.sum(0, keepdim=True), self._terms.sum(0, keepdim=True))

    def at(self, delta: Tensor, noise: Tensor) -> Tensor:
        """log Z by group for any number of pairs, ``[T]`` and ``[T, G]``: ``[T, G]``."""
        return self._evidence(noise, *self._fit_and_volume(delta[:, None] * noise))

    def best_precision(self, noise: Noise | None) -> float:
        """The delta of greatest evidence at a noise."""
        if not self._says_something:
            return 1.0
        given = torch.as_tensor(1.0 if noise is None else noise, dtype=torch.float64)
        fixed = given.expand(len(self._used))[self._used][: len(self._constant)]
        low, high = self._range_of_product
        low, high = low - float(fixed.max().log()), high - float(fixed.min().log())
        return math.exp(_maximum(lambda t: self.at(t.exp(), fixed[None]).sum(1), low, high))

    def best_noise(self, delta: float) -> Noise:
        """The noise of greatest evidence, and prior, at delta."""
        if not len(self._terms):
            return 1.0
        grid, at = self._noise_grid, torch.tensor([delta], dtype=torch.float64)
        scores = self.at(at.expand(len(grid)), grid.exp()) + self._log_prior(grid)
        start = grid.gather(0, scores.argmax(0)[None])
        return self._each(self._noises_near(at, start[0])[0])

    def best_both(self) -> tuple[float, Noise]:
        """Delta and noise of greatest evidence, and prior; delta with one noise for all outputs."""
        if not self._says_something:
            return 1.0, self._each(self._typical.exp())
        if len(self._terms) == 1:
            return self._best_pair()
        pooled = copy.copy(self)
        pooled._pool()
        delta, _ = pooled._best_pair()
        return delta, self.best_noise(delta)

    def _best_pair(self) -> tuple[float, Noise]:
        """Of one group: for a fixed product delta s2 the noise takes next to no search."""
        product = math.exp(_maximum(self._profile, *self._range_of_product))
        noise = self._noise_of_product(torch.tensor([product], dtype=torch.float64))[0]
        return product / float(noise), self._each(noise)

    def best_product(self) -> float:
        """The delta s2 of greatest evidence of one group, under a weak prior around 1."""
        if not self._says_something:
            return 1.0

        def profile(t: Tensor) -> Tensor:
            return self._profile(t) - t.square() / (2 * PRODUCT_WIDTH**2)

        return math.exp(_maximum(profile, *self._range_of_product))

    def _profile(self, log_product: Tensor) -> Tensor:
        """Evidence and prior of one group at its best noise for each delta s2."""
        noise = self._noise_of_product(log_product.detach().exp())
        evidence = self._evidence(noise, *self._fit_and_volume(log_product[:, None].exp()))
        return (evidence + self._log_prior(noise.log()))[:, 0]

    def _noise_of_product(self, product: Tensor) -> Tensor:
        """The noise of one group at each delta s2, ``[T, 1]``.

        Without the prior it is the mean square of what is left, r. With it, it is the root t of
        n (r exp(-t) - 1) / 2 = (t - centre) / width^2, a convex function less a line: Newton's
        steps from below never pass it.
        """
        left = -2 * self._constant - self._fit_and_volume(product[:, None])[0]
        left = (left / self._terms).clamp_min(self._noise_grid[0].exp())
        if not self._by_output:
            return left
        half, at = self._terms / 2, torch.minimum(left.log(), self._centre)
        for _ in range(20):
            pull = half * left * (-at).exp()
            slope = pull - half - (at - self._centre) / PRIOR_WIDTH**2
            at = at + slope / (pull + 1 / PRIOR_WIDTH**2)
        return at.exp()

    def _noises_near(self, delta: Tensor, log_noise: Tensor) -> Tensor:
        """For each delta the noises where the slope is zero, by safeguarded Newton: ``[T, G]``."""
        start, grid = log_noise.expand(len(delta), -1), self._noise_grid
        low = torch.maximum(start - 3 * STEP, grid[0])
        high = torch.minimum(start + 3 * STEP, grid[-1])
        at, ends = start, (low, high)
        for _ in range(12):
            slope, bend = self._slope(delta, at)
            low, high = torch.where(slope > 0, at, low), torch.where(slope > 0, high, at)
            newton = at - slope / bend
            inside = (bend < 0) & (newton >= low) & (newton <= high)
            at = torch.where(inside, newton, (low + high) / 2)
        falling, rising = (self._slope(delta, end)[0] for end in ends)
        return torch.where(falling <= 0, ends[0], torch.where(rising >= 0, ends[1], at)).exp()

    def _slope(self, delta: Tensor, log_noise: Tensor) -> tuple[Tensor, Tensor]:
        """Of evidence and prior, first and second derivative with respect to log s2."""
        noise = log_noise.exp()
        product = (delta[:, None] * noise)[..., None]
        total = product + self._values
        fit, share = self._squares / total, product / total
        volume = self._copies * (self._values / total)
        fits = [(fit * share**power).sum(2) for power in range(3)]
        linear = (self._constant + (fits[0] + fits[1]) / 2) / noise
        slope = (volume.sum(2) - self._terms) / 2 - linear
        bend = linear + fits[2] / noise - (volume * share).sum(2) / 2
        if self._by_output:
            slope = slope - (log_noise - self._centre) / PRIOR_WIDTH**2
            bend = bend - 1 / PRIOR_WIDTH**2
        return slope, bend

    def _fit_and_volume(self, product: Tensor) -> tuple[Tensor, Tensor]:
        """What depends on delta s2 alone, ``[T, G]`` each."""
        product = product[..., None]
        fit = (self._squares / (product + self._values)).sum(2)
        return fit, self._copies * torch.log1p(self._values / product).sum(2)

    def _evidence(self, noise: Tensor, fit: Tensor, volume: Tensor) -> Tensor:
        scale = self._terms / 2 * torch.log(TAU * noise)
        return (self._constant + fit / 2) / noise - volume / 2 - scale

    def _log_prior(self, log_noise: Tensor) -> Tensor:
        """Of the noise, up to a constant; flat for one noise of all outputs."""
        if not self._by_output:
            return torch.zeros_like(log_noise)
        return -(log_noise - self._centre).square() / (2 * PRIOR_WIDTH**2)

    @property
    def _centre(self) -> Tensor:
        return self._typical + math.log(PRIOR_CENTRE)

    @property
    def _noise_grid(self) -> Tensor:
        """Logarithms, ``[S, G]``."""
        smallest = SMALLEST_NOISE if self._by_output else SMALLEST_SINGLE_NOISE
        return _steps(math.log(smallest), math.log(LARGEST_NOISE))[:, None] + self._typical

    def _each(self, noise: Tensor) -> Noise:
        """By output, those without data like the others; one number where there is one noise."""
        if not len(noise):
            return 1.0
        if len(self._used) == 1 or not self._by_output:
            return float(noise[0])
        every = noise.log().mean().exp().repeat(len(self._used))
        every[self._used] = noise
        return tuple(every.tolist())

    @property
    def _says_something(self) -> bool:
        """Whether any data is left in W."""
        return len(self._terms) > 0 and self._values.numel() > 0 and bool(self._values.max() > 0)

    @property
    def _range_of_product(self) -> tuple[float, float]:
        """log delta s2 matters only relative to the eigenvalues it is added to."""
        top = math.log(float(self._values.max()))
        return top - (34 if self._by_output else 26), top + 5


def _steps(low: float, high: float) -> Tensor:
    """A grid of logarithms."""
    return low + STEP * torch.arange(math.ceil((high - low) / STEP) + 1, dtype=torch.float64)


@torch.inference_mode(False)
def _maximum(function: Callable[[Tensor], Tensor], low: float, high: float) -> float:
    """Argmax on [low, high]: the best of a grid, then the root of the slope beside it."""
    grid = torch.linspace(low, high, 129, dtype=torch.float64)
    best = int(function(grid).argmax())
    return _root(function, float(grid[max(best - 1, 0)]), float(grid[min(best + 1, 128)]))


@torch.inference_mode(False)
def _root(function: Callable[[Tensor], Tensor], low: float, high: float) -> float:
    """Where the slope of a function that rises, then falls, is zero, to rounding."""
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
    carried: bool = False,
    spectrum: Spectrum | None = None,
) -> tuple[float, Likelihood]:
    """Delta and the likelihood, with whatever of delta and the noise is to be learned.

    Args:
        natural: at unit noise.
        likelihood: tells whether its noise is learned.
        prior_precision: delta, or ``None`` to learn it.
        learn_precision: whether delta is learned where the likelihood has no noise.
        carried: whether the sums were carried to other weights or inducing inputs, where what they
            have lost of their data would count as noise.
        spectrum: of W, if it is there already.
    """
    noise, regression = likelihood.noise_scale, None if carried else natural.as_regression()
    if prior_precision is None and noise is None and regression is None and not learn_precision:
        return 1.0, likelihood
    if prior_precision is not None and not likelihood.learns_noise:
        return prior_precision, likelihood
    spectrum = spectrum or Spectrum(natural.weight)
    if regression is not None:  # f depends on the product of delta and the noise only
        return SpectralEvidence(regression, spectrum, ONE_NOISE).best_product(), likelihood
    evidence = SpectralEvidence(natural, spectrum, likelihood)
    if prior_precision is not None:
        return prior_precision, likelihood.with_noise(evidence.best_noise(prior_precision))
    if not likelihood.learns_noise:
        return evidence.best_precision(noise), likelihood
    prior_precision, noise = evidence.best_both()
    return prior_precision, likelihood.with_noise(noise)
