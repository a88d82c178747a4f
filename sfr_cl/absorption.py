"""Test, then train: batches predicted and absorbed in one pass over the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributions import Distribution

from sfr_cl.duals import DualSums
from sfr_cl.inputs import Inputs

if TYPE_CHECKING:
    from sfr_cl.posterior import SFRPosterior


class Absorption:
    """Data on its way into a posterior.

    Every batch is predicted by the posterior as it was at the start, and added to sums that the
    posterior takes over at the end, whole: after an error in between it is what it was.
    """

    def __init__(self, posterior: SFRPosterior) -> None:
        self._posterior = posterior
        self._state, self._solution = posterior._state, posterior._solution
        self._link = posterior._default_link
        self._scale = posterior.logit_scale
        self._sums = DualSums.zeros(self._state.num_outputs, self._state.factor)

    @torch.inference_mode(False)
    @torch.no_grad()
    def step(self, x: Inputs, y: Tensor) -> Distribution:
        """What the posterior says of a batch that is then added."""
        state, solution = self._state, self._solution
        ((x, y),) = state.checked([(x, y)])
        needs_variance = self._link != "map" or not solution.likelihood.has_logits
        outputs, features, diagonal = state.features(x, diagonal=needs_variance)
        self._sums = self._sums + DualSums.of(features, state.sites(x, outputs, y))
        mean = self._scale * solution.mean(
            outputs if state.options.mean == "network" else None, features
        )
        variance = torch.zeros_like(mean)
        if diagonal is not None:
            variance = self._scale**2 * solution.variance(features, diagonal).expand_as(mean)
        return solution.likelihood.predictive(mean, variance, self._link)

    def finish(self) -> None:
        """Let the posterior take over what was added."""
        self._sums.require_finite()
        state = self._posterior._state
        self._posterior._take_over(state.with_sums(state.sums + self._sums))
