"""Strategies, plug-ins, metrics and checkpoints work on a device that is not the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from avalanche.training.supervised import Naive
from torch.utils.data import TensorDataset

from sfr_cl.strategies import SFR, SFRConditioning, SFRPlugin
from sfr_cl.testing import check_refusal
from sfr_cl.testing.strategies import (
    check_resumes,
    evaluated,
    keywords,
    seed_everything,
    trained,
)
from sfr_cl.testing.streams import STREAMS, Stream, single_head
from support.device import assert_same_on_device, device
from support.plugins import moved, plugin, task

Place = torch.device

sfr = partial(SFR, num_inducing=10, verbose=False)


def conditioning(*, train_first: bool = False, **options: Any) -> Any:
    if not train_first:
        del options["optimizer"]
    options = {"num_inducing": 12, "inducing": "noise", **options}
    return SFRConditioning(train_first=train_first, **options)


def naive(**options: Any) -> Any:
    return Naive(**options, plugins=[SFRPlugin(num_inducing=10, verbose=False)])


STRATEGIES: dict[str, Callable[..., Any]] = {
    "SFR": sfr,
    "SFR, posterior": partial(sfr, predict_with="posterior"),
    "SFR, consolidated": partial(sfr, consolidated=True, predict_with="posterior"),
    "Naive + SFRPlugin": naive,
    "SFRConditioning": conditioning,
    "SFRConditioning, trained first": partial(conditioning, train_first=True),
}
WITH_DENSITY = {"SFR, posterior", "SFRConditioning", "SFRConditioning, trained first"}

OPTIONS: dict[str, Callable[..., Any]] = {
    "identity": partial(sfr, covariance="identity"),
    "last layer": partial(sfr, parameters="last_layer", predict_with="posterior"),
    "names": partial(sfr, parameters=["1.weight"], predict_with="posterior"),
    "in turns": partial(sfr, points_per_step=10),
    "greedy": partial(sfr, inducing="greedy"),
    "smooth noise": partial(sfr, inducing="smooth_noise"),
    "conditioning, smooth noise": partial(conditioning, inducing="smooth_noise"),
    "conditioning, class balanced": partial(conditioning, inducing="class_balanced"),
    "conditioning, last layer": partial(conditioning, parameters="last_layer"),
}


SOME_STREAMS = {"SFR, posterior": tuple(STREAMS), "SFRConditioning": ("task", "regression")}
"""The kinds of streams a strategy learns; by default the one with task labels."""

PAIRS = [(name, stream) for name in STRATEGIES for stream in SOME_STREAMS.get(name, ("task",))]


def short(name: str) -> Stream:
    stream = STREAMS[name]()
    return replace(stream, experiences=stream.experiences[:2], epochs=1)


def run(make: Callable[..., Any], stream: str, *, density: bool = False) -> Callable[[Place], Any]:
    def scenario(on: Place) -> Any:
        seed_everything()
        learned = short(stream)
        strategy = make(**keywords(learned, density=density), device=on)
        return evaluated(trained(strategy, learned.experiences), learned)

    return scenario


@pytest.mark.parametrize(("name", "stream"), PAIRS)
def test_strategy(name: str, stream: str) -> None:
    assert_same_on_device(run(STRATEGIES[name], stream, density=name in WITH_DENSITY))


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str) -> None:
    assert_same_on_device(run(OPTIONS[name], "class"))


@pytest.mark.parametrize("name", ["SFR, posterior", "SFRConditioning"])
def test_checkpoint(name: str) -> None:
    stream = short("class")
    with device() as on:
        check_resumes(lambda: STRATEGIES[name](**keywords(stream), device=on), stream, stop=1)


@pytest.mark.parametrize("data_on", ["cpu", "meta"])
def test_training_loop(data_on: str) -> None:
    """The plug-in in a custom training loop."""

    def given(on: Place, *classes: int) -> TensorDataset:
        there = Place("cpu") if on.type == "cpu" else Place(data_on)
        return TensorDataset(*(each.to(there) for each in task(*classes).tensors))

    def scenario(on: Place) -> Any:
        seed_everything()
        model = single_head().to(on)
        it = plugin(predict_with="posterior")
        it.end_task(model, given(on, 0, 1))
        it.end_task(model, given(on, 2, 3))
        it.absorb(model, given(on, 1), task=0)
        model = moved(model)
        penalty = it.penalty(model)
        penalty.backward()
        x = given(on, 0, 3).tensors[0].to(on)
        found = it.predictive(model).predict(x)
        again = copy.deepcopy(it).penalty(model)
        return [penalty, again, [p.grad for p in model.parameters()], *found]

    assert_same_on_device(scenario)


def test_a_device_without_float64_is_refused_before_training() -> None:
    stream = short("class")
    with device(lacks=(torch.float64,)) as on:
        for make in (sfr, naive, conditioning):
            model = keywords(stream)["model"]
            before = copy.deepcopy(model.state_dict())
            check_refusal(
                lambda make=make: make(**keywords(stream), device=on).train(stream.experiences[0]),
                model.state_dict,
                message="expected a device with float64.*use the CPU",
            )
            assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
