"""Which parameters the kernel differentiates: those that are trained, unless others are named."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sfr_cl import SFRPosterior, StreamingPosterior
from sfr_cl.errors import ArgumentError
from sfr_cl.kernel.network import FrozenNetwork
from support.oracles import ntk
from support.posteriors import CLASSES, data, fitted, inputs, mlp


class LoRA(nn.Module):
    """A linear layer, frozen, with a trained update of low rank."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def adapted() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(LoRA(nn.Linear(3, 6)), nn.Tanh(), LoRA(nn.Linear(6, CLASSES)))


def frozen_body() -> nn.Sequential:
    network = mlp()
    network[0].requires_grad_(False)
    return network


TRAINED = {
    "lora": (adapted, ["0.down.weight", "0.up.weight", "2.down.weight", "2.up.weight"]),
    "frozen body": (frozen_body, ["2.weight", "2.bias"]),
    "all frozen": (lambda: mlp().requires_grad_(False), [n for n, _ in mlp().named_parameters()]),
}


@pytest.mark.parametrize("case", TRAINED)
def test_frozen_parameters_are_not_differentiated(case: str) -> None:
    build, names = TRAINED[case]
    network = build().double()
    posterior = fitted(network=network)
    assert posterior.state.basis.network.names == names
    z = inputs(10, seed=2).double()
    expected = ntk(network, z, z, shared=True, names=names)
    factor = posterior.state.basis.factor
    torch.testing.assert_close(factor @ factor.mT, expected, rtol=1e-8, atol=1e-8)
    before = {name: p.requires_grad for name, p in build().named_parameters()}
    assert {name: p.requires_grad for name, p in network.named_parameters()} == before


def test_names_may_be_those_of_frozen_parameters() -> None:
    posterior = fitted(network=frozen_body(), parameters=["0.weight"])
    assert posterior.state.basis.network.names == ["0.weight"]


def test_a_streams_posterior_fits_with_the_parameters_of_the_stream() -> None:
    """The stream's copy is frozen as a whole: its flags tell nothing."""
    z = inputs(10, seed=2)
    stream = StreamingPosterior(SFRPosterior(frozen_body(), "classification", inducing=z))
    stream.learn_many(*data())
    again = stream.posterior.fit(data())
    assert again.state.basis.network.names == ["2.weight", "2.bias"]
    expected = fitted(network=frozen_body()).predict_f(inputs(seed=5))
    torch.testing.assert_close(again.predict_f(inputs(seed=5)).mean, expected.mean)


class Heads(nn.Module):
    """Two linear heads, used in some way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.one, self.body, self.two = nn.Linear(5, 3), nn.Linear(4, 5), nn.Linear(5, 3)
        self.temperature = nn.Parameter(torch.tensor(0.5))
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x).tanh()
        f: Tensor = self.one(h)
        ways = {
            "auxiliary last": lambda: f + 0 * self.two(h).detach(),
            "buffer": lambda: f / 3,
            "temperature": lambda: f * self.temperature.exp(),
            "log-softmax": lambda: f.log_softmax(1),
            "side by side": lambda: torch.cat([f, self.two(h)], 1),
            "shift": lambda: f + self.temperature,
            "sum": lambda: f + self.two(h),
            "bare weight": lambda: h @ self.one.weight.T,
            "norm": lambda: self.norm(f),
        }
        return ways[self.way]()


def last_layer(network: nn.Module) -> list[str]:
    frozen = FrozenNetwork(network, "last_layer", torch.float64)
    frozen.bind(frozen.prepare(torch.randn(2, 4)))
    return frozen.names


@pytest.mark.parametrize("way", ["auxiliary last", "buffer", "temperature", "log-softmax"])
def test_the_last_layer_makes_the_outputs(way: str) -> None:
    assert last_layer(Heads(way)) == ["one.weight", "one.bias"]


def test_heads_side_by_side_are_the_last_layer_together() -> None:
    found = last_layer(Heads("side by side"))
    assert found == ["one.weight", "one.bias", "two.weight", "two.bias"]


@pytest.mark.parametrize("way", ["shift", "sum", "bare weight", "norm"])
def test_a_last_layer_that_is_not_clear_is_refused(way: str) -> None:
    with pytest.raises(ArgumentError, match=r"last_layer.*give the names"):
        last_layer(Heads(way))


def test_parametrized_weights_belong_to_their_layer() -> None:
    head = nn.utils.parametrizations.weight_norm(nn.Linear(5, 3))
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), head).double()
    names = last_layer(network)
    assert sorted(names) == sorted(f"2.{name}" for name, _ in head.named_parameters())
