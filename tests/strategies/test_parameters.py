"""What the strategies' kernels differentiate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sfr_cl import SFRPosterior
from sfr_cl.errors import ArgumentError
from sfr_cl.kernel import TangentKernel
from sfr_cl.kernel.frozen import Frozen
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
from avalanche.models.cosine_layer import CosineIncrementalClassifier, SplitCosineLinear
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


def cosine() -> nn.Module:
    """A head of cosines that has met some classes; units of the others are a constant."""
    model = Growing()
    model.head = CosineIncrementalClassifier(HIDDEN)
    return adapted(model, 1)


def split_cosine() -> nn.Module:
    """Cosines with the old classes and with the new ones, times one number."""
    model = single_head()
    model[1] = SplitCosineLinear(HIDDEN, 2, CLASSES - 2)
    return model


def plain(layer: str) -> list[str]:
    return [f"{layer}.weight", f"{layer}.bias"]


MODELS: dict[str, tuple[Callable[[], nn.Module], int | None, list[str]]] = {
    "SimpleMLP": (lambda: SimpleMLP(4, 4, 6), None, plain("classifier")),
    "SimpleCNN": (lambda: SimpleCNN(4), None, plain("classifier.0")),
    "SlimResNet18": (lambda: SlimResNet18(4, nf=4), None, plain("linear")),
    "IncrementalClassifier": (lambda: adapted(Growing()), None, plain("head.classifier")),
    "IncrementalClassifier, partly used": (partly_used, None, plain("head.classifier")),
    "MultiHeadClassifier": (
        lambda: adapted(MultiHead(), task_labels=True),
        1,
        plain("head.classifiers.1.classifier"),
    ),
    "MTSimpleMLP": (
        lambda: adapted(MTSimpleMLP(4, 6), task_labels=True),
        0,
        plain("classifier.classifiers.0.classifier"),
    ),
    "MTSlimResNet18": (
        lambda: adapted(MTSlimResNet18(2, nf=4), task_labels=True),
        1,
        plain("linear.classifiers.1.classifier"),
    ),
    "as_multitask": (
        lambda: adapted(as_multitask(SimpleMLP(2, 4, 6), "classifier"), task_labels=True),
        1,
        plain("classifier.classifiers.1.classifier"),
    ),
    "as_multitask, head in a Sequential": (
        lambda: adapted(as_multitask(SimpleCNN(2), "classifier"), task_labels=True),
        1,
        plain("classifier.classifiers.1.classifier"),
    ),
    "CosineIncrementalClassifier": (cosine, None, ["head.fc.sigma", "head.fc.weight"]),
    "SplitCosineLinear": (split_cosine, None, ["1.fc1.weight", "1.fc2.weight"]),
}


@pytest.fixture
def double() -> Iterator[None]:
    """What a model makes on the way has the precision of its weights."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("double")
def test_the_last_layer_of_avalanches_models(name: str) -> None:
    build, label, names = MODELS[name]
    torch.manual_seed(0)
    model = build().double()
    large = any(isinstance(module, nn.Conv2d) for module in model.modules())
    x = torch.randn(5, *((3, 32, 32) if large else (1, 2, 2)), dtype=torch.float64)
    head = Head.of(model, label, x, "last_layer")
    network = head.narrowed()
    assert sorted(network.names) == sorted(f"model.{name}" for name in names)
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


def test_conditioning_differentiates_by_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[list[str]] = []
    original = Frozen.tangent

    def recorded(network: Frozen, *args: Any) -> Tensor:
        names.append(network.names)
        return original(network, *args)

    monkeypatch.setattr(Frozen, "tangent", recorded)
    strategy = SFRConditioning(
        model=single_head(), num_inducing=20, parameters=HEAD, inducing="noise", evaluator=silent()
    )
    strategy.train(class_benchmark().train_stream[0])
    assert names
    assert all(used == [f"model.{name}" for name in HEAD] for used in names)


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
