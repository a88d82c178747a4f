"""Test, then train: batches predicted and absorbed in one pass over the kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Distribution

from sfr_cl.core.predict import Predictor
from sfr_cl.core.sums import DualSums
from sfr_cl.data.inputs import Inputs


class Absorption:
    """Data on its way into a posterior.

    Every batch is predicted by the posterior as it was at the start, and added to sums that the
    posterior adopts at the end, all of them: after an error in between it is what it was.
    """

    def __init__(self, predictor: Predictor, adopt: Callable[[DualSums], object]) -> None:
        self._predictor, self._adopt = predictor, adopt
        self._sums = predictor.solved.state.no_sums()

    @torch.inference_mode(False)
    @torch.no_grad()
    def step(self, x: Inputs, y: Tensor) -> Distribution:
        """What the posterior says of a batch that is then added."""
        predictor, state = self._predictor, self._predictor.solved.state
        x, y = state.checked_pair(x, y)
        features = state.basis.features(x, diagonal=predictor.needs_variance)
        terms = state.add(self._sums).terms(x, features, y)
        self._sums = self._sums + DualSums.of(features.phi, terms)
        return predictor.of_latent(*predictor.solved.moments(features, predictor.link))

    def finish(self) -> None:
        """Let the posterior adopt what was added."""
        self._sums.require_finite()
        self._adopt(self._sums)
        self._sums = self._sums * 0.0
