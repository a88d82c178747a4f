"""Our likelihoods keep the contract of every likelihood, and the contract can fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sfr_cl import Likelihood
from sfr_cl.likelihoods import BernoulliLikelihood, CategoricalLikelihood, GaussianLikelihood
from sfr_cl.testing import check_likelihood
from support.posteriors import Poisson

LABELS = torch.tensor([0, 2, 1, 2])
ONES = torch.tensor([0, 1, 1])
NUMBERS = torch.tensor([[0.5, -1.0], [2.0, 0.0]])

CASES: dict[str, tuple[Likelihood, Tensor, dict[str, Any]]] = {
    "classification": (
        CategoricalLikelihood(),
        LABELS,
        {
            "num_outputs": 3,
            "forms": [LABELS.int(), LABELS.to(torch.uint8)],
            "refused": [LABELS + 1, LABELS - 1, LABELS.float(), LABELS[:, None], LABELS > 0],
        },
    ),
    "binary": (
        BernoulliLikelihood(),
        ONES,
        {"forms": [ONES.float(), ONES[:, None], ONES > 0], "refused": [2 * ONES, ONES + 0j]},
    ),
    "regression": (
        GaussianLikelihood(0.3),
        NUMBERS,
        {
            "num_outputs": 2,
            "forms": [NUMBERS.double()],
            "refused": [NUMBERS[:, 0], NUMBERS / 0, NUMBERS + 0j],
        },
    ),
    "learned noise": (GaussianLikelihood(1.0, learn=True), NUMBERS[:, :1], {}),
    "custom": (Poisson(), torch.tensor([0, 3, 1]), {"forms": [torch.tensor([[0.0], [3], [1]])]}),
}


@pytest.mark.parametrize("name", CASES)
def test_likelihoods_keep_the_contract(name: str) -> None:
    likelihood, targets, options = CASES[name]
    check_likelihood(likelihood, targets, **options)


class WrongGradient(Poisson):
    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        return y + f.exp()


class WrongCurvature(Poisson):
    def curvature(self, f: Tensor, y: Tensor) -> Tensor:
        return torch.ones_like(f)


class Infinite(Poisson):
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return super().log_prob(f, y) - torch.inf


class NoDistribution(Poisson):
    def predictive(self, mean: Tensor, variance: Tensor, link: str) -> Any:
        return mean.exp()


class AnotherPredictive(Poisson):
    def predictive(self, mean: Tensor, variance: Tensor, link: str) -> Any:
        return torch.distributions.Poisson(2 * mean.exp())


class Broadcast(Poisson):
    """Predictions [B] for targets [B, 1]."""

    def predictive(self, mean: Tensor, variance: Tensor, link: str) -> Any:
        return torch.distributions.Poisson(mean.exp()[:, 0])


class LostSettings(GaussianLikelihood):
    def with_settings(self, settings: Any) -> GaussianLikelihood:
        return LostSettings(1.0)


@pytest.mark.parametrize(
    ("likelihood", "message"),
    [
        (WrongGradient(), "the gradient of log p"),
        (WrongCurvature(), "the curvature of log p"),
        (Infinite(), "finite log p"),
        (NoDistribution(), "a Distribution"),
        (AnotherPredictive(), "log p without variance"),
        (Broadcast(), r"log densities of shape \[3\]"),
        (LostSettings(0.5), "settings after a round trip"),
    ],
)
def test_what_breaks_the_contract_is_found(likelihood: Likelihood, message: str) -> None:
    with pytest.raises(AssertionError, match=rf"expected {message}.*, got"):
        check_likelihood(likelihood, torch.tensor([0.0, 3.0, 1.0]))


def test_an_approximate_curvature_can_be_said() -> None:
    check_likelihood(WrongCurvature(), torch.tensor([0, 3, 1]), exact_curvature=False)


def test_targets_must_be_refused() -> None:
    with pytest.raises(AssertionError, match="to be refused"):
        check_likelihood(Poisson(), torch.tensor([0, 3]), refused=[torch.tensor([1, 2])])
