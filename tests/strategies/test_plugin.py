"""The plug-in: its penalty, its tasks, heads that grow, data that comes back, a custom loop."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EarlyStoppingPlugin, EWCPlugin, LRSchedulerPlugin
from avalanche.training.supervised import Naive
from torch import Tensor, nn

from sfr_cl.errors import ArgumentError, DataError, MismatchError
from sfr_cl.strategies import SFR, SFRPlugin, nlpd_metrics
from sfr_cl.strategies.consolidation import consolidate
from sfr_cl.testing.streams import (
    Growing,
    Labelled,
    MultiHead,
    class_benchmark,
    online,
    regression_benchmark,
    silent,
    single_head,
)
from support.oracles import ntk
from support.plugins import moved, plugin, task, three_tasks


def penalty_by_hand(model: nn.Module, other: nn.Module, data: Labelled, z: Tensor) -> float:
    """1/(2M) sum_c d' P d with P = K^-1 B K^-1 from dense Jacobians, I for classes not seen."""
    old, new = copy.deepcopy(model).double(), copy.deepcopy(other).double()
    x, y = (tensor.double() if tensor.is_floating_point() else tensor for tensor in data.tensors)
    z = z.double()
    with torch.no_grad():
        change, p = new(z) - old(z), old(x).softmax(1)
    grams, crosses = (ntk(old, z, points, shared=False) for points in (z, x))
    total = 0.0
    for c in range(change.shape[1]):
        d = change[:, c]
        if c not in y:
            total += float(d @ d)
            continue
        b = crosses[c] @ torch.diag(p[:, c] * (1 - p[:, c])) @ crosses[c].mT
        inverse = torch.linalg.inv(grams[c])
        total += float(d @ inverse @ b @ inverse @ d)
    return total / (2 * len(z))


def test_penalty_is_that_of_the_paper() -> None:
    model, data = single_head(), task(0, 1)
    sfr = plugin(tau=0.7, num_inducing=6)
    assert sfr.penalty(model) == 0
    sfr.end_task(model, data)
    other = moved(model)
    expected = 0.7 * penalty_by_hand(model, other, data, sfr.tasks[0].z)
    assert sfr.penalty(other).item() == pytest.approx(expected, rel=1e-3)
    assert sfr.penalty(model).item() == pytest.approx(0, abs=1e-8)


def test_identity_covariance_is_the_squared_change() -> None:
    model, sfr = single_head(), plugin(tau=1.0, covariance="identity")
    sfr.end_task(model, task(0, 1))
    other, z = moved(model), sfr.tasks[0].z
    expected = (other(z) - model(z)).square().sum() / (2 * len(z))
    assert torch.allclose(sfr.penalty(other), expected)


def test_penalty_is_differentiable_and_leaves_the_mode_alone() -> None:
    model, sfr = nn.Sequential(single_head(), nn.Dropout(0.5)), plugin()
    sfr.end_task(model, task(0, 1))
    other = moved(model).train()
    sfr.penalty(other).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in other.parameters())
    assert all(module.training for module in other.modules())


@pytest.mark.parametrize("count", [1, 2])
def test_tasks_in_turn_are_unbiased(count: int) -> None:
    """Over whole rounds, each task is drawn as often as any: the mean is that of all tasks."""
    model = single_head()
    torch.manual_seed(0)
    everything = three_tasks(model, points_per_step=None)
    other = moved(model)
    expected = everything.penalty(other).item()
    torch.manual_seed(0)
    some = three_tasks(model, points_per_step=10 * count + 5)
    # Two of three leave one over in every round: which one is random.
    found = [some.penalty(other).item() for _ in range(3 if count == 1 else 3000)]
    assert sum(found) / len(found) == pytest.approx(expected, rel=1e-5 if count == 1 else 0.02)
    assert len({round(value, 6) for value in found}) == 3


def test_consolidated_tasks_have_a_fixed_size() -> None:
    model = single_head()
    sfr = three_tasks(model, consolidated=True, num_inducing=12)
    assert len(sfr.tasks) == 1
    assert len(sfr.tasks[0].z) == 12
    assert sfr.tasks[0].classes == frozenset(range(6))
    assert sfr.tasks[0].num_data == 120


def test_consolidating_into_all_inducing_inputs_loses_nothing() -> None:
    """Where nothing is dropped, projecting and adding is the sum of the penalties."""
    model, other = single_head(), moved(single_head())
    torch.manual_seed(0)
    apart = three_tasks(model, points_per_step=None, num_inducing=5)
    whole = consolidate(apart._recipe(model), apart.tasks, 15)
    expected = apart.penalty(other).item() / apart.tau
    found = whole.penalty(whole.view(other)).item()
    assert found == pytest.approx(expected, rel=2e-2)


