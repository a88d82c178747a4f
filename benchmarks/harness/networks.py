"""Networks that several experiments train or measure."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn


def mlp(*sizes: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with activations between them, as torch initialises them."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return nn.Sequential(*layers[:-1])


def cnn() -> nn.Sequential:
    """Two convolutions and two dense layers, for images of 28 x 28 and ten classes: 34k weights."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 40),
        nn.ReLU(),
        nn.Linear(40, 10),
    )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from this seed inside; what is drawn afterwards does not depend on it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
