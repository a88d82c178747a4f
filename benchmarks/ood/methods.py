"""The methods: each gives moments of the logits f, from which probabilities and scores follow."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from sfr_cl import SFRPosterior, greedy
from sfr_cl.likelihoods import CategoricalLikelihood

from ..harness.baselines import laplace, laplace_package, loader, quiet
from ..harness.memory import posterior_bytes, tensor_bytes
from .problem import Labelled, Problem
from .training import DENSE_LAYERS

NUM_INDUCING = 512
CANDIDATES = 4
"""Inducing inputs are chosen among this many times their number."""
DELTAS = [10 ** (step / 2) for step in range(-2, 9)]
"""Prior precisions tried, from the most uncertain on."""
LINKS = ("probit", "mc")
BASELINE_BATCH = 50
"""Images laplace-torch is given at a time: their Jacobians fill memory."""


class Moments(NamedTuple):
    """Mean and variance of f, ``[B, C]``; a network alone has a mean only."""

    mean: Tensor
    variance: Tensor | None = None
    novelty: Tensor | None = None
    """Share of the prior variance of f that data has left, ``[B]``."""


@dataclass(frozen=True)
class Predictions:
    """What a method predicts for the test images, and for the OOD images."""

    test: Moments
    ood: Moments
    prior_precision: float | None = None
    link: str = "map"
    state_bytes: int = 0
    """Kept beside the network."""


def probabilities(moments: Moments, link: str) -> Tensor:
    """p(y | x), ``[B, C]``."""
    mean = moments.mean.double()
    variance = torch.zeros_like(mean) if moments.variance is None else moments.variance.double()
    predictive = CategoricalLikelihood().predictive(mean, variance, link)
    assert isinstance(predictive, Categorical)
    return predictive.probs


def losses(moments: Moments, link: str, y: Tensor) -> Tensor:
    """-log p(y | x), ``[B]``."""
    return -probabilities(moments, link).gather(1, y[:, None]).log()[:, 0]


def most_uncertain(tried: Sequence[Moments], y: Tensor) -> int:
    """The first whose validation NLPD is within one standard error of the best.

    Many prior precisions predict test images equally well; the smallest of them is the
    most uncertain.
    """
    found = [losses(moments, "probit", y) for moments in tried]
    best = min(found, key=lambda loss: float(loss.mean()))
    bound = best.mean() + best.std() / len(best) ** 0.5
    return next(i for i, loss in enumerate(found) if loss.mean() <= bound)


def best_link(moments: Moments, y: Tensor) -> str:
    """The link of least validation NLPD."""
    return min(LINKS, key=lambda link: float(losses(moments, link, y).mean()))


@torch.no_grad()
def network_alone(problem: Problem) -> Predictions:
    """MAP: the softmax of the trained network."""
    network = problem.network
    test, ood = (network(x).double() for x in (problem.test.x, problem.ood_images))
    return Predictions(Moments(test), Moments(ood))


def sfr(problem: Problem, parameters: str | Sequence[str]) -> Predictions:
    """Our posterior: sums over all fitted data, the network's own mean."""
    z, _ = inducing(problem, parameters)
    return ours(problem, parameters, z, problem.fitted)


def gp_subset(problem: Problem) -> Predictions:
    """The same Gaussian process, given the inducing inputs as its only data."""
    z, labels = inducing(problem, DENSE_LAYERS)
    return ours(problem, DENSE_LAYERS, z, Labelled(z, labels))


def ours(
    problem: Problem, parameters: str | Sequence[str], z: Tensor, data: Labelled
) -> Predictions:
    """A posterior fitted on `data`, its choices made on validation data."""
    posterior = SFRPosterior(
        problem.network,
        "classification",
        inducing=z,
        mean="network",
        parameters=parameters,
        dtype=torch.float32,
    ).fit(data)
    x, y = problem.validation
    valid = [Moments(f.mean, f.variance) for f in posterior.predict_f_at(x, DELTAS)]
    chosen = most_uncertain(valid, y)
    settled = posterior.with_prior_precision(DELTAS[chosen])
    test, ood = (moments(settled, x) for x in (problem.test.x, problem.ood_images))
    link, kept = best_link(valid[chosen], y), posterior_bytes(settled)
    return Predictions(test, ood, DELTAS[chosen], link, kept)


def moments(posterior: SFRPosterior, x: Tensor) -> Moments:
    """Of f."""
    latent = posterior.predict_f(x)
    return Moments(latent.mean, latent.variance, posterior.novelty(x))


def inducing(problem: Problem, parameters: str | Sequence[str]) -> Labelled:
    """Images by greatest conditional variance under the kernel, with their labels."""
    candidates = problem.fitted.at(slice(CANDIDATES * NUM_INDUCING))
    posterior = SFRPosterior(
        problem.network,
        "classification",
        inducing=greedy(NUM_INDUCING, CANDIDATES * NUM_INDUCING),
        parameters=parameters,
        dtype=torch.float32,
    )
    return candidates.at(posterior.select(candidates))


def kronecker_glm(problem: Problem) -> Predictions:
    """laplace-torch's linearised Laplace, Kronecker-factored, over all weights."""
    network = trainable(problem.network)
    with quiet():
        baseline = laplace("KronLaplace", network)
        baseline.fit(loader(*problem.fitted))
        x, y = problem.validation
        valid = baseline_moments(baseline, x, DELTAS)
        chosen = most_uncertain(valid, y)
        delta = DELTAS[chosen]
        (test,) = baseline_moments(baseline, problem.test.x, [delta])
        (ood,) = baseline_moments(baseline, problem.ood_images, [delta])
        kept = tensor_bytes(vars(baseline.H))
    return Predictions(test, ood, delta, best_link(valid[chosen], y), kept)


def trainable(network: nn.Sequential) -> nn.Sequential:
    """A copy whose weights ask for gradients, as laplace-torch needs."""
    return copy.deepcopy(network).requires_grad_(True)


def baseline_moments(baseline: Any, x: Tensor, deltas: Sequence[float]) -> list[Moments]:
    """For each prior precision; the Jacobians, which take the time, are made once.

    They come from the quickest of laplace-torch's backends, whichever made the Kronecker factors.
    """
    backend = laplace_package().curvature.AsdlGGN(baseline.model, "classification")
    parts: list[list[Moments]] = [[] for _ in deltas]
    for batch in x.split(BASELINE_BATCH):
        jacobians, mean = backend.jacobians(batch)
        prior = jacobians.square().sum(2)  # at delta = 1
        for part, delta in zip(parts, deltas, strict=True):
            baseline.prior_precision = delta
            variance = baseline.functional_variance(jacobians).diagonal(dim1=1, dim2=2)
            left = variance * delta / prior
            part.append(Moments(mean.detach(), variance.detach(), left.mean(1).detach()))
    return [Moments(*map(torch.cat, zip(*part, strict=True))) for part in parts]


METHODS: dict[str, Callable[[Problem], Predictions]] = {
    "map": network_alone,
    "kron-glm": kronecker_glm,
    "gp-subset": gp_subset,
    "sfr": lambda problem: sfr(problem, DENSE_LAYERS),
    "sfr-last-layer": lambda problem: sfr(problem, "last_layer"),
}
