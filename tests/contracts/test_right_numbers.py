"""On every kind of stream the numbers are right: the loss term, its zero, the final posterior.

Everything is in float64, so that what is compared is the formula and not its rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.models.utils import is_multi_task_module
from avalanche.training.supervised import EWC, Naive, Replay
from torch import Tensor, nn

from sfr_cl import SFRPosterior, class_balanced, random
from sfr_cl.strategies import SFR, SFRConditioning, SFRPlugin
from sfr_cl.testing.strategies import check_metrics, seed_everything
from sfr_cl.testing.streams import CLASSES, STREAMS, Stream, silent
from support.dense_penalty import MASKED, Chosen, DenseHistory, Labelled, Scales, Step
from support.dense_posterior import DenseSites, moments

TAU = 0.7
NUM_INDUCING = 8


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    """Networks, data and losses are in float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# The loss term -----------------------------------------------------------------------------------


def plugged(make: Callable[..., Any], options: dict[str, Any], **others: Any) -> Any:
    """An Avalanche strategy with our plug-in."""
    return make(plugins=[SFRPlugin(**options)], **others)


def sfr(options: dict[str, Any], **others: Any) -> Any:
    return SFR(**options, **others)


MAKERS: dict[str, Callable[..., Any]] = {
    "SFR": sfr,
    "Naive": partial(plugged, Naive),
    "Replay": partial(plugged, partial(Replay, mem_size=12)),
    "EWC": partial(plugged, partial(EWC, ewc_lambda=1.0)),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "SFR": {},
    "identity": {"covariance": "identity"},
    "posterior": {"predict_with": "posterior"},
    "last layer": {"parameters": "last_layer"},
    "consolidated": {"consolidated": True},
}


def strategy_of(name: str, stream: Stream, options: dict[str, Any]) -> Any:
    model = stream.model()
    return MAKERS[name](
        {"num_inducing": NUM_INDUCING, "tau": TAU, "verbose": False, **options},
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        criterion=stream.criterion,
        train_mb_size=8,
        train_epochs=1,
        evaluator=silent(
            [] if stream.is_regression else accuracy_metrics(experience=True),
            loss_metrics(experience=True),
        ),
    )


def plugin_of(strategy: Any) -> SFRPlugin:
    (found,) = (plugin for plugin in strategy.plugins if isinstance(plugin, SFRPlugin))
    return found


def rows_of(experience: Any) -> list[Any]:
    """The samples of an experience."""
    return [experience.dataset[i] for i in range(len(experience.dataset))]


def columns(rows: list[Any]) -> tuple[Tensor, Tensor]:
    """Inputs and targets of samples."""
    x, y = (torch.stack([torch.as_tensor(row[i]) for row in rows]) for i in (0, 1))
    return x, y


def is_first(experience: Any) -> bool:
    """Whether a task begins here, as far as the stream says."""
    return bool(getattr(experience, "is_first_subexp", True))


def of_last_layer(name: str) -> bool:
    """Whether a parameter of the streams' models is one of a head."""
    return not name.startswith(("0.", "body."))


BOUNDED = [name for name in STREAMS if STREAMS[name]().boundaries]
"""Streams that say where a task ends."""
FEW = ["class", "task", "growing head", "online, uneven parts", "regression"]

EVERYWHERE = [
    ("SFR", option, kind)
    for option in ("SFR", "consolidated")
    for kind in STREAMS
    # Inputs that came twice leave a projection onto both to rounding.
    if (option, kind) != ("consolidated", "repetition")
]
ELSEWHERE = [("SFR", option) for option in ("identity", "posterior", "last layer")] + [
    (name, "SFR") for name in ("Naive", "Replay", "EWC")
]
LOSSES = [*EVERYWHERE, *((*case, kind) for case in ELSEWHERE for kind in FEW)]


@dataclass(frozen=True)
class Run:
    """A stream that was trained on, and the loss term of every step."""

    first: list[int]
    """The experiences that a task begins with."""
    steps: list[Step]
    last_terms: list[float]
    """At the first step of every experience, the term of the task learned last."""


