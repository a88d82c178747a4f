"""Networks with batch norm: running statistics that drift are no change of the function held."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from avalanche.training.supervised import Naive
from torch import nn

from sfr_cl import SFRPosterior
from sfr_cl.strategies import SFRPlugin
from sfr_cl.testing.streams import class_benchmark, silent
from support.plugins import moved, plugin, task


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 2),
        nn.BatchNorm2d(6),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(6, 12),
        nn.BatchNorm1d(12),
        nn.Tanh(),
        nn.Linear(12, 6),
    )


def drift(model: nn.Module, *classes: int) -> None:
    """See other data in training mode, and move no weight."""
    model.train()
    for _ in range(30):
        model(task(*classes).tensors[0])


def size_of_gradient(value: torch.Tensor, model: nn.Module) -> float:
    gradients = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    return max(float(g.abs().max()) for g in gradients if g is not None)


@pytest.mark.parametrize("consolidated", [False, True])
def test_running_statistics_that_drift_are_no_change(consolidated: bool) -> None:
    model, sfr = network(), plugin(tau=5.0, consolidated=consolidated)
    drift(model, 0, 1)
    sfr.end_task(model, task(0, 1))
    drift(model, 2, 3)
    sfr.end_task(model, task(2, 3))
    drift(model, 4, 5)
    penalty = sfr.penalty(model)
    assert penalty.item() == pytest.approx(0, abs=1e-9)
    assert size_of_gradient(penalty, model) == pytest.approx(0, abs=1e-4)
    assert sfr.penalty(moved(model)).item() > 1e-2


def test_the_first_step_of_a_task_is_free() -> None:
    found = []

    class Watched(SFRPlugin):
        def before_backward(self, strategy: Any, **kwargs: Any) -> None:
            super().before_backward(strategy, **kwargs)
            if self.tasks and not strategy.clock.train_exp_iterations:
                last = self.tasks[-1]
                penalty = last.penalty(last.view(strategy.model))
                found.append((penalty.item(), size_of_gradient(penalty, strategy.model)))

    model = network()
    strategy = Naive(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), 1e-2),
        criterion=nn.CrossEntropyLoss(),
        plugins=[made := Watched(num_inducing=10, verbose=False)],
        evaluator=silent(),
        train_mb_size=8,
        train_epochs=3,
    )
    for experience in class_benchmark().train_stream:
        strategy.train(experience)
    assert [value for value, _ in found] == pytest.approx([0, 0], abs=1e-9)
    assert [size for _, size in found] == pytest.approx([0, 0], abs=1e-4)
    assert made.penalty(model).item() > 1e-3


@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_left_as_it_is(training: bool) -> None:
    model, sfr = network(), plugin()
    sfr.end_task(model, task(0, 1))
    model.train(training)
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    flags = [(part.training, vars(part).get("track_running_stats")) for part in model.modules()]
    sfr.penalty(model).backward()
    sfr.end_task(model, task(2, 3))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    after = [(part.training, vars(part).get("track_running_stats")) for part in model.modules()]
    assert after == flags


def test_tasks_have_statistics_of_their_own() -> None:
    """Together in a step, or one by one: the penalty is the same."""
    model, sfr = network(), plugin(tau=1.0)
    for classes in ((0, 1), (2, 3), (4, 5)):
        sfr.end_task(model, task(*classes))
    other = moved(model)
    apart = sum(held.penalty(held.view(other)).item() for held in sfr.tasks)
    assert sfr.penalty(other).item() == pytest.approx(apart, rel=1e-4)


def test_consolidating_keeps_how_far_the_network_has_moved() -> None:
    model, sfr = network(), plugin(tau=1.0, consolidated=True, num_inducing=10)
    sfr.end_task(model, task(0, 1))
    first, other = sfr.tasks[0], moved(model)
    change = first.view(other).outputs(first.z) - first.penalty.targets
    sfr.end_task(other, task(2, 3))
    (both,) = sfr.tasks
    known = {row.numpy().tobytes(): i for i, row in enumerate(first.z)}
    rows = [(i, known.get(row.numpy().tobytes())) for i, row in enumerate(both.z)]
    left = both.view(other).outputs(both.z) - both.penalty.targets
    assert any(k is None for _, k in rows)
    for i, k in rows:
        expected = torch.zeros(6) if k is None else change[k]
        torch.testing.assert_close(left[i], expected, rtol=1e-4, atol=1e-5)


def test_one_input_has_no_statistics() -> None:
    model, sfr = network(), plugin(num_inducing=1)
    sfr.end_task(model, task(0))
    assert sfr.penalty(model).item() == pytest.approx(0, abs=1e-9)


def test_the_penalty_of_a_posterior_does_not_drift() -> None:
    model, data = network(), task(0, 1).tensors
    drift(model, 0, 1)
    posterior = SFRPosterior(model, "classification", prior_precision=1.0, inducing=10).fit(data)
    drift(model, 4, 5)
    penalty = posterior.penalty(model)
    assert penalty.item() == pytest.approx(0, abs=1e-9)
    assert size_of_gradient(penalty, model) == pytest.approx(0, abs=1e-4)
    assert posterior.penalty(moved(model)).item() > 1e-3
