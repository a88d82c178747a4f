"""Each batch linearised at its mode given all before: the default of custom likelihoods."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sfr_cl import Likelihood, SFRPosterior, StreamingPosterior
from sfr_cl.errors import ArgumentError, DataError
from sfr_cl.likelihoods import CategoricalLikelihood
from support.oracles import ntk
from support.posteriors import (
    Poisson,
    StudentT,
    assert_same_contents,
    contents,
    data,
    fitted,
    inputs,
    mlp,
)

DELTA = 0.5


def counts(rows: int, top: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, counts and their rates, from 0 to ``top``."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, 1, generator=generator) * 4 - 2
    rates = top * torch.sigmoid(3 * x * x.cos())
    return x, torch.poisson(rates, generator=generator), rates


def wide(seed: int, outputs: int = 1) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, outputs))


def dense_mode(likelihood: Likelihood, kernel: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The mode [B, C] of targets under f ~ N(0, kernel [C, B, B]), and log Z for one output.

    In f itself, by whole steps of Newton with the Hessian of autograd, cut until they descend.
    """
    columns, rows = len(kernel), kernel.shape[-1]
    prior = torch.linalg.inv(torch.block_diag(*kernel))

    def cost(flat: Tensor) -> Tensor:
        f = flat.reshape(columns, rows).T
        return flat @ prior @ flat / 2 - likelihood.log_prob(f, y).sum()

    flat = torch.zeros(columns * rows, dtype=torch.float64)
    for _ in range(100):
        slope = torch.autograd.functional.jacobian(cost, flat)
        hessian = torch.autograd.functional.hessian(cost, flat)
        values, vectors = torch.linalg.eigh(hessian)
        direction = -vectors @ ((vectors.T @ slope) / values.abs().clamp_min(1e-8))
        step = 1.0
        while step > 1e-12 and not cost(flat + step * direction) <= cost(flat):
            step /= 2
        flat = flat + step * direction if step > 1e-12 else flat
    fit = -cost(flat)
    return flat.reshape(columns, rows).T, fit - torch.logdet(hessian @ torch.inverse(prior)) / 2


CASES: dict[str, tuple[Callable[[], Likelihood], int, Callable[[Tensor], Tensor]]] = {
    "poisson": (Poisson, 1, lambda x: (8 * x[:, :1].sin().square()).round()),
    "poisson-of-two": (Poisson, 2, lambda x: (4 * x[:, :2].square()).round()),
    "student-t": (StudentT, 1, lambda x: x.sum(1, keepdim=True) + 9.0 * (x[:, :1] > 1)),
    "classes": (CategoricalLikelihood, 3, lambda x: x.argmax(1)),
}


@pytest.mark.parametrize("output_kernel", ["shared", "per_output"])
@pytest.mark.parametrize("case", CASES)
def test_the_mean_is_the_mode_of_a_dense_laplace_approximation(
    case: str, output_kernel: str
) -> None:
    make, outputs, target = CASES[case]
    likelihood, network, x = make(), mlp(outputs).double(), inputs(12).double()
    y = likelihood.targets(target(x), outputs)
    posterior = SFRPosterior(
        network,
        likelihood,
        inducing=x,
        prior_precision=DELTA,
        output_kernel=output_kernel,
        linearize_at="posterior",
    ).fit((x, y))
    new, shared = inputs(7, seed=3).double(), output_kernel == "shared"
    kernel = ntk(network, x, x, shared=shared).expand(outputs, -1, -1) / DELTA
    cross = ntk(network, new, x, shared=shared).expand(outputs, -1, -1) / DELTA
    prior = ntk(network, new, new, shared=shared).diagonal(dim1=1, dim2=2) / DELTA

    mode, evidence = dense_mode(likelihood, kernel, y)

    found = posterior.predict_f(new)
    mean = torch.stack(
        [c @ torch.linalg.solve(k, m) for c, k, m in zip(cross, kernel, mode.T, strict=True)], 1
    )
    assert torch.allclose(found.mean, mean, atol=1e-5)
    b = likelihood.curvature(mode, y).clamp_min(0)
    b = b.mean(1, keepdim=True).expand_as(b) if shared else b
    for c in range(outputs):
        gap = torch.linalg.inv(torch.eye(len(x)) + b[:, c, None] * kernel[c]) @ (
            b[:, c, None] * cross[c].T
        )
        variance = prior[c % len(prior)] - (cross[c].T * gap).sum(0)
        assert torch.allclose(found.variance[:, c], variance, rtol=1e-5)
    if case == "poisson":
        assert posterior.log_marginal_likelihood() == pytest.approx(float(evidence), abs=1e-5)


