"""Data on its way into a posterior: predicted, scored and added in one pass over the kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import Distribution

from sfr_cl.core.basis import Features
from sfr_cl.core.calibration import GROWTH, GROWTH_OF_A_BOUND, NO_SCORES, Forecast, Scores
from sfr_cl.core.predict import Predictor
from sfr_cl.core.solve import Solved
from sfr_cl.core.state import State
from sfr_cl.core.sums import SEEN, DualSums
from sfr_cl.data.inputs import Inputs, take
from sfr_cl.likelihoods import Likelihood

FIRST_ROWS = 16
"""Scored at once while there is less data."""


class Absorption:
    """Data on its way into a posterior.

    Batches are added to sums that the posterior adopts at the end, all of them: after an error in
    between it is what it was. Where the scale of logits is learned, each batch is scored before it
    is added, by a forecast that is made again whenever an output was observed so much more often
    (:data:`~sfr_cl.core.calibration.GROWTH`); a batch too large for that is added in parts. Data
    that the network was trained on is scored by fewer forecasts, for a bound.

    Args:
        state: what the posterior knows at the start.
        predictor: what :meth:`step` predicts by: the posterior at the start.
        adopt: takes what makes a state with all that was added of one without.
        trained_on: whether the network was trained on the data, so that its scores are a bound.
    """

    def __init__(
        self,
        state: State,
        predictor: Callable[[], Predictor],
        adopt: Callable[[Callable[[State], State]], object],
        *,
        trained_on: bool = False,
    ) -> None:
        self._start, self._predictor_at_start, self._adopt = state, predictor, adopt
        self._scored = state.spec.has_prior_logits and state.spec.logit_scale is None
        self._trained_on = trained_on
        self.sums, self.scores, self.forecast = state.no_sums(), NO_SCORES, state.forecast

    @cached_property
    def _predictor(self) -> Predictor:
        return self._predictor_at_start()

    @torch.inference_mode(False)
    @torch.no_grad()
    def step(self, x: Inputs, y: Tensor) -> Distribution:
        """What the posterior says of a batch that is then added, in parts that memory holds."""
        predictor, size, moments = self._predictor, self._start.basis.batch_size, []
        x, y = self._start.checked_pair(x, y)
        for start in range(0, len(y), size):
            rows = slice(start, start + size)
            features = self._add(take(x, rows), y[rows], diagonal=predictor.needs_variance)
            moments.append(predictor.solved.moments(features, predictor.link))
        mean = torch.cat([each for each, _ in moments])
        variances = [each for _, each in moments if each is not None]
        return predictor.of_latent(mean, torch.cat(variances) if variances else None)

    @torch.no_grad()
    def add(self, x: Inputs, y: Tensor) -> None:
        """Add a batch."""
        self._add(*self._start.checked_pair(x, y), diagonal=False)

    def finish(self) -> None:
        """Let the posterior adopt what was added."""
        self.sums.require_finite()
        self._adopt(self._onto)
        self.sums, self.scores = self._start.no_sums(), NO_SCORES

    def _onto(self, state: State) -> State:
        """A state with all that was added."""
        state = replace(state.add(self.sums), forecast=self.forecast)
        if self._trained_on:
            return replace(state, bound=state.bound + self.scores)
        return replace(state, scores=state.scores + self.scores)

    def _add(self, x: Inputs, y: Tensor, *, diagonal: bool) -> Features:
        features, start = self._start.basis.features(x, diagonal=diagonal), self._start
        for rows in self._parts(len(y)):
            part, state = features.take(rows), start
            if self._scored:
                self._score(part, y[rows])
            if state.spec.at_posterior:
                state = state.add(self.sums)
            terms = state.terms(take(x, rows), part, y[rows])
            self.sums = self.sums + DualSums.of(part.phi, terms)
        return features

    def _parts(self, size: int) -> Iterator[slice]:
        """Rows of a batch that are scored at once."""
        start = 0
        while start < size:
            stop = size
            if self._scored:
                count = int(self._start.sums.count + self.sums.count)
                growth = GROWTH_OF_A_BOUND if self._trained_on else GROWTH
                stop = min(size, start + max(FIRST_ROWS, int((growth - 1) * count)))
            yield slice(start, stop)
            start = stop

    def _score(self, features: Features, y: Tensor) -> None:
        state, found = self._start, self.forecast
        seen = state.sums.seen + self.sums.seen
        if not bool((seen > SEEN).any()):
            return
        if found is None or found.is_outdated(seen, bound=self._trained_on):
            found = self.forecast = forecast(state.add(self.sums), found)
        self.scores = self.scores + scores(state.likelihood, found, features.phi, y)


def scores(likelihood: Likelihood, found: Forecast, phi: Tensor, y: Tensor) -> Scores:
    """Of checked targets, by a forecast of outputs it has seen; of no others."""
    known = ((likelihood.seen(y, len(found.seen)) > 0) & (found.seen > SEEN)).any(1)
    if not bool(known.any()):
        return NO_SCORES
    num_seen = int((found.seen > SEEN).sum())
    reading, logits = likelihood.prior_reading(num_seen), found.logits(phi[:, known])
    return Scores.of(likelihood, reading, num_seen, logits, None, y[known], "map")


def forecast(state: State, before: Forecast | None) -> Forecast:
    """By the sums of a state, at the delta of the last one until there is four times the data."""
    count = float(state.sums.count)
    if before is not None and count < 4 * before.learned_at:
        solved = Solved.as_given(state.with_spec(prior_precision=before.prior_precision))
        count = before.learned_at
    else:
        solved = Solved.of(state)
    coefficients, offset = solved.coefficients, torch.zeros_like(state.sums.seen)
    if solved.discriminant is not None:
        coefficients = solved.discriminant.matrix @ coefficients
        offset = solved.discriminant.offset
    coefficients = coefficients.contiguous()  # as a file gives them: products round alike
    return Forecast(coefficients, offset, state.sums.seen, solved.prior_precision, count)
