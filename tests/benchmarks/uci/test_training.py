"""Networks trained at once are those trained one by one."""

import math

import pytest
import torch
from torch import nn

from sfr_cl.benchmarks.uci import training
from sfr_cl.benchmarks.uci.data import Split
from support.uci_problems import toy


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
