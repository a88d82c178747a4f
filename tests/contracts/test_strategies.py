"""Our strategies keep the contract of every strategy, and a few promises of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from avalanche.training.plugins import ReplayPlugin
from avalanche.training.supervised import Naive

from sfr_cl.strategies import SFR, SFRConditioning, SFRPlugin
from sfr_cl.testing.strategies import (
    check_resumes,
    check_strategy,
    evaluated,
    keywords,
    seed_everything,
    trained,
)
from sfr_cl.testing.streams import STREAMS, Stream, class_benchmark, online, single_head

sfr = partial(SFR, num_inducing=10, verbose=False)


def conditioning(*, train_first: bool = False, **options: Any) -> Any:
    if not train_first:
        del options["optimizer"]
    return SFRConditioning(num_inducing=12, inducing="noise", train_first=train_first, **options)


def naive(*others: Callable[[], Any], **options: Any) -> Any:
    plugin = SFRPlugin(num_inducing=10, verbose=False)
    return Naive(**options, plugins=[plugin, *(make() for make in others)])


STRATEGIES: dict[str, Callable[..., Any]] = {
    "SFR": sfr,
    "SFR, posterior": partial(sfr, predict_with="posterior"),
    "SFR, consolidated": partial(sfr, consolidated=True),
    "SFRConditioning": conditioning,
    "SFRConditioning, trained first": partial(conditioning, train_first=True),
    "Naive + SFRPlugin + replay": partial(naive, partial(ReplayPlugin, mem_size=12)),
}
WITH_DENSITY = {"SFR, posterior", "SFRConditioning", "SFRConditioning, trained first"}


def make(name: str, stream: Stream) -> Any:
    return STRATEGIES[name](**keywords(stream, density=name in WITH_DENSITY))


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_trains_evaluates_and_resumes(name: str, stream: str) -> None:
    check_strategy(STRATEGIES[name], [stream], density=name in WITH_DENSITY)


@pytest.mark.parametrize("ends", [True, False])
def test_parts_that_wait_are_resumed(ends: bool) -> None:
    """Fewer samples than inducing inputs are no task yet."""
    benchmark = class_benchmark()
    parts = online(benchmark, 6, ends=ends)[:4]
    stream = Stream(benchmark, parts, single_head, torch.nn.CrossEntropyLoss(), epochs=1)
    check_resumes(lambda: make("SFR, posterior", stream), stream, 3)


@pytest.mark.parametrize("name", ["SFR", "SFR, posterior", "SFRConditioning"])
def test_classes_of_earlier_tasks_are_not_forgotten(name: str) -> None:
    stream = STREAMS["class"]()
    seed_everything()
    strategy = trained(make(name, stream), stream.experiences)
    found = evaluated(strategy, stream)
    accuracies = [value for key, value in found.items() if key.startswith("Top1_Acc_Exp")]
    assert len(accuracies) == 3
    assert min(accuracies) > 0.6


def test_the_posterior_draws_as_the_network_does() -> None:
    stream = STREAMS["class"]()
    seed_everything()
    strategy = trained(make("SFR, posterior", stream), stream.experiences[:2])
    generator = torch.get_rng_state()
    first = evaluated(strategy, stream)
    drawn = torch.get_rng_state()  # Avalanche's own loaders draw
    torch.set_rng_state(generator)
    strategy.sfr.predict_with = "network"
    assert evaluated(strategy, stream) != first
    assert torch.equal(torch.get_rng_state(), drawn)


# The contract can fail ---------------------------------------------------------------------------


class Forgetful(SFRPlugin):
    """Its state is in no checkpoint."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "tau": 1e-9}


class Drifting(SFRPlugin):
    """Trains while it is evaluated."""

    def before_eval(self, strategy: Any, **kwargs: Any) -> None:
        with torch.no_grad():
            next(strategy.model.parameters()).add_(0.1)


class DriftsOnce(Drifting):
    """Trains while it is evaluated for the first time."""

    drifted = False

    def before_eval(self, strategy: Any, **kwargs: Any) -> None:
        if not self.drifted:
            super().before_eval(strategy, **kwargs)
        self.drifted = True


class Boasting(Naive):  # type: ignore[misc] # Avalanche ships no types
    """Reports better metrics than it has."""

    def eval(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        found = super().eval(*args, **kwargs)
        return {name: 0.9 * value for name, value in found.items()}


def test_metrics_that_are_not_those_of_its_predictions_are_found() -> None:
    with pytest.raises(AssertionError, match="computed by hand, got"):
        check_strategy(Boasting, ["class"])


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (Forgetful, "metrics after resuming"),
        (Drifting, "of a second evaluation"),
        (DriftsOnce, "weights after evaluation"),
    ],
)
def test_what_breaks_the_contract_is_found(plugin: type[SFRPlugin], message: str) -> None:
    def broken(**options: Any) -> Any:
        return Naive(**options, plugins=[plugin(num_inducing=10, tau=5.0, verbose=False)])

    with pytest.raises(AssertionError, match=message):
        check_strategy(broken, ["class"])
