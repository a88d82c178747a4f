"""Which parameters the kernel differentiates: those that are trained, unless others are named."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torchvision import models as tv

from sfr_cl import SFRPosterior, StreamingPosterior
from sfr_cl.benchmarks.harness.kernel_cases import vectors
from sfr_cl.data.inputs import take
from sfr_cl.errors import ArgumentError
from sfr_cl.kernel.network import FrozenNetwork
from support.oracles import jacobian_by_rows, ntk
from support.posteriors import CLASSES, data, fitted, inputs, mlp
from support.zoo import (
    IMAGES,
    OUTPUTS,
    ZOO,
    Case,
    Net,
    Swish,
    mlp_wide,
    old_weight_norm,
    position_wise,
)


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


def headed(head: Callable[[], nn.Module], after: Callable[[Tensor], Tensor] | None = None) -> Case:
    """A network that ends in a head, and what becomes of the head's output."""

    def build() -> nn.Module:
        return Net(
            lambda net, x: (after or nn.Identity())(net.head(net.body(x).tanh())),
            body=nn.Linear(4, 5),
            head=head(),
        )

    return Case(build, vectors(4))


class Off(nn.Module):
    """An adapter that is switched off."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(OUTPUTS, OUTPUTS))

    def forward(self, x: Tensor) -> Tensor:
        return x


class Temperature(nn.Module):
    """A single number in a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        return x / self.log.exp()


def recurrent_outputs() -> nn.Module:
    """The last state of an LSTM is what it makes of a sequence."""
    return Net(lambda net, x: net.body(x)[1][0][-1], body=nn.LSTM(4, OUTPUTS, batch_first=True))


class Pointed(nn.Module):
    """A head with a name for its layer, as libraries give it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(5), nn.Linear(5, OUTPUTS)
        self.register_buffer("scale", torch.tensor(3.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(x)) * self.scale


def plain(name: str) -> list[str]:
    return [f"{name}.weight", f"{name}.bias"]


def linear() -> nn.Linear:
    return nn.Linear(5, OUTPUTS)


def head_of(width: int) -> nn.Linear:
    return nn.Linear(width, OUTPUTS)


def compiled(network: nn.Module) -> nn.Module:
    """TorchScript."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(network)


def scripted_body() -> nn.Module:
    return nn.Sequential(compiled(nn.Sequential(nn.Linear(4, 5), nn.Tanh())), linear())


def routed() -> nn.Module:
    """Inputs go one way or the other by the sign of a feature."""

    def run(net: Any, x: Tensor) -> Tensor:
        outputs = x.new_zeros(len(x), OUTPUTS)
        for way, chosen in ((net.one, x[:, 0] > 0), (net.two, x[:, 0] <= 0)):
            if chosen.any():
                outputs = outputs.index_put((chosen,), way(x[chosen]))
        return outputs

    return Net(run, one=mlp_wide(4, OUTPUTS), two=mlp_wide(4, OUTPUTS))


def both_ways(count: int) -> Tensor:
    x = torch.randn(count, 4).double()
    x[:, 0] = x[:, 0].abs() * (-1.0) ** torch.arange(count)
    return x


LAST: dict[str, tuple[Case, list[str]]] = {
    "ResNet-18": (Case(lambda: tv.resnet18(num_classes=OUTPUTS), IMAGES), plain("fc")),
    "MobileNetV2": (ZOO["torchvision MobileNetV2"], plain("classifier.1")),
    "MobileNetV3": (ZOO["torchvision MobileNetV3"], plain("classifier.3")),
    "ShuffleNetV2": (ZOO["torchvision ShuffleNetV2"], plain("fc")),
    "SqueezeNet": (ZOO["torchvision SqueezeNet"], plain("classifier.1")),
    "EfficientNet": (ZOO["torchvision EfficientNet"], plain("classifier.1")),
    "DenseNet": (ZOO["torchvision DenseNet"], plain("classifier")),
    "VGG": (ZOO["torchvision VGG"], plain("classifier.3")),
    "ViT": (ZOO["torchvision ViT"], plain("heads.head")),
    "Swin": (ZOO["torchvision Swin"], plain("head")),
    "ConvNeXt": (ZOO["torchvision ConvNeXt"], plain("classifier.2")),
    "MaxVit": (ZOO["torchvision MaxVit"], ["classifier.5.weight"]),
    "GoogLeNet with auxiliary heads": (ZOO["torchvision GoogLeNet"], plain("fc")),
    "BERT": (ZOO["BERT"], plain("classifier")),
    "TransformerEncoder": (ZOO["TransformerEncoder"], plain("head")),
    "GPT, tied": (ZOO["GPT, fused attention"], ["words.weight"]),
    "U-Net": (ZOO["U-Net"], plain("head")),
    "LSTM": (ZOO["LSTM"], plain("head")),
    "siamese": (ZOO["siamese"], plain("head")),
    "temperature": (ZOO["temperature"], plain("body.2")),
    "temperature, a module": (
        headed(lambda: nn.Sequential(linear(), Temperature())),
        plain("head.0"),
    ),
    "LSTM at the end": (
        Case(recurrent_outputs, position_wise),
        [f"body.{kind}_{part}_l0" for kind in ("weight", "bias") for part in ("ih", "hh")],
    ),
    "heads side by side": (
        ZOO["heads side by side"],
        [*plain("heads.0"), *plain("heads.1.2")],
    ),
    "one of two networks": (Case(routed, both_ways), [*plain("one.2"), *plain("two.2")]),
    "DataParallel": (ZOO["DataParallel"], plain("module.2")),
    "nested": (
        headed(lambda: nn.Sequential(nn.ReLU(), nn.Sequential(nn.Dropout(), linear()))),
        plain("head.1.1"),
    ),
    "scripted body": (Case(scripted_body, vectors(4)), plain("1")),
    "named": (headed(Pointed), plain("head.fc")),
    "soft cap": (headed(linear, lambda f: 30 * (f / 30).tanh()), plain("head")),
    "log-softmax": (headed(lambda: nn.Sequential(linear(), nn.LogSoftmax(1))), plain("head.0")),
    "in place": (headed(linear, lambda f: f.mul_(2).clamp_(-9, 9)), plain("head")),
    "pooled": (
        Case(
            lambda: Net(
                lambda net, x: net.head(x[:, None] * x[..., None]).mean(1), head=head_of(4)
            ),
            vectors(4),
        ),
        plain("head"),
    ),
    "adapter off": (headed(lambda: nn.Sequential(linear(), Off())), plain("head.0")),
    "normalized by running statistics": (
        headed(lambda: nn.Sequential(linear(), nn.BatchNorm1d(OUTPUTS, affine=False))),
        plain("head.0"),
    ),
    "weight_norm": (
        headed(lambda: parametrizations.weight_norm(linear())),
        [
            "head.bias",
            "head.parametrizations.weight.original0",
            "head.parametrizations.weight.original1",
        ],
    ),
    "weight_norm, old": (
        headed(lambda: old_weight_norm(linear())),
        ["head.bias", "head.weight_g", "head.weight_v"],
    ),
    "spectral_norm": (
        headed(lambda: parametrizations.spectral_norm(linear())),
        ["head.bias", "head.parametrizations.weight.original"],
    ),
}


