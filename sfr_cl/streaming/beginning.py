"""How a stream starts: over given inducing inputs, or over its first input."""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch
from torch import nn

from sfr_cl.errors import ArgumentError
from sfr_cl.inducing import DEFAULT_COUNT
from sfr_cl.inputs import Inputs, length, take, tree_map
from sfr_cl.likelihoods import GaussianLikelihood
from sfr_cl.network import FrozenNetwork
from sfr_cl.options import whole
from sfr_cl.posterior import SFRPosterior
from sfr_cl.state import State
from sfr_cl.streaming.kept import Fresh, Kept
from sfr_cl.streaming.learning import next_due
from sfr_cl.streaming.memory import Memory
from sfr_cl.streaming.scores import Calibration, Scores, Surprise
from sfr_cl.streaming.settings import Settings


def given_inducing(posterior: SFRPosterior) -> Any:
    """How many inducing inputs a stream is to choose, or those that were given."""
    if posterior._fitted is not None:
        return posterior._fitted.z
    wanted = posterior._inducing
    if wanted is None:
        return DEFAULT_COUNT
    if isinstance(wanted, Integral):
        return whole("number of inducing inputs", int(wanted))
    if callable(wanted):
        raise ArgumentError(
            "expected a number of inducing inputs, or the inputs themselves, got a selector: fit "
            "the posterior to the first data, or give a number"
        )
    return wanted


def settings_for(posterior: SFRPosterior, *, swap: bool | None, **given: Any) -> Settings:
    """A stream's settings, completed by those of its posterior."""
    inducing = given_inducing(posterior)
    chooses = isinstance(inducing, int)
    if swap and posterior._fitted is not None and posterior.num_data > 0:
        raise ArgumentError(
            f"expected swap=False for a posterior with data, got True, and {posterior.num_data} "
            f"data: how well others would stand for them can't be known; let the stream learn them"
        )
    learns = isinstance(posterior.likelihood, GaussianLikelihood)
    return Settings(
        swap=chooses if swap is None else swap,
        budget=inducing if chooses else length(inducing),
        learns_precision=learns and posterior._prior_precision is None,
        **given,
    )


def empty(template: SFRPosterior, network: nn.Module, z: Inputs) -> State:
    """A state without data, at the weights of a network."""
    options = template._options
    frozen = FrozenNetwork(network, options.parameters, options.dtype)
    frozen.require_finite()
    z = tree_map(torch.clone, frozen.prepare(z, "inducing inputs"))
    return template._without_data(frozen, frozen.bind(z), z)


def begun(
    settings: Settings,
    state: State,
    prior_precision: float,
    *,
    watched: bool,
    choosing: bool = False,
) -> Memory:
    """Nothing learned yet; ``choosing`` its inducing inputs, or over those that are there."""
    calibrates = settings.calibrate and state.likelihood.has_logits
    window = settings.window is not None
    memory = Memory(
        settings=settings,
        state=state,
        prior_precision=prior_precision,
        scores=Scores(Calibration() if calibrates else None, Surprise() if watched else None),
        clock=-1.0 if settings.discount_per == "sample" else -math.inf,
        choosing=choosing,
        kept=Kept() if window or choosing else None,
        fresh=Fresh.none(state) if window else None,
    )
    return replace(memory, due=next_due(memory))


def first(template: SFRPosterior, settings: Settings, x: Inputs, *, watched: bool) -> Memory:
    """Nothing learned yet, over the first of some inputs."""
    options = template._options
    frozen = FrozenNetwork(template._network, options.parameters, options.dtype)
    z = take(frozen.prepare(x), slice(0, 1))
    state = empty(template, template._network, z)
    delta = template._prior_precision or 1.0
    return begun(settings, state, delta, watched=watched, choosing=True)
