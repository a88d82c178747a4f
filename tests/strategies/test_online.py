"""Streams in parts: a task is held to the network that has learned it, not to one on its way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from avalanche.training.supervised import Naive
from torch import Tensor, nn

from sfr_cl.strategies import SFR, SFRPlugin, tasks
from sfr_cl.strategies.sample import Sample
from sfr_cl.testing.streams import Growing, class_benchmark, online, silent, single_head
from support.plugins import moved, plugin, task


class Watched(SFRPlugin):
    """Notes the penalty of the last task at every first step of an experience."""

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        super().before_training_exp(strategy, **kwargs)
        self.first = True

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        super().before_backward(strategy, **kwargs)
        if self.first and self.tasks:
            last, model = self.tasks[-1], strategy.model
            self.found.append((len(self.tasks), last.penalty(last.view(model)).item()))
        self.first = False


def watched(**options: Any) -> Watched:
    made = Watched(num_inducing=8, verbose=False, **options)
    made.found = []
    return made


def trained(parts: list[Any], made: SFRPlugin | None, model: nn.Module, epochs: int = 3) -> Any:
    strategy = Naive(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), 1e-2),
        criterion=nn.CrossEntropyLoss(),
        plugins=[made] if made else [],
        evaluator=silent(),
        train_mb_size=10,
        train_epochs=epochs,
    )
    for part in parts:
        strategy.train(part)
    return strategy


@pytest.mark.parametrize("size", [3, 10, 40])
def test_the_penalty_starts_at_zero(size: int) -> None:
    made, model = watched(tau=5.0), single_head()
    trained(online(class_benchmark(), size), made, model)
    starts = [next(value for count, value in made.found if count == k) for k in (1, 2)]
    assert starts == pytest.approx([0, 0], abs=1e-9)
    assert made.penalty(model).item() > 1e-3


def test_a_task_in_parts_is_the_task_at_once() -> None:
    """The same precision and the same values, of the network it ends with."""
    model, data = single_head(), task(0, 1)
    benchmark = class_benchmark()
    whole = plugin(num_inducing=40, inducing="random")
    made = SFRPlugin(40, inducing="random", verbose=False)
    strategy = trained(online(benchmark, 7)[:6], made, model)  # the sixth says that it is the last
    whole.end_task(strategy.model, data)
    other = moved(model)
    assert made.penalty(other).item() == pytest.approx(whole.penalty(other).item(), rel=1e-3)
    assert made.tasks[0].num_data == 40


def test_a_task_is_remembered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with every part: it costs more than the part's training."""
    calls = []
    monkeypatch.setattr(
        "sfr_cl.strategies.store.remember",
        lambda *arguments: calls.append(1) or tasks.remember(*arguments),
    )
    trained(online(class_benchmark(), 3), watched(), single_head(), epochs=1)
    assert len(calls) == 1 + 3  # the first rows are tried before the first step


def test_data_of_the_unfinished_task_joins_it() -> None:
    benchmark, model = class_benchmark(), single_head()
    strategy = SFR(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 1e-2),
        num_inducing=8,
        evaluator=silent(),
        verbose=False,
    )
    parts = online(benchmark, 25)
    strategy.train(parts[0])
    strategy.absorb(benchmark.train_stream[0])
    assert strategy.sfr.tasks == []
    strategy.train(parts[1])
    assert [t.num_data for t in strategy.sfr.tasks] == [80]


# What is kept of a task on its way ---------------------------------------------------------------


def arriving(counts: dict[int, int], size: int, part: int = 7) -> Sample:
    y = torch.cat([torch.full((count,), label) for label, count in counts.items()])
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]
    x, sample = torch.arange(len(y))[:, None].float(), Sample(size, of_classes=True)
    for start in range(0, len(y), part):
        sample = sample.with_more([(x[start : start + part], y[start : start + part])])
    return sample


def rows_of(sample: Sample) -> Tensor:
    return torch.cat([x[:, 0] for x, _ in sample.weighted()])


def test_what_fits_is_kept_in_order() -> None:
    sample = arriving({0: 12, 1: 8}, size=10)
    assert rows_of(sample).tolist() == list(range(20))
    assert [weight for _, weight in sample.weighted().strata] == [1.0]


def test_classes_share_the_place_and_stand_for_all() -> None:
    sample = arriving({0: 300, 1: 3, 2: 50}, size=23)
    found = {int(pairs[0][1][0]): (len(pairs[0][1]), w) for pairs, w in sample.weighted().strata}
    assert {label: count for label, (count, _) in found.items()} == {0: 10, 1: 3, 2: 10}
    assert {label: count * w for label, (count, w) in found.items()} == {0: 300, 1: 3, 2: 50}
    assert sample.count == 353
    assert sum(len(keys) for _, _, keys in sample.parts) <= 2 * 23


def test_no_class_is_left_out() -> None:
    sample = arriving(dict.fromkeys(range(9), 20), size=4)
    assert {int(y) for _, labels in sample.weighted() for y in labels} == set(range(9))


def test_early_and_late_samples_are_as_likely() -> None:
    torch.manual_seed(0)
    rows = torch.cat([rows_of(arriving({0: 100, 1: 100}, size=10)) for _ in range(200)])
    # 2,000 draws from 200 places: the error of their mean is 57.7 / sqrt(2000) = 1.3.
    assert rows.mean().item() == pytest.approx(99.5, abs=5)
    first = (rows < 50).double().mean().item()
    assert first == pytest.approx(0.25, abs=0.04)


def test_units_that_become_active_within_a_head_are_held() -> None:
    """Its size and its weights' shapes stay: only what the masked units give tells."""
    model = Growing()
    strategy = SFR(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.0),
        num_inducing=8,
        evaluator=silent(),
        train_mb_size=10,
        verbose=False,
    )
    units = []
    for part in online(class_benchmark(order=[4, 5, 0, 1, 2, 3]), 20):
        strategy.train(part)
        units.append([sorted(task.units.tolist()) for task in strategy.sfr.tasks])
    four, six = [0, 1, 4, 5], [0, 1, 2, 3, 4, 5]
    assert units == [[], [], [four], [four], [six, six], [six, six]]
    assert strategy.sfr.penalty(model).item() == pytest.approx(0, abs=1e-8)