def test_units_of_a_grown_head_are_pinned_where_they_start() -> None:
    benchmark = class_benchmark()
    model = Growing()
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.0),
        plugins=[sfr := plugin(likelihood=None)],
        evaluator=silent(),
        train_mb_size=8,
    )
    strategy.train(benchmark.train_stream[0])
    assert sfr.tasks[0].units.tolist() == [0, 1]
    strategy.train(benchmark.train_stream[1])
    assert sfr.tasks[0].units.tolist() == [0, 1, 2, 3]
    assert sfr.tasks[0].penalty.observed.tolist() == [0, 1]
    with torch.no_grad():
        model.head.classifier.bias[3] += 2.0
    z = sfr.tasks[0].z
    expected = 0.5 * 4 * len(z) / (2 * len(z))  # of the first task; the second has seen unit 3
    first = sfr.tasks[0]
    assert 0.5 * first.penalty(first.view(model)).item() == pytest.approx(expected, rel=1e-4)
    strategy.eval(benchmark.test_stream)  # the head grows to six units meanwhile
    assert sfr.penalty(model).isfinite()


def test_a_head_that_shrinks_is_refused() -> None:
    sfr = plugin()
    sfr.end_task(single_head(6), task(0, 1))
    with pytest.raises(MismatchError, match=r"at least 6 outputs.*got 4"):
        sfr.penalty(single_head(4))


def test_every_head_is_held_by_its_own_task() -> None:
    benchmark, model = class_benchmark(task_labels=True), MultiHead()
    strategy = SFR(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), 1e-2),
        num_inducing=10,
        evaluator=silent(),
        train_mb_size=8,
        verbose=False,
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)
    assert [task.label for task in strategy.sfr.tasks] == [0, 1, 2]
    with torch.no_grad():
        model.head.classifiers["2"].classifier.bias += 1.0
    penalties = [task.penalty(task.view(model)).item() for task in strategy.sfr.tasks]
    assert penalties[2] > 1e-3


# Data that comes back ----------------------------------------------------------------------------


def trained_on_half(**options: Any) -> tuple[Any, Any, list[Any]]:
    benchmark = class_benchmark()
    torch.manual_seed(0)
    model = single_head()
    strategy = SFR(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), 1e-2),
        num_inducing=6,
        predict_with="posterior",
        evaluator=silent(accuracy_metrics(stream=True), nlpd_metrics(stream=True)),
        train_mb_size=4,
        verbose=False,
        **options,
    )
    late = []
    for experience in benchmark.train_stream:
        early = copy.copy(experience)
        early._dataset = experience.dataset.subset(range(0, 40, 8))
        back = copy.copy(experience)
        back._dataset = experience.dataset.subset([i for i in range(40) if i % 8])
        strategy.train(early)
        late.append(back)
    return strategy, benchmark, late


def measured(strategy: Any, benchmark: Any) -> tuple[float, float]:
    found = strategy.eval(benchmark.test_stream)
    accuracy = next(v for k, v in found.items() if k.startswith("Top1_Acc_Stream"))
    return accuracy, next(v for k, v in found.items() if k.startswith("NLPD_Stream"))


def test_absorbing_improves_predictions_and_trains_nothing() -> None:
    strategy, benchmark, late = trained_on_half()
    weights = copy.deepcopy(strategy.model.state_dict())
    before = measured(strategy, benchmark)
    for experience in late:
        strategy.absorb(experience)
    after = measured(strategy, benchmark)
    assert after[1] < before[1]
    assert after[0] >= before[0]
    assert [task.num_data for task in strategy.sfr.tasks] == [40, 40, 40]
    assert all(torch.equal(weights[k], v) for k, v in strategy.model.state_dict().items())


def test_absorbing_all_data_at_once_or_later_is_the_same_penalty() -> None:
    """At the same weights and inducing inputs, sites of parts add up to those of the whole."""
    model, data = single_head(), task(0, 1)
    parts = plugin(num_inducing=40, inducing="random")
    parts.end_task(model, data)
    whole = parts.tasks[0].penalty
    parts.absorb(model, data)
    other = moved(model)
    twice = parts.tasks[0].penalty
    view = parts.tasks[0].view
    pinned = (other(whole.z) - model(whole.z))[:, 2:].square().sum() / (2 * len(whole.z))
    once = whole(view(other)) - pinned
    assert torch.allclose(twice(view(other)) - pinned, 2 * once, rtol=1e-3)


