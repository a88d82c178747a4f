"""Conditioning alone: exact, in any order, every sample once, nothing trained."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets, nc_benchmark
from avalanche.benchmarks.utils import as_classification_dataset, concat_datasets
from avalanche.benchmarks.utils.data import AvalancheDataset
from avalanche.core import SupervisedPlugin
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.training.plugins import EWCPlugin, ReplayPlugin
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sfr_cl import SFRPosterior, greedy
from sfr_cl.errors import ArgumentError
from sfr_cl.strategies import SFR, SFRConditioning, nlpd_metrics
from sfr_cl.strategies.predictive import Predictive
from sfr_cl.testing.streams import (
    CLASSES,
    Labelled,
    MultiHead,
    blobs,
    class_benchmark,
    online,
    regression_benchmark,
    silent,
    single_head,
)


def conditioning(model: nn.Module | None = None, **options: Any) -> SFRConditioning:
    torch.manual_seed(5)
    defaults = {"num_inducing": 30, "inducing": "noise", "evaluator": silent()}
    return SFRConditioning(model=model or single_head(), **{**defaults, **options})


def trained(strategy: Any, experiences: Any) -> Any:
    for experience in experiences:
        strategy.train(experience)
    return strategy


def test_the_order_of_experiences_changes_no_mean_and_no_variance() -> None:
    """With a scale of logits that is given, no prediction."""
    experiences = list(class_benchmark().train_stream)
    x, _ = blobs(2)
    posteriors = [
        trained(conditioning(logit_scale=given), order).posterior
        for order in itertools.permutations(experiences)
        for given in (None, 2.0)
    ]
    first = posteriors[0].predict_f(x)
    for posterior in posteriors:
        found = posterior.predict_f(x)
        assert torch.allclose(found.mean, first.mean, rtol=1e-4, atol=1e-5)
        assert torch.allclose(found.variance, first.variance, rtol=1e-4)
    for posterior in posteriors[1::2]:
        difference = posterior.predict(x).probs - posteriors[1].predict(x).probs
        assert difference.abs().max() <= 1e-6


def test_parts_of_a_stream_are_the_whole() -> None:
    benchmark, (x, _) = class_benchmark(), blobs(2)
    whole = trained(conditioning(), benchmark.train_stream)
    for ends in (True, False):
        parts = trained(conditioning(), online(benchmark, 7, ends=ends))
        found = parts.posterior.predict_f(x).mean
        assert (found - whole.posterior.predict_f(x).mean).abs().max() <= 1e-5


def test_it_is_one_fit_to_all_data() -> None:
    strategy = trained(conditioning(), class_benchmark().train_stream)
    posterior = SFRPosterior(
        single_head(),
        "classification",
        inducing=strategy.posterior.inducing_inputs,
    ).fit(blobs(1))
    x, _ = blobs(2)
    expected = posterior.predict_f(x).mean
    assert torch.allclose(strategy.posterior.predict_f(x).mean, expected, atol=1e-5)
    assert strategy.posterior.num_data == 120


def test_classes_need_no_announcement_and_no_unit() -> None:
    benchmark = class_benchmark()
    strategy = conditioning(single_head(1), evaluator=silent(accuracy_metrics(stream=True)))
    for seen, experience in enumerate(benchmark.train_stream, start=1):
        strategy.train(experience)
        assert strategy.posterior.num_outputs == 2 * seen
        found = strategy.eval(benchmark.test_stream)  # classes to come among them
        (accuracy,) = (v for k, v in found.items() if k.startswith("Top1_Acc_Stream"))
        assert accuracy == pytest.approx(2 * seen / CLASSES, abs=0.1)


def test_the_last_classes_may_come_first() -> None:
    """The first data of a network with one unit has labels far beyond it."""
    experiences = list(class_benchmark().train_stream)
    x, _ = blobs(2)
    forward, backward = (
        trained(conditioning(single_head(1)), order).posterior
        for order in (experiences, experiences[::-1])
    )
    assert backward.num_outputs == forward.num_outputs == CLASSES
    assert torch.allclose(backward.predict_f(x).mean, forward.predict_f(x).mean, atol=1e-5)


def test_the_network_is_never_changed() -> None:
    model = single_head()
    before = copy.deepcopy(model.state_dict())
    benchmark = class_benchmark()
    strategy = conditioning(model, plugins=[EWCPlugin(1.0)])
    trained(strategy, benchmark.train_stream).eval(benchmark.test_stream)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_the_first_experience_may_train_the_network() -> None:
    model, benchmark = single_head(), class_benchmark()
    strategy = conditioning(
        model,
        train_first=True,
        optimizer=torch.optim.Adam(model.parameters(), 1e-2),
        train_epochs=3,
        train_mb_size=8,
    )
    initial = copy.deepcopy(model.state_dict())
    strategy.train(benchmark.train_stream[0])
    first = copy.deepcopy(model.state_dict())
    assert not torch.equal(initial["1.weight"], first["1.weight"])
    assert strategy.posterior.num_data == 40  # three epochs of training, absorbed once
    strategy.train(benchmark.train_stream[1])
    assert all(torch.equal(first[key], value) for key, value in model.state_dict().items())
    assert strategy.posterior.num_data == 80


def test_while_it_is_trained_the_network_predicts() -> None:
    """Early stopping, say, looks at what is being trained."""
    model, benchmark = single_head(), class_benchmark()
    strategy = conditioning(
        model,
        train_first=True,
        optimizer=torch.optim.Adam(model.parameters(), 3e-2),
        train_epochs=3,
        train_mb_size=8,
        evaluator=silent(accuracy_metrics(stream=True)),
        eval_every=1,
    )
    strategy.train(benchmark.train_stream[0])
    ((_, found),) = strategy.evaluator.get_all_metrics().values()
    assert min(found[2:]) > 0.8  # one answer for all inputs would be right for half of them


class BestWeights(SupervisedPlugin):  # type: ignore[misc]
    """Stops as early stopping does: other weights come back when the next epoch begins."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.weights = weights

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        if strategy.clock.train_exp_epochs == strategy.train_epochs:
            strategy.model.load_state_dict(self.weights)


