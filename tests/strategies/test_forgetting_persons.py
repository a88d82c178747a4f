"""A person forgotten by a strategy that conditions: no row in its file, the posterior of others."""

from pathlib import Path
from typing import Any

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset

from sfr_cl.strategies import SFRConditioning
from sfr_cl.testing.streams import Labelled, silent
from support.users import first_rows, forget_everybody, network, people


def first(count: int) -> Any:
    """Makes a selector of the user's."""
    del count
    return first_rows


@pytest.mark.parametrize("inducing", ["random", "class_balanced", "greedy", first], ids=str)
def test_a_hundred_people_leave_a_strategy(
    inducing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = people()
    parts = [slice(0, 200), slice(200, None)]  # inducing inputs are of the first experience
    train = [as_classification_dataset(Labelled(x[part], y[part])) for part in parts]
    torch.manual_seed(0)
    strategy = SFRConditioning(
        model=network(),
        num_inducing=40,
        inducing=inducing,
        prior_precision=1.0,
        evaluator=silent(),
        verbose=False,
    )
    for experience in benchmark_from_datasets(train=train, test=train).train_stream:
        strategy.train(experience)
    posterior = strategy.posterior
    assert posterior.num_data == 360
    forget_everybody(
        posterior, lambda x, y: posterior.forget((x, y)), tmp_path / "file", monkeypatch
    )
    assert strategy.posterior.num_data == 60
