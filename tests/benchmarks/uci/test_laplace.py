"""The Laplace methods, against laplace-torch and samples."""

import copy

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal
from torch.nn.utils import vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from sfr_cl.benchmarks.harness.baselines import quiet
from sfr_cl.benchmarks.uci import laplace, training
from sfr_cl.benchmarks.uci.problem import Problem
from support.uci_problems import toy


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
