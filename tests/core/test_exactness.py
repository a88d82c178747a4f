"""Conditioning is exact: batches, order, parts, files and forgetting leave the same posterior."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sfr_cl import SFRPosterior, SFRWarning, noise

OPTIONS = {
    "classification": {},
    "per output": {"output_kernel": "per_output"},
    "paper": {"output_kernel": "per_output", "mean": "dual"},
    "network mean": {"mean": "network"},
    "binary": {},
    "regression": {},
    "several outputs": {"output_kernel": "per_output", "noise_variance": 0.1},
    "last layer": {"parameters": "last_layer"},
}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}


def problem(name: str, count: int = 200) -> tuple[str, nn.Module, Tensor, Tensor, Tensor]:
    """Likelihood, network, x, y and test inputs."""
    torch.manual_seed(0)
    likelihood = {"binary": "binary", "regression": "regression", "several outputs": "regression"}
    outputs = {"binary": 1, "regression": 1}.get(name, 3)
    network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, outputs))
    x = torch.randn(count, 4)
    y = {
        "binary": (x[:, 0] > 0).long(),
        "regression": x[:, 0].sin(),
        "several outputs": torch.stack([x[:, 0].sin(), x[:, 1], x[:, 2] ** 2], dim=1),
    }.get(name, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
    return likelihood.get(name, "classification"), network, x, y, torch.randn(30, 4)


def assert_same(left: SFRPosterior, right: SFRPosterior, test: Tensor, tolerance: float) -> None:
    """The same posterior: sums, moments, evidence. Scores of predictions are an estimate."""
    a, b = left.predict_f(test), right.predict_f(test)
    for u, v in ((a.mean, b.mean), (a.variance, b.variance)):
        assert (u - v).abs().max() <= tolerance * v.abs().max()
    evidence = right.log_marginal_likelihood()
    assert abs(left.log_marginal_likelihood() - evidence) <= tolerance * abs(evidence)
    assert left.num_data == right.num_data
    stored, expected = left.state_dict()["tensors"], right.state_dict()["tensors"]
    for name, value in expected.items():
        if name.startswith("forecast."):
            continue
        difference = (stored[name].double() - value.double()).abs().max()
        assert difference <= tolerance * max(1.0, value.double().abs().max()), name


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_batches_order_parts_and_files_do_not_matter(name: str, dtype, tmp_path) -> None:
    likelihood, network, x, y, test = problem(name)
    # Whitening multiplies rounding by the root of the kernel matrix's condition number: fewer
    # inducing inputs where the kernel has low rank, or changes by 3e-7 with the size of a batch.
    z = x[: 25 if dtype == torch.float64 and name != "last layer" else 8]
    delta = None if name == "regression" else 1.0
    options = {**OPTIONS[name], "inducing": z, "dtype": dtype, "prior_precision": delta}

    def new(**more) -> SFRPosterior:
        return SFRPosterior(network, likelihood, **options, **more)

    whole = new().fit((x, y))
    tolerance = TOLERANCE[dtype]
    assert_same(new(batch_size=7).fit((x, y)), whole, test, tolerance)
    loader = DataLoader(TensorDataset(x, y), batch_size=33, shuffle=True)
    assert_same(new().fit(loader), whole, test, tolerance)
    assert_same(new().fit(TensorDataset(x, y)), whole, test, tolerance)
    assert_same(new().fit([(x[150:], y[150:]), (x[:150], y[:150])]), whole, test, tolerance)
    merged = new().fit((x[:90], y[:90])) + new().fit((x[90:], y[90:]))
    assert_same(merged, whole, test, tolerance)
    # Updates count as data added later, so compare them with one another.
    updated = new().fit((x[:80], y[:80])).update((x[80:], y[80:]))
    pieces = new().fit((x[:80], y[:80]))
    for index in torch.randperm(120).split(17):
        pieces.update((x[80:][index], y[80:][index]))
        pieces.save(tmp_path / "post.safetensors")
        pieces = SFRPosterior.load(tmp_path / "post.safetensors", network)
    assert_same(pieces, updated, test, tolerance)
    if options.get("mean") != "network":
        assert_same(updated, whole, test, tolerance)


@pytest.mark.parametrize("name", OPTIONS)
def test_discounting_by_one_changes_nothing(name: str) -> None:
    likelihood, network, x, y, _ = problem(name)
    posterior = SFRPosterior(network, likelihood, inducing=x[:25], **OPTIONS[name]).fit((x, y))
    before = posterior.state_dict()["tensors"]
    after = posterior.discount(1.0).state_dict()["tensors"]
    assert all(torch.equal(after[key], value) for key, value in before.items())


def test_discounted_data_counts_by_its_weight_and_can_be_forgotten_at_it() -> None:
    likelihood, network, x, y, test = problem("classification")

    def new() -> SFRPosterior:
        return SFRPosterior(network, likelihood, inducing=x[:25])

    twice = new().fit((torch.cat([x, x]), torch.cat([y, y]))).discount(0.5)
    assert_same(twice, new().fit((x, y)), test, 1e-9)
    old, rest = (x[:60], y[:60]), (x[60:], y[60:])
    posterior = new().fit((x, y)).discount(0.9)
    with pytest.warns(SFRWarning, match="25 of the inducing inputs that were given .* stay"):
        posterior.forget(old, weight=0.9)
    assert_same(posterior, new().fit(rest).discount(0.9), test, 1e-9)


@pytest.mark.parametrize("name", ["classification", "regression", "per output"])
def test_half_of_ten_thousand_forgotten_equals_the_other_half(name: str) -> None:
    likelihood, network, x, y, test = problem(name, count=10_000)
    options = {**OPTIONS[name], "inducing": x[:50]}
    posterior = SFRPosterior(network, likelihood, **options).fit((x, y))
    posterior.forget((x[5000:], y[5000:]))
    half = SFRPosterior(network, likelihood, **options).fit((x[:5000], y[:5000]))
    assert_same(posterior, half, test, 1e-6)


@pytest.mark.parametrize("name", OPTIONS)
def test_growing_the_inducing_inputs_leaves_predictions_unchanged(name: str) -> None:
    likelihood, network, x, y, test = problem(name)
    delta = None if name == "regression" else 1.0
    options = {**OPTIONS[name], "prior_precision": delta}
    posterior = SFRPosterior(network, likelihood, inducing=x[:25], **options).fit((x, y))
    before = posterior.predict_f(test)
    evidence = posterior.log_marginal_likelihood()
    after = posterior.add_inducing(test[:10]).predict_f(test)
    torch.testing.assert_close(after.mean, before.mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(after.variance, before.variance, rtol=1e-7, atol=1e-9)
    assert abs(posterior.log_marginal_likelihood() - evidence) < 1e-6 * abs(evidence)
    assert len(posterior.inducing_inputs) == 35
    # Data that arrives afterwards uses the new directions: its own points are known better.
    if likelihood != "regression":  # there the noise is learned again
        with_new = posterior.update((test[:10], y[:10])).predict_f(test[:10]).variance
        assert (with_new < after.variance[:10]).all()


def grow(network: nn.Sequential, outputs: int) -> nn.Sequential:
    old = network[-1]
    head = nn.Linear(old.in_features, outputs)
    with torch.no_grad():
        head.weight[: old.out_features] = old.weight
        head.bias[: old.out_features] = old.bias
    return nn.Sequential(*network[:-1], head)


def test_a_class_that_appears_late_is_as_if_known_from_the_start() -> None:
    _, network, x, y, test = problem("classification")
    first = y < 2
    z = x[:25]
    late = SFRPosterior(network, "classification", inducing=z).fit((x[first], y[first]))
    late.update((x[~first], y[~first]))
    early = SFRPosterior(network, "classification", inducing=z).fit((x, y))
    assert_same(late, early, test, 1e-9)


def test_outputs_of_a_grown_head_with_a_shared_kernel_are_exact() -> None:
    """The kernel stays that of the first outputs; the rest is as if the classes had been there."""
    _, network, x, y, test = problem("classification")
    small = nn.Sequential(*network[:-1], nn.Linear(16, 2))
    first = y < 2
    posterior = SFRPosterior(small, "classification", inducing=x[:25]).fit((x[first], y[first]))
    grown = grow(small, 3)
    posterior.grow_outputs(grown).update((x[~first], y[~first]))
    assert posterior.num_outputs == 3
    assert posterior.predict(test).probs.shape == (30, 3)
    again = SFRPosterior(small, "classification", inducing=x[:25]).fit((x[first], y[first]))
    again.grow_outputs(grown).update((x[~first][20:], y[~first][20:]))
    again.update((x[~first][:20], y[~first][:20]))
    assert_same(again, posterior, test, 1e-9)
    # All classes are recovered, the new one too.
    accuracy = (posterior.predict(x).probs.argmax(1) == y).double().mean()
    everything = SFRPosterior(grown, "classification", inducing=x[:25]).fit((x, y))
    reference = (everything.predict(x).probs.argmax(1) == y).double().mean()
    assert accuracy > reference - 0.03


def test_outputs_of_a_grown_head_with_kernels_of_their_own() -> None:
    _, network, x, y, _ = problem("classification")
    small = nn.Sequential(*network[:-1], nn.Linear(16, 2))
    first, options = y < 2, {"inducing": x[:25], "output_kernel": "per_output"}
    posterior = SFRPosterior(small, "classification", **options).fit((x[first], y[first]))
    before = posterior.predict_f(x).mean
    posterior.grow_outputs(grow(small, 3))
    after = posterior.predict_f(x).mean
    torch.testing.assert_close(after[:, :2], before)
    assert (after[first, 2].mean() < 0).all()  # old data is evidence against the new class
    posterior.update((x[~first], y[~first]))
    accuracy = (posterior.predict(x).probs.argmax(1) == y).double().mean()
    everything = SFRPosterior(grow(small, 3), "classification", **options).fit((x, y))
    reference = (everything.predict(x).probs.argmax(1) == y).double().mean()
    assert accuracy > reference - 0.03


def test_noise_inputs_need_no_data_so_the_order_of_tasks_does_not_matter() -> None:
    _, network, x, y, test = problem("classification")

    def absorb(order: list[int]) -> SFRPosterior:
        torch.manual_seed(7)
        parts = [(x[y == c], y[y == c]) for c in order]
        posterior = SFRPosterior(network, "classification", inducing=noise(30, scale=1.0))
        posterior.fit(parts[0])
        for part in parts[1:]:
            posterior.update(part)
        return posterior

    assert_same(absorb([2, 0, 1]), absorb([0, 1, 2]), test, 1e-9)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_inducing_inputs_that_add_nothing_change_nothing(dtype) -> None:
    """Of a last layer with 17 features, 25 inputs know all there is to know; then as many again."""
    likelihood, network, x, y, test = problem("last layer")
    options = {"parameters": "last_layer", "inducing": x[:25], "dtype": dtype}
    posterior = SFRPosterior(network, likelihood, **options).fit((x, y))
    before = posterior.predict_f(test)
    posterior.add_inducing(x[100:150])
    after = posterior.predict_f(test)
    with pytest.warns(SFRWarning, match="duplicates"):
        posterior.add_inducing(x[:25])
    for latent in (after, posterior.predict_f(test)):
        scale = before.variance.max()
        assert (latent.mean - before.mean).abs().max() < 1e-6 * before.mean.abs().max()
        slack = 1e-6 if dtype == torch.float64 else 1e-3
        assert (latent.variance - before.variance).abs().max() < slack * scale


def test_fit_starts_again() -> None:
    likelihood, network, x, y, test = problem("classification")
    posterior = SFRPosterior(network, likelihood, inducing=x[:25]).fit((x, y))
    new = posterior.predict(test).probs
    posterior.tune_prior_precision((x[:50], y[:50]))
    assert not torch.equal(posterior.predict(test).probs, new)
    assert torch.equal(posterior.fit((x, y)).predict(test).probs, new)


def test_sum_merges_any_number_of_workers() -> None:
    likelihood, network, x, y, test = problem("regression")
    workers = [
        SFRPosterior(network, likelihood, inducing=x[:25]).fit((x[rows], y[rows]))
        for rows in torch.arange(200).split(50)
    ]
    whole = SFRPosterior(network, likelihood, inducing=x[:25]).fit((x, y))
    assert_same(sum(workers), whole, test, 1e-9)


def test_full_covariance_of_many_close_inputs() -> None:
    likelihood, network, x, y, _ = problem("regression")
    grid = torch.linspace(-1, 1, 200)[:, None] * torch.ones(4)
    posterior = SFRPosterior(network, likelihood, inducing=x[:25]).fit((x, y))
    joint, single = posterior.predict_f(grid, full_cov=True), posterior.predict_f(grid)
    torch.testing.assert_close(joint.mean.mT, single.mean)
    torch.testing.assert_close(joint.variance.mT, single.variance, rtol=1e-4, atol=1e-8)