@pytest.mark.parametrize("name", LAST)
def test_the_last_layer_of_networks_people_use(name: str) -> None:
    case, names = LAST[name]
    x = case.inputs(7)
    posterior = SFRPosterior(
        case.network(),
        "regression",
        inducing=take(x, slice(0, 3)),
        parameters="last_layer",
        output_kernel="per_output",
    ).init()
    basis = posterior.state.basis
    assert basis.network.names == names
    j = jacobian_by_rows(case.network(), x, names)
    expected = torch.einsum("acp,bcp->cab", j, j)
    close = {"rtol": 1e-9, "atol": 1e-9 * float(expected.abs().max())}
    torch.testing.assert_close(basis.gram(basis.prepare(x)), expected, **close)
    values = basis.at_z(basis.prepare(take(x, slice(3, 7))))
    torch.testing.assert_close(values.cross, expected[:, 3:, :3], **close)


def test_one_input_does_not_show_the_last_layer() -> None:
    """Which of two heads it takes depends on it."""
    torch.manual_seed(0)
    x = torch.randn(12, 4)
    posterior = SFRPosterior(routed(), "classification", inducing=4, parameters="last_layer")
    posterior.fit((x, torch.arange(12) % OUTPUTS))
    assert posterior.state.basis.network.names == [*plain("one.2"), *plain("two.2")]


def ensemble() -> nn.Module:
    members = nn.ModuleList(mlp_wide(4, OUTPUTS) for _ in range(2))
    return Net(lambda net, x: sum(m(x) for m in net.members) / 2, members=members)


def scaled_by_class() -> nn.Module:
    return Net(lambda net, x: net.head(x) * net.scale, head=head_of(4), scale=torch.ones(OUTPUTS))


def capped() -> nn.Module:
    """A temperature, and then what no temperature commutes with."""
    return Net(lambda net, x: (net.head(x) * net.t).tanh(), head=head_of(4), t=torch.ones(1))


def scripted() -> nn.Module:
    return compiled(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), linear()))


def by_hand() -> nn.Module:
    return Net(lambda net, x: Swish.apply(net.head(x)), head=head_of(4))


UNCLEAR: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "scripted": (scripted, "a scripted one, which does not show its layers"),
    "ensemble": (ensemble, "outputs that mix those of several layers"),
    "experts": (ZOO["experts, all run"].build, "outputs that mix those of several layers"),
    "LoRA": (ZOO["LoRA"].build, "outputs that also depend on 3.a, 3.b by other ways"),
    "CLIP head": (
        ZOO["CLIP head"].build,
        "outputs that also depend on scale, classes by other ways",
    ),
    "ParameterList": (ZOO["ParameterList"].build, "outputs that no module with parameters makes"),
    "free parameters": (ZOO["free parameters"].build, "a Net without modules in it"),
    "scale by class": (scaled_by_class, "outputs that also depend on scale by other ways"),
    "temperature in a tanh": (capped, "outputs that are more than a layer's, times a number"),
    "autograd.Function": (by_hand, "an autograd.Function after the last layer"),
    "BatchNorm": (ZOO["BatchNorm1d"].build, "a BatchNorm1d at the end, which has no weight matrix"),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_what_makes_a_last_layer_unclear_is_said(name: str) -> None:
    build, sentence = UNCLEAR[name]
    torch.manual_seed(0)
    x = torch.randn(12, 4)
    posterior = SFRPosterior(build(), "classification", inducing=4, parameters="last_layer")
    with pytest.raises(ArgumentError, match=f"got {re.escape(sentence)}.*: give the names of the"):
        posterior.fit((x, torch.arange(12) % OUTPUTS))