def test_weights_that_early_stopping_brings_back_are_the_kernels() -> None:
    model, (x, _), first = single_head(), blobs(2), class_benchmark().train_stream[0]
    strategy = conditioning(
        model,
        train_first=True,
        optimizer=torch.optim.Adam(model.parameters(), 3e-2),
        plugins=[BestWeights(copy.deepcopy(model.state_dict()))],
    )
    found = trained(strategy, [first]).posterior.predict_f(x)
    expected = trained(conditioning(single_head()), [first]).posterior.predict_f(x)
    # f, as scores of data that the network may have been trained on are but a bound of its scale.
    assert torch.allclose(found.mean, expected.mean)
    assert torch.allclose(found.variance, expected.variance)


def test_replay_does_not_absorb_twice() -> None:
    strategy = conditioning(plugins=[ReplayPlugin(mem_size=20)])
    trained(strategy, class_benchmark().train_stream)
    assert strategy.posterior.num_data == 120


def test_tasks_of_different_size_are_not_oversampled() -> None:
    x, y = blobs(1)
    small = as_classification_dataset(Labelled(x[:4], y[:4]))
    large = as_classification_dataset(Labelled(x[20:50], y[20:50]))
    benchmark = benchmark_from_datasets(train=[concat_datasets([small, large])])
    strategy = trained(conditioning(), benchmark.train_stream)
    assert strategy.posterior.num_data == 34


