"""The pieces of `sfr-cl uci`, each against a slow or independent way to the same numbers."""

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal
from torch.nn.utils import vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from sfr_cl import SFRPosterior
from sfr_cl.benchmarks.harness import measure
from sfr_cl.benchmarks.harness.baselines import quiet
from sfr_cl.benchmarks.uci import data, laplace, methods, training, waveform
from sfr_cl.benchmarks.uci.data import Split
from sfr_cl.benchmarks.uci.networks import Networks
from sfr_cl.benchmarks.uci.problem import Problem
from sfr_cl.errors import ArgumentError, FileError

SHAPES = {
    "australian": (690, 14, 2),
    "breast_cancer": (683, 10, 2),
    "digits": (1797, 64, 10),
    "glass": (214, 9, 6),
    "ionosphere": (351, 34, 2),
    "satellite": (6435, 36, 6),
    "vehicle": (846, 18, 4),
    "waveform": (1000, 21, 3),
}


def toy(rows: int = 30, seed: int = 0) -> Split:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % 3
    x = torch.randn(rows, 4, generator=generator) + nn.functional.one_hot(y, 4)
    return Split((x, y), (x[:12] + 0.5, y[:12]), (x[12:] - 0.5, y[12:]), num_classes=3)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem("toy", 0, toy(), training.new_network(4, 3, seed=0), weight_decay=0.05)


@pytest.mark.parametrize("name", SHAPES)
def test_every_set_is_there_without_any_folder(name: str) -> None:
    x, y = data.load(name)
    assert (*x.shape, len(np.unique(y))) == SHAPES[name]
    assert y.min() == 0
    assert y.max() == SHAPES[name][2] - 1
    assert np.isfinite(x).all()


@pytest.mark.parametrize("name", ["glass", "waveform"])
def test_parts_are_disjoint_stratified_and_standardised_on_training_data(name: str) -> None:
    x, y = data.load(name)
    parts = data.split(name, 3)
    sizes = [len(labels) for _, labels in (parts.train, parts.valid, parts.test)]
    assert sum(sizes) == len(y)
    assert [round(size / len(y), 2) for size in sizes] == [0.70, 0.15, 0.15]
    for _, labels in (parts.train, parts.valid, parts.test):
        expected = np.bincount(y) * len(labels) / len(y)
        assert np.abs(np.bincount(labels, minlength=len(expected)) - expected).max() <= 1
    inputs = parts.train[0].double()
    varying = x.std(0) > 0
    assert torch.allclose(inputs.mean(0), torch.zeros(x.shape[1]).double(), atol=1e-5)
    assert np.allclose(inputs.std(0, correction=0)[varying], 1, atol=1e-4)
    # Undone, the parts are the set: no row is in two of them, none is missing.
    everything = torch.cat([part[0] for part in (parts.train, parts.valid, parts.test)])
    own = (x - x.mean(0)) / np.where(varying, x.std(0), 1)
    theirs = everything.double().numpy()
    theirs = (theirs - theirs.mean(0)) / np.where(varying, theirs.std(0), 1)
    first = own[:, 0] + math.pi * own[:, 1]
    assert np.allclose(np.sort(first), np.sort(theirs[:, 0] + math.pi * theirs[:, 1]), atol=1e-4)


def test_other_seeds_split_otherwise_and_one_seed_always_the_same() -> None:
    assert torch.equal(data.split("glass", 1).test[0], data.split("glass", 1).test[0])
    assert not torch.equal(data.split("glass", 1).test[0], data.split("glass", 2).test[0])


def test_waveform_is_breimans() -> None:
    x, y = waveform.make()
    # Class 0 mixes triangles at 11 and 7: the mean is half their sum, and noise adds 1 of variance.
    triangles = [np.maximum(6 - abs(np.arange(1, 22) - centre), 0) for centre in (11, 7)]
    mine = x[y == 0]
    assert np.allclose(mine.mean(0), sum(triangles) / 2, atol=5 * 2 / math.sqrt(len(mine)))
    mixture = (triangles[0] - triangles[1]) ** 2 / 12  # of a uniform share
    assert np.allclose(mine.var(0), mixture + 1, atol=0.5)
    assert np.bincount(y).min() > 280
    assert np.array_equal(x, waveform.make()[0])


def alone(split: Split, seed: int, decay: float) -> tuple[nn.Sequential, int]:
    """One network in the plainest way: the weights of its best look, and its steps."""
    network = training.new_network(split.num_features, split.num_classes, seed).double()
    optimizer = torch.optim.Adam(network.parameters(), lr=training.LEARNING_RATE)
    generator = torch.Generator().manual_seed(seed)
    (x, y), (x_valid, y_valid) = split.train, split.valid
    x, x_valid = x.double(), x_valid.double()
    lowest, at_step, step, best = math.inf, 0, 0, network.state_dict()
    while True:
        order = torch.randperm(len(y), generator=generator)
        for batch in order.split(training.BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(x[batch]), y[batch])
            square = sum(p.square().sum() for p in network.parameters())
            (loss + decay / 2 * square).backward()
            optimizer.step()
            step += 1
            if step % training.INTERVAL == 0:
                with torch.no_grad():
                    valid = float(nn.functional.cross_entropy(network(x_valid), y_valid))
                if valid < lowest:
                    lowest, at_step = valid, step
                    best = {name: p.clone() for name, p in network.state_dict().items()}
                if step - at_step >= training.PATIENCE:
                    network.load_state_dict(best)
                    return network, at_step


