"""The posterior of f at new inputs, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from sfr_cl.errors import DataError
from sfr_cl.inputs import Inputs, length, take
from sfr_cl.linalg import JITTER, cholesky
from sfr_cl.solution import Solution
from sfr_cl.state import State
from sfr_cl.tuning import Sweep


@torch.no_grad()
def marginal(state: State, solution: Solution, x: Inputs) -> Normal:
    """Mean and variance of f, ``[B, C]``."""
    means, variances = [], []
    for batch in _batches(state, _prepared(state, x)):
        outputs, features, diagonal = state.features(batch, diagonal=True)
        assert diagonal is not None
        means.append(solution.mean(_prior_mean(state, outputs), features))
        variances.append(solution.variance(features, diagonal))
    return _normal(torch.cat(means), torch.cat(variances))


@torch.no_grad()
def marginals(sweep: Sweep, x: Inputs) -> list[Normal]:
    """Mean and variance of f, ``[B, C]``, at each prior precision of the sweep."""
    state = sweep.state
    parts = [list(sweep.moments(batch)) for batch in _batches(state, _prepared(state, x))]
    return [
        _normal(*(torch.cat(pieces) for pieces in zip(*batches, strict=True)))
        for batches in zip(*parts, strict=True)
    ]


@torch.no_grad()
def novelty(state: State, solution: Solution, x: Inputs) -> Tensor:
    """Share of the prior variance of f that data has left, ``[B]``, mean over kernels."""
    shares = []
    for batch in _batches(state, _prepared(state, x)):
        _, features, diagonal = state.features(batch, diagonal=True)
        assert diagonal is not None
        prior = diagonal.mT.double() / solution.precision.prior_precision
        left = solution.variance(features, diagonal) / prior
        # Where no weight moves f there is nothing to be learned.
        shares.append(torch.where(prior == 0, 0, left.clamp(0, 1)).mean(1))
    found = torch.cat(shares)
    _require_finite(found)
    return found


@torch.no_grad()
def joint(state: State, solution: Solution, x: Inputs) -> MultivariateNormal:
    """Mean ``[C, B]`` and covariance ``[C, B, B]`` of f over all inputs."""
    x = _prepared(state, x)
    means, parts = [], []
    for batch in _batches(state, x):
        outputs, features, _ = state.features(batch)
        means.append(solution.mean(_prior_mean(state, outputs), features))
        parts.append(features)
    mean, gram = torch.cat(means), state.kernel.gram(x).double()
    covariance = solution.covariance(torch.cat(parts, dim=1), gram)
    _require_finite(mean, covariance)
    # A smooth function's covariance is singular up to rounding of the prior's.
    prior = gram.diagonal(dim1=-2, dim2=-1).mean(-1) / solution.precision.prior_precision
    jitter = 100 * JITTER[state.network.dtype]
    factor = cholesky(covariance, "the predictive covariance", jitter, scale=prior)
    return MultivariateNormal(mean.mT, scale_tril=factor.expand(mean.shape[1], -1, -1))


@torch.no_grad()
def mean(
    state: State, solution: Solution, x: Inputs, direction: dict[str, Tensor] | None
) -> Tensor:
    """Mean of f alone, ``[B, C]``.

    With a direction in weight space it is one derivative of the network, whatever M is.
    """
    x = _prepared(state, x)
    state.require_form(x)
    means = []
    for batch in _batches(state, x):
        if direction is None:
            outputs, features, _ = state.features(batch)
            means.append(solution.mean(_prior_mean(state, outputs), features))
        else:
            offset = _prior_mean(state, state.network(batch))
            part = state.network.tangent(batch, direction).double()
            means.append(part if offset is None else offset.double() + part)
    found = torch.cat(means)
    _require_finite(found)
    return found


def _prepared(state: State, x: Inputs) -> Inputs:
    return state.network.prepare(x, "inputs to predict")


def _batches(state: State, x: Inputs) -> Iterator[Inputs]:
    for start in range(0, length(x), state.batch_size):
        yield take(x, slice(start, start + state.batch_size))


def _prior_mean(state: State, outputs: Tensor) -> Tensor | None:
    """The part of the mean that is not the kernel's: the network itself, or nothing."""
    return outputs if state.options.mean == "network" else None


def _normal(mean: Tensor, variance: Tensor) -> Normal:
    deviation = variance.clamp_min(torch.finfo(mean.dtype).tiny).sqrt().expand_as(mean)
    _require_finite(mean, deviation)
    return Normal(mean, deviation)


def _require_finite(*values: Tensor) -> None:
    if not all(torch.isfinite(value).all() for value in values):
        raise DataError(
            "expected inputs with finite predictions, got an overflow: the inputs are too large"
        )
