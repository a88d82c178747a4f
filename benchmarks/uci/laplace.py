"""The Laplace methods, on laplace-torch: the full Gauss-Newton matrix over all P weights.

Tuning delta would factor that matrix for every value. Its eigenvectors serve them all: with
H = V diag(lambda) V', V holding those of eigenvalues above zero, the posterior covariance is

    (H + delta I)^-1 = V diag(1 / (lambda + delta)) V' + (I - V V') / delta

H = G' G has the rank of G, at most N (C - 1). Where that is below P, they come from G G'.
"""

import copy
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, TensorDataset

from ..harness.baselines import laplace_package, quiet
from ..harness.timing import processor_timed
from .methods import GRID, Outcomes, choose
from .problem import Problem

NETWORKS = 100
"""Drawn from the posterior for a prediction, as published."""
SAMPLES = 1000
"""Of f at an input, for its class probabilities: as many as the posterior's own link draws."""
SAMPLES_AT_ONCE = 50
RELATIVE_ZERO = 1e-10
"""Eigenvalues below this share of the largest are rounding."""
CHUNK = 100
"""Inputs whose Jacobians are in memory at a time."""


class SpectralLaplace:
    """A Laplace posterior in the eigenvectors of its Gauss-Newton matrix."""

    def __init__(self, problem: Problem) -> None:
        self.network = copy.deepcopy(problem.network)
        # The backend asks for it; torch's types know modules and tensors only.
        self.network.output_size = problem.split.num_classes  # type: ignore[assignment]
        train = DataLoader(TensorDataset(*problem.split.train), batch_size=CHUNK)
        with quiet():
            self._laplace = _full_laplace(self.network)
            rank = problem.num_data * (problem.split.num_classes - 1)
            if rank < self._laplace.n_params:
                root = torch.cat([self._root(x) for x, _ in train])
                self.values, self.vectors = _right_singular(root)
            else:
                self._laplace.fit(train)
                values, self.vectors = torch.linalg.eigh(self._laplace.H)
                self.values = values.clamp_min(0)
        self.mean = parameters_to_vector(self.network.parameters()).detach()
        self.state_bytes = self.values.nbytes + self.vectors.nbytes

    def jacobians(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of the outputs by the weights, [B, C, P], and the outputs [B, C]."""
        with quiet():
            jacobians, outputs = self._laplace.backend.jacobians(x)
        return jacobians.detach(), outputs.detach()

    def _root(self, x: Tensor) -> Tensor:
        """Rows of G: with p the class probabilities, diag(p) - p p' = R R' and G = R' J."""
        jacobians, outputs = self.jacobians(x)
        p = outputs.softmax(1)
        values, vectors = torch.linalg.eigh(torch.diag_embed(p) - p[:, :, None] * p[:, None])
        root = vectors[:, :, 1:] * values[:, None, 1:].clamp_min(0).sqrt()  # ones: null space
        return (root.mT @ jacobians).flatten(0, 1)

    def sampled_networks(self, x: Tensor, deltas: list[float]) -> Iterator[Tensor]:
        """At each delta, logits [S, B, C] of networks drawn from the posterior.

        Draws are (H + delta I)^-1/2 noise, the same noise at every delta and every call.
        """
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(NETWORKS, len(self.mean), generator=generator)
        coordinates = noise @ self.vectors
        rest = noise - coordinates @ self.vectors.mT
        for delta in deltas:
            shrunk = coordinates / (self.values + delta).sqrt() @ self.vectors.mT
            yield self._logits(x, self.mean + shrunk + rest / delta**0.5)

    @torch.no_grad()
    def _logits(self, x: Tensor, weights: Tensor) -> Tensor:
        """Of networks with these weights [S, P]."""
        parameters, first = {}, 0
        for name, value in self.network.named_parameters():
            part = weights[:, first : first + value.numel()]
            parameters[name] = part.reshape(-1, *value.shape)
            first += value.numel()
        logits: Tensor = vmap(lambda p: functional_call(self.network, p, (x,)))(parameters)
        return logits

    def linearised(self, x: Tensor, deltas: list[float]) -> tuple[Tensor, Tensor]:
        """Mean [B, C] and, at each delta, covariance [D, B, C, C] of the linearised network."""
        means, covariances = [], []
        for rows in x.split(CHUNK):
            jacobians, outputs = self.jacobians(rows)
            coordinates = jacobians @ self.vectors
            rest = jacobians @ jacobians.mT - coordinates @ coordinates.mT
            parts = [
                coordinates / (self.values + delta) @ coordinates.mT + rest / delta
                for delta in deltas
            ]
            covariances.append(torch.stack(parts))
            means.append(outputs)
        return torch.cat(means), torch.cat(covariances, dim=1)


def bnn(problem: Problem, m_percent: int | None) -> Outcomes:
    """Softmax averaged over networks with weights from the posterior."""
    del m_percent
    posterior, _ = _posterior(problem)
    deltas = [problem.prior_precision, *GRID]
    x = problem.held_out
    drawn = posterior.sampled_networks(x, deltas)
    found = [logits.softmax(2).mean(0).log() for logits in drawn]
    return choose(problem, deltas, found, posterior.state_bytes)


def glm(problem: Problem, m_percent: int | None) -> Outcomes:
    """Softmax averaged over samples of the network linearised at its weights."""
    del m_percent
    posterior, _ = _posterior(problem)
    deltas = [problem.prior_precision, *GRID]
    mean, covariances = posterior.linearised(problem.held_out, deltas)
    return choose(problem, deltas, list(_link(mean, covariances).log()), posterior.state_bytes)


def _link(mean: Tensor, covariances: Tensor) -> Tensor:
    """Class probabilities [D, B, C]: means of softmax(f), with the same draws for all."""
    values, vectors = torch.linalg.eigh(covariances)
    halves = vectors * values.clamp_min(0).sqrt()[..., None, :]
    generator = torch.Generator().manual_seed(0)
    totals = mean.new_zeros(len(halves), *mean.shape)
    for _ in range(SAMPLES // SAMPLES_AT_ONCE):
        noise = torch.randn(*mean.shape, SAMPLES_AT_ONCE, generator=generator, dtype=mean.dtype)
        for total, half in zip(totals, halves, strict=True):
            total.add_((mean[..., None] + half @ noise).softmax(1).sum(2))
    return totals / SAMPLES


def _right_singular(root: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues above zero [R], and their eigenvectors [P, R], of G' G from G G'."""
    values, left = torch.linalg.eigh(root.double() @ root.double().mT)
    there = values > values[-1] * RELATIVE_ZERO
    values, left = values[there], left[:, there]
    return values.float(), (root.double().mT @ left / values.sqrt()).float()


@lru_cache(maxsize=1)
def _posterior(problem: Problem) -> tuple[SpectralLaplace, float]:
    """Both methods read the same one, one after the other; and the seconds it took."""
    return processor_timed(lambda: SpectralLaplace(problem))


def seconds_of_posterior(problem: Problem) -> float:
    """Processor seconds of what both methods read, made now if it is not there."""
    return _posterior(problem)[1]


def _full_laplace(network: nn.Module) -> Any:
    package = laplace_package()
    return package.FullLaplace(network, "classification", backend=package.curvature.AsdlGGN)
