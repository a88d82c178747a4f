"""What every Avalanche strategy must do with every kind of stream: train, evaluate, resume."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sfr_cl.strategies import (
    brier_metrics,
    ece_metrics,
    maybe_load_checkpoint,
    nlpd_metrics,
    save_checkpoint,
)
from sfr_cl.testing.expectations import expect, expect_same
from sfr_cl.testing.predictions import Witness, metrics_of_evaluation, metrics_of_training
from sfr_cl.testing.streams import STREAMS, Stream, silent

# isort: split
# Avalanche comes after the package that makes torchvision, which it imports, work.
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics

MakeStrategy = Callable[..., Any]
"""Makes a strategy from an Avalanche strategy's keywords: a class, or a function that adds some."""


def check_strategy(
    make: MakeStrategy, streams: Iterable[str] = tuple(STREAMS), *, density: bool = False
) -> None:
    """Check a strategy on small streams.

    It trains on each and is evaluated; all metrics must be finite, and those computed by hand from
    what it predicted. Evaluating once more must give the same and leave the weights alone. Saved
    halfway and loaded into another object made by ``make``, it must end where the one that was
    never stopped does.

    Args:
        make: called with ``model``, ``optimizer``, ``criterion``, ``train_mb_size``,
            ``train_epochs``, ``eval_mb_size`` and ``evaluator``.
        streams: names in :data:`~sfr_cl.testing.streams.STREAMS`; by default all.
        density: whether it leaves a predictive distribution of a regression's targets.

    Raises:
        AssertionError: it does not do one of these.

    >>> from functools import partial
    >>> from sfr_cl.strategies import SFR
    >>> check_strategy(partial(SFR, num_inducing=10, verbose=False), ["online"])
    """
    for name in streams:
        stream = STREAMS[name]()

        def fresh(stream: Stream = stream) -> Any:
            return make(**keywords(stream, density=density))

        with contextlib.redirect_stdout(io.StringIO()):  # Avalanche tells what it loads
            check_resumes(fresh, stream, len(stream.experiences) // 2)


def keywords(stream: Stream, *, density: bool = False) -> dict[str, Any]:
    """An Avalanche strategy's keywords for a stream, with a new model."""
    model = stream.model()
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), 1e-2),
        "criterion": stream.criterion,
        "train_mb_size": 8,
        "train_epochs": stream.epochs,
        "eval_mb_size": 32,
        "evaluator": evaluator(stream, density=density),
    }


def evaluator(stream: Stream, *, density: bool = False) -> Any:
    """Metrics of a stream; of a regression, NLPD only where there is a predictive density."""
    if stream.is_regression:
        densities = nlpd_metrics(experience=True, stream=True) if density else []
        return silent(loss_metrics(epoch=True, experience=True, stream=True), densities)
    return silent(
        accuracy_metrics(epoch=True, experience=True, stream=True),
        loss_metrics(epoch=True, experience=True, stream=True),
        nlpd_metrics(experience=True, stream=True),
        ece_metrics(stream=True),
        brier_metrics(stream=True),
    )


def check_resumes(make: Callable[[], Any], stream: Stream, stop: int) -> Any:
    """Check one strategy on one stream; see :func:`check_strategy`.

    Args:
        make: makes the strategy.
        stream: what it learns.
        stop: the number of experiences after which the run is stopped.

    Returns:
        the strategy that was never stopped.
    """
    seed_everything()
    never_stopped = make()
    with witnessed(never_stopped) as witness:
        trained(never_stopped, stream.experiences[:-1])
        never_stopped.evaluator.reset_last_metrics()  # Avalanche keeps those of other task labels
        trained(never_stopped, stream.experiences[-1:])
        found = never_stopped.evaluator.get_last_metrics()
        check_metrics(found, "train_phase", metrics_of_training(witness.trained))
        expected = check_evaluation(never_stopped, stream)
        by_hand = metrics_of_evaluation(witness.evaluated, stream.criterion)
    check_metrics(expected, "eval_phase", by_hand)

    seed_everything()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.pkl")
        save_checkpoint(trained(make(), stream.experiences[:stop]), path)
        seed_everything()
        torch.manual_seed(99)  # the state of the generators comes from the file
        resumed, start = maybe_load_checkpoint(make(), path)
    expect(start == stop, f"to resume at experience {stop}", start)
    found = evaluated(trained(resumed, stream.experiences[start:]), stream)
    expect_same(found, expected, "metrics after resuming")
    return never_stopped


def check_evaluation(strategy: Any, stream: Stream) -> dict[str, float]:
    """Check that evaluation gives metrics, and leaves a strategy as it is; return the metrics."""
    before = copy.deepcopy(dict(strategy.model.state_dict()))
    expected = evaluated(strategy, stream)
    expect(bool(expected), "metrics", expected)
    bad = {name: value for name, value in expected.items() if not math.isfinite(value)}
    expect(not bad, "metrics that are finite", bad)
    expect_same(evaluated(strategy, stream), expected, "metrics of a second evaluation")
    after = dict(strategy.model.state_dict())
    same_place = {  # heads may grow
        name: after[name][tuple(slice(size) for size in value.shape)]
        for name, value in before.items()
    }
    expect_same(same_place, before, "weights after evaluation")
    return expected


@contextlib.contextmanager
def witnessed(strategy: Any) -> Iterator[Witness]:
    """Write down what a strategy predicts, after all its plug-ins."""
    witness = Witness()
    strategy.plugins.append(witness)
    try:
        yield witness
    finally:
        strategy.plugins.remove(witness)


def check_metrics(
    metrics: Mapping[str, float], phase: str, by_hand: Mapping[str, float]
) -> dict[str, float]:
    """Check that every metric of a phase is the one computed by hand.

    Args:
        metrics: Avalanche's, by their full names.
        phase: ``"train_phase"`` or ``"eval_phase"``.
        by_hand: by the first part of the name, and the last for a metric of one experience.

    Returns:
        the metrics that were compared, by the names of those computed by hand.
    """
    compared = {}
    for name, value in metrics.items():
        kind, *parts = name.split("/")
        if phase not in parts:
            continue
        key = f"{kind}/{parts[-1]}" if kind.endswith("_Exp") else kind
        expect(key in by_hand, f"{name} to be one of {sorted(by_hand)}", key)
        close = math.isclose(value, by_hand[key], rel_tol=1e-5, abs_tol=1e-6)
        expect(close, f"{name} to be {by_hand[key]}, computed by hand", value)
        compared[key] = value
    expect(bool(compared), f"metrics of {phase}", metrics)
    return compared


def trained(strategy: Any, experiences: Iterable[Any]) -> Any:
    """The strategy, after it has learned some experiences."""
    for experience in experiences:
        strategy.train(experience)
    return strategy


def evaluated(strategy: Any, stream: Stream) -> dict[str, float]:
    """All metrics on the test stream."""
    found = strategy.eval(stream.benchmark.test_stream)
    return {name: value for name, value in found.items() if "eval_phase" in name}


def seed_everything(seed: int = 3) -> None:
    """Every generator that Avalanche's checkpoints save."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
