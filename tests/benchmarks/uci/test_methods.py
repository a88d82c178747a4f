"""SFR and the GP on a subset, against dense Gaussian processes; and the choice of delta."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from sfr_cl import SFRPosterior
from sfr_cl.benchmarks.harness import measure
from sfr_cl.benchmarks.uci import methods, training
from sfr_cl.benchmarks.uci.problem import Problem
from sfr_cl.errors import ArgumentError
from support.uci_problems import toy, toy_problem


@pytest.fixture(scope="module")
def problem() -> Problem:
    return toy_problem()


def test_gp_subset_is_an_exact_gp_on_the_subset(problem: Problem) -> None:
    x, y = problem.subset(40)
    network = problem.network
    parameters = list(network.parameters())

    def jacobian(inputs: Tensor) -> Tensor:
        rows = [
            torch.cat([g.flatten() for g in torch.autograd.grad(network(row)[c], parameters)])
            for row in inputs
            for c in range(3)
        ]
        return torch.stack(rows).reshape(len(inputs), 3, -1).double()

    delta = problem.prior_precision
    held_out = problem.held_out
    with torch.no_grad():
        f = network(x).double()
    p = f.softmax(1)
    floored = p.clamp(methods.CURVATURE_FLOOR, 1 - methods.CURVATURE_FLOOR)
    noise = 1 / (floored * (1 - floored))
    targets = f + noise * (nn.functional.one_hot(y, 3) - p)
    at_data, at_test = jacobian(x), jacobian(held_out)
    means, variances = [], []
    for c in range(3):
        gram = at_data[:, c] @ at_data[:, c].mT / delta + torch.diag(noise[:, c])
        cross = at_test[:, c] @ at_data[:, c].mT / delta
        solved = torch.linalg.solve(gram, cross.mT)
        means.append(solved.mT @ targets[:, c])
        prior = at_test[:, c].square().sum(1) / delta
        variances.append(prior - (cross * solved.mT).sum(1))
    likelihood = methods.FlooredCategorical()
    expected = likelihood.predictive(torch.stack(means, 1), torch.stack(variances, 1), "mc")
    found = methods.gp_subset(problem, 40)[False]
    log_probs = expected.probs.log()[len(problem.split.valid[1]) :]
    assert torch.allclose(found.log_probs, log_probs, atol=1e-5)


def test_subset_is_the_full_posterior_when_all_points_are_in_it(problem: Problem) -> None:
    ours, theirs = methods.sfr(problem, 100), methods.gp_subset(problem, 100)
    for tuned in (False, True):
        assert torch.allclose(ours[tuned].log_probs, theirs[tuned].log_probs)


def test_a_larger_subset_holds_the_smaller_one(problem: Problem) -> None:
    small, large = problem.subset(20)[0], problem.subset(60)[0]
    assert len(small) == 6
    assert torch.equal(small, large[:6])


@pytest.mark.parametrize("kernel", ["shared", "per_output"])
@pytest.mark.parametrize("mean", ["natural", "network", "dual"])
def test_other_prior_precisions_as_if_built_with_them(
    problem: Problem, mean: str, kernel: str
) -> None:
    options = {"inducing": problem.subset(50)[0], "mean": mean, "output_kernel": kernel}
    train, x = problem.split.train, problem.held_out
    posterior = SFRPosterior(problem.network, "classification", **options).fit(train)
    for delta, found in zip([0.1, 7.0], posterior.predict_f_at(x, [0.1, 7.0]), strict=True):
        other = SFRPosterior(
            problem.network, "classification", prior_precision=delta, **options
        ).fit(train)
        expected = other.predict_f(x)
        assert torch.allclose(found.mean, expected.mean)
        assert torch.allclose(found.variance, expected.variance)
    with pytest.raises(ArgumentError, match="positive prior_precision, got -1"):
        posterior.predict_f_at(x, [-1.0])


def test_draws_shared_by_all_deltas_are_those_of_the_link() -> None:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    latents = [Normal(mean, scale * mean.square() + 0.1) for scale in (0.1, 3.0)]
    for found, f in zip(methods.averaged(latents), latents, strict=True):
        expected = methods.FlooredCategorical().predictive(f.mean, f.variance, "mc")
        assert torch.allclose(found, expected.logits)


def test_tuning_takes_the_best_of_the_grid_on_validation_data(problem: Problem) -> None:
    rows = len(problem.held_out)
    sharp = torch.full((rows, 3), -9.0)
    labels = torch.cat([problem.split.valid[1], problem.split.test[1]])
    sharp[torch.arange(rows), labels] = 0.0
    flat = torch.zeros(rows, 3).log_softmax(1)
    found = methods.choose(problem, [1.0, 2.0, 3.0], [flat, sharp.log_softmax(1), flat])
    assert found[False].prior_precision == 1.0
    assert found[True].prior_precision == 2.0
    assert found[True].nlpd_valid < 0.01 < found[False].nlpd_valid


@pytest.mark.parametrize(("decay", "stays"), [(0.05, False), (1e-3, True)])
def test_tuning_may_leave_the_mean_as_trained(decay: float, stays: bool) -> None:
    """As posteriors built with each delta, for mean and variance or for the variance alone."""
    problem = Problem("toy", 0, toy(), training.new_network(4, 3, seed=0), weight_decay=decay)
    x, valid = problem.held_out, problem.split.valid
    found = methods.sfr(problem, 50)

    def latent(delta: float) -> Normal:
        posterior = SFRPosterior(
            problem.network,
            methods.FlooredCategorical(),
            prior_precision=delta,
            inducing=problem.subset(50)[0],
            output_kernel="per_output",
            mean="natural",
            linearize_at="network",
        )
        return posterior.fit(problem.split.train).predict_f(x)

    def loss(mean: Tensor, deviation: Tensor) -> float:
        log_probs = methods.FlooredCategorical().predictive(mean, deviation.square(), "mc").logits
        return measure.nlpd(log_probs[: len(valid[1])], valid[1])

    trained = latent(problem.prior_precision)
    tried = [latent(delta) for delta in methods.GRID]
    moved = [loss(one.mean, one.stddev) for one in tried]
    kept = [loss(trained.mean, one.stddev) for one in tried]
    assert math.isclose(found[True].nlpd_valid, min(*moved, *kept), rel_tol=1e-6)
    assert (min(kept) < 0.99 * min(moved)) == stays
    assert math.isclose(found[False].nlpd_valid, loss(trained.mean, trained.stddev), rel_tol=1e-6)
