"""The networks: by one protocol, whether trained on D1 or again on all data."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..harness.networks import mlp, seeded
from ..harness.run import ShowShare
from .data import Pairs, Part

HIDDEN = 128
LEARNING_RATE = 1e-4
NOISE_RATE = 1e-2
"""Of the log noise, one number: at the weights' rate it would lag by ten thousands of steps."""
WEIGHT_DECAY = 1e-4
"""lambda of the mean loss."""
BATCH = 128
PATIENCE = 1000
"""Steps without a better validation NLPD."""
INTERVAL = 10
"""Steps between looks at the validation data."""
MOST_STEPS = 500_000


@dataclass(frozen=True)
class Trained:
    """A network and the noise it was trained with, as they were at the best validation NLPD."""

    network: nn.Sequential
    noise_variance: float
    steps: int
    """Until training was stopped."""

    @torch.no_grad()
    def nlpd(self, data: Pairs) -> float:
        """Of the network itself: its output, and the noise it learned."""
        log_noise = torch.tensor(self.noise_variance).log()
        return float(_mean_nlpd(self.network(data.x.float()), data.y.float(), log_noise))


def new_network(num_features: int, seed: int) -> nn.Sequential:
    """Two hidden layers, tanh, as torch initialises them."""
    with seeded(seed):
        return mlp(num_features, HIDDEN, HIDDEN, 1, activation=nn.Tanh)


def train(part: Part, seed: int, show: ShowShare = lambda _: None) -> Trained:
    """A new network, trained with its noise until validation NLPD stops falling."""
    network = new_network(part.train.x.shape[1], seed)
    log_noise = nn.Parameter(torch.zeros(()))
    weights = list(network.parameters())
    groups: list[dict[str, Any]] = [
        {"params": weights},
        {"params": [log_noise], "lr": NOISE_RATE},
    ]
    optimizer = torch.optim.Adam(groups, lr=LEARNING_RATE, fused=True)
    valid_x, valid_y = (values.float() for values in part.valid)
    best, best_step, kept = math.inf, 0, (copy.deepcopy(network), 1.0)
    step = 0
    for step, (x, y) in enumerate(_batches(part.train, seed), start=1):
        optimizer.zero_grad()
        square_norm = torch.stack([weight.square().sum() for weight in weights]).sum()
        loss = _mean_nlpd(network(x), y, log_noise) + WEIGHT_DECAY / 2 * square_norm
        loss.backward()
        optimizer.step()
        if step % INTERVAL == 0:
            with torch.no_grad():
                found = float(_mean_nlpd(network(valid_x), valid_y, log_noise))
            if found < best:
                best, best_step = found, step
                kept = copy.deepcopy(network), float(log_noise.detach().exp())
            show(step / (best_step + PATIENCE))
            if step >= min(best_step + PATIENCE, MOST_STEPS):
                break
    return Trained(*kept, step)


def _batches(data: Pairs, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    x, y = (values.float() for values in data)
    while True:
        for rows in torch.randperm(len(x), generator=generator).split(BATCH):
            yield x[rows], y[rows]


def _mean_nlpd(f: Tensor, y: Tensor, log_noise: Tensor) -> Tensor:
    squares = (f - y).square().mean()
    return (squares / log_noise.exp() + log_noise + math.log(2 * math.pi)) / 2
