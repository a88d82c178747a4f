"""A data set, a seed, and the network trained for them."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .data import Pair, Split


@dataclass(frozen=True, eq=False)
class Problem:
    """What every method starts from."""

    data: str
    seed: int
    split: Split
    network: nn.Sequential
    weight_decay: float
    """lambda of the mean loss the network was trained on."""

    @property
    def num_data(self) -> int:
        """N, of the training part."""
        return len(self.split.train[1])

    @property
    def prior_precision(self) -> float:
        """delta = N lambda: the same objective as a sum over data."""
        return self.num_data * self.weight_decay

    def subset(self, m_percent: int) -> Pair:
        """M training points drawn at random; a larger M keeps those of a smaller one."""
        count = max(1, self.num_data * m_percent // 100)
        order = torch.randperm(self.num_data, generator=torch.Generator().manual_seed(self.seed))
        x, y = self.split.train
        return x[order[:count]], y[order[:count]]

    @property
    def held_out(self) -> Tensor:
        """Inputs of the validation part, then those of the test."""
        return torch.cat([self.split.valid[0], self.split.test[0]])
