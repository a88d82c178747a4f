"""Predictive distributions meet targets one by one, in the forms that fit takes."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Independent,
    Normal,
    kl_divergence,
)

from sfr_cl import SFRError, SFRPosterior, StreamingPosterior
from sfr_cl.predictive import log_density
from support.posteriors import Poisson, data, fitted, inputs, mlp

ROWS = 7
X = inputs(ROWS, seed=5)
LABELS, BITS = torch.arange(ROWS) % 3, torch.arange(ROWS) % 2
NUMBERS = torch.linspace(-1, 1, ROWS)

GIVEN = {"classification": LABELS, "binary": BITS, "regression": NUMBERS}
FORMS = {
    "classification": [LABELS.int(), LABELS.to(torch.uint8), LABELS.numpy(), LABELS.tolist()],
    "binary": [BITS.float(), BITS > 0, BITS.numpy(), BITS[:, None], BITS[:, None].double()],
    "regression": [NUMBERS.double(), NUMBERS.numpy(), NUMBERS[:, None], NUMBERS[:, None].numpy()],
}


def by_hand(predictive: Distribution, kind: str, row: int) -> Tensor:
    """log p of one target under its own prediction."""
    y = GIVEN[kind][row]
    if isinstance(predictive, Categorical):
        return predictive.probs[row, y].log()
    if isinstance(predictive, Bernoulli):
        return Bernoulli(probs=predictive.probs[row, 0]).log_prob(y.double())
    assert isinstance(predictive, Normal)
    return Normal(predictive.mean[row, 0], predictive.stddev[row, 0]).log_prob(y.double())


def faces(kind: str) -> list[Any]:
    posterior = fitted(kind)
    return [posterior, StreamingPosterior(posterior)]


@pytest.mark.parametrize("kind", GIVEN)
def test_log_prob_takes_targets_as_fit_does_and_has_their_shape(kind: str) -> None:
    for posterior in faces(kind):
        predictive = posterior.predict(X)
        expected = torch.stack([by_hand(predictive, kind, row) for row in range(ROWS)])
        for y in [GIVEN[kind], *FORMS[kind]]:
            found = predictive.log_prob(y)
            assert found.shape == np.shape(y)
            torch.testing.assert_close(found.reshape(-1), expected)
            assert posterior.nlpd((X, y)) == pytest.approx(-float(expected.mean()), rel=1e-12)


@pytest.mark.parametrize("kind", GIVEN)
@pytest.mark.parametrize("link", ["probit", "mc", "map"])
def test_every_link_gives_such_a_distribution(kind: str, link: str) -> None:
    predictive = fitted(kind).predict(X, link=link)
    assert predictive.log_prob(GIVEN[kind]).shape == (ROWS,)
    with pytest.raises(SFRError):
        predictive.log_prob(GIVEN[kind][:1])


@pytest.mark.parametrize("kind", GIVEN)
def test_samples_have_densities(kind: str) -> None:
    predictive = fitted(kind).predict(X)
    samples = predictive.sample((5,))
    found = predictive.log_prob(samples)
    assert found.shape == samples.shape
    for sample, density in zip(samples, found, strict=True):
        assert torch.equal(predictive.log_prob(sample), density)
    wide = predictive.expand((5, *predictive.batch_shape))
    assert torch.equal(wide.log_prob(samples), found)


BAD = {
    "one": ("regression", NUMBERS[:1], "each of 7 predictions, got shape \\[1\\]"),
    "fewer": ("regression", NUMBERS[:3], "each of 7 predictions, got shape \\[3\\]"),
    "scalar": ("regression", NUMBERS[0], r"shape \[B, 1\].*got \[\]"),
    "two-columns": ("regression", NUMBERS.repeat(2, 1).mT, r"shape \[B, 1\].*got \[7, 2\]"),
    "transposed": ("regression", NUMBERS[None], r"shape \[B, 1\].*got \[1, 7\]"),
    "nan": ("regression", NUMBERS / 0, "finite targets"),
    "fewer-labels": ("classification", LABELS[:3], "each of 7 predictions, got shape \\[3\\]"),
    "label-column": ("classification", LABELS[:, None], r"labels of shape \[B\], got \[7, 1\]"),
    "new-label": ("classification", LABELS + 1, r"labels in 0\.\.2, got 3"),
    "negative-label": ("classification", LABELS - 1, r"labels in 0\.\.2, got -1"),
    "float-label": ("classification", LABELS.float(), "integer class labels, got torch.float32"),
    "one-bit": ("binary", BITS[:1], "each of 7 predictions, got shape \\[1\\]"),
    "bits": ("binary", BITS.repeat(2, 1).mT, r"got \[7, 2\]"),
    "not-bits": ("binary", BITS * 2, "targets 0 and 1"),
}


@pytest.mark.parametrize(("kind", "y", "message"), BAD.values(), ids=BAD)
def test_other_shapes_and_values_are_refused(kind: str, y: Tensor, message: str) -> None:
    predictive = fitted(kind).predict(X)
    with pytest.raises(SFRError, match=message):
        predictive.log_prob(y)
    if kind == "regression":
        with pytest.raises(SFRError, match=message):
            predictive.cdf(y)


def test_targets_of_several_outputs_meet_their_rows() -> None:
    x, y = data("regression")
    posterior = SFRPosterior(mlp(3), "regression", inducing=inputs(10)).fit((x, y.repeat(1, 3)))
    square = posterior.predict(x[:3])
    for wrong in (y[:3, 0], y[:1].repeat(1, 3)):
        with pytest.raises(SFRError, match="expected"):
            square.log_prob(wrong)
    assert square.log_prob(y[:3].repeat(1, 3)).shape == (3, 3)


def test_the_cdf_takes_targets_too() -> None:
    predictive = fitted("regression").predict(X)
    expected = Normal(predictive.mean, predictive.stddev).cdf(NUMBERS[:, None])[:, 0]
    torch.testing.assert_close(predictive.cdf(NUMBERS), expected)


def test_the_latent_function_meets_its_rows() -> None:
    latent = fitted("regression").predict_f(X)
    assert torch.equal(latent.log_prob(latent.mean[:, 0])[:, None], latent.log_prob(latent.mean))


@pytest.mark.parametrize("kind", GIVEN)
def test_they_are_torchs_in_all_else(kind: str) -> None:
    own = fitted(kind).predict(X)
    base = {"classification": Categorical, "binary": Bernoulli, "regression": Normal}[kind]
    assert isinstance(own, base)
    assert repr(own) == repr(base.expand(own, own.batch_shape))
    assert torch.all(kl_divergence(own, own) == 0)
    assert own.entropy().shape == own.batch_shape


class Joint(Poisson):
    """A predictive whose outputs are one event."""

    def predictive(self, mean: Tensor, variance: Tensor, link: str) -> Distribution:
        return Independent(super().predictive(mean, variance, link), 1)


def counted(likelihood: Poisson, outputs: int = 1) -> SFRPosterior:
    x, y = data("regression")
    counts = (2 + y).round().repeat(1, outputs)
    return SFRPosterior(mlp(outputs), likelihood, inducing=inputs(10)).fit((x, counts))


COUNTS = torch.arange(ROWS)


def test_a_custom_likelihood_takes_targets_as_fit_does() -> None:
    predictive = counted(Poisson()).predict(X)
    plain = torch.distributions.Poisson(predictive.mean)
    expected = plain.log_prob(COUNTS[:, None])
    for form in (COUNTS, COUNTS.float(), COUNTS[:, None], COUNTS.numpy(), COUNTS.tolist()):
        found = predictive.log_prob(form)
        assert found.shape == torch.as_tensor(form).shape
        torch.testing.assert_close(found.reshape(-1, 1), expected)
    for wrong in (COUNTS[:1], COUNTS[:3], COUNTS[None], COUNTS.repeat(2, 1).mT, COUNTS[0]):
        with pytest.raises(SFRError, match="expected"):
            predictive.log_prob(wrong)


def test_that_of_a_custom_likelihood_is_torchs_in_all_else() -> None:
    predictive = counted(Poisson(), 2).predict(X)
    plain = torch.distributions.Poisson(predictive.mean)
    assert isinstance(predictive, torch.distributions.Poisson)
    assert repr(predictive) == repr(plain)
    assert torch.equal(predictive.variance, plain.variance)
    assert torch.all(kl_divergence(predictive, plain) == 0)
    samples = predictive.sample((5,))
    found = predictive.log_prob(samples)
    assert torch.equal(found, plain.log_prob(samples))
    assert torch.equal(predictive.expand((5, ROWS, 2)).log_prob(samples), found)
    for again in (copy.deepcopy(predictive), pickle.loads(pickle.dumps(predictive))):
        assert isinstance(again, torch.distributions.Poisson)
        assert torch.equal(again.log_prob(samples), found)
        with pytest.raises(SFRError, match="expected targets"):
            again.log_prob(COUNTS)


def test_an_entropy_that_is_a_sum_of_densities() -> None:
    class Trials(Poisson):
        def predictive(self, mean: Tensor, variance: Tensor, link: str) -> Distribution:
            del variance, link
            return torch.distributions.Binomial(9, logits=mean)

    predictive = counted(Trials()).predict(X)
    plain = torch.distributions.Binomial(9, logits=predictive.logits)
    torch.testing.assert_close(predictive.entropy(), plain.entropy())


def test_events_and_cdfs_of_a_custom_likelihood() -> None:
    joint = counted(Joint(), 2).predict(X)
    y = COUNTS[:, None].repeat(1, 2)
    expected = torch.distributions.Poisson(joint.mean).log_prob(y).sum(1)
    torch.testing.assert_close(joint.log_prob(y), expected)
    assert joint.log_prob(joint.sample((3,))).shape == (3, ROWS)

    class Logistic(Poisson):
        def predictive(self, mean: Tensor, variance: Tensor, link: str) -> Distribution:
            del link
            return Normal(mean, (1 + variance).sqrt())

    smooth = counted(Logistic()).predict(X)
    expected = Normal(smooth.mean, smooth.stddev).cdf(COUNTS[:, None])
    torch.testing.assert_close(smooth.cdf(COUNTS), expected[:, 0])


class Flat(Poisson):
    """Targets [B] beside predictions [B, 1]."""

    def targets(self, y: Tensor, num_outputs: int) -> Tensor:
        return y.double()

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        return super().gradient(f, y[:, None])


def test_a_custom_likelihood_broadcasts_nothing_either() -> None:
    x, y = data("regression")
    counts = (2 + y[:, 0]).round()
    posterior = SFRPosterior(mlp(1), Flat(), inducing=inputs(10)).fit((x, counts))
    with pytest.raises(SFRError, match=r"each prediction, \[24, 1\], got \[24, 24\]"):
        posterior.nlpd((x, counts))
    with pytest.raises(SFRError, match=r"each prediction, \[24, 1\], got \[24, 24\]"):
        posterior.tune_prior_precision((x, counts))


def test_densities_are_summed_over_outputs() -> None:
    predictive = Normal(torch.zeros(4, 2), torch.ones(4, 2))
    y = torch.randn(4, 2)
    torch.testing.assert_close(
        log_density(predictive, y), predictive.log_prob(y).sum(1).double(), rtol=1e-6, atol=0
    )
