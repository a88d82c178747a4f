"""Late data of known tasks, absorbed without training: accuracy and NLPD before and after.

Split-Digits in five tasks; each is trained on a quarter of its data, the rest comes back at the
end. `pytest tests/strategies/test_absorbing.py -rP` prints the numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.evaluation.metrics import accuracy_metrics
from torch import nn

from sfr_cl.strategies import SFR, nlpd_metrics
from sfr_cl.testing.streams import Labelled, silent
from support.real_data import load

SEEDS = (10, 11, 12)


class Measured(NamedTuple):
    accuracy: float
    nlpd: float


def split_digits(seed: int) -> tuple[Any, Any]:
    """A benchmark of early training data and test data, and one of the data that comes late."""
    x, y = load("digits")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    x, y = x[order].reshape(-1, 1, 8, 8) / 16, y[order]
    early, late, test = slice(0, 300), slice(300, 1300), slice(1300, None)

    def benchmark(train: slice) -> Any:
        return nc_benchmark(
            Labelled(x[train], y[train]),
            Labelled(x[test], y[test]),
            5,
            task_labels=False,
            fixed_class_order=list(range(10)),
        )

    return benchmark(early), benchmark(late)


def strategy_of(seed: int, predict_with: str) -> SFR:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    return SFR(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), 1e-3),
        num_inducing=20,
        tau=5.0,
        train_epochs=20,
        train_mb_size=16,
        predict_with=predict_with,
        evaluator=silent(accuracy_metrics(stream=True), nlpd_metrics(stream=True)),
        verbose=False,
    )


def measured(strategy: SFR, stream: Any) -> Measured:
    found = strategy.eval(stream)
    values = {name.split("/")[0]: value for name, value in found.items()}
    return Measured(values["Top1_Acc_Stream"], values["NLPD_Stream"])


@pytest.fixture(scope="module")
def changes() -> list[tuple[Measured, Measured]]:
    """The posterior's predictions before and after, for every seed."""
    found = []
    for seed in SEEDS:
        early, late = split_digits(seed)
        strategy = strategy_of(seed, "posterior")
        for experience in early.train_stream:
            strategy.train(experience)
        before = measured(strategy, early.test_stream)
        for experience in late.train_stream:
            strategy.absorb(experience)
        found.append((before, measured(strategy, early.test_stream)))
        print(f"seed {seed}: before {before}, after {found[-1][1]}")
    return found


def test_absorbing_raises_accuracy(changes: list[tuple[Measured, Measured]]) -> None:
    assert all(after.accuracy > before.accuracy for before, after in changes)


def test_absorbing_lowers_nlpd(changes: list[tuple[Measured, Measured]]) -> None:
    assert all(after.nlpd < before.nlpd for before, after in changes)
