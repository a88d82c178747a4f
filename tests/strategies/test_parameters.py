"""What the strategies' kernels differentiate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from sfr_cl import SFRPosterior
from sfr_cl.errors import ArgumentError
from sfr_cl.kernel import TangentKernel
from sfr_cl.strategies import SFR, SFRConditioning, SFRPlugin
from sfr_cl.strategies.models import Head, TaskView
from sfr_cl.testing.strategies import check_strategy
from sfr_cl.testing.streams import (
    CLASSES,
    HIDDEN,
    Growing,
    MultiHead,
    class_benchmark,
    silent,
    single_head,
)
from support.oracles import jacobian_by_rows
from support.plugins import moved, plugin, task

# isort: split
# Avalanche comes after the package that makes torchvision, which it imports, work.
from avalanche.models import (
    IncrementalClassifier,
    MTSlimResNet18,
    SimpleCNN,
    SimpleMLP,
    SlimResNet18,
    as_multitask,
)
from avalanche.models.dynamic_modules import avalanche_model_adaptation
from avalanche.models.simple_mlp import MTSimpleMLP

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


def adapted(model: nn.Module, experiences: int = 2, *, task_labels: bool = False) -> nn.Module:
    """A model that has met the classes of some experiences."""
    for experience in class_benchmark(task_labels=task_labels).train_stream[:experiences]:
        avalanche_model_adaptation(model.train(), experience)
    return model


def partly_used() -> nn.Module:
    """A growing head, most of whose units wait for classes to come."""
    model = Growing()
    model.head = IncrementalClassifier(HIDDEN, CLASSES)
    return adapted(model, 1)


MODELS: dict[str, tuple[Callable[[], nn.Module], int | None, str]] = {
    "SimpleMLP": (lambda: SimpleMLP(4, 4, 6), None, "classifier"),
    "SimpleCNN": (lambda: SimpleCNN(4), None, "classifier.0"),
    "SlimResNet18": (lambda: SlimResNet18(4, nf=4), None, "linear"),
    "IncrementalClassifier": (lambda: adapted(Growing()), None, "head.classifier"),
    "IncrementalClassifier, partly used": (partly_used, None, "head.classifier"),
    "MultiHeadClassifier": (
        lambda: adapted(MultiHead(), task_labels=True),
        1,
        "head.classifiers.1.classifier",
    ),
    "MTSimpleMLP": (
        lambda: adapted(MTSimpleMLP(4, 6), task_labels=True),
        0,
        "classifier.classifiers.0.classifier",
    ),
    "MTSlimResNet18": (
        lambda: adapted(MTSlimResNet18(2, nf=4), task_labels=True),
        1,
        "linear.classifiers.1.classifier",
    ),
    "as_multitask": (
        lambda: adapted(as_multitask(SimpleMLP(2, 4, 6), "classifier"), task_labels=True),
        1,
        "classifier.classifiers.1.classifier",
    ),
    "as_multitask, head in a Sequential": (
        lambda: adapted(as_multitask(SimpleCNN(2), "classifier"), task_labels=True),
        1,
        "classifier.classifiers.1.classifier",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_last_layer_of_avalanches_models(name: str) -> None:
    build, label, layer = MODELS[name]
    torch.manual_seed(0)
    model = build().double()
    large = any(isinstance(module, nn.Conv2d) for module in model.modules())
    x = torch.randn(5, *((3, 32, 32) if large else (1, 2, 2)), dtype=torch.float64)
    head = Head.of(model, label, x, "last_layer")
    network = head.narrowed()
    assert network.names == [f"model.{layer}.weight", f"model.{layer}.bias"]
    j = jacobian_by_rows(TaskView(model, label, head.units), x, network.names)
    kernel = TangentKernel(network, j.shape[1], False, x)
    torch.testing.assert_close(kernel.gram(x), torch.einsum("acp,bcp->cab", j, j))


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