def test_a_batch_is_linearised_given_those_before() -> None:
    # Two batches, the second one row: its mode is that of one number under the predictive before.
    x, y, _ = counts(21, 20, seed=0)
    posterior = SFRPosterior(wide(0), Poisson(), inducing=x).fit((x[:20], y[:20]))
    before = posterior.predict_f(x[20:])
    mean, variance, count = (float(v) for v in (before.mean, before.variance, y[20]))
    low, high = mean - 10, mean + 10
    for _ in range(100):  # d/df of f^2-part and count f - exp f
        middle = (low + high) / 2
        downhill = (middle - mean) / variance - count + math.exp(middle) > 0
        low, high = (low, middle) if downhill else (middle, high)

    after = posterior.update((x[20:], y[20:])).predict_f(x[20:])

    assert float(after.mean) == pytest.approx(low, abs=1e-7)
    assert float(after.variance) == pytest.approx(1 / (1 / variance + math.exp(low)), rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("top", [5, 20, 100])
def test_rates_are_found_as_well_as_the_truth_allows(top: float, seed: int) -> None:
    x, y, _ = counts(300, top, seed)
    held_out, targets, rates = counts(1000, top, seed + 100)
    truth = -torch.distributions.Poisson(rates).log_prob(targets).mean()
    posterior = SFRPosterior(wide(seed), Poisson(), inducing=64)
    posterior.fit((x[:100], y[:100]))
    for start in range(100, 300, 50):
        posterior.update((x[start : start + 50], y[start : start + 50]))
        assert posterior.nlpd((held_out, targets)) < truth + 0.35
    stream = StreamingPosterior(SFRPosterior(wide(seed), Poisson(), inducing=64))
    stream.learn_many(x, y)
    assert stream.nlpd((held_out, targets)) < truth + 0.35


def test_far_targets_of_heavy_tails_hardly_count() -> None:
    x = torch.linspace(-1, 1, 40)[:, None]
    y = x.sin()
    y[::8] += 50
    posterior = SFRPosterior(wide(0), StudentT()).fit((x, y))
    for start in range(0, 40, 10):
        posterior.update((x[start : start + 10], y[start : start + 10]))
    stream = StreamingPosterior(SFRPosterior(wide(0), StudentT(), inducing=16))
    stream.learn_many(x, y)

    for found in (posterior.predict_f(x), stream.predict_f(x)):
        assert (found.mean - x.sin()).abs().max() < 0.3
        assert torch.isfinite(found.variance).all()


@pytest.mark.parametrize("where", ["prior", "network"])
def test_negative_curvature_elsewhere_is_refused(where: str) -> None:
    x = torch.linspace(-1, 1, 8)[:, None]
    posterior = SFRPosterior(wide(0), StudentT(), linearize_at=where, inducing=x)
    posterior.fit((x, torch.zeros(8, 1)))
    before = contents(posterior)
    with pytest.raises(DataError, match=r"not negative at .*'student-t'.*linearize_at='posterior'"):
        posterior.update((x, torch.full((8, 1), 9.0)))
    assert_same_contents(posterior, before)
    stream = StreamingPosterior(posterior)
    with pytest.raises(DataError, match="linearize_at='posterior'"):
        stream.learn_one(x[0], 9.0)


def test_a_mode_that_is_not_found_is_refused_before_anything_changes() -> None:
    class Wrong(Poisson):
        def gradient(self, f: Tensor, y: Tensor) -> Tensor:
            return f.exp() - y

    x, y, _ = counts(20, 20, seed=0)
    posterior = SFRPosterior(wide(0), Wrong(), inducing=x).init()
    before = contents(posterior)
    with pytest.raises(DataError, match="derivatives of log_prob"):
        posterior.update((x, y))
    assert_same_contents(posterior, before)


def test_the_order_matters_and_what_denies_it_is_refused() -> None:
    x, y, _ = counts(40, 20, seed=0)
    first, second = (x[:20], y[:20]), (x[20:], y[20:])

    def make() -> SFRPosterior:
        return SFRPosterior(wide(0), Poisson(), inducing=x[:9]).init()

    one, other = make().update(first).update(second), make().update(second).update(first)
    assert not torch.equal(one.predict_f(x).mean, other.predict_f(x).mean)
    assert torch.allclose(one.predict_f(x).mean, other.predict_f(x).mean, atol=0.2)

    before = contents(one)
    with pytest.raises(ArgumentError, match="to forget data, got 'posterior'"):
        one.forget(first)
    with pytest.raises(ArgumentError, match="to merge posteriors, got 'posterior'"):
        one + other
    with pytest.raises(ArgumentError, match="kernels of their own"):
        one.grow_outputs(2)
    assert_same_contents(one, before)

    with pytest.raises(ArgumentError, match=r"for a window.*got 'posterior'"):
        StreamingPosterior(SFRPosterior(wide(0), Poisson(), inducing=9), window=20)
    streams = [StreamingPosterior(SFRPosterior(wide(0), Poisson(), inducing=x[:9])) for _ in "ab"]
    for stream in streams:
        stream.learn_many(*first)
    with pytest.raises(ArgumentError, match="to forget samples, got 'posterior'"):
        streams[0].forget_one(x[0], y[0])
    with pytest.raises(ArgumentError, match="to merge posteriors, got 'posterior'"):
        streams[0].merge(streams[1])


def test_options_that_do_not_fit_are_refused() -> None:
    for mean in ("dual", "network"):
        with pytest.raises(ArgumentError, match=r"linearize_at='network'.*got 'posterior'"):
            SFRPosterior(mlp(), "classification", mean=mean, linearize_at="posterior")
    with pytest.raises(ArgumentError, match=r"exact there, got 'posterior'"):
        SFRPosterior(mlp(1), "regression", linearize_at="posterior")


def test_it_is_the_default_of_custom_likelihoods_only(tmp_path: Path) -> None:
    posterior = SFRPosterior(mlp(1), Poisson(), inducing=inputs(5)).init()
    assert posterior.spec.linearize_at == "posterior"
    posterior.save(tmp_path / "p")
    loaded = SFRPosterior.load(tmp_path / "p", mlp(1), likelihood=Poisson())
    assert loaded.spec.linearize_at == "posterior"
    assert SFRPosterior(mlp(1), Poisson(), mean="network").spec.linearize_at == "network"
    for kind in ("classification", "binary", "regression"):
        assert fitted(kind).spec.linearize_at == "prior"


def test_absorbing_while_predicting_is_the_same() -> None:
    x, y, _ = counts(60, 20, seed=0)
    one, other = (SFRPosterior(wide(0), Poisson(), inducing=x[:9]).init() for _ in "ab")
    batches = [(x[start : start + 20], y[start : start + 20]) for start in range(0, 60, 20)]
    one.update(batches)
    absorption = other.absorption()
    for batch in batches:
        absorption.step(*batch)
    absorption.finish()
    assert torch.allclose(one.predict_f(x).mean, other.predict_f(x).mean, atol=1e-10)


@pytest.mark.parametrize("settings", [{}, {"discount": 0.99}, {"swap": False}])
def test_a_stream_is_the_same_however_it_is_batched_or_read(settings, tmp_path: Path) -> None:
    x, y, _ = counts(150, 20, seed=0)
    one, other = (
        StreamingPosterior(SFRPosterior(wide(0), Poisson(), inducing=20), **settings) for _ in "ab"
    )
    one.learn_many(x, y)
    for row in range(150):
        other.learn_one(x[row], y[row])
        if row % 40 == 0:
            other.predict_f(x)
            other.save(tmp_path / "s")
            other.close()
            other = StreamingPosterior.load(tmp_path / "s", wide(0), likelihood=Poisson())[0]
    assert torch.allclose(one.predict_f(x).mean, other.predict_f(x).mean, atol=1e-8)


def test_a_stream_absorbs_each_sample_as_a_batch_of_one() -> None:
    x, y, _ = counts(60, 20, seed=0)
    posterior = SFRPosterior(wide(0), Poisson(), inducing=x[:9]).init()
    stream = StreamingPosterior(posterior)
    stream.learn_many(x, y)
    for row in range(60):
        posterior.update((x[row : row + 1], y[row : row + 1]))
    assert torch.allclose(posterior.predict_f(x).mean, stream.predict_f(x).mean, atol=1e-7)
    assert torch.allclose(posterior.predict_f(x).variance, stream.predict_f(x).variance, rtol=1e-6)


def test_classes_may_be_absorbed_there_too() -> None:
    x, y = data(rows=60)
    x = x + 3 * nn.functional.one_hot(y, x.shape[1])
    posterior = SFRPosterior(mlp(), "classification", linearize_at="posterior")
    posterior.fit((x[:30], y[:30])).update((x[30:45], y[30:45]))
    assert posterior.nlpd((x[45:], y[45:])) < 0.3
    assert posterior.spec.link == "probit"
