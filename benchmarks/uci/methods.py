"""The methods of the table: each turns a trained network into predictions, untuned and tuned."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Normal

from sfr_cl import SFRPosterior
from sfr_cl.core.tune import DELTAS, SCALES
from sfr_cl.errors import SFRWarning
from sfr_cl.likelihoods import MC_CHUNKS, MC_SAMPLES, CategoricalLikelihood

from ..harness.measure import nlpd
from ..harness.memory import posterior_bytes
from .problem import Problem

GRID = DELTAS
"""Values of delta tried, the library's own: that of the lowest validation NLPD is taken."""

CURVATURE_FLOOR = 0.01


class FlooredCategorical(CategoricalLikelihood):
    """Class probabilities kept from 0 and 1 in the curvature, as in the published experiments.

    Where the network is certain b = p (1 - p) vanishes, and with it what a datum says of f.
    """

    name = "floored classification"

    def curvature(self, f: Tensor, y: Tensor) -> Tensor:
        p = f.softmax(1).clamp(CURVATURE_FLOOR, 1 - CURVATURE_FLOOR)
        return p * (1 - p)


@dataclass(frozen=True)
class Outcome:
    """A method's predictions, and what they were made with."""

    log_probs: Tensor
    """Of the test part, [N, C]."""
    nlpd_valid: float
    prior_precision: float
    state_bytes: int = 0
    """Kept beside the network."""


Outcomes = Mapping[bool, Outcome]
"""By whether delta (of the network itself: the scale of its logits) was tuned."""

Method = Callable[[Problem, int | None], Outcomes]
"""Of a problem, and M in percent of N for methods with inducing inputs."""


@contextmanager
def quietly() -> Iterator[None]:
    """Without warnings of what is right here.

    The sets hold some rows twice, so inducing inputs repeat; and a best delta at the edge of its
    range is an answer: the network needs no variance.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SFRWarning)
        yield


def choose(
    problem: Problem, deltas: Sequence[float], log_probs: Sequence[Tensor], state_bytes: int = 0
) -> Outcomes:
    """The first is as trained; the best of the others is the tuned one.

    Args:
        problem: what is predicted.
        deltas: the prior precision of each.
        log_probs: of :attr:`Problem.held_out`, of each.
        state_bytes: kept beside the network, by all of them.
    """
    valid = len(problem.split.valid[1])
    outcomes = [
        Outcome(values[valid:], nlpd(values[:valid], problem.split.valid[1]), delta, state_bytes)
        for delta, values in zip(deltas, log_probs, strict=True)
    ]
    tuned = min(outcomes[1:], key=lambda outcome: outcome.nlpd_valid)
    return {False: outcomes[0], True: tuned}


def nn_map(problem: Problem, m_percent: int | None) -> Outcomes:
    """The network itself; without a delta, the scale of its logits is what can be tuned."""
    del m_percent
    with torch.no_grad():
        logits = problem.network(problem.held_out).double()
    scales = [1.0, *SCALES]
    log_probs = [(scale * logits).log_softmax(1) for scale in scales]
    return choose(problem, [problem.prior_precision] * len(scales), log_probs)


def sfr(problem: Problem, m_percent: int | None) -> Outcomes:
    """The published posterior: the GP of all training data on M random inputs."""
    assert m_percent is not None
    return _published(problem, m_percent, problem.split.train)


def gp_subset(problem: Problem, m_percent: int | None) -> Outcomes:
    """The GP whose data are SFR's M inputs and their labels, and nothing else."""
    assert m_percent is not None
    return _published(problem, m_percent, problem.subset(m_percent))


def _published(problem: Problem, m_percent: int, data: tuple[Tensor, Tensor]) -> Outcomes:
    """One kernel per output, sites at the network's outputs, softmax averaged over samples.

    Tuning moves the prior precision of variance and mean together, or, as the mean of a linearised
    network does, leaves the mean as trained.
    """
    z, _ = problem.subset(m_percent)
    posterior = SFRPosterior(
        problem.network,
        FlooredCategorical(),
        inducing=z,
        output_kernel="per_output",
        mean="natural",
        linearize_at="network",
    )
    with quietly():
        posterior.fit(data)
    as_trained, *tuned = posterior.predict_f_at(problem.held_out, [problem.prior_precision, *GRID])
    kept = [Normal(as_trained.mean, latent.stddev) for latent in tuned]
    deltas = [problem.prior_precision, *GRID, *GRID]
    found = averaged([as_trained, *tuned, *kept])
    return choose(problem, deltas, found, posterior_bytes(posterior))


def averaged(latents: Sequence[Normal]) -> list[Tensor]:
    """log p(y | x) [B, C] of each by the likelihood's link "mc", its draws made once for all.

    Samples have the classes first: a softmax over the last of dimensions, so short, takes longer.
    """
    means, deviations = (
        [values.mT[:, None].contiguous() for values in parts]
        for parts in ([f.mean for f in latents], [f.stddev for f in latents])
    )
    totals = [torch.zeros_like(mean[:, 0]) for mean in means]
    shape = MC_SAMPLES // MC_CHUNKS, *latents[0].mean.shape
    generator = torch.Generator().manual_seed(0)
    for _ in range(MC_CHUNKS):
        noise = torch.randn(shape, generator=generator, dtype=means[0].dtype)
        noise = noise.movedim(2, 0).contiguous()
        for total, mean, deviation in zip(totals, means, deviations, strict=True):
            total.add_(torch.addcmul(mean, deviation, noise).softmax(0).sum(1))
    return [Categorical(probs=total.mT / MC_SAMPLES).logits for total in totals]


def sfr_ours(problem: Problem, m_percent: int | None) -> Outcomes:
    """The network's own mean, and the library's defaults: one kernel, probit link."""
    assert m_percent is not None
    z, _ = problem.subset(m_percent)
    posterior = SFRPosterior(
        problem.network,
        "classification",
        prior_precision=problem.prior_precision,
        inducing=z,
        mean="network",
    )
    with quietly():
        posterior.fit(problem.split.train)
    untuned = _of_posterior(posterior, problem)
    with quietly():
        posterior.tune_prior_precision(problem.split.valid)
    return {False: untuned, True: _of_posterior(posterior, problem)}


def _of_posterior(posterior: SFRPosterior, problem: Problem) -> Outcome:
    log_probs = _log_probs(posterior.predict(problem.split.test[0]))
    valid, kept = posterior.nlpd(problem.split.valid), posterior_bytes(posterior)
    return Outcome(log_probs, valid, posterior.prior_precision, kept)


def _log_probs(predictive: Distribution) -> Tensor:
    assert isinstance(predictive, Categorical)
    return predictive.logits