def test_networks_trained_at_once_are_those_trained_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PATIENCE": 30, "BATCH": 16, "LEARNING_RATE": 3e-2}.items():
        monkeypatch.setattr(training, name, value)
    splits, seeds = [toy(seed=seed) for seed in range(3)], [0, 1, 2]
    together = training.train(splits, seeds, 0.01, dtype=torch.float64)
    stops = set()
    for split, seed, network in zip(splits, seeds, together, strict=True):
        expected, at_step = alone(split, seed, 0.01)
        stops.add(at_step)
        for ours, theirs in zip(network.parameters(), expected.parameters(), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-9)
    assert len(stops) > 1  # each stopped by itself


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


def test_subset_is_the_whole_posterior_when_all_points_are_in_it(problem: Problem) -> None:
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


@pytest.mark.parametrize("rows", [30, 2400])
def test_laplace_is_laplace_torchs(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer data than weights, and with more."""
    monkeypatch.setattr(training, "HIDDEN", 8)
    network = training.new_network(4, 3, seed=1)
    problem = Problem("toy", 0, toy(rows), network, weight_decay=0.01)
    ours = laplace.SpectralLaplace(problem)
    x = problem.held_out[:8]
    with quiet():
        theirs = laplace._full_laplace(ours.network)
        theirs.prior_precision = 0.5
        theirs.fit(DataLoader(TensorDataset(*problem.split.train), batch_size=100))
        jacobians, _ = theirs.backend.jacobians(x)
        expected = theirs.functional_variance(jacobians)
    mean, covariances = ours.linearised(x, [2.0, 0.5])
    assert torch.allclose(mean, network(x), atol=1e-5)
    assert torch.allclose(covariances[1], expected, rtol=1e-2, atol=1e-3)
    monkeypatch.setattr(laplace, "NETWORKS", 4000)
    linear = nn.Sequential(nn.Linear(4, 3))
    own = Problem("toy", 0, toy(rows), linear, weight_decay=0.01)
    posterior = laplace.SpectralLaplace(own)
    (drawn,) = posterior.sampled_networks(x, [0.5])  # a linear network is its own linearisation
    moments = posterior.linearised(x, [0.5])
    spread = moments[1][0].diagonal(dim1=1, dim2=2)
    assert torch.allclose(drawn.mean(0), moments[0], atol=0.1 * float(spread.max().sqrt()))
    assert torch.allclose(drawn.var(0), spread, rtol=0.15)


def test_networks_are_drawn_with_the_dense_root_of_the_posterior(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training, "HIDDEN", 8)
    monkeypatch.setattr(laplace, "NETWORKS", 3)
    network = training.new_network(4, 3, seed=1)
    problem = Problem("toy", 0, toy(), network, weight_decay=0.01)
    posterior = laplace.SpectralLaplace(problem)
    x, deltas = problem.held_out[:5], [0.5, 20.0]
    with quiet():
        theirs = laplace._full_laplace(posterior.network)
        theirs.fit(DataLoader(TensorDataset(*problem.split.train), batch_size=100))
    values, vectors = torch.linalg.eigh(theirs.H.double())
    noise = torch.randn(3, len(values), generator=torch.Generator().manual_seed(0)).double()
    for delta, logits in zip(deltas, posterior.sampled_networks(x, deltas), strict=True):
        root = vectors / (values.clamp_min(0) + delta).sqrt() @ vectors.mT
        for draw, found in zip(noise, logits, strict=True):
            network = copy.deepcopy(network)
            weights = posterior.mean + (root @ draw).float()
            vector_to_parameters(weights, network.parameters())
            assert torch.allclose(found, network(x), atol=1e-3)


def test_glm_link_averages_softmax_of_joint_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, half = torch.randn(4, 3, generator=generator), torch.randn(4, 3, 3, generator=generator)
    covariances = torch.stack([half @ half.mT, 0.01 * half @ half.mT])
    both = laplace._link(mean, covariances)
    for found, covariance in zip(both, covariances, strict=True):
        assert torch.equal(found, laplace._link(mean, covariance[None])[0])
        samples = MultivariateNormal(mean, covariance + 1e-5 * torch.eye(3)).sample((50_000,))
        assert torch.allclose(found, samples.softmax(2).mean(0), atol=0.05)


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


def test_networks_are_kept_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PATIENCE": 20, "MOST_EPOCHS": 5}.items():
        monkeypatch.setattr(training, name, value)
    first = Networks(tmp_path, [0, 1], reuse=False).problem("glass", 1, lambda _: None)
    trained = training.train
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("trained again"))
    again = Networks(tmp_path, [0, 1], reuse=True).problem("glass", 1, lambda _: None)
    for ours, theirs in zip(first.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    # Other seeds add networks, and leave those that are there.
    monkeypatch.setattr(training, "train", trained)
    kept = Networks(tmp_path, [2], reuse=True).problem("glass", 2, lambda _: None)
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("trained again"))
    for seed, network in ((1, first.network), (2, kept.network)):
        again = Networks(tmp_path, [2, 1], reuse=True).problem("glass", seed, lambda _: None)
        assert torch.equal(again.network[0].weight, network[0].weight)
    # Another protocol is another network.
    monkeypatch.setattr(training, "train", trained)
    monkeypatch.setattr(training, "MOST_EPOCHS", 10)
    other = Networks(tmp_path, [0, 1], reuse=True).problem("glass", 1, lambda _: None)
    assert not torch.equal(other.network[0].weight, first.network[0].weight)
    (tmp_path / "glass.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(FileError, match=r"glass\.safetensors"):
        Networks(tmp_path, [0, 1], reuse=True).problem("glass", 1, lambda _: None)
