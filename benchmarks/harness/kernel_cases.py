"""One list of networks and inputs that every kernel rule is compared over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfr_cl.data.inputs import Inputs


@dataclass(frozen=True)
class Case:
    """A network in float64, in train mode with moved running statistics, and inputs for it."""

    name: str
    build: Callable[[], nn.Module]
    draw: Callable[[int], Inputs]

    def network(self) -> nn.Module:
        torch.manual_seed(0)
        network = self.build().double()
        for module in network.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.get_buffer("running_mean").normal_()
                module.get_buffer("running_var").uniform_(0.5, 2)
        return network

    def inputs(self, count: int, seed: int = 0) -> Inputs:
        torch.manual_seed(1 + seed)
        return self.draw(count)


def vectors(size: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randn(count, size).double()


def images(*shape: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randn(count, *shape).double()


def tokens(length: int, words: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randint(words, (count, length))


class Tied(nn.Module):
    """Input and output embedding share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x).mean(1).tanh())


class UsedTwice(nn.Module):
    """One layer called twice in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.twice(self.twice(self.first(x).tanh()).tanh()).tanh())


class Functional(nn.Module):
    """A parameter used without a module around it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(5))
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((x * self.scale).sin())


class Encoder(nn.Module):
    """A small transformer over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=12, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.encoder(self.embed(x)).mean(1))


class Pair(nn.Module):
    """A dict of two tensors as input."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(3, 5), nn.Embedding(6, 5), nn.Linear(5, 2)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return self.last((self.left(x["real"]) + self.right(x["word"])).relu())


class Residual(nn.Module):
    """A ResNet block, with activations in place, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 4, 3, padding=1, stride=2, bias=False)
        self.norm_one = nn.BatchNorm2d(4)
        self.two = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm_two = nn.BatchNorm2d(4)
        self.skip = nn.Conv2d(3, 4, 1, stride=2)
        self.relu = nn.ReLU(inplace=True)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.norm_one(self.one(x)))
        out = self.norm_two(self.two(out))
        out += self.skip(x)
        return self.last(self.relu(out).mean((2, 3)))


class SequenceFirst(nn.Module):
    """Positions before the batch inside, as recurrent code likes it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(x.transpose(0, 1)).tanh().mean(0))


class Folded(nn.Module):
    """Positions folded into the batch inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.inner(x.flatten(0, 1)).tanh()
        return self.last(rows.unflatten(0, x.shape[:2]).mean(1))


class Sorted(nn.Module):
    """Rows sorted inside, as packed sequences are."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        return self.last(self.inner(x[order]).tanh()[order.argsort()])


class StopGradient(nn.Module):
    """A layer's output detached, its weight used once more."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x).detach().tanh()
        return self.last(nn.functional.linear(hidden, self.inner.weight).tanh())


class Scaled(nn.Module):
    """A layer called with a weight computed from its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        weight = {"weight": 3 * self.inner.weight}
        return self.last(torch.func.functional_call(self.inner, weight, (x,)).tanh())


class Remembers(nn.Module):
    """Keeps an activation on itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = self.inner(x).tanh()
        return self.last(self.hidden)


class Borrowed(nn.Module):
    """A layer's weight used once more without the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((self.inner(x).tanh() @ self.inner.weight).tanh())


def hooked() -> nn.Module:
    """A hook that changes what comes out of a layer."""
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    network[0].register_forward_hook(lambda _module, _inputs, output: 3 * output)
    return network


class Squared(nn.Module):
    """A parametrization."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight**2


def parametrized() -> nn.Module:
    """A weight that is computed from other parameters."""
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    nn.utils.parametrize.register_parametrization(network[0], "weight", Squared())
    return network


def draw_pair(count: int) -> Inputs:
    return {"real": torch.randn(count, 3).double(), "word": torch.randint(6, (count,))}


CASES = [
    Case(
        "mlp",
        lambda: nn.Sequential(
            nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
        ),
        vectors(4),
    ),
    Case(
        "cnn",
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(4, 5, 3),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(20, 3),
        ),
        images(2, 8, 8),
    ),
    Case(
        "batchnorm",
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, bias=False),
            nn.BatchNorm2d(3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(48, 6),
            nn.BatchNorm1d(6),
            nn.Tanh(),
            nn.Linear(6, 2),
        ),
        images(1, 6, 6),
    ),
    Case(
        "layernorm",
        lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)),
        vectors(4),
    ),
    Case(
        "dropout",
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)),
        vectors(4),
    ),
    Case(
        "embedding",
        lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Tanh(), nn.Linear(20, 3)),
        tokens(5, 9),
    ),
    Case("transformer", Encoder, tokens(6, 11)),
    Case("tied", Tied, tokens(4, 7)),
    Case("used twice", UsedTwice, vectors(4)),
    Case("functional parameter", Functional, vectors(5)),
    Case("dict inputs", Pair, draw_pair),
    Case(
        "strides, padding, dilation, groups",
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0), bias=False),
            nn.Tanh(),
            nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2),
            nn.GroupNorm(3, 6),
            nn.ReLU(inplace=True),
            nn.Conv2d(6, 6, 3, padding="same", groups=6, padding_mode="reflect"),
            nn.Flatten(),
            nn.Linear(6 * 4 * 7, 3, bias=False),
        ),
        images(2, 8, 8),
    ),
    Case(
        "convolution over wide positions",
        lambda: nn.Sequential(
            nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 12, 2), nn.Flatten(), nn.Linear(12, 2)
        ),
        images(8, 4, 4),
    ),
    Case(
        "signals",
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, stride=2, padding=1),
            nn.Tanh(),
            nn.Conv1d(4, 4, 2, dilation=2, padding="valid"),
            nn.BatchNorm1d(4),
            nn.Flatten(),
            nn.Linear(12, 2),
        ),
        images(2, 9),
    ),
    Case(
        "linear over positions",
        lambda: nn.Sequential(
            nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm((3, 6)), nn.Flatten(), nn.Linear(18, 2)
        ),
        images(3, 4),
    ),
    Case(
        "padding token",
        lambda: nn.Sequential(
            nn.Embedding(5, 3, padding_idx=0), nn.Flatten(), nn.Tanh(), nn.Linear(12, 2)
        ),
        tokens(4, 5),
    ),
    Case("residual block", Residual, images(3, 6, 6)),
    Case("sequence first", SequenceFirst, images(3, 4)),
    Case("sequence first, two long", SequenceFirst, images(2, 4)),
    Case("positions folded into the batch", Folded, images(3, 4)),
    Case("borrowed weight", Borrowed, vectors(4)),
    Case("sorted rows", Sorted, vectors(4)),
    Case("stopped gradient", StopGradient, vectors(4)),
    Case("scaled weight", Scaled, vectors(4)),
    Case("remembers", Remembers, vectors(4)),
    Case("hooked", hooked, vectors(4)),
    Case("parametrized", parametrized, vectors(4)),
    Case(
        "one output", lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), vectors(3)
    ),
    Case("activation last", lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh()), vectors(3)),
]
