"""The network: a small CNN, trained once for all methods of a data set and seed."""

import torch
from torch import Tensor, nn

from ..harness.networks import cnn, seeded
from ..harness.run import ShowShare

NAME = "CNN of two convolutions (16 and 32 channels, 5 x 5, stride 2) and two dense layers (40, 10)"
DENSE_LAYERS = ("5.weight", "5.bias", "7.weight", "7.bias")
"""What the kernel of the dense layers differentiates: all that follows the convolutions."""
EPOCHS = 5
BATCH = 128
PEAK_RATE = 3e-3
WEIGHT_DECAY = 1e-4
"""lambda of the mean loss."""


def new_network(seed: int) -> nn.Sequential:
    """For images of 28 x 28 and ten classes; 34k parameters."""
    with seeded(seed):
        return cnn()


def train(x: Tensor, y: Tensor, seed: int, show: ShowShare = lambda _: None) -> nn.Sequential:
    """A new network after `EPOCHS` of Adam, its rate going up and down once."""
    network = new_network(seed)
    weights = list(network.parameters())
    optimizer = torch.optim.Adam(weights, fused=True)
    total = EPOCHS * -(-len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=total)
    generator = torch.Generator().manual_seed(seed)
    done = 0
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x), generator=generator).split(BATCH):
            optimizer.zero_grad()
            square_norm = torch.stack([weight.square().sum() for weight in weights]).sum()
            loss = nn.functional.cross_entropy(network(x[rows]), y[rows])
            (loss + WEIGHT_DECAY / 2 * square_norm).backward()
            optimizer.step()
            schedule.step()
            done += 1
            show(done / total)
    return network.eval().requires_grad_(False)
