"""Data taken out of a strategy again."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from torch import Tensor, nn

from sfr_cl import SFRPosterior
from sfr_cl.errors import ArgumentError, DataError, SFRWarning
from sfr_cl.strategies import SFR, SFRConditioning
from sfr_cl.testing.streams import (
    Labelled,
    MultiHead,
    blobs,
    class_benchmark,
    domain_benchmark,
    online,
    regression_benchmark,
    silent,
    single_head,
)

SCALE = {"logit_scale": 3.0}
"""Given: the learned one is an estimate from all predictions made."""


def conditioning(model: nn.Module | None = None, **options: Any) -> SFRConditioning:
    torch.manual_seed(5)
    defaults = {"num_inducing": 30, "inducing": "noise", "evaluator": silent()}
    return SFRConditioning(
        model=model or single_head(), verbose=False, **{**defaults, **SCALE, **options}
    )


def trained(strategy: SFRConditioning, experiences: Any) -> SFRConditioning:
    for experience in experiences:
        strategy.train(experience)
    return strategy


def pairs(experiences: Any) -> tuple[Tensor, Tensor]:
    rows = [item for experience in experiences for item in experience.dataset]
    return torch.stack([row[0] for row in rows]), torch.tensor([int(row[1]) for row in rows])


def direct(strategy: SFRConditioning, x: Tensor, y: Tensor, **options: Any) -> SFRPosterior:
    """A posterior fitted to data, over the inducing inputs of a strategy."""
    return SFRPosterior(
        single_head(),
        "classification",
        inducing=strategy.posterior.inducing_inputs,
        **{**SCALE, "num_outputs": strategy.posterior.num_outputs, **options},
    ).fit((x, y))


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_forgotten_experience_was_never_seen(gone: int) -> None:
    experiences = list(class_benchmark().train_stream)
    strategy = trained(conditioning(), experiences)
    strategy.forget(experiences.pop(gone))
    expected, x = direct(strategy, *pairs(experiences)), blobs(2)[0]
    found = strategy.posterior.predict_f(x)
    assert torch.allclose(found.mean, expected.predict_f(x).mean, rtol=0, atol=1e-9)
    assert torch.allclose(found.variance, expected.predict_f(x).variance, rtol=0, atol=1e-9)
    assert strategy.posterior.num_data == 80


def test_forgotten_samples_were_never_seen() -> None:
    experiences = list(class_benchmark().train_stream)
    strategy = trained(conditioning(), experiences)
    x, y = pairs(experiences)
    gone = torch.arange(len(y)) % 3 == 0
    strategy.forget(x[gone], y[gone])
    found = strategy.posterior.predict_f(blobs(2)[0]).mean
    expected = direct(strategy, x[~gone], y[~gone]).predict_f(blobs(2)[0]).mean
    assert torch.allclose(found, expected, rtol=0, atol=1e-9)


def test_a_stream_goes_on_after_forgetting() -> None:
    first, second, third = class_benchmark().train_stream
    strategy = trained(conditioning(), [first, second])
    strategy.forget(first)
    trained(strategy, [third])
    expected, x = direct(strategy, *pairs([second, third])), blobs(2)[0]
    found = strategy.posterior.predict_f(x).mean
    assert torch.allclose(found, expected.predict_f(x).mean, rtol=0, atol=1e-9)
    log_probs, _ = predicted(strategy, x)
    assert not log_probs[:, :2].exp().any()  # its classes are not among those seen
    assert torch.allclose(log_probs.exp().sum(1), torch.ones(len(x)))


def predicted(strategy: SFRConditioning, x: Tensor) -> tuple[Tensor, Any]:
    """``mb_output`` and ``mb_predictive`` at some inputs."""
    strategy.mbatch = [x, torch.zeros(len(x), dtype=torch.long), torch.zeros(len(x))]
    strategy.is_training = False
    return strategy.forward(), strategy.mb_predictive


def test_all_may_be_forgotten() -> None:
    first = class_benchmark().train_stream[0]
    strategy = trained(conditioning(), [first])
    strategy.forget(first)
    assert strategy.posterior.num_data == 0
    log_probs, _ = predicted(strategy, blobs(2)[0])
    assert torch.isfinite(log_probs).all()


def test_a_head_forgets_its_own() -> None:
    experiences = list(class_benchmark(task_labels=True).train_stream)
    strategy = trained(conditioning(MultiHead()), experiences)
    others = strategy.posteriors[0]
    strategy.forget(experiences[1])
    x, y = pairs(experiences[2:])
    strategy.forget(x[:3], y[:3], task_label=2)
    counts = [posterior.num_data for posterior in strategy.posteriors.values()]
    assert counts == [40, 0, 37]
    assert strategy.posteriors[0] is others


def test_regressions_forget() -> None:
    experiences = list(regression_benchmark().train_stream)
    options = {"criterion": nn.MSELoss(), "logit_scale": None, "prior_precision": 1.0}
    model = single_head(1)
    strategy = trained(conditioning(copy.deepcopy(model), **options), experiences)
    strategy.forget(experiences[0])
    other = trained(conditioning(copy.deepcopy(model), **options), experiences[1:])
    x = torch.randn(9, 1, 2, 2)
    found, expected = (each.posterior.predict(x) for each in (strategy, other))
    assert torch.allclose(found.mean, expected.mean, rtol=0, atol=1e-6)


def test_what_was_never_absorbed_is_refused_and_changes_nothing() -> None:
    first, second, _ = class_benchmark().train_stream
    strategy = trained(conditioning(), [first])
    before = strategy.posterior
    with pytest.raises(DataError, match="expected"):
        strategy.forget(second)
    with pytest.raises(DataError, match="at most what was seen"):
        strategy.forget(*(torch.cat([part, part]) for part in pairs([first])))
    assert strategy.posterior is before
    with pytest.raises(DataError, match="expected data that was absorbed, got some before any"):
        conditioning().forget(first)


def test_bad_use_is_refused() -> None:
    experiences = list(class_benchmark(task_labels=True).train_stream)
    x, y = pairs(experiences[:1])
    single, heads = conditioning(), trained(conditioning(MultiHead()), experiences[:1])
    with pytest.raises(ArgumentError, match=r"expected forget\(experience\), forget\(x, y\)"):
        single.forget(x)
    with pytest.raises(ArgumentError, match="a task label for a model that takes them"):
        single.forget(x, y, task_label=0)
    with pytest.raises(ArgumentError, match="a task label for a model that takes them"):
        heads.forget(x, y)
    with pytest.raises(DataError, match="got task label 1's: none was"):
        heads.forget(experiences[1])
    first = class_benchmark().train_stream[0]
    ordered = trained(conditioning(linearize_at="posterior"), [first])
    with pytest.raises(ArgumentError, match="to forget data"):
        ordered.forget(first)


def test_inputs_of_evaluation_are_those_that_were_absorbed() -> None:
    """As they are absorbed, they are forgotten: with the transforms of evaluation."""
    data = as_classification_dataset(
        Labelled(*blobs(1)),
        transform_groups={
            "train": (lambda x: x + torch.randn_like(x), None),
            "eval": (lambda x: 2 * x, None),
        },
    )
    experience = benchmark_from_datasets(train=[data]).train_stream[0]
    strategy = conditioning()
    strategy.absorb(experience)
    strategy.forget(experience)
    assert float(strategy.posterior.state.sums.weight.abs().max()) < 1e-9


# What the network's weights have learned ---------------------------------------------------------


def sfr(experiences: Any, model: nn.Module | None = None, **options: Any) -> SFR:
    torch.manual_seed(0)
    model = model or single_head()
    strategy = SFR(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), 1e-2),
        num_inducing=8,
        evaluator=silent(),
        verbose=False,
        **options,
    )
    for experience in experiences:
        strategy.train(experience)
    return strategy


def test_sfr_drops_what_it_keeps_of_a_task_and_says_what_remembers() -> None:
    experiences = list(class_benchmark().train_stream)
    strategy = sfr(experiences, predict_with="posterior")
    weights = copy.deepcopy(strategy.model.state_dict())
    tasks = strategy.sfr.tasks
    other = single_head(seed=3)
    expected = 0.5 * sum(task.penalty(task.view(other)) for task in (tasks[0], tasks[2]))
    with pytest.warns(SFRWarning, match="weights of the network still remember"):
        strategy.forget(experiences[1])
    assert strategy.sfr.tasks == [tasks[0], tasks[2]]
    assert torch.allclose(strategy.sfr.penalty(other), expected)
    predicted = strategy.sfr.predictive(strategy.model).predict(blobs(2)[0])[0].exp()
    assert not predicted[:, 2:4].any()
    assert all(torch.equal(weights[k], v) for k, v in strategy.model.state_dict().items())


def test_sfr_forgets_the_last_task_too() -> None:
    first = class_benchmark().train_stream[0]
    strategy = sfr([first])
    with pytest.warns(SFRWarning, match="still remember"):
        strategy.forget(first)
    assert not strategy.sfr.tasks
    assert strategy.sfr.penalty(single_head(seed=3)) == 0


def test_sfr_refuses_to_forget_a_part_of_a_task() -> None:
    experiences = list(class_benchmark().train_stream)
    strategy = sfr(experiences[:2])
    part = benchmark_from_datasets(
        train=[as_classification_dataset(Labelled(*(rows[:5] for rows in blobs(1))))]
    ).train_stream[0]
    for wrong in (part, experiences[2]):
        with pytest.raises(DataError, match="expected all the data of a task, got"):
            strategy.forget(wrong)
    with pytest.raises(DataError, match="expected all the data of a task, got"):
        strategy.forget(experiences[0], task=1)
    assert len(strategy.sfr.tasks) == 2


def test_sfr_asks_which_of_several_tasks_is_meant() -> None:
    experiences = list(domain_benchmark().train_stream)
    strategy = sfr(experiences)
    kept = strategy.sfr.tasks
    with pytest.raises(ArgumentError, match=r"say task= one of \[0, 1, 2\]"):
        strategy.forget(experiences[1])
    with pytest.warns(SFRWarning, match="still remember"):
        strategy.forget(experiences[1], task=1)
    assert strategy.sfr.tasks == [kept[0], kept[2]]


def test_sfr_refuses_where_tasks_are_not_apart() -> None:
    experiences = list(class_benchmark().train_stream)
    with pytest.raises(ArgumentError, match="tasks that are kept one by one"):
        sfr(experiences[:2], consolidated=True).forget(experiences[0])
    parts = online(class_benchmark(), 10)
    with pytest.raises(DataError, match="a stream whose last task has ended"):
        sfr(parts[:2]).forget(parts[0])