class Outputs(SupervisedPlugin):  # type: ignore[misc]
    """Keeps what is predicted while data is absorbed."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        self.found.append(strategy.mb_output)


def test_data_is_predicted_before_it_is_absorbed() -> None:
    first, second, _ = class_benchmark().train_stream
    strategy = conditioning(plugins=[outputs := Outputs()], train_mb_size=16)
    strategy.train(first)
    alike = torch.cat(outputs.found).exp()  # the classes of the experience, and no others
    assert torch.allclose(alike, torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0, 0.0]).expand_as(alike))
    before = copy.copy(strategy.posterior).grow_outputs(4)
    x = torch.stack([item[0] for item in second.dataset])
    expected = before.predict(x).probs.float()
    outputs.found.clear()
    strategy.train(second)
    found = torch.cat(outputs.found).exp()
    assert torch.allclose(found[:, :4], expected, atol=1e-5)
    assert not found[:, 4:].any()


@pytest.mark.parametrize("inducing", ["noise", "smooth_noise", "random", "class_balanced", greedy])
@pytest.mark.parametrize("parameters", ["all", "last_layer"])
def test_inducing_inputs_and_kernels(inducing: Any, parameters: str) -> None:
    benchmark = class_benchmark()
    strategy = conditioning(
        inducing=inducing,
        parameters=parameters,
        num_inducing=15,
        evaluator=silent(accuracy_metrics(stream=True)),
    )
    found = trained(strategy, benchmark.train_stream).eval(benchmark.test_stream)
    assert next(iter(found.values())) > 0.6


def test_inducing_inputs_of_ones_own() -> None:
    z = torch.randn(9, 1, 2, 2)
    strategy = trained(conditioning(inducing=z), class_benchmark().train_stream)
    assert torch.equal(strategy.posterior.inducing_inputs.float(), z)


def test_absorb_is_training_without_hooks() -> None:
    experiences, (x, _) = class_benchmark().train_stream, blobs(2)
    absorbed = conditioning()
    for experience in experiences:
        absorbed.absorb(experience)
    expected = trained(conditioning(), experiences).posterior.predict(x).probs
    assert torch.allclose(absorbed.posterior.predict(x).probs, expected, atol=1e-9)


def test_regressions_have_a_predictive_density() -> None:
    benchmark = regression_benchmark()
    strategy = conditioning(
        single_head(1), criterion=nn.MSELoss(), evaluator=silent(nlpd_metrics(stream=True))
    )
    first = benchmark.train_stream[0]
    strategy.train(first)
    before = next(iter(strategy.eval(benchmark.test_stream).values()))
    after = next(
        iter(
            trained(strategy, list(benchmark.train_stream)[1:]).eval(benchmark.test_stream).values()
        )
    )
    assert after < before - 0.3


@pytest.mark.parametrize("criterion", [nn.MSELoss(), nn.BCEWithLogitsLoss()])
def test_outputs_have_the_form_of_their_targets(criterion: nn.Module) -> None:
    """Of one output, ``[B]`` and ``[B]``: losses broadcast ``[B, 1]``, or refuse it."""
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
    data = AvalancheDataset([TensorDataset(x, (x[:, 0] > 0).float())])
    benchmark = benchmark_from_datasets(train=[data], test=[data])

    def shared() -> dict[str, Any]:
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))
        metrics = silent(loss_metrics(stream=True), nlpd_metrics(stream=True))
        return {"model": model, "criterion": criterion, "evaluator": metrics, "num_inducing": 20}

    options = shared()
    optimizer = torch.optim.SGD(options["model"].parameters(), 0.1)
    for strategy in (
        SFRConditioning(inducing="noise", **shared()),
        SFR(predict_with="posterior", optimizer=optimizer, verbose=False, **options),
    ):
        found = trained(strategy, benchmark.train_stream).eval(benchmark.test_stream)
        assert found["Loss_Stream/eval_phase/test_stream"] < 0.6


def test_before_the_first_experience_all_classes_are_alike() -> None:
    strategy = conditioning(evaluator=silent(nlpd_metrics(experience=True)))
    found = strategy.eval(class_benchmark().test_stream)
    assert list(found.values()) == pytest.approx([math.log(CLASSES)] * 3)


def test_every_head_has_a_posterior() -> None:
    benchmark = class_benchmark(task_labels=True)
    strategy = conditioning(MultiHead(), evaluator=silent(accuracy_metrics(stream=True)))
    found = trained(strategy, benchmark.train_stream).eval(benchmark.test_stream)
    assert sorted(strategy.posteriors) == [0, 1, 2]
    assert min(v for k, v in found.items() if k.startswith("Top1_Acc_Stream")) > 0.9
    with pytest.raises(ArgumentError, match=r"use posteriors\[label\]"):
        _ = strategy.posterior


@pytest.mark.parametrize("kind", ["conditioning", "sfr"])
def test_a_head_predicts_its_own_classes_only(kind: str) -> None:
    """With class ids that are global, as Avalanche gives them by default."""
    benchmark = nc_benchmark(
        Labelled(*blobs(1)),
        Labelled(*blobs(2)),
        3,
        task_labels=True,
        fixed_class_order=list(range(CLASSES)),
        class_ids_from_zero_in_each_exp=False,
    )
    model, evaluator = MultiHead(), silent(nlpd_metrics(stream=True))
    if kind == "conditioning":
        strategy = conditioning(model, evaluator=evaluator)
    else:
        strategy = SFR(
            model=model,
            optimizer=torch.optim.Adam(model.parameters(), 1e-2),
            num_inducing=10,
            predict_with="posterior",
            train_epochs=5,
            evaluator=evaluator,
            verbose=False,
        )
    trained(strategy, benchmark.train_stream)
    found = strategy.eval(benchmark.test_stream)
    posteriors = (
        strategy.sfr.predictive(model) if kind == "sfr" else Predictive(strategy.posteriors)
    )
    x, _ = blobs(2)
    for label in range(3):
        _, predictive = posteriors.predict(x, torch.full((len(x),), label))
        own = predictive.probs[:, 2 * label : 2 * label + 2].sum(1)
        assert torch.allclose(own, torch.ones_like(own), atol=1e-12)
    assert min(v for k, v in found.items() if k.startswith("NLPD_Stream")) < 0.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": True}, "expected no optimizer, since nothing is trained"),
        ({"train_first": True}, "an optimizer for train_first=True, got none"),
        ({"inducing": "best"}, "inducing to be one of"),
        ({"num_inducing": 0}, "positive num_inducing"),
        ({"prior_precision": -1.0}, "positive prior_precision"),
        ({"logit_scale": 0.0}, "positive logit_scale"),
        ({"criterion": nn.HuberLoss()}, "whose likelihood is known"),
    ],
)
def test_bad_use_is_refused(options: dict[str, Any], message: str) -> None:
    model = single_head()
    if "optimizer" in options:
        options = {"optimizer": torch.optim.SGD(model.parameters(), 0.1)}
    with pytest.raises(ArgumentError, match=message):
        conditioning(model, **options)


def test_bad_data_changes_nothing() -> None:
    benchmark = class_benchmark()
    strategy = trained(conditioning(), [benchmark.train_stream[0]])
    x, y = blobs(1)
    x[-1, 0, 0, 0] = float("nan")
    broken = benchmark_from_datasets(train=[as_classification_dataset(Labelled(x, y))])
    with pytest.raises(ValueError, match="expected finite inputs"):
        strategy.train(broken.train_stream[0])
    assert strategy.posterior.num_data == 40