@cache
def run_of(name: str, option: str, kind: str) -> Run:
    stream = STREAMS[kind]()
    seed_everything()
    chosen = Chosen(random if stream.is_regression else class_balanced)
    strategy = strategy_of(name, stream, {**OPTIONS[option], "inducing": chosen})
    history = DenseHistory(
        NUM_INDUCING,
        names=of_last_layer if option == "last layer" else None,
        identity=option == "identity",
        consolidated=option == "consolidated",
        endless=not stream.boundaries,
    )
    scales, plugin = Scales(history), plugin_of(strategy)
    scales.around(strategy, plugin)
    learned: list[Any] = []  # since the last task ended: the model, and rows of data
    terms: list[float] = []

    def end_task(of: Any) -> None:
        if learned and (history.endless or is_first(of.experience)):
            kept = [(task.label, task.z) for task in plugin._store.penalised]
            history.end_task(learned[0], learned[1:], chosen.take(), kept)
            learned.clear()
        terms.extend(task.penalty(task.view(of.model)).item() for task in plugin.tasks[-1:])

    scales.started = end_task
    for experience in stream.experiences:
        strategy.train(experience)
        learned[:] = [copy.deepcopy(strategy.model), *learned[1:], *rows_of(experience)]
    first = [i for i, experience in enumerate(stream.experiences) if is_first(experience)]
    late = len(stream.experiences) - len(terms)  # before the first task has ended there is no term
    return Run(first, scales.steps, [0.0] * late + terms)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # Avalanche's EWC, heads growing
@pytest.mark.parametrize(("name", "option", "kind"), LOSSES)
def test_the_loss_term_is_that_of_the_formula(name: str, option: str, kind: str) -> None:
    steps = run_of(name, option, kind).steps
    assert max(step.added for step in steps) > 1e-3
    expected = [TAU * step.expected for step in steps]
    assert [step.added for step in steps] == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize(
    ("name", "option", "kind"), [case for case in LOSSES if case[-1] in BOUNDED]
)
def test_a_task_begins_where_the_last_one_ended(name: str, option: str, kind: str) -> None:
    """Nothing has moved since: the term of the task learned last is zero, and with it, at the
    second task, the penalty."""
    run = run_of(name, option, kind)
    assert len(run.first) >= 3
    second = next(step for step in run.steps if step.experience == run.first[1])
    assert second.added == pytest.approx(0.0, abs=1e-9)
    if option != "consolidated":  # there all tasks are one
        found = [run.last_terms[i] for i in run.first]
        assert found == pytest.approx([0.0] * len(found), abs=1e-9)


# The final posterior -----------------------------------------------------------------------------

CONDITIONING: dict[str, dict[str, Any]] = {
    "all parameters": {},
    "last layer": {"parameters": "last_layer"},
    "trained first": {"train_first": True},
}


def conditioned(stream: Stream, options: dict[str, Any]) -> tuple[Any, dict[int | None, nn.Module]]:
    """A strategy after its stream, and the networks its posteriors were made of."""
    model = stream.model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    strategy = SFRConditioning(
        model=model,
        num_inducing=8,
        inducing="noise",
        criterion=stream.criterion,
        verbose=False,
        train_mb_size=8,
        evaluator=silent(),
        **(options | ({"optimizer": optimizer} if options.get("train_first") else {})),
    )
    networks: dict[int | None, nn.Module] = {}
    for experience in stream.experiences:
        strategy.train(experience)
        for label in strategy.posteriors.keys() - networks.keys():
            x, _ = columns(rows_of(experience))
            units = (Labelled(model, label).values(x[:1])[0] != MASKED).nonzero()[:, 0]
            networks[label] = Labelled(model, label, units.tolist())
    return strategy, networks


def agree(found: Tensor, expected: Tensor, tolerance: float) -> None:
    scale = 1 + float(expected.abs().max())
    assert float((found - expected).abs().max()) <= tolerance * scale


@pytest.mark.parametrize(
    ("option", "kind"),
    [
        *(("all parameters", kind) for kind in STREAMS),
        *((option, kind) for option in ("last layer", "trained first") for kind in FEW),
    ],
)
def test_the_final_posterior_is_a_direct_fit(option: str, kind: str) -> None:
    stream = STREAMS[kind]()
    seed_everything()
    strategy, networks = conditioned(stream, CONDITIONING[option])
    rows = [row for experience in stream.experiences for row in rows_of(experience)]
    for label, posterior in strategy.posteriors.items():
        x, y = columns([row for row in rows if label is None or int(row[-1]) == label])
        network = networks[label]
        names = [
            name
            for name, _ in network.named_parameters()
            if option != "last layer" or of_last_layer(name.removeprefix("model."))
        ]
        direct = SFRPosterior(
            network,
            "regression" if stream.is_regression else "classification",
            inducing=posterior.inducing_inputs,
            parameters=names,
            num_outputs=None if stream.is_regression else posterior.num_outputs,
        ).fit((x, y))
        assert posterior.num_data == len(y)
        assert posterior.prior_precision == pytest.approx(direct.prior_precision, rel=1e-6)
        direct = direct.with_prior_precision(posterior.prior_precision)
        sites = DenseSites.of(
            network, names, posterior.inducing_inputs, x, y, posterior.num_outputs
        )
        for experience in stream.benchmark.test_stream:
            at, _ = columns(rows_of(experience))
            found, expected = posterior.predict_f(at), direct.predict_f(at)
            agree(found.mean, expected.mean, 1e-9)
            agree(found.variance, expected.variance, 1e-9)
            mean, variance = moments(
                network,
                names,
                [sites],
                at,
                delta=posterior.prior_precision,
                classes=None if stream.is_regression else len(y.unique()),
                noise=posterior.noise_variance if stream.is_regression else None,
            )
            observed = posterior.num_outputs if stream.is_regression else int(y.max()) + 1
            agree(found.mean[:, :observed], mean[:, :observed], 1e-7)
            agree(found.variance[:, 0], variance, 1e-7)


