"""Small classification problems for the tests of `sfr-cl uci`."""

import torch
from torch import nn

from sfr_cl.benchmarks.uci import training
from sfr_cl.benchmarks.uci.data import Split
from sfr_cl.benchmarks.uci.problem import Problem


def toy(rows: int = 30, seed: int = 0) -> Split:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % 3
    x = torch.randn(rows, 4, generator=generator) + nn.functional.one_hot(y, 4)
    return Split((x, y), (x[:12] + 0.5, y[:12]), (x[12:] - 0.5, y[12:]), num_classes=3)


def toy_problem() -> Problem:
    """With a network as it is initialised."""
    return Problem("toy", 0, toy(), training.new_network(4, 3, seed=0), weight_decay=0.05)
