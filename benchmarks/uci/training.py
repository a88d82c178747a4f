"""Networks of one data set, one for each seed, trained at once.

A step of a small network is all overhead: batched products train five in the time of one. Nothing
couples the networks: each has its own data, its own order of batches and its own early stopping,
and ends with the weights it would have alone.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..harness.networks import mlp, seeded
from ..harness.run import ShowShare
from .data import Split

HIDDEN = 50
LEARNING_RATE = 1e-4
BATCH = 128
PATIENCE = 1000
"""Steps without a better validation NLPD."""
INTERVAL = 10
"""Steps between looks at the validation data."""
MOST_EPOCHS = 10_000

WEIGHT_DECAY = {"australian": 0.008, "glass": 0.003, "ionosphere": 0.1, "satellite": 0.002}
"""lambda of the mean loss."""
USUAL_WEIGHT_DECAY = 1e-4


def weight_decay(data: str) -> float:
    """lambda: networks are trained on mean loss + lambda / 2 |w|^2."""
    return WEIGHT_DECAY.get(data, USUAL_WEIGHT_DECAY)


def protocol(data: str) -> dict[str, float]:
    """All that weights depend on, besides data and seed."""
    return {
        "hidden": HIDDEN,
        "learning_rate": LEARNING_RATE,
        "batch": BATCH,
        "patience": PATIENCE,
        "interval": INTERVAL,
        "most_epochs": MOST_EPOCHS,
        "weight_decay": weight_decay(data),
    }


def new_network(num_features: int, num_classes: int, seed: int) -> nn.Sequential:
    """Two hidden layers, as torch initialises them."""
    with seeded(seed):
        return mlp(num_features, HIDDEN, HIDDEN, num_classes, activation=nn.Tanh)


def train(
    splits: Sequence[Split],
    seeds: Sequence[int],
    decay: float,
    show: ShowShare = lambda _: None,
    dtype: torch.dtype = torch.float32,
) -> list[nn.Sequential]:
    """The networks of these splits, each at its best validation NLPD."""
    first = splits[0]
    networks = [new_network(first.num_features, first.num_classes, seed) for seed in seeds]
    stack = Stack(networks, dtype)
    x, y = _joined([split.train for split in splits], dtype)
    valid = _joined([split.valid for split in splits], dtype)
    optimizer = torch.optim.Adam(stack.parameters, lr=LEARNING_RATE, fused=True)
    stopping = EarlyStopping(stack, lambda: stack.loss(*valid))
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    rows = torch.arange(len(seeds))[:, None]
    step, size = 0, y.shape[1]
    for _ in range(MOST_EPOCHS):
        order = torch.stack([torch.randperm(size, generator=g) for g in generators])
        for start in range(0, size, BATCH):
            batch = order[:, start : start + BATCH]
            loss = stack.loss(x[rows, batch], y[rows, batch]) + decay / 2 * stack.square_norm()
            optimizer.zero_grad()
            loss.sum().backward()
            optimizer.step()
            step += 1
            if step % INTERVAL == 0:
                stopping.look(step)
                show(1 - math.exp(-step / 10_000))
                if stopping.done:
                    return stopping.best(networks)
    return stopping.best(networks)


class Stack:
    """The weights of equal networks, stacked: what one network does, for all at once."""

    def __init__(self, networks: Sequence[nn.Sequential], dtype: torch.dtype) -> None:
        self.parameters = [
            torch.stack(list(parts)).detach().to(dtype).requires_grad_()
            for parts in zip(*(network.parameters() for network in networks), strict=True)
        ]

    def __call__(self, x: Tensor) -> Tensor:
        """Logits [S, B, C] of inputs [S, B, D]."""
        weights, biases = self.parameters[::2], self.parameters[1::2]
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            if layer:
                x = x.tanh()
            x = torch.baddbmm(bias[:, None], x, weight.mT)
        return x

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean -log p of each network, [S]."""
        logits = self(x)
        losses = functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
        return losses.reshape(y.shape).mean(1)

    def square_norm(self) -> Tensor:
        """|w|^2 of each network, [S]."""
        return torch.stack([p.square().flatten(1).sum(1) for p in self.parameters]).sum(0)


class EarlyStopping:
    """The best weights of each network so far; one that has stopped keeps what it had."""

    def __init__(self, stack: Stack, validation_loss: Callable[[], Tensor]) -> None:
        self.stack = stack
        self.validation_loss = validation_loss
        self.kept = [p.detach().clone() for p in stack.parameters]
        self.lowest = torch.full((len(self.kept[0]),), math.inf)
        self.at_step = torch.zeros(len(self.kept[0]), dtype=torch.long)
        self.stopped = torch.zeros(len(self.kept[0]), dtype=torch.bool)

    @torch.no_grad()
    def look(self, step: int) -> None:
        """Compare the weights after `step` steps with the best."""
        loss = self.validation_loss()
        better = (loss < self.lowest) & ~self.stopped
        self.lowest[better], self.at_step[better] = loss[better].to(self.lowest.dtype), step
        for kept, parameter in zip(self.kept, self.stack.parameters, strict=True):
            kept[better] = parameter[better]
        self.stopped |= step - self.at_step >= PATIENCE

    @property
    def done(self) -> bool:
        return bool(self.stopped.all())

    def best(self, networks: Sequence[nn.Sequential]) -> list[nn.Sequential]:
        """The networks, with their best weights."""
        for index, network in enumerate(networks):
            network.to(self.kept[0].dtype)
            values = [kept[index] for kept in self.kept]
            names = [name for name, _ in network.named_parameters()]
            network.load_state_dict(dict(zip(names, values, strict=True)))
        return list(networks)


def _joined(parts: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    xs, ys = zip(*parts, strict=True)
    return torch.stack(xs).to(dtype), torch.stack(ys)
