"""Predictions are over the classes seen, and a posterior's options reach it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from avalanche.core import SupervisedPlugin
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from torch import Tensor, nn

from sfr_cl import SFRPosterior
from sfr_cl.errors import ArgumentError
from sfr_cl.strategies import (
    SFR,
    SFRConditioning,
    brier_metrics,
    ece_metrics,
    nlpd_metrics,
)
from sfr_cl.testing.streams import blobs, class_benchmark, online, silent, single_head

UNITS = 1000
"""Of a pretrained head."""


def conditioning(model: nn.Module | None = None, **options: Any) -> SFRConditioning:
    torch.manual_seed(5)
    defaults = {"num_inducing": 30, "inducing": "noise", "evaluator": silent()}
    model = model or single_head(UNITS)
    defaults["parameters"] = "last_layer"
    return SFRConditioning(model=model, verbose=False, **{**defaults, **options})


class Outputs(SupervisedPlugin):  # type: ignore[misc]
    """Keeps what is predicted, and for what."""

    def __init__(self) -> None:
        super().__init__()
        self.absorbing: list[Tensor] = []
        self.evaluated: list[tuple[Tensor, Tensor]] = []

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        self.absorbing.append(strategy.mb_output)

    def after_eval_iteration(self, strategy: Any, **kwargs: Any) -> None:
        self.evaluated.append((strategy.mb_output, strategy.mb_y))


def test_a_pretrained_head_answers_with_the_classes_seen() -> None:
    metrics = [
        metric(stream=True)
        for metric in (accuracy_metrics, loss_metrics, nlpd_metrics, ece_metrics, brier_metrics)
    ]
    outputs = Outputs()
    strategy = conditioning(evaluator=silent(*metrics), plugins=[outputs])
    benchmark = class_benchmark()
    first, second, _ = benchmark.train_stream
    strategy.train(first)
    strategy.train(second)
    assert strategy.posterior.num_outputs == 4
    assert strategy.posterior.state.sums.gradient.shape == (4, 30)
    found = strategy.eval(benchmark.test_stream[:2])
    log_probs, y = (torch.cat(part) for part in zip(*outputs.evaluated, strict=True))
    assert log_probs.shape == (80, UNITS)
    assert bool((log_probs[:, 4:] == -1000).all())
    assert torch.allclose(log_probs[:, :4].exp().sum(1), torch.ones(80))
    direct = SFRPosterior(
        single_head(UNITS),
        "classification",
        inducing=strategy.posterior.inducing_inputs,
        parameters="last_layer",
        num_outputs=4,
        logit_scale=strategy.posterior.logit_scale,
    )
    x, classes = blobs(1)
    direct.fit((x[classes < 4], classes[classes < 4]))
    x, classes = blobs(2)
    x, classes = x[classes < 4], classes[classes < 4]
    own = strategy.posterior.predict_f(x)
    assert torch.allclose(own.mean, direct.predict_f(x).mean, rtol=0, atol=1e-9)
    nlpd = direct.nlpd((x, classes))
    by_name = {name.split("/")[0]: value for name, value in found.items()}
    assert by_name["NLPD_Stream"] == pytest.approx(nlpd, abs=1e-6)
    assert by_name["Loss_Stream"] == pytest.approx(nlpd, abs=1e-5)
    expected = direct.predict(x).probs
    assert by_name["Top1_Acc_Stream"] == (expected.argmax(1) == classes).double().mean()
    squares = (expected - nn.functional.one_hot(classes, 4)).square().sum(1).mean()
    assert by_name["Brier_Stream"] == pytest.approx(float(squares), abs=1e-6)
    assert torch.equal(y, classes)


def test_a_class_between_that_was_never_seen_has_no_probability() -> None:
    _, _, last = class_benchmark().train_stream
    strategy = conditioning(single_head(), plugins=[outputs := Outputs()])
    strategy.train(last)
    strategy.eval(class_benchmark().test_stream)
    log_probs = torch.cat([part for part, _ in outputs.evaluated])
    assert bool((log_probs[:, :4] == -1000).all())
    assert torch.allclose(log_probs[:, 4:].exp().sum(1), torch.ones(len(log_probs)))


def test_classes_of_the_experience_share_what_is_left_before_they_are_absorbed() -> None:
    strategy = conditioning(plugins=[outputs := Outputs()])
    first, second, _ = class_benchmark().train_stream
    strategy.train(first)
    assert torch.cat(outputs.absorbing)[:, :2].tolist() == [[pytest.approx(-math.log(2))] * 2] * 40
    outputs.absorbing.clear()
    strategy.train(second)
    p = torch.cat(outputs.absorbing).exp()
    assert bool((p[:, 2:4] > 0).all())
    assert torch.equal(p[:, 2], p[:, 3])
    assert not p[:, 4:].any()


def test_a_posterior_of_sfr_answers_with_the_classes_seen() -> None:
    model = single_head(20)
    strategy = SFR(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), 1e-2),
        num_inducing=10,
        predict_with="posterior",
        plugins=[outputs := Outputs()],
        evaluator=silent(),
        verbose=False,
    )
    strategy.train(class_benchmark().train_stream[0])
    strategy.eval(class_benchmark().test_stream)
    log_probs = torch.cat([part for part, _ in outputs.evaluated])
    assert log_probs.shape[1] == 20
    assert bool((log_probs[:, 2:] == -1000).all())


def test_options_reach_the_posterior() -> None:
    options: dict[str, Any] = {
        "dtype": torch.float32,
        "batch_size": 7,
        "logit_scale": 2.5,
        "prior_precision": 0.3,
    }
    strategy = conditioning(single_head(), **options)
    strategy.train(class_benchmark().train_stream[0])
    spec = strategy.posterior.spec
    assert {name: getattr(spec, name) for name in options} == options
    assert strategy.posterior.state.basis.network.dtype == torch.float32
    noisy = conditioning(single_head(1), criterion=nn.MSELoss(), noise_variance=0.25)
    assert noisy._spec().likelihood.noise_scale == 0.25


@pytest.mark.parametrize("linearize_at", ["prior", "posterior", "network"])
@pytest.mark.parametrize("output_kernel", ["shared", "per_output"])
def test_every_linearisation_is_one_fit_to_all_data(linearize_at: str, output_kernel: str) -> None:
    options: dict[str, Any] = {
        "linearize_at": linearize_at,
        "output_kernel": output_kernel,
        "batch_size": 10,
        "logit_scale": 2.0,
    }
    strategy = conditioning(single_head(), parameters="all", train_mb_size=20, **options)
    for part in online(class_benchmark(), 20):
        strategy.train(part)
    direct = SFRPosterior(
        single_head(),
        "classification",
        inducing=strategy.posterior.inducing_inputs,
        **options,
    ).fit(blobs(1))
    x = blobs(2)[0]
    assert strategy.posterior.num_outputs == 6
    expected = direct.predict_f(x)
    assert torch.allclose(strategy.posterior.predict_f(x).mean, expected.mean, rtol=0, atol=1e-9)


def test_single_precision_is_near_double() -> None:
    x, z, probs = blobs(2)[0], torch.randn(30, 1, 2, 2), []
    for dtype in (torch.float64, torch.float32):
        strategy = conditioning(single_head(), dtype=dtype, parameters="all", inducing=z)
        for experience in class_benchmark().train_stream:
            strategy.train(experience)
        probs.append(strategy.posterior.predict(x).probs)
    assert (probs[0] - probs[1]).abs().max() < 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": torch.float16}, "dtype torch.float64 or torch.float32"),
        ({"batch_size": 0}, "positive batch_size"),
        ({"logit_scale": -1.0}, "positive logit_scale"),
        ({"output_kernel": "one"}, "expected output_kernel"),
        ({"linearize_at": "mode"}, "expected linearize_at"),
        ({"criterion": nn.MSELoss(), "noise_variance": -1.0}, "noise_variance"),
        ({"criterion": nn.MSELoss(), "linearize_at": "posterior"}, "expected linearize_at='prior'"),
    ],
)
def test_options_no_posterior_takes_are_refused_at_once(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        conditioning(single_head(), **options)
