"""Choosing delta, and for logits the scale of f, from one pass over validation data.

With W = U diag(lambda) U' every delta costs a division per feature: no pass over training data, and
no factorisation, is repeated.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sfr_cl.core.evidence import Natural, learn
from sfr_cl.core.solve import Sweep
from sfr_cl.core.state import State
from sfr_cl.data.inputs import Inputs
from sfr_cl.errors import SFRWarning
from sfr_cl.predictive import log_density

DELTAS = [10 ** (step / 8) for step in range(-48, 49)]
SCALES = [10 ** (step / 10) for step in range(-10, 11)]
"""Relative to the usual scale."""


class Tuned(NamedTuple):
    """The winner."""

    prior_precision: float
    logit_scale: float | None
    """``None`` where there is none, or it is learned."""


def by_evidence(state: State, *, carried: bool = False) -> Tuned:
    """The delta of greatest log marginal likelihood, along with the noise if that is learned."""
    delta, _ = learn(Natural.of(state), state.likelihood, None, carried=carried)
    return Tuned(delta, state.spec.logit_scale)


def by_validation(state: State, batches: Iterable[tuple[Inputs, Tensor]], link: str) -> Tuned:
    """The delta, and scale of logits, of least validation NLPD."""
    sweep = Sweep(state, DELTAS)
    usual = state.reading.logit_scale
    scales = [usual * factor for factor in SCALES] if state.likelihood.has_logits else [1.0]
    totals = torch.zeros(len(DELTAS), len(scales), dtype=torch.float64)
    for x, y in batches:
        features = state.basis.features(x, diagonal=True)
        pairs = zip(sweep.likelihoods, sweep.logits(features), strict=True)
        for row, (likelihood, (mean, variance)) in enumerate(pairs):
            for column, factor in enumerate(scales):
                predictive = likelihood.predictive(mean * factor, variance * factor**2, link)
                totals[row, column] -= float(log_density(predictive, y).sum())
    totals = totals.nan_to_num(nan=math.inf)
    best = int(totals.argmin())
    _warn_at_edge("prior precision", DELTAS, best // len(scales))
    _warn_at_edge("scale of logits", scales, best % len(scales))
    scale = scales[best % len(scales)] if state.likelihood.has_logits else None
    return Tuned(DELTAS[best // len(scales)], scale)


def _warn_at_edge(what: str, tried: Sequence[float], index: int) -> None:
    if len(tried) > 1 and index in (0, len(tried) - 1):
        warnings.warn(
            f"the best {what} lies at the edge of the range tried, {tried[index]:.0e}: the kernel, "
            f"or the data, says little",
            SFRWarning,
            stacklevel=4,
        )
