"""The learned noise: one for each output, under a weak prior, down to rounding."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sfr_cl import SFRPosterior, StreamingPosterior
from sfr_cl.errors import DataError
from sfr_cl.likelihoods import GaussianLikelihood
from support.oracles import exact_gp, noise_log_prior, ntk


def network(outputs: int, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, outputs)]
        return nn.Sequential(*layers).double()


def curves(count: int, noises: list[float], seed: int = 0) -> tuple[Tensor, Tensor]:
    """One sine for each output, with a noise of its own."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 1, generator=generator).double() * 4 - 2
    y = torch.cat([torch.sin(2 * x + phase) for phase in range(len(noises))], 1)
    return x, y + torch.tensor(noises) * torch.randn(y.shape, generator=generator)


@pytest.mark.parametrize("kernel", ["shared", "per_output"])
def test_every_output_has_its_noise(kernel: str) -> None:
    noises = [0.3, 0.003]
    x, y = curves(150, noises)
    posterior = SFRPosterior(network(2), "regression", inducing=40, output_kernel=kernel)
    found = posterior.fit((x, y)).noise_variance
    assert isinstance(found, Tensor)
    assert found.sqrt().tolist() == pytest.approx(noises, rel=0.3)
    new = curves(300, noises, seed=1)
    separate = sum(
        SFRPosterior(network(1), "regression", inducing=40)
        .fit((x, y[:, [c]]))
        .nlpd((new[0], new[1][:, [c]]))
        for c in range(2)
    )
    assert posterior.nlpd(new) == pytest.approx(separate, abs=0.1)


def test_moments_are_those_of_exact_gps() -> None:
    """With Z = X: a GP for each output, at its own noise."""
    noises, delta = (0.2, 0.01, 0.5), 0.7
    x, y = curves(20, [0.1] * 3)
    net, new = network(3), curves(5, [0.1], seed=2)[0]
    options: dict[str, Any] = {"inducing": x, "prior_precision": delta, "noise_variance": noises}
    posterior = SFRPosterior(net, "regression", **options).fit((x, y))
    latent, joint = posterior.predict_f(new), posterior.predict_f(new, full_cov=True)
    (sweep,) = posterior.predict_f_at(new, [delta])
    kernels = [ntk(net, a, b, shared=True)[0] / delta for a, b in ((x, x), (new, x), (new, new))]
    evidence = 0.0
    for c, noise in enumerate(noises):
        mean, variance, part = exact_gp(
            kernels[0], kernels[1], kernels[2].diagonal(), y[:, c], noise
        )
        evidence += part
        for found in (latent, sweep):
            torch.testing.assert_close(found.mean[:, c], mean, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(found.variance[:, c], variance, rtol=1e-5, atol=1e-5)
        diagonal = joint.covariance_matrix[c].diagonal()
        torch.testing.assert_close(diagonal, variance, rtol=1e-4, atol=1e-4)
        spread = posterior.predict(new).variance[:, c]
        torch.testing.assert_close(spread, variance + noise, rtol=1e-5, atol=1e-5)
    assert posterior.log_marginal_likelihood() == pytest.approx(evidence, rel=1e-5)


def test_delta_is_the_best_with_one_noise_and_noises_are_the_best_at_it() -> None:
    x, y = curves(60, [0.3, 0.05, 0.01])
    posterior = SFRPosterior(network(3), "regression", inducing=20).fit((x, y))
    noise, delta = posterior.noise_variance, posterior.prior_precision
    typical = y.square().mean(0)

    def scored(noise: Tensor | float, typical: Tensor, delta: float) -> float:
        given = SFRPosterior(
            network(3),
            "regression",
            inducing=posterior.inducing_inputs,
            noise_variance=noise,
            prior_precision=delta,
        ).fit((x, y))
        return given.log_marginal_likelihood() + float(
            noise_log_prior(torch.as_tensor(noise), typical)
        )

    def with_one_noise(delta: float) -> float:
        low, high = -8.0, 1.0
        for _ in range(40):
            marks = [low + (high - low) * share for share in (0.382, 0.618)]
            scores = [scored(math.exp(t), typical.mean(), delta) for t in marks]
            low, high = (low, marks[1]) if scores[0] > scores[1] else (marks[0], high)
        return max(scores)

    best, best_of_one = scored(noise, typical, delta), with_one_noise(delta)
    for scale in (0.03, 0.9, 1.1, 30):
        assert best_of_one > with_one_noise(delta * scale)
    for scale in (0.03, 0.3, 0.9, 0.99, 1.01, 1.1, 3, 30):
        for output in range(3):
            other = noise.clone()
            other[output] *= scale
            assert best > scored(other, typical, delta)


@pytest.mark.parametrize("kernel", ["shared", "per_output"])
@pytest.mark.parametrize("unit", [0, 1e-3, 1e3])
def test_an_output_in_other_units_takes_nothing_from_the_others(unit: float, kernel: str) -> None:
    """Targets of zero, or a thousandth of the others, made delta so large that f was zero."""
    (x, y), (new, _) = curves(30, [0.1, 0.1]), curves(300, [0.0, 0.0], seed=1)
    units = torch.tensor([1.0, unit])

    def predicted(units: Tensor) -> Tensor:
        posterior = SFRPosterior(network(2), "regression", inducing=30, output_kernel=kernel)
        return posterior.fit((x, y * units)).predict(new).mean

    gap = predicted(units) - units * predicted(torch.ones(2))
    assert (gap.square().mean(0).sqrt() <= 0.2 * units).all()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_few_targets_do_not_make_the_noise_vanish(count: int) -> None:
    """On targets with a tenth of the signal as noise; over eight draws of each."""
    worst, shares = [], []
    for seed in range(8):
        x, y = curves(count, [0.1], seed)
        posterior = SFRPosterior(network(1, seed), "regression").fit((x, y))
        shares.append(posterior.noise_variance / float(y.square().mean()))
        # A lone target near zero says that all of f is small.
        if count > 1 or float(y.abs()) > 0.3:
            worst.append(posterior.nlpd(curves(200, [0.1], 100 + seed)))
    assert min(shares) > 1e-3
    assert max(worst) < 30


def test_the_prior_fades() -> None:
    """A noise of a thousandth of the signal is found from fifty targets."""
    x, y = curves(50, [1e-3])
    posterior = SFRPosterior(network(1), "regression").fit((x, y))
    assert posterior.noise_variance**0.5 == pytest.approx(1e-3, rel=0.35)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e5])
