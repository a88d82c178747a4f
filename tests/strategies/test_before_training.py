"""What no task could be remembered of is refused before the first step; the rest is trained."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from avalanche.models import DynamicModule, MTSimpleSequenceClassifier
from avalanche.training.losses import ICaRLLossPlugin, MaskedCrossEntropy
from avalanche.training.supervised import Naive
from torch import Tensor, nn

from sfr_cl.errors import SFRError
from sfr_cl.kernel.plan import Plan
from sfr_cl.strategies import SFR, SFRConditioning, SFRPlugin
from sfr_cl.testing import check_refusal
from sfr_cl.testing.streams import (
    CLASSES,
    HIDDEN,
    Growing,
    Labelled,
    MultiHead,
    body,
    class_benchmark,
    silent,
    single_head,
)
from support.plugins import moved, plugin, task

Build = Callable[[], nn.Module]


class Through(nn.Module):
    """A network with something done to its outputs."""

    def __init__(self, change: Callable[[Tensor], Any], network: nn.Module | None = None) -> None:
        super().__init__()
        self.network, self.change = network or single_head(), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.network(x))


class First(nn.Module):
    """A criterion for a model that returns a tuple."""

    def forward(self, outputs: Any, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs[0], y)


def by_batch() -> nn.Module:
    torch.manual_seed(0)
    normalise = nn.BatchNorm1d(HIDDEN, track_running_stats=False)
    return nn.Sequential(body(), normalise, nn.Linear(HIDDEN, CLASSES))


REFUSED: dict[str, tuple[Build, Callable[[], nn.Module], str]] = {
    "a tuple": (lambda: Through(lambda f: (f, 0)), First, r"floats \[B, C\], got tuple"),
    "a tuple, criterion of none": (
        lambda: Through(lambda f: (f, 0)),
        nn.CrossEntropyLoss,
        "got tuple",
    ),
    "images": (lambda: Through(lambda f: f[:, :, None]), nn.CrossEntropyLoss, "floats"),
    "of the whole batch": (by_batch, nn.CrossEntropyLoss, "every input by itself"),
    "random in eval mode": (
        lambda: Through(lambda f: f + 1e-3 * torch.randn_like(f)),
        nn.CrossEntropyLoss,
        "the same outputs for the same inputs",
    ),
    "detached": (
        lambda: Through(lambda f: f.detach() + 0 * f.sum().detach()),
        nn.CrossEntropyLoss,
        "outputs depend on its parameters",
    ),
}


def strategies(model: nn.Module, criterion: nn.Module) -> dict[str, Callable[[], Any]]:
    def keywords() -> dict[str, Any]:
        return {
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), 0.05),
            "criterion": criterion,
            "train_mb_size": 8,
            "evaluator": silent(),
        }

    said = {"likelihood": "classification", "verbose": False, "num_inducing": 10}
    return {
        "strategy": lambda: SFR(**keywords(), **said),
        "posterior": lambda: SFR(**keywords(), **said, predict_with="posterior"),
        "identity": lambda: SFR(**keywords(), **said, covariance="identity"),
        "plug-in": lambda: Naive(**keywords(), plugins=[SFRPlugin(**said)]),
        "conditioning": lambda: SFRConditioning(
            **keywords(), **said, inducing="noise", train_first=True
        ),
    }


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_a_weight_moves(name: str) -> None:
    build, criterion, message = REFUSED[name]
    model = build()
    experience = class_benchmark().train_stream[0]
    for make in strategies(model, criterion()).values():
        strategy = make()
        check_refusal(
            lambda strategy=strategy: strategy.train(experience), model.state_dict, message=message
        )


@pytest.mark.parametrize("criterion", [MaskedCrossEntropy, ICaRLLossPlugin])
def test_a_criterion_of_no_known_likelihood(criterion: Callable[[], Any]) -> None:
    model = single_head()
    keywords = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), 0.05),
        "evaluator": silent(),
    }
    experience = class_benchmark().train_stream[0]

    def by_plugin() -> None:
        Naive(**keywords, criterion=criterion(), plugins=[SFRPlugin()]).train(experience)

    for call in (by_plugin, lambda: SFR(**keywords, criterion=criterion())):
        check_refusal(call, model.state_dict, message=f"got {criterion.__name__}: say likelihood=")


@pytest.mark.parametrize("inducing", ["class_balanced", "greedy"])
def test_a_derivative_of_zero_where_training_starts_is_no_reason(inducing: str) -> None:
    """A head of zeros gives the layers below none."""
    model = single_head()
    nn.init.zeros_(model[1].weight)
    strategy = SFR(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.05),
        num_inducing=10,
        inducing=inducing,
        parameters=["0.1.weight"],
        train_mb_size=8,
        evaluator=silent(),
        verbose=False,
    )
    strategy.train(class_benchmark().train_stream[0])
    assert len(strategy.sfr.tasks) == 1


class Changing(DynamicModule):  # type: ignore[misc]
    """A head that returns a tuple once classes have come it does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.late = single_head(), nn.ParameterList()

    def adaptation(self, experience: Any) -> None:
        if 2 in experience.classes_in_this_experience and not self.late:
            self.late.append(nn.Parameter(torch.zeros(1)))

    def forward(self, x: Tensor) -> Any:
        found = self.network(x)
        return (found, self.late[0]) if self.late else found


