"""What every strategy must do with every kind of stream: train, evaluate, resume."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.training.plugins import ReplayPlugin
from avalanche.training.supervised import Naive
from torch import nn

from sfr_cl.strategies import (
    SFR,
    SFRConditioning,
    SFRPlugin,
    brier_metrics,
    ece_metrics,
    maybe_load_checkpoint,
    nlpd_metrics,
    save_checkpoint,
)
from support.avalanche_benchmarks import (
    Growing,
    MultiHead,
    class_benchmark,
    domain_benchmark,
    online,
    regression_benchmark,
    silent,
    single_head,
)

STREAMS: dict[str, Callable[[], tuple[Any, list[Any]]]] = {
    "single head": lambda: whole(class_benchmark()),
    "multi-head": lambda: whole(class_benchmark(task_labels=True)),
    "growing head": lambda: whole(class_benchmark()),
    "online": lambda: in_parts(class_benchmark(), ends=True),
    "task-free": lambda: in_parts(class_benchmark(), ends=False),
    "domain": lambda: whole(domain_benchmark()),
    "regression": lambda: whole(regression_benchmark()),
}


def whole(benchmark: Any) -> tuple[Any, list[Any]]:
    return benchmark, list(benchmark.train_stream)


def in_parts(benchmark: Any, *, ends: bool) -> tuple[Any, list[Any]]:
    return benchmark, online(benchmark, 20, ends=ends)


def model_for(stream: str) -> nn.Module:
    if stream == "multi-head":
        return MultiHead()
    if stream == "growing head":
        return Growing()
    return single_head({"regression": 1, "domain": 2}.get(stream, 6))


def evaluator(stream: str, *, density: bool = False) -> Any:
    """Metrics of a stream; of a regression, NLPD only where there is a predictive density."""
    if stream == "regression":
        densities = nlpd_metrics(experience=True, stream=True) if density else []
        return silent(loss_metrics(experience=True, stream=True), densities)
    return silent(
        accuracy_metrics(epoch=True, experience=True, stream=True),
        nlpd_metrics(experience=True, stream=True),
        ece_metrics(stream=True),
        brier_metrics(stream=True),
    )


def training(model: nn.Module, stream: str) -> dict[str, Any]:
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), 1e-2),
        "criterion": nn.MSELoss() if stream == "regression" else nn.CrossEntropyLoss(),
        "train_mb_size": 8,
        "train_epochs": 1 if stream in ("online", "task-free") else 4,
        "eval_mb_size": 32,
        "evaluator": evaluator(stream),
    }


def sfr(stream: str, **options: Any) -> Any:
    arguments = training(model_for(stream), stream)
    if options.get("predict_with") == "posterior":
        arguments["evaluator"] = evaluator(stream, density=True)
    return SFR(num_inducing=10, verbose=False, **arguments, **options)


def conditioning(stream: str, *, train_first: bool = False) -> Any:
    arguments = training(model_for(stream), stream)
    if not train_first:
        del arguments["optimizer"]
    arguments["evaluator"] = evaluator(stream, density=True)
    return SFRConditioning(num_inducing=12, inducing="noise", train_first=train_first, **arguments)


def naive(stream: str, *others: Any) -> Any:
    plugin = SFRPlugin(num_inducing=10, verbose=False)
    return Naive(**training(model_for(stream), stream), plugins=[plugin, *others])


STRATEGIES: dict[str, Callable[[str], Any]] = {
    "SFR": sfr,
    "SFR, posterior": lambda stream: sfr(stream, predict_with="posterior"),
    "SFR, consolidated": lambda stream: sfr(stream, consolidated=True),
    "SFRConditioning": conditioning,
    "SFRConditioning, trained first": lambda stream: conditioning(stream, train_first=True),
    "Naive + SFRPlugin": naive,
    "Naive + SFRPlugin + replay": lambda stream: naive(stream, ReplayPlugin(mem_size=12)),
}


def seed_everything() -> None:
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002 # what Avalanche's checkpoints save
    random.seed(3)


def trained(strategy: Any, experiences: list[Any]) -> Any:
    for experience in experiences:
        strategy.train(experience)
    return strategy


def metrics_of(strategy: Any, benchmark: Any) -> dict[str, float]:
    found = strategy.eval(benchmark.test_stream)
    return {name: value for name, value in found.items() if "eval_phase" in name}


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_trains_evaluates_and_resumes(name: str, stream: str, tmp_path: Path) -> None:
    benchmark, experiences = STREAMS[stream]()
    seed_everything()
    never_stopped = trained(STRATEGIES[name](stream), experiences)
    expected = metrics_of(never_stopped, benchmark)
    assert expected
    assert all(math.isfinite(value) for value in expected.values())

    half = len(experiences) // 2
    resumed = stopped_and_resumed(lambda: STRATEGIES[name](stream), experiences, half, tmp_path)
    assert metrics_of(resumed, benchmark) == expected


def stopped_and_resumed(
    make: Callable[[], Any], experiences: list[Any], stop: int, folder: Path
) -> Any:
    seed_everything()
    save_checkpoint(trained(make(), experiences[:stop]), folder / "run.pkl")
    seed_everything()
    torch.manual_seed(99)  # the state of the generators comes from the file
    resumed, start = maybe_load_checkpoint(make(), folder / "run.pkl")
    assert start == stop
    return trained(resumed, experiences[start:])


@pytest.mark.parametrize("ends", [True, False])
def test_parts_that_wait_are_resumed(ends: bool, tmp_path: Path) -> None:
    """Fewer samples than inducing inputs are no task yet."""
    benchmark = class_benchmark()
    parts = online(benchmark, 6, ends=ends)[:4]

    def make() -> Any:
        return sfr("online", predict_with="posterior")

    seed_everything()
    expected = metrics_of(trained(make(), parts), benchmark)
    resumed = stopped_and_resumed(make, parts, 3, tmp_path)
    assert metrics_of(resumed, benchmark) == expected


@pytest.mark.parametrize("name", ["SFR", "SFR, posterior", "SFRConditioning"])
def test_classes_of_earlier_tasks_are_not_forgotten(name: str) -> None:
    benchmark, experiences = STREAMS["single head"]()
    seed_everything()
    strategy = trained(STRATEGIES[name]("single head"), experiences)
    found = metrics_of(strategy, benchmark)
    accuracies = [value for key, value in found.items() if key.startswith("Top1_Acc_Exp")]
    assert len(accuracies) == 3
    assert min(accuracies) > 0.6


def test_evaluation_changes_nothing() -> None:
    benchmark, experiences = STREAMS["single head"]()
    seed_everything()
    strategy = trained(sfr("single head", predict_with="posterior"), experiences[:2])
    weights = copy.deepcopy(strategy.model.state_dict())
    generator = torch.get_rng_state()
    first = metrics_of(strategy, benchmark)
    drawn = torch.get_rng_state()  # Avalanche's own loaders draw
    assert metrics_of(strategy, benchmark) == first
    assert all(torch.equal(weights[key], v) for key, v in strategy.model.state_dict().items())

    torch.set_rng_state(generator)
    strategy.sfr.predict_with = "network"
    assert metrics_of(strategy, benchmark) != first
    assert torch.equal(torch.get_rng_state(), drawn)