def test_absorbing_needs_a_known_task() -> None:
    model, sfr = single_head(), plugin()
    sfr.end_task(model, task(0, 1))
    with pytest.raises(
        DataError, match=r"classes \[4, 5\] where those of the tasks are \[\[0, 1\]\]"
    ):
        sfr.absorb(model, task(4, 5))
    sfr.end_task(model, task(0, 1))
    before = sfr.tasks
    with pytest.raises(ArgumentError, match=r"say task= one of \[0, 1\]"):
        sfr.absorb(model, task(0))
    with pytest.raises(ArgumentError, match=r"a task in 0\.\.1, got 2"):
        sfr.absorb(model, task(0), task=2)
    assert sfr.tasks == before
    sfr.absorb(model, task(0), task=1)
    assert [t.num_data for t in sfr.tasks] == [40, 60]


# Streams in parts --------------------------------------------------------------------------------


def test_parts_of_a_stream_become_one_task_each() -> None:
    """Parts of ten divide an experience of forty: its last part does not say that it is."""
    parts = online(class_benchmark(), 10)
    assert not any(part.is_last_subexp for part in parts)
    model = single_head()
    strategy = SFR(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 1e-2),
        num_inducing=8,
        evaluator=silent(),
        verbose=False,
    )
    counts = []
    for part in parts:
        strategy.train(part)
        counts.append(len(strategy.sfr.tasks))
    assert counts == [0] * 4 + [1] * 4 + [2] * 4
    assert [t.num_data for t in strategy.sfr.tasks] == [40, 40]
    assert all(len(t.z) == 8 for t in strategy.sfr.tasks)
    every = strategy.sfr._store.with_unfinished(strategy.sfr._recipe(model))
    assert [t.num_data for t in every] == [40, 40, 40]


def test_a_stream_without_ends_is_held_as_one() -> None:
    model = single_head()
    strategy = SFR(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 1e-2),
        num_inducing=8,
        evaluator=silent(),
        verbose=False,
    )
    for part in online(class_benchmark(), 10, ends=False):
        strategy.train(part)
    assert strategy.sfr.tasks == []
    (held,) = strategy.sfr._store.penalised
    assert held.num_data == 120
    assert len(held.z) == 8


# Company -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Metric Top1_Acc_Stream used by the EarlyStopping")
def test_composes_with_other_plugins() -> None:
    benchmark, model = class_benchmark(), single_head()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    strategy = Naive(
        model=model,
        optimizer=optimizer,
        plugins=[
            EWCPlugin(1.0),
            LRSchedulerPlugin(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)),
            EarlyStoppingPlugin(2, "train_stream"),
            sfr := plugin(likelihood=None),
        ],
        train_mb_size=8,
        train_epochs=3,
        evaluator=silent(accuracy_metrics(stream=True, experience=True)),
        eval_every=1,
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)
    assert len(sfr.tasks) == 3


def test_in_a_loop_of_ones_own() -> None:
    model, sfr = single_head(), plugin(tau=1.0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for classes in ((0, 1), (2, 3)):
        x, y = task(*classes).tensors
        for _ in range(40):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y) + sfr.penalty(model)
            loss.backward()
            optimizer.step()
        sfr.end_task(model, task(*classes))
    x, y = task(0, 1, 2, 3).tensors
    assert (model(x).argmax(1) == y).double().mean() > 0.9


# Bad use -----------------------------------------------------------------------------------------


def test_an_inducing_input_of_every_class() -> None:
    model, sfr = single_head(), plugin(num_inducing=1)
    with pytest.raises(DataError, match="an inducing input of every class, got none of"):
        sfr.end_task(model, task(0, 1))
    assert sfr.tasks == []
    benchmark = class_benchmark()
    strategy = SFR(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        num_inducing=1,
        evaluator=silent(),
    )
    weights = copy.deepcopy(model.state_dict())
    with pytest.raises(ArgumentError, match="2 classes and num_inducing=1: raise it"):
        strategy.train(benchmark.train_stream[0])
    assert all(torch.equal(weights[k], v) for k, v in model.state_dict().items())


def train_with_plugin(likelihood: Any, shared: dict[str, Any]) -> None:
    strategy = Naive(plugins=[SFRPlugin(likelihood=likelihood)], **shared)
    strategy.train(regression_benchmark().train_stream[0])


