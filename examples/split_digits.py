"""Split-Digits for the examples: handwritten digits, five tasks of two classes each.

scikit-learn brings the data; it is installed along with Avalanche.
"""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import sfr_cl.strategies  # noqa: F401  # before Avalanche

# isort: split

from avalanche.benchmarks import nc_benchmark


def split_digits(seed: int = 0) -> Any:
    """A benchmark of five tasks; a quarter of the data is for testing."""
    x, y = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    x = x.float().reshape(-1, 1, 8, 8) / 16
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    test, train = order[:450], order[450:]

    def labelled(rows: torch.Tensor) -> TensorDataset:
        dataset = TensorDataset(x[rows], y[rows])
        dataset.targets = y[rows].tolist()  # where Avalanche looks for the classes
        return dataset

    classes = list(range(10))
    return nc_benchmark(
        labelled(train), labelled(test), 5, task_labels=False, fixed_class_order=classes
    )


def mlp() -> nn.Module:
    """A network with one head for all classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))


def learn(strategy: Any, benchmark: Any) -> dict[str, float]:
    """Train on all tasks, one after the other; metrics over the whole test stream."""
    for experience in benchmark.train_stream:
        strategy.train(experience)
    found = strategy.eval(benchmark.test_stream)
    return {name.split("/")[0]: value for name, value in found.items() if "_Stream/eval" in name}
