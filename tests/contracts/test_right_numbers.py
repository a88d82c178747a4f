"""On every kind of stream the numbers are right: the loss term, its zero, the final posterior.

Everything is in float64, so that what is compared is the formula and not its rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from avalanche.training.supervised import EWC, Naive, Replay
from torch import nn

from sfr_cl import class_balanced, random
from sfr_cl.strategies import SFR, SFRPlugin
from sfr_cl.testing.streams import STREAMS, Stream, silent
from sfr_cl.testing.strategies import seed_everything
from support.dense_penalty import Chosen, DenseHistory, DensePenalty, Scales

TAU = 0.7


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Networks, data and losses are in float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# The loss term -----------------------------------------------------------------------------------


def plugged(make: Callable[..., Any], options: dict[str, Any], **others: Any) -> Any:
    """An Avalanche strategy with our plug-in."""
    return make(plugins=[SFRPlugin(**options)], **others)


def sfr(options: dict[str, Any], **others: Any) -> Any:
    return SFR(**options, **others)


MAKERS: dict[str, Callable[..., Any]] = {
    "SFR": sfr,
    "Naive": partial(plugged, Naive),
    "Replay": partial(plugged, partial(Replay, mem_size=12)),
    "EWC": partial(plugged, partial(EWC, ewc_lambda=1.0)),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "SFR": {},
    "identity": {"covariance": "identity"},
    "posterior": {"predict_with": "posterior"},
    "last layer": {"parameters": "last_layer"},
    "consolidated": {"consolidated": True},
}
CASES = [("SFR", option) for option in OPTIONS] + [
    (name, "SFR") for name in MAKERS if name != "SFR"
]


def strategy_of(name: str, stream: Stream, options: dict[str, Any], epochs: int) -> Any:
    model = stream.model()
    return MAKERS[name](
        {"num_inducing": 8, "tau": TAU, "verbose": False, **options},
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        criterion=stream.criterion,
        train_mb_size=8,
        train_epochs=epochs,
        evaluator=silent(),
    )


def plugin_of(strategy: Any) -> SFRPlugin:
    (found,) = (plugin for plugin in strategy.plugins if isinstance(plugin, SFRPlugin))
    return found


def is_first(experience: Any) -> bool:
    """Whether a task begins here, as far as the stream says."""
    return bool(getattr(experience, "is_first_subexp", True))


def last_layer(model: nn.Module) -> list[str]:
    *_, layer = (name for name, part in model.named_modules() if isinstance(part, nn.Linear))
    return [f"{layer}.weight", f"{layer}.bias"]


WHOLE = [name for name in STREAMS if "online" not in name and name != "blurred"]
"""Streams whose experiences are tasks."""
BOUNDED = [name for name in STREAMS if STREAMS[name]().boundaries]


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize(("name", "option"), CASES)
def test_the_loss_term_is_that_of_the_formula(name: str, option: str, kind: str) -> None:
    stream, options = STREAMS[kind](), OPTIONS[option]
    seed_everything()
    chosen = Chosen(random if stream.is_regression else class_balanced)
    strategy = strategy_of(name, stream, {**options, "inducing": chosen}, epochs=1)
    history = DenseHistory(
        parameters="all" if option != "last layer" else last_layer(strategy.model),
        identity=option == "identity",
        consolidated=option == "consolidated",
    )
    scales, plugin = Scales(history), plugin_of(strategy)
    scales.around(strategy, plugin)
    for experience in stream.experiences:
        before = len(chosen.inputs)
        strategy.train(experience)
        kept = [(task.label, task.z) for task in plugin.tasks]
        history.end_task(strategy.model, experience.dataset, chosen.inputs[before:], kept)
    added = [step.added for step in scales.steps]
    expected = [TAU * step.expected for step in scales.steps]
    assert max(added) > 1e-3
    assert added == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("kind", BOUNDED)
@pytest.mark.parametrize("option", OPTIONS)
def test_a_task_begins_where_the_last_one_ended(option: str, kind: str) -> None:
    """Nothing has moved since: the term of the task just learned is zero, and with it, at the
    second task, the penalty."""
    stream = STREAMS[kind]()
    seed_everything()
    strategy = strategy_of("SFR", stream, OPTIONS[option], epochs=1)
    scales, plugin = Scales(DenseHistory()), plugin_of(strategy)
    scales.around(strategy, plugin)
    terms: list[float] = []

    def weigh_last(_: Any) -> None:
        task = plugin.tasks[-1] if plugin.tasks else None
        terms.append(0.0 if task is None else float(task.penalty(task.view(strategy.model))))

    scales.started = weigh_last
    for experience in stream.experiences:
        strategy.train(experience)
    first = [i for i, experience in enumerate(stream.experiences) if is_first(experience)]
    by_experience: dict[int, float] = {}
    for step in scales.steps:
        by_experience.setdefault(step.experience, step.added)
    assert len(first) >= 3
    assert by_experience[first[1]] == pytest.approx(0.0, abs=1e-9)
    assert max(step.added for step in scales.steps) > 1e-3
    if option != "consolidated":  # there all tasks are one
        assert [terms[i] for i in first] == pytest.approx([0.0] * len(first), abs=1e-9)