@pytest.mark.parametrize(
    ("criterion", "likelihood", "message"),
    [
        (nn.MSELoss(), "classification", "fits likelihood='classification', got MSELoss"),
        (nn.CrossEntropyLoss(), "regression", "got CrossEntropyLoss, which stands for"),
        (nn.HuberLoss(), None, "whose likelihood is known .* got HuberLoss"),
        (nn.MSELoss(), "poisson", "likelihood to be one of .* got 'poisson'"),
    ],
)
def test_a_criterion_that_does_not_match(criterion: Any, likelihood: Any, message: str) -> None:
    model = single_head(1)
    shared = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
        "criterion": criterion,
        "evaluator": silent(),
    }
    with pytest.raises(ArgumentError, match=message):
        SFR(likelihood=likelihood, **shared)
    with pytest.raises(ArgumentError, match=message):  # a plug-in meets its strategy in training
        train_with_plugin(likelihood, shared)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"covariance": "full"}, "covariance to be one of sfr, identity; got 'full'"),
        ({"predict_with": "both"}, "predict_with to be one of network, posterior; got 'both'"),
        ({"inducing": "best"}, "inducing to be one of class_balanced"),
        ({"tau": 0.0}, "positive tau"),
        ({"num_inducing": 0}, "positive num_inducing"),
        ({"points_per_step": 0}, "positive points_per_step"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        SFRPlugin(**options)


def test_without_a_strategy_the_likelihood_must_be_said() -> None:
    with pytest.raises(ArgumentError, match="say SFRPlugin"):
        SFRPlugin().end_task(single_head(), task(0, 1))


def test_the_posterior_must_have_been_kept() -> None:
    model, sfr = single_head(), plugin()
    sfr.end_task(model, task(0, 1))
    with pytest.raises(ArgumentError, match="predict_with='posterior', got 'network'"):
        sfr.predictive(model)
    with pytest.raises(DataError, match="a task that has ended, got none"):
        plugin(predict_with="posterior").predictive(model)


def test_derivative_of_the_penalty_is_that_of_its_formula() -> None:
    model, sfr = single_head(), plugin(tau=1.0)
    sfr.end_task(model, task(0, 1))
    sfr.end_task(model, task(2, 3))
    other = moved(model)
    sfr.penalty(other).backward()
    found = [p.grad for p in other.parameters()]
    total = torch.zeros(())
    for held in sfr.tasks:
        change = other(held.z) - held.penalty.targets
        for c, matrix in zip(held.penalty.observed, held.penalty.precision, strict=True):
            total = total + change[:, c] @ matrix @ change[:, c] / (2 * len(held.z))
        free = [c for c in range(change.shape[1]) if c not in held.penalty.observed]
        total = total + change[:, free].square().sum() / (2 * len(held.z))
    expected = torch.autograd.grad(total, list(other.parameters()))
    for one, two in zip(found, expected, strict=True):
        assert torch.allclose(one, two, rtol=1e-3, atol=1e-5 * float(two.abs().max()))


def test_a_custom_loop_in_mixed_precision_is_held_alike() -> None:
    """The penalty, its gradient and what is kept of a task are those of single precision."""

    def step(mixed: bool) -> tuple[float, list[torch.Tensor]]:
        torch.manual_seed(0)
        x, y = torch.randn(40, 3), torch.arange(40) % 2
        model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        keeper = SFRPlugin(num_inducing=10, likelihood="classification", verbose=False)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            keeper.end_task(model, torch.utils.data.TensorDataset(x, y))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
            penalty = keeper.penalty(model)
        gradients = torch.autograd.grad(penalty, list(model.parameters()))
        return penalty.item(), list(gradients)

    plain, mixed = step(False), step(True)
    assert plain[0] > 0
    assert mixed[0] == plain[0]
    for ours, expected in zip(mixed[1], plain[1], strict=True):
        assert torch.equal(ours, expected)


def test_training_gives_its_metrics_as_every_strategy_does() -> None:
    benchmark = class_benchmark()
    found = []
    for kind, options in ((SFR, {"num_inducing": 8, "verbose": False}), (Naive, {})):
        model = single_head()
        strategy = kind(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), 0.1),
            criterion=nn.CrossEntropyLoss(),
            train_mb_size=16,
            evaluator=silent(accuracy_metrics(epoch=True)),
            **options,
        )
        found.append(strategy.train(benchmark.train_stream[0]))
    assert found[0].keys() == found[1].keys()
    assert all(0 <= value <= 1 for value in found[0].values())
    assert found[0]


def test_without_avalanche_the_extra_is_named() -> None:
    code = "import sys; sys.modules['avalanche'] = None; import sfr_cl.strategies"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "sfr-cl[strategies]" in result.stderr.splitlines()[-1]