def test_a_model_that_changes_later_is_refused_then() -> None:
    model = Changing()
    strategy = SFR(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.05),
        num_inducing=10,
        train_mb_size=8,
        evaluator=silent(),
        verbose=False,
    )
    stream = class_benchmark().train_stream
    strategy.train(stream[0])
    tasks = strategy.sfr.tasks
    before = copy.deepcopy(dict(model.network.named_parameters()))
    with pytest.raises(SFRError, match="got tuple"):
        strategy.train(stream[1])
    assert strategy.sfr.tasks == tasks
    assert all(torch.equal(before[k], v) for k, v in model.network.named_parameters())


@pytest.mark.parametrize("build", [single_head, Growing, MultiHead], ids=lambda b: b.__name__)
def test_the_first_experience_is_trained_as_without(build: Build) -> None:
    """Trying what a task keeps draws from no generator, and changes nothing."""
    experience = class_benchmark(task_labels=build is MultiHead).train_stream[0]
    found = []
    for kind, options in ((SFR, {"num_inducing": 10, "verbose": False}), (Naive, {})):
        model = build()
        strategy = kind(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), 0.05),
            criterion=nn.CrossEntropyLoss(),
            train_mb_size=8,
            evaluator=silent(),
            **options,
        )
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(1)
        strategy.train(experience)
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*found)


def test_a_network_is_tried_once_for_every_form_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    keep = SFRPlugin.after_training_exp
    made = Plan.found

    def counted(*args: Any, **kwargs: Any) -> Plan:
        tried[-1] += 1
        return made(*args, **kwargs)

    def ending(self: SFRPlugin, strategy: Any, **kwargs: Any) -> None:
        tried.append(0)  # what a task is kept of does not count here
        keep(self, strategy, **kwargs)
        tried.append(0)

    monkeypatch.setattr(Plan, "found", staticmethod(counted))
    monkeypatch.setattr(SFRPlugin, "after_training_exp", ending)
    for build in (single_head, Growing):
        tried[:] = [0]
        model = build()
        strategy = SFR(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), 0.05),
            num_inducing=10,
            train_mb_size=40,
            evaluator=silent(),
            verbose=False,
        )
        for experience in class_benchmark().train_stream:
            strategy.train(experience)
        before_each = [bool(count) for count in tried[::2][:3]]
        assert before_each == [True, build is Growing, build is Growing]


# Without a kernel --------------------------------------------------------------------------------


class Cast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float()


def in_single_precision() -> nn.Module:
    """It fails with weights in double precision."""
    return nn.Sequential(Cast(), single_head())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.LSTM(2, 8, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.layer(x[:, 0])[0][:, -1])
        return found


@pytest.mark.parametrize("build", [Recurrent, in_single_precision], ids=lambda b: b.__name__)
def test_the_identity_needs_no_kernel(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> Plan:
        raise AssertionError("expected no kernel, got one")

    monkeypatch.setattr(Plan, "found", staticmethod(none))
    model = build()
    strategy = SFR(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.05),
        num_inducing=10,
        tau=1.0,
        covariance="identity",
        train_mb_size=8,
        evaluator=silent(),
        verbose=False,
    )
    strategy.train(class_benchmark().train_stream[0])
    other, z = moved(model), strategy.sfr.tasks[0].z
    expected = (other(z) - model(z)).square().sum() / (2 * len(z))
    assert torch.allclose(strategy.sfr.penalty(other), expected)


def test_a_network_in_single_precision_only_is_held() -> None:
    """What predicts is in double precision, and what is penalised in the model's own."""
    model, plain = in_single_precision(), single_head()
    penalties = []
    for network in (model, plain):
        torch.manual_seed(0)
        sfr = plugin()
        sfr.end_task(network, task(0, 1))
        penalties.append(sfr.penalty(moved(network)).item())
    assert penalties[0] == pytest.approx(penalties[1], rel=1e-5)
    check_refusal(
        lambda: plugin(predict_with="posterior").end_task(model, task(0, 1)),
        model.state_dict,
        message="can in torch.float32 only",
    )


@pytest.mark.parametrize("covariance", ["sfr", "identity"])
def test_a_network_in_half_precision_is_held(covariance: str) -> None:
    """Its kernel is in single precision."""
    penalties = []
    for dtype in (torch.bfloat16, torch.float32):
        torch.manual_seed(0)
        model, sfr = single_head().to(torch.bfloat16).to(dtype), plugin(covariance=covariance)
        x, y = task(0, 1).tensors
        sfr.end_task(model, Labelled(x.to(torch.bfloat16).to(dtype), y))
        assert sfr.penalty(model) == 0
        penalties.append(sfr.penalty(moved(model)).item())
    assert penalties[0] == pytest.approx(penalties[1], rel=0.05)


def test_a_recurrent_network_with_a_head_for_every_task() -> None:
    class Sequences(MTSimpleSequenceClassifier):  # type: ignore[misc]
        def forward(self, x: Tensor, task_labels: Any) -> Tensor:
            found: Tensor = super().forward(x[:, 0], task_labels)
            return found

    torch.manual_seed(0)
    model = Sequences(2, 8)
    strategy = SFR(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.05),
        num_inducing=10,
        predict_with="posterior",
        train_mb_size=8,
        evaluator=silent(),
        verbose=False,
    )
    benchmark = class_benchmark(task_labels=True)
    for experience in benchmark.train_stream:
        strategy.train(experience)
    strategy.eval(benchmark.test_stream)
    assert [held.label for held in strategy.sfr.tasks] == [0, 1, 2]
    last = strategy.sfr.tasks[2]
    torch.testing.assert_close(last.view(model).outputs(last.z), last.penalty.targets)
    assert all(held.penalty(held.view(model)) > 0 for held in strategy.sfr.tasks[:2])
