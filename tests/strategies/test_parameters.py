"""What the strategies' kernels differentiate."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from sfr_cl import SFRPosterior
from sfr_cl.errors import ArgumentError
from sfr_cl.strategies import SFR, SFRConditioning, SFRPlugin
from sfr_cl.testing.strategies import check_strategy
from sfr_cl.testing.streams import (
    class_benchmark,
    silent,
    single_head,
)
from support.plugins import moved, plugin, task

HEAD = ["1.weight", "1.bias"]


@pytest.mark.parametrize("parameters", ["last_layer", HEAD, "all"], ids=str)
def test_the_penalty_is_that_of_a_posterior_of_these_parameters(parameters: Any) -> None:
    model, data = single_head().double(), task(*range(6))
    sfr = plugin(parameters=parameters, tau=1.0)
    sfr.end_task(model, data)
    posterior = SFRPosterior(
        model,
        "classification",
        inducing=sfr.tasks[0].z,
        parameters=parameters,
        output_kernel="per_output",
        linearize_at="network",
    ).fit(data.tensors)
    other = moved(model)
    assert sfr.penalty(other).item() == pytest.approx(posterior.penalty(other).item(), rel=1e-6)


def test_frozen_parameters_count_for_nothing() -> None:
    penalties = []
    for parameters in ("all", HEAD):
        model = single_head().double()
        model[0].requires_grad_(False)
        sfr = plugin(parameters=parameters)
        torch.manual_seed(0)
        sfr.end_task(model, task(0, 1))
        penalties.append(sfr.penalty(moved(model)).item())
    assert penalties[0] == penalties[1]


@pytest.mark.parametrize(
    "options", [{}, {"consolidated": True}, {"predict_with": "posterior"}], ids=str
)
def test_every_head_has_a_last_layer(options: dict[str, Any]) -> None:
    make = partial(SFR, num_inducing=12, parameters="last_layer", verbose=False, **options)
    check_strategy(make, ["task", "growing head"])


def test_names_for_conditioning() -> None:
    predicted = []
    for parameters in ("last_layer", HEAD):
        torch.manual_seed(0)
        strategy = SFRConditioning(
            model=single_head(),
            num_inducing=20,
            inducing="noise",
            parameters=parameters,
            evaluator=silent(),
        )
        for experience in class_benchmark().train_stream:
            strategy.train(experience)
        predicted.append(strategy.posterior.predict_f(task(0, 1).tensors[0]).mean)
    torch.testing.assert_close(*predicted)


def test_names_of_no_parameters_are_refused_at_once() -> None:
    model = single_head()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ArgumentError, match=r"names of the network's parameters.*\['2.weight'\]"):
        SFR(model=model, optimizer=optimizer, parameters=["2.weight"])
    with pytest.raises(ArgumentError, match="names of the network's parameters"):
        SFRConditioning(model=model, parameters=["2.weight"])
    with pytest.raises(ArgumentError, match="'all', 'last_layer' or a list"):
        SFRPlugin(parameters=3)
    with pytest.raises(ArgumentError, match="parameters"):
        SFRPlugin(parameters="first_layer")