def test_targets_far_from_zero_keep_their_noise(offset: float) -> None:
    x, y = curves(100, [0.1])
    posterior = SFRPosterior(network(1), "regression").fit((x, y + offset))
    assert posterior.noise_variance**0.5 == pytest.approx(0.1, rel=0.4)
    new = curves(200, [0.1], seed=1)
    assert posterior.nlpd((new[0], new[1] + offset)) < -0.5


def test_outputs_without_data_have_a_noise_like_the_others() -> None:
    x, y = curves(40, [0.1])
    small, head = network(1), nn.Linear(64, 2).double()
    with torch.no_grad():
        head.weight[:1], head.bias[:1] = small[-1].weight, small[-1].bias
    posterior = SFRPosterior(small, "regression", output_kernel="per_output", inducing=20)
    before = posterior.fit((x, y)).noise_variance
    posterior.grow_outputs(nn.Sequential(*small[:-1], head))
    assert posterior.noise_variance.tolist() == pytest.approx([before, before])


def test_noises_are_saved_and_merged(tmp_path: Any) -> None:
    x, y = curves(30, [0.1, 0.2])
    likelihood = GaussianLikelihood((0.1, 0.2))
    posterior = SFRPosterior(network(2), likelihood, inducing=x[:9]).fit((x, y))
    posterior.save(tmp_path / "file")
    loaded = SFRPosterior.load(tmp_path / "file", network(2, seed=5))
    assert loaded.noise_variance.tolist() == [0.1, 0.2]
    both = loaded + posterior
    assert both.noise_variance.tolist() == [0.1, 0.2]
    assert both.num_data == 60


def test_as_many_noises_as_outputs() -> None:
    x, y = curves(10, [0.1])
    with pytest.raises(DataError, match="one noise_variance, or 1, one for each output, got 2"):
        SFRPosterior(network(1), "regression", noise_variance=[0.1, 0.2]).fit((x, y))


def test_streams_learn_a_noise_for_each_output() -> None:
    noises = [0.3, 0.01]
    x, y = curves(400, noises)
    stream = StreamingPosterior(SFRPosterior(network(2), "regression", inducing=30))
    stream.learn_many(x, y)
    found = stream.posterior
    assert found.noise_variance.sqrt().tolist() == pytest.approx(noises, rel=0.5)
    for row in range(5):  # pending ones are a low-rank update
        stream.learn_one(x[row], y[row])
    expected = copy.deepcopy(stream.posterior)
    torch.testing.assert_close(stream.predict_f(x[:7]).mean, expected.predict_f(x[:7]).mean)
    torch.testing.assert_close(
        stream.predict_f(x[:7]).variance, expected.predict_f(x[:7]).variance, rtol=1e-6, atol=1e-9
    )


def test_evidence_is_equal_wherever_it_is_read() -> None:
    """By the spectrum, as it is searched, and by the factor, as it is given out."""
    x, y = curves(25, [0.1, 0.2])
    posterior = SFRPosterior(network(2), "regression", inducing=10).fit((x, y))
    noise, delta = posterior.noise_variance, posterior.prior_precision
    given = posterior.tune_prior_precision().log_marginal_likelihood()
    assert math.isfinite(given)
    assert posterior.prior_precision == pytest.approx(delta, rel=1e-6)
    assert posterior.noise_variance.tolist() == pytest.approx(noise.tolist(), rel=1e-6)
