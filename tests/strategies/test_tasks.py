"""Tasks over time: absorbed in parts, consolidated, with heads and inputs of other kinds."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.models.dynamic_modules import avalanche_model_adaptation
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sfr_cl import greedy
from sfr_cl.errors import ArgumentError, DataError, DataTypeError, MismatchError, SFRWarning
from sfr_cl.strategies import SFR, SFRConditioning, SFRPlugin
from sfr_cl.testing.streams import (
    Labelled,
    MultiHead,
    blobs,
    class_benchmark,
    online,
    silent,
    single_head,
)
from support.plugins import moved, plugin, task, three_tasks


def precision_of(sfr: SFRPlugin, index: int = 0) -> Tensor:
    return sfr.tasks[index].penalty.precision.double()


def test_absorbing_class_by_class_is_absorbing_all_at_once() -> None:
    model = single_head().double()
    at_once, in_parts = plugin(), plugin()
    for sfr in (at_once, in_parts):
        torch.manual_seed(0)
        sfr.end_task(model, task(0, 1))
    at_once.absorb(model, task(0, 1, rows=30))
    for label in (0, 1):
        in_parts.absorb(model, task(label, rows=30), task=0)
    torch.testing.assert_close(precision_of(in_parts), precision_of(at_once))


def test_a_new_class_of_a_known_task_stays_pinned() -> None:
    model, sfr = single_head(), plugin(tau=1.0)
    sfr.end_task(model, task(0, 1))
    other = single_head()
    with torch.no_grad():
        list(other.parameters())[-1][2] += 3
    before = sfr.penalty(other).item()
    assert before == pytest.approx(4.5)
    late = task(2)
    sfr.absorb(model, Labelled(late.tensors[0][:1], late.tensors[1][:1]), task=0)
    assert sfr.penalty(other).item() >= before - 1e-4


def test_what_is_absorbed_counts_as_much_after_consolidation() -> None:
    """Three heads share the budget: each keeps four of its twelve inducing inputs."""
    benchmark = class_benchmark(task_labels=True)
    penalties = []
    for early in (True, False):
        torch.manual_seed(0)
        model = MultiHead()
        for experience in benchmark.train_stream:
            avalanche_model_adaptation(model, experience)
        sfr = plugin(num_inducing=12, consolidated=True)
        first, *others = [experience.dataset for experience in benchmark.train_stream]
        sfr.end_task(model, first)
        if early:
            sfr.absorb(model, first)
        for dataset in others:
            sfr.end_task(model, dataset)
        if not early:
            sfr.absorb(model, first)
        penalties.append(float(precision_of(sfr).diagonal(dim1=1, dim2=2).sum()))
    assert penalties[1] == pytest.approx(penalties[0], rel=0.2)


def test_small_tasks_keep_an_inducing_input() -> None:
    model = single_head()
    sfr = plugin(num_inducing=12, consolidated=True)
    sfr.end_task(model, task(0, 1, rows=200))
    small = task(2, 3, rows=4)
    sfr.end_task(model, small)
    kept = {row.numpy().tobytes() for row in sfr.tasks[0].z.float()}
    assert kept & {row.numpy().tobytes() for row in small.tensors[0].float()}


def test_a_budget_for_all_tasks_must_hold_their_classes() -> None:
    benchmark = class_benchmark()
    strategy = strategy_of(single_head(), num_inducing=4, consolidated=True)
    strategy.train(benchmark.train_stream[0])
    strategy.train(benchmark.train_stream[1])
    with pytest.raises(ArgumentError, match="6 classes"):
        strategy.train(benchmark.train_stream[2])


def test_heads_share_a_budget_for_all_tasks() -> None:
    benchmark = class_benchmark(task_labels=True)
    strategy = strategy_of(MultiHead(), num_inducing=4, consolidated=True)
    strategy.train(benchmark.train_stream[0])
    strategy.train(benchmark.train_stream[1])
    with pytest.raises(ArgumentError, match="2 classes in one of 3 heads"):
        strategy.train(benchmark.train_stream[2])


def strategy_of(model: nn.Module, **options: Any) -> SFR:
    return SFR(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 1e-2),
        evaluator=silent(),
        train_mb_size=8,
        **{"num_inducing": 10, "verbose": False, **options},
    )


def test_an_interrupted_training_does_not_silence_the_posterior() -> None:
    benchmark = class_benchmark()
    strategy = strategy_of(single_head(), predict_with="posterior")
    strategy.train(benchmark.train_stream[0])

    class Stop(SFRPlugin):
        def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
            raise KeyboardInterrupt

    strategy.plugins.append(Stop(likelihood="classification", verbose=False))
    with pytest.raises(KeyboardInterrupt):
        strategy.train(benchmark.train_stream[1])
    strategy.plugins.pop()
    strategy.eval(benchmark.test_stream[:1])
    assert strategy.mb_predictive is not None


def test_a_head_that_grows_between_two_steps_is_pinned() -> None:
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 2))
    data = task(0, 1)
    model(data.tensors[0])
    sfr = plugin(tau=1.0)
    sfr.end_task(model, data)
    assert sfr.penalty(model).item() == pytest.approx(0, abs=1e-8)
    old = model[-1]
    model[-1] = nn.Linear(8, 3)
    with torch.no_grad():
        model[-1].weight[:2], model[-1].bias[:2] = old.weight, old.bias
    assert sfr.penalty(model).item() == pytest.approx(0, abs=1e-8)
    with torch.no_grad():
        model[-1].bias[2] += 3
    assert sfr.penalty(model).item() == pytest.approx(4.5, rel=1e-4)


@pytest.mark.parametrize("consolidated", [False, True])
def test_data_that_comes_again_is_no_reason_to_warn(consolidated: bool) -> None:
    """The same inducing inputs several times, which the user has no hand in."""
    benchmark = class_benchmark()
    strategy = strategy_of(
        single_head(), num_inducing=40, predict_with="posterior", consolidated=consolidated
    )
    for index in (0, 0, 1, 0):
        strategy.train(benchmark.train_stream[index])
    strategy.absorb(benchmark.train_stream[1])
    strategy.eval(benchmark.test_stream[:2])
    assert strategy.mb_predictive.probs.isfinite().all()


def test_a_stream_may_repeat_its_samples() -> None:
    x, y = task(0, 1).tensors
    sfr = plugin(num_inducing=80, predict_with="posterior")
    sfr.end_task(single_head(), Labelled(torch.cat([x, x]), torch.cat([y, y])))
    assert sfr.tasks[0].points == len(sfr.tasks[0].z) == len(x)
    assert sfr.tasks[0].num_data == 2 * len(x)


@pytest.mark.parametrize("consolidated", [False, True])
def test_inputs_may_be_numbers_of_words(consolidated: bool) -> None:
    model = nn.Sequential(nn.Embedding(20, 6), nn.Flatten(), nn.Linear(24, 4))
    generator = torch.Generator().manual_seed(0)
    sfr = plugin(consolidated=consolidated, predict_with="posterior")
    for classes in ((0, 1), (2, 3)):
        x = torch.randint(20, (30, 4), generator=generator)
        y = torch.tensor(classes)[torch.arange(30) % 2]
        sfr.end_task(model, TensorDataset(x, y))
    sfr.absorb(model, TensorDataset(x, y))
    other = moved(model)
    sfr.penalty(other).backward()
    assert other[0].weight.grad.isfinite().all()
    found, _ = sfr.predictive(model).predict(x)
    assert found.isfinite().all()


@pytest.mark.parametrize("likelihood", ["regression", "binary"])
def test_networks_may_leave_out_the_dimension_of_one_output(likelihood: str) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))
    sfr = plugin(likelihood=likelihood, consolidated=True)
    for seed in range(2):
        x = torch.randn(30, 3, generator=torch.Generator().manual_seed(seed))
        y = (x[:, 0] > 0).float()
        sfr.end_task(model, TensorDataset(x, y))
    sfr.absorb(model, TensorDataset(x, y), task=0)
    assert sfr.penalty(moved(model)).item() > 0


@pytest.mark.parametrize("call", ["end_task", "absorb", "predictive", "penalty"])
def test_heads_do_not_shrink(call: str) -> None:
    sfr = plugin(predict_with="posterior", consolidated=call == "end_task")
    sfr.end_task(single_head(), task(0, 1))
    smaller = single_head(outputs=2)
    arguments = () if call in ("predictive", "penalty") else (task(0, 1),)
    with pytest.raises(MismatchError, match="heads can grow, not shrink"):
        getattr(sfr, call)(smaller, *arguments)


def test_parts_that_wait_count_before_training() -> None:
    x, y = blobs(1)
    turns = torch.arange(len(y)).reshape(6, -1).mT.flatten()  # classes 0 to 5, again and again
    mixed = as_classification_dataset(Labelled(x[turns], y[turns]))
    first, second, *_ = online(benchmark_from_datasets(train=[mixed]), 3)
    strategy = strategy_of(single_head(), num_inducing=4)
    strategy.train(first)
    with pytest.raises(ArgumentError, match="6 classes and num_inducing=4"):
        strategy.train(second)


def test_a_sum_is_no_loss_to_add_a_penalty_to() -> None:
    model = single_head()
    strategy = SFR(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 1e-2),
        criterion=nn.CrossEntropyLoss(reduction="sum"),
        evaluator=silent(),
        verbose=False,
    )
    with pytest.raises(ArgumentError, match="mean over the mini-batch"):
        strategy.train(class_benchmark().train_stream[0])


def test_labels_are_given_where_they_are_taken() -> None:
    model, sfr = single_head(), plugin(predict_with="posterior")
    data = task(0, 1)
    sfr.end_task(model, data)
    with pytest.raises(ArgumentError, match="task labels"):
        sfr.predictive(model).predict(data.tensors[0], torch.zeros(len(data), dtype=torch.long))


def test_data_without_labels_for_a_model_that_takes_them() -> None:
    with pytest.raises(DataTypeError, match="task label"):
        plugin().end_task(MultiHead(), TensorDataset(*task(0, 1).tensors))


def test_a_selector_with_a_count_of_its_own_is_refused() -> None:
    with pytest.raises(ArgumentError, match="leave the count"):
        plugin(inducing=greedy(20))


def test_no_task_to_absorb_into() -> None:
    with pytest.raises(ArgumentError, match="none so far"):
        plugin().absorb(single_head(), task(0, 1), task=0)


def test_what_is_trained_first_is_not_absorbed_first() -> None:
    model = single_head()
    strategy = SFRConditioning(
        model=model,
        train_first=True,
        optimizer=torch.optim.SGD(model.parameters(), 1e-2),
        num_inducing=5,
        evaluator=silent(),
    )
    with pytest.raises(ArgumentError, match=r"train\(\) before absorb"):
        strategy.absorb(class_benchmark().train_stream[0])
    with pytest.raises(ArgumentError, match="all, last_layer"):
        SFRConditioning(model=single_head(), parameters="bogus")


def test_an_empty_experience_is_refused() -> None:
    class Empty:
        dataset = TensorDataset(torch.empty(0, 3), torch.empty(0, dtype=torch.long))

    strategy = SFRConditioning(model=single_head(), num_inducing=5, evaluator=silent())
    with pytest.raises(DataError, match="empty dataset"):
        strategy.absorb(Empty())


def test_three_tasks_keep_their_units() -> None:
    sfr = three_tasks(single_head())
    assert [task.points for task in sfr.tasks] == [10, 10, 10]


def test_a_step_is_about_the_tasks_the_model_and_the_precision_of_now() -> None:
    """What a step needs of the tasks is kept for the next, which may be about others."""

    def require_formula(sfr: SFRPlugin, model: nn.Module) -> None:
        expected = sum(each.penalty(model) for each in sfr.tasks)
        found = sfr.penalty(model)
        assert expected > 0
        assert torch.allclose(found, expected, rtol=1e-4)
        assert found.dtype == expected.dtype

    model = single_head()
    sfr = plugin(tau=1.0)
    sfr.end_task(model, task(0, 1))
    other = moved(model)
    require_formula(sfr, other)
    sfr.end_task(moved(other), task(2, 3))
    require_formula(sfr, other)
    sfr.absorb(model, task(0, 1, rows=30), task=0)
    require_formula(sfr, other)
    require_formula(sfr, moved(moved(other)).double())
    with pytest.warns(SFRWarning, match="weights of the network still remember"):
        sfr.forget(model, task(2, 3))
    require_formula(sfr, other)


def test_what_a_step_needs_is_in_no_checkpoint() -> None:
    model, sfr = single_head(), plugin()
    sfr.end_task(model, task(0, 1))
    before = len(pickle.dumps(sfr))
    found = sfr.penalty(moved(model))
    again = pickle.loads(pickle.dumps(sfr))
    assert len(pickle.dumps(sfr)) <= before + 2000  # a known head
    assert torch.equal(again.penalty(moved(model)), found)
