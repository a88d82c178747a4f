"""Tiny networks, data and posteriors for the tests, and what "unchanged" means for them."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from sfr_cl import Likelihood, SFRPosterior
from sfr_cl.errors import NotFittedError

FEATURES, CLASSES, ROWS = 3, 3, 24
OUTPUTS = {"classification": CLASSES, "binary": 1, "regression": 1}


def mlp(outputs: int = CLASSES, features: int = FEATURES, seed: int = 0) -> nn.Sequential:
    """A small network with the same weights at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(features, 6), nn.Tanh(), nn.Linear(6, outputs))


def grown(network: nn.Sequential, outputs: int) -> nn.Sequential:
    """The network with more rows in its last layer."""
    larger = copy.deepcopy(network)
    last = larger[-1]
    assert isinstance(last, nn.Linear)
    with torch.random.fork_rng():
        torch.manual_seed(9)
        head = nn.Linear(last.in_features, outputs)
    with torch.no_grad():
        head.weight[: last.out_features] = last.weight
        head.bias[: last.out_features] = last.bias
    larger[-1] = head
    return larger


def inputs(rows: int = ROWS, seed: int = 1) -> Tensor:
    """Random inputs."""
    return torch.randn(rows, FEATURES, generator=torch.Generator().manual_seed(seed))


def data(kind: str = "classification", rows: int = ROWS, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Inputs and targets that can be learned; classes take turns."""
    x = inputs(rows, seed)
    if kind == "regression":
        return x, x.sum(1, keepdim=True).sin()
    y = torch.arange(rows) % max(OUTPUTS[kind], 2)
    return x + nn.functional.one_hot(y, FEATURES), y


def fitted(kind: str = "classification", **options: Any) -> SFRPosterior:
    """A posterior with ten inducing inputs, fitted to :func:`data`."""
    network = options.pop("network", None) or mlp(OUTPUTS[kind])
    options.setdefault("inducing", inputs(10, seed=2))
    return SFRPosterior(network, kind, **options).fit(data(kind))


class Poisson(Likelihood):
    """Counts with a log rate: a custom likelihood."""

    name = "poisson"

    def targets(self, y: Tensor, num_outputs: int) -> Tensor:
        return y.reshape(len(y), num_outputs).double()

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return torch.distributions.Poisson(f.exp()).log_prob(y).sum(1)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        return y - f.exp()

    def curvature(self, f: Tensor, y: Tensor) -> Tensor:
        del y
        return f.exp()

    def predictive(
        self, mean: Tensor, variance: Tensor, link: str
    ) -> torch.distributions.Distribution:
        del link
        return torch.distributions.Poisson((mean + variance / 2).exp())


class StudentT(Likelihood):
    """Heavy tails: the curvature is negative where a target is far away."""

    name = "student-t"

    def __init__(self, degrees: float = 3.0, scale: float = 0.2) -> None:
        self.degrees, self.scale = degrees, scale

    def settings(self) -> dict[str, Any]:
        return {"degrees": self.degrees, "scale": self.scale}

    def targets(self, y: Tensor, num_outputs: int) -> Tensor:
        return y.reshape(len(y), num_outputs).double()

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return torch.distributions.StudentT(self.degrees, f, self.scale).log_prob(y).sum(1)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        error = y - f
        return (self.degrees + 1) * error / (self._width + error.square())

    def curvature(self, f: Tensor, y: Tensor) -> Tensor:
        error = (y - f).square()
        return (self.degrees + 1) * (self._width - error) / (self._width + error).square()

    @property
    def _width(self) -> float:
        return self.degrees * self.scale**2

    def predictive(
        self, mean: Tensor, variance: Tensor, link: str
    ) -> torch.distributions.Distribution:
        del link
        return torch.distributions.StudentT(self.degrees, mean, (variance + self.scale**2).sqrt())


def contents(posterior: SFRPosterior) -> dict[str, Any] | None:
    """A copy of all a posterior holds; ``None`` before it is fitted."""
    try:
        return copy.deepcopy(posterior.state_dict())
    except NotFittedError:
        return None


def assert_same_contents(posterior: SFRPosterior, before: dict[str, Any] | None) -> None:
    """Every tensor bit for bit, every value, and nothing more or less."""
    after = contents(posterior)
    if before is None or after is None:
        assert before is after
        return
    assert after["values"] == before["values"]
    assert after["tensors"].keys() == before["tensors"].keys()
    for name, value in before["tensors"].items():
        assert after["tensors"][name].dtype == value.dtype, name
        assert torch.equal(after["tensors"][name], value), name


def fingerprint(network: nn.Module) -> list[Any]:
    """All of a network that a caller could see change, comparable by ``==``.

    The version counters tell of values that were changed and put back.
    """

    def tensor(value: Tensor) -> tuple[Any, ...]:
        grad = None if value.grad is None else (id(value.grad), value.grad.tolist())
        flags = (value.dtype, value.requires_grad, value._version, isinstance(value, nn.Parameter))
        return id(value), flags, grad, tuple(value.shape), value.tolist()

    return [
        {
            "module": (name, id(module), type(module)),
            "training": module.training,
            "attributes": sorted(vars(module)),
            "hooks": {key: len(value) for key, value in vars(module).items() if "hooks" in key},
            "parameters": {key: tensor(p) for key, p in module.named_parameters(recurse=False)},
            "buffers": {key: tensor(b) for key, b in module.named_buffers(recurse=False)},
        }
        for name, module in network.named_modules()
    ]
