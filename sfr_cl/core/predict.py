"""What a solved posterior says of new inputs, a batch at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal

from sfr_cl.core import evaluate
from sfr_cl.core.basis import Features
from sfr_cl.core.linalg import JITTER, cholesky
from sfr_cl.core.solve import Solved, Sweep
from sfr_cl.data.inputs import Inputs, concat
from sfr_cl.errors import DataError
from sfr_cl.predictive import Normal, of_likelihood

PREDICTED = "inputs to predict"


@dataclass(frozen=True)
class Predictor:
    """A solved posterior, the scale of its logits, and how their uncertainty is read."""

    solved: Solved
    logit_scale: float
    link: str
    by_weights: bool = False
    """Whether the mean of a lone output may be one derivative of the network, whatever M is: it
    pays where a solve answers many inputs."""

    @property
    def needs_variance(self) -> bool:
        """Whether the predictive distribution depends on the variance of f."""
        return self.solved.likelihood.needs_variance(self.link)

    def of_latent(self, mean: Tensor, variance: Tensor | None) -> Distribution:
        """p(y) for f of some mean and variance, ``[B, C]``."""
        mean, variance = self.solved.logits(mean, variance)
        scale = self.logit_scale
        spread = torch.zeros_like(mean) if variance is None else scale**2 * variance
        likelihood = self.solved.likelihood
        predictive = likelihood.predictive(scale * mean, spread, self.link)
        reader = partial(evaluate.targets, likelihood, mean.shape[1])
        return of_likelihood(predictive, reader, mean.device)

    @torch.no_grad()
    def latent(self, x: Inputs) -> Normal:
        """f at inputs: mean and variance ``[B, C]``."""
        return normal(*self._moments(x, variance=True))

    @torch.no_grad()
    def predictive(self, x: Inputs) -> Distribution:
        """y at inputs."""
        return self.of_latent(*self._moments(x, variance=self.needs_variance))

    def _moments(self, x: Inputs, *, variance: bool) -> tuple[Tensor, Tensor | None]:
        if not variance:
            return self._means(x), None
        solved, means, variances = self.solved, [], []
        for _, features in solved.state.walk(x, diagonal=True, what=PREDICTED):
            means.append(solved.mean(features))
            variances.append(solved.variance(features))
        found = torch.cat(means), torch.cat(variances)
        require_finite(*found)
        return found

    def _means(self, x: Inputs) -> Tensor:
        solved, state, means = self.solved, self.solved.state, []
        network, direction = state.basis.network, solved.direction if self.by_weights else None
        for batch in state.batches(x, PREDICTED):
            if direction is None:
                means.append(solved.mean_at(batch))
                continue
            part = network.tangent(batch, direction).double()
            means.append(network(batch).double() + part if state.spec.mean == "network" else part)
        found = torch.cat(means)
        require_finite(found)
        return found

    @torch.no_grad()
    def novelty(self, x: Inputs) -> Tensor:
        """Share of the prior variance of f that data has left, ``[B]``, mean over kernels."""
        solved, shares = self.solved, []
        for _, features in solved.state.walk(x, diagonal=True, what=PREDICTED):
            assert features.diagonal is not None
            prior = features.diagonal.mT.double() / solved.prior_precision
            left = solved.variance(features)[:, : prior.shape[1]] / prior
            # Where no weight moves f there is nothing to be learned.
            shares.append(torch.where(prior == 0, 0, left.clamp(0, 1)).mean(1))
        found = torch.cat(shares)
        require_finite(found)
        return found

    @torch.no_grad()
    def joint(self, x: Inputs) -> MultivariateNormal:
        """Mean ``[C, B]`` and covariance ``[C, B, B]`` of f over all inputs."""
        solved, state = self.solved, self.solved.state
        batches, parts = zip(*state.walk(x, what=PREDICTED), strict=True)
        features = Features.join(parts)
        mean = solved.mean(features)
        gram = state.basis.gram(concat(batches)).double()
        covariance = solved.covariance(features.phi, gram)
        require_finite(mean, covariance)
        # A smooth function's covariance is singular up to rounding of the prior's.
        prior = gram.diagonal(dim1=-2, dim2=-1) / solved.prior_precision
        jitter = 100 * JITTER[state.spec.dtype]
        factor = cholesky(covariance, "the predictive covariance", jitter, scale=prior)
        return MultivariateNormal(mean.mT, scale_tril=factor.expand(mean.shape[1], -1, -1))


@torch.no_grad()
def latents(sweep: Sweep, x: Inputs) -> list[Normal]:
    """f at inputs, ``[B, C]``, at each delta of a sweep."""
    parts = [
        list(sweep.moments(features))
        for _, features in sweep.state.walk(x, diagonal=True, what=PREDICTED)
    ]
    return [
        normal(*(torch.cat(pieces) for pieces in zip(*batches, strict=True)))
        for batches in zip(*parts, strict=True)
    ]


def normal(mean: Tensor, variance: Tensor | None) -> Normal:
    """f of some mean and variance, ``[B, C]``."""
    assert variance is not None
    deviation = variance.clamp_min(torch.finfo(mean.dtype).tiny).sqrt()
    require_finite(mean, deviation)
    return Normal(mean, deviation)


def require_finite(*values: Tensor | None) -> None:
    """Refuse predictions that have overflowed."""
    if not all(value is None or bool(torch.isfinite(value).all()) for value in values):
        raise DataError(
            "expected inputs with finite predictions, got an overflow: the inputs are too large"
        )