# What is predicted -------------------------------------------------------------------------------


def active(model: nn.Module, label: int | None, x: Tensor) -> list[int]:
    """The units of a head that are in use."""
    values = Labelled(model, label).values(x[:1])[0]
    return (values != MASKED).nonzero()[:, 0].tolist()


def samples(rows: list[Any], label: int | None) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a task label."""
    return columns([row for row in rows if label is None or int(row[-1]) == label])


def metrics_of(outputs: dict[int, Tensor], tests: dict[int, Tensor]) -> dict[str, float]:
    """Accuracy and loss of log probabilities, or of real values, by experience."""
    found = {}
    for index, values in outputs.items():
        y = tests[index]
        if y.is_floating_point():
            found[f"Loss_Exp/Exp{index:03d}"] = float((values - y).square().mean())
            continue
        log_p = values - values.logsumexp(1, keepdim=True)
        found[f"Top1_Acc_Exp/Exp{index:03d}"] = float((values.argmax(1) == y).double().mean())
        found[f"Loss_Exp/Exp{index:03d}"] = float(-log_p[torch.arange(len(y)), y].mean())
    return found


def labels_of(model: nn.Module, rows: list[Any]) -> list[int | None]:
    return sorted({int(row[-1]) for row in rows}) if is_multi_task_module(model) else [None]


@pytest.mark.parametrize("kind", [kind for kind in BOUNDED if "online" not in kind])
@pytest.mark.parametrize("option", ["SFR", "posterior"])
def test_metrics_are_those_of_what_predicts(option: str, kind: str) -> None:
    """The network itself, or the posterior of all tasks at its weights, from dense kernels."""
    stream = STREAMS[kind]()
    seed_everything()
    strategy = strategy_of("SFR", stream, OPTIONS[option])
    model, plugin = strategy.model, plugin_of(strategy)
    sites: dict[int | None, list[DenseSites]] = {}
    known: dict[int | None, set[int]] = {}
    for experience in stream.experiences:
        strategy.train(experience)
        rows = rows_of(experience)
        for label in labels_of(model, rows):
            z = next(task.z for task in reversed(plugin.tasks) if task.label == label)
            x, y = samples(rows, label)
            network = Labelled(model, label, active(model, label, x))
            names = [name for name, _ in network.named_parameters()]
            one = DenseSites.of(network, names, z, x, y, CLASSES)
            sites.setdefault(label, []).append(one)
            known.setdefault(label, set()).update(() if stream.is_regression else y.tolist())
    outputs, tests = {}, {}
    posteriors = plugin.predictive(model)._posteriors if option == "posterior" else {}
    for index, experience in enumerate(stream.benchmark.test_stream):
        rows = rows_of(experience)
        (label,) = labels_of(model, rows)
        x, tests[index] = samples(rows, label)
        if option == "SFR":
            outputs[index] = Labelled(model, label).values(x)
            continue
        posterior, classes = posteriors[label], sorted(known[label])
        network = Labelled(model, label, active(model, label, x))
        mean, variance = moments(
            network,
            [name for name, _ in network.named_parameters()],
            sites[label],
            x,
            delta=posterior.prior_precision,
            classes=len(classes) or None,
            noise=posterior.noise_variance if stream.is_regression else None,
        )
        found = posterior.predict_f(x)
        agree(found.mean[:, classes or [0]], mean[:, classes or [0]], 1e-6)
        agree(found.variance[:, 0], variance, 1e-6)
        outputs[index] = mean
        if classes:
            outputs[index] = torch.full_like(mean, MASKED)
            outputs[index][:, classes] = mean[:, classes]
    found = strategy.eval(stream.benchmark.test_stream)
    expected = metrics_of(outputs, tests)
    compared = check_metrics(found, "eval_phase", expected)
    assert compared.keys() == expected.keys()
