"""Real data sets, and small networks trained on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sklearn.datasets
import torch
from torch import Tensor, nn
from torch.nn import functional as F

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """Data split in a part to train on, a part that arrives later, and a test part."""

    likelihood: str
    outputs: int
    first: Pair
    later: Pair
    test: Pair

    @property
    def everything(self) -> Pair:
        x, y = zip(self.first, self.later, strict=True)
        return torch.cat(x), torch.cat(y)

    def network(self, seed: int, steps: int = 400) -> nn.Module:
        """An MLP trained on the first part alone."""
        torch.manual_seed(seed)
        x, y = self.first
        network = nn.Sequential(
            nn.Linear(x.shape[1], 50),
            nn.Tanh(),
            nn.Linear(50, 50),
            nn.Tanh(),
            nn.Linear(50, self.outputs),
        )
        loss = {
            "classification": F.cross_entropy,
            "binary": lambda f, y: F.binary_cross_entropy_with_logits(f[:, 0], y.float()),
            "regression": lambda f, y: F.mse_loss(f[:, 0], y),
        }[self.likelihood]
        optimizer = torch.optim.Adam(network.parameters(), 3e-3, weight_decay=1e-4)
        for _ in range(steps):
            index = torch.randint(len(x), (64,))
            optimizer.zero_grad()
            loss(network(x[index]), y[index]).backward()
            optimizer.step()
        return network


def load(name: str, root: Path | None = None) -> tuple[Tensor, Tensor]:
    """Features and target of a set that comes with scikit-learn, or of a CSV file below root."""
    if root is not None:
        table = torch.from_numpy(np.loadtxt(root / name, delimiter=",")).float()
        return table[:, :-1], table[:, -1]
    x, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
    return torch.from_numpy(x).float(), torch.from_numpy(y)


def split(x: Tensor, y: Tensor, likelihood: str, seed: int, *, new_classes: int = 0) -> Task:
    """70 % to learn from, half of it later (or all of some classes later), the rest to test on."""
    torch.manual_seed(seed)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    cut = int(0.7 * len(x))
    smallest = 0.05 * (x.amax(0) - x.amin(0)) + 1e-6  # features that are nearly always the same
    x = (x - x[:cut].mean(0)) / x[:cut].std(0).maximum(smallest)
    if likelihood == "regression":
        y = ((y - y[:cut].mean()) / y[:cut].std()).float()
    outputs = int(y.max()) + 1 if likelihood == "classification" else 1
    late = torch.arange(cut) >= cut // 2
    if new_classes:
        late = y[:cut] >= outputs - new_classes
    train_x, train_y = x[:cut], y[:cut]
    return Task(
        likelihood,
        outputs,
        (train_x[~late], train_y[~late]),
        (train_x[late], train_y[late]),
        (x[cut:], y[cut:]),
    )


def accuracy(posterior, pair: Pair) -> float:
    """Share of right answers; for regression one less the squared error."""
    x, y = pair
    predictive = posterior.predict(x)
    if posterior.likelihood.name == "regression":
        return 1 - float((predictive.mean[:, 0] - y).square().mean())
    if posterior.likelihood.name == "binary":
        return float(((predictive.probs[:, 0] > 0.5) == y.bool()).double().mean())
    return float((predictive.probs.argmax(1) == y).double().mean())
