"""Samples predicted before they are learned: how likely they were, and how to calibrate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor
from torch.distributions import Distribution

from sfr_cl.core.calibration import NO_SCORES, Scores
from sfr_cl.core.predict import Predictor
from sfr_cl.core.solve import Solved
from sfr_cl.core.state import State
from sfr_cl.errors import ArgumentError
from sfr_cl.likelihoods import Likelihood
from sfr_cl.predictive import log_density
from sfr_cl.streaming.samples import Batch

CALIBRATION_SAMPLES = 1000
"""Samples a scale of logits is chosen on, the latest with the greatest weight."""

BASELINE_SAMPLES = 1000
RECENT_SAMPLES = 30
"""Samples whose excess NLL is usual, and samples compared with it."""

THRESHOLD = 5.0
"""Standard deviations of a recent mean above the usual one that are called drift."""

OUTLIER = 5.0
"""Standard deviations above the usual that one sample counts for at most among the recent: where
predictions are nearly certain, a single mistake is a hundred of them, and no drift."""


@dataclass(frozen=True)
class Drift:
    """Recent samples were far less likely than predictions expected: what a callback is told.

    The excess NLL of a sample is -log p(y), less its expectation under the prediction. It is drift
    where the mean of the last 30 or so is 5 standard deviations above the usual level.

    Args:
        position: samples learned by then.
        score: standard deviations of the recent excess NLL above its usual level.

    >>> import torch
    >>> from sfr_cl import SFRPosterior, StreamingPosterior
    >>> _ = torch.manual_seed(0)
    >>> posterior = SFRPosterior(torch.nn.Linear(2, 2), "classification", inducing=4)
    >>> drifts = []
    >>> stream = StreamingPosterior(posterior, on_drift=drifts.append)
    >>> x = torch.randn(400, 2)
    >>> y = (x[:, 0] > 0).long()
    >>> stream.learn_many(x[:300], y[:300])
    >>> drifts
    []
    >>> stream.learn_many(x[300:], 1 - y[300:])
    >>> 300 < drifts[0].position < 330
    True
    """

    position: int
    score: float


OnDrift = Callable[[Drift], None]


def callback(on_drift: OnDrift | None, likelihood: Likelihood) -> OnDrift | None:
    """A function to call, or an error where no excess NLL can be measured."""
    if on_drift is None:
        return None
    if not callable(on_drift):
        raise ArgumentError(f"expected on_drift to be a function, got {on_drift!r:.60}")
    if not likelihood.has_logits and likelihood.noise_scale is None:
        raise ArgumentError(
            f"expected on_drift with 'classification', 'binary' or 'regression', got it with "
            f"{likelihood.name!r}"
        )
    return on_drift


@dataclass(frozen=True)
class ExcessNLL:
    """Negative log density of what came, less what the prediction itself expected of it."""

    mean: float = 0.0
    variance: float = 0.0
    recent: float = 0.0
    count: int = 0

    def after(self, excess: float) -> ExcessNLL:
        """One more sample."""
        count = self.count + 1
        slow = max(1 / count, 1 / BASELINE_SAMPLES)
        fast = max(1 / count, 1 / RECENT_SAMPLES)
        step = excess - self.mean
        if self.count:
            excess = min(excess, self.mean + OUTLIER * math.sqrt(self.variance))
        return ExcessNLL(
            mean=self.mean + slow * step,
            variance=(1 - slow) * (self.variance + slow * step**2),
            recent=self.recent + fast * (excess - self.recent),
            count=count,
        )

    @property
    def score(self) -> float:
        """Standard deviations of the recent mean above the usual one."""
        spread = math.sqrt(self.variance / (2 * RECENT_SAMPLES))
        return (self.recent - self.mean) / spread if spread > 0 else 0.0

    @property
    def is_drift(self) -> bool:
        """Whether the score is one that chance hardly gives."""
        return self.count > 3 * RECENT_SAMPLES and self.score > THRESHOLD


@dataclass(frozen=True)
class Calibration:
    """Scores of recent predictions, and the scale of logits they lead to."""

    scores: Scores = NO_SCORES
    scale: float | None = None
    """The one in use until it is chosen again, in one-hot units; ``None``: the usual one."""

    def chosen(self, state: State) -> Calibration:
        """With the scale of least cost, as a state reads it."""
        reading = state.reading
        return replace(self, scale=self.scores.scale(reading, state.usual_scale) * reading.unit)

    def after(
        self, solved: Solved, mean: Tensor, variance: Tensor | None, y: Tensor, link: str
    ) -> Calibration:
        """Samples whose f was predicted to have some mean and variance, ``[B, C]``."""
        mean, variance = solved.logits(mean, variance)
        state, keep = solved.state, 1 - 1 / CALIBRATION_SAMPLES
        found = Scores.of(
            solved.likelihood, state.reading, state.num_seen, mean, variance, y, link, keep
        )
        return replace(self, scores=self.scores * keep ** len(y) + found)


def excess_nll(predictive: Distribution, y: Tensor) -> list[float]:
    """-log p(y), less its expectation, for each sample."""
    expected = -predictive.entropy().double().reshape(len(y), -1).sum(1)
    return (expected - log_density(predictive, y)).tolist()


@dataclass(frozen=True)
class Monitor:
    """What became of predictions, each made by the sums flushed before its sample."""

    calibration: Calibration | None
    """``None`` where f is no logit, or logits are left as they are."""
    excess: ExcessNLL | None
    """``None`` where nobody is to be told."""
    drifts: tuple[Drift, ...] = ()
    """Not told yet."""

    def scale(self, state: State) -> float:
        """What the logits of a state are multiplied with."""
        if self.calibration is None or self.calibration.scale is None:
            return state.logit_scale
        return self.calibration.scale / state.reading.unit

    def flushed(self, state: State) -> Monitor:
        """Calibrated again, when the samples scored so far are flushed into a state."""
        if self.calibration is None:
            return self
        return replace(self, calibration=self.calibration.chosen(state))

    def merged(self, other: Monitor, state: State) -> Monitor:
        """Calibrated by the scores of another one too, of samples in one state."""
        mine, theirs = self.calibration, other.calibration
        if mine is None or theirs is None:
            return self
        both = replace(mine, scores=mine.scores + theirs.scores)
        return replace(self, calibration=both.chosen(state))

    def after(self, solved: Solved, batch: Batch, n_seen: int) -> Monitor:
        """Samples that come next, after ``n_seen`` others, predicted by a solved posterior."""
        y, link = batch.samples.y, solved.state.spec.link
        mean, variance = solved.moments(batch.features, link)
        calibration, excess, drifts = self.calibration, self.excess, self.drifts
        if excess is not None:
            scale = self.scale(solved.state)
            predictive = Predictor(solved, scale, link).of_latent(mean, variance)
            for row, value in enumerate(excess_nll(predictive, y)):
                excess = excess.after(value)
                if excess.is_drift:
                    drifts = (*drifts, Drift(n_seen + row + 1, excess.score))
                    excess = ExcessNLL()
        if calibration is not None:
            calibration = calibration.after(solved, mean, variance, y, link)
        return Monitor(calibration, excess, drifts)
