"""What is done to a stream: maintain, forget, discount, merge, relinearize, grow.

At the start all samples are stored, and inducing inputs chosen from them whenever there are twice
as many: every choice is a fit to all data. Later ones are exchanged, and the sums projected.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from sfr_cl.core.evidence import Natural, learn
from sfr_cl.core.state import State
from sfr_cl.core.transfer import Sites, aligned, inducing
from sfr_cl.data.inputs import Inputs, length, take
from sfr_cl.errors import ArgumentError, DataError, MismatchError
from sfr_cl.streaming import inducing as selection
from sfr_cl.streaming.inducing import NO_CANDIDATES, ResidualBound
from sfr_cl.streaming.samples import Batch, Samples
from sfr_cl.streaming.state import StreamState
from sfr_cl.streaming.window import Totals, Window

RENEWED_EVERY = 4096
"""Samples after which learned hyperparameters are renewed, at the latest."""


# Maintenance --------------------------------------------------------------------------------------


def scheduled(stream: StreamState) -> StreamState:
    """With the time when something is to be chosen again."""
    settings, seen, at = stream.settings, max(stream.n_seen, 1), None
    if stream.choosing:
        at = min(2 * seen, settings.candidates)
    elif _learns(stream):
        at = stream.n_seen + min(seen, RENEWED_EVERY, settings.lifetime or RENEWED_EVERY)
    return replace(stream, maintenance_at=at)


def _learns(stream: StreamState) -> bool:
    """Whether hyperparameters follow the evidence."""
    return stream.state.likelihood.learns_noise or stream.settings.learns_precision


def maintained(stream: StreamState) -> StreamState:
    """After a flush: whatever is due is chosen again."""
    if stream.n_seen == stream.maintenance_at:
        if stream.choosing:
            stream = _with_first_inducing(stream)
        if _learns(stream):
            stream = _with_hyperparameters(stream)
        stream = scheduled(stream)
    settings = stream.settings
    if settings.swap and stream.candidates.looked_at >= max(settings.budget, settings.block):
        return _exchanged(stream)
    return stream


def _with_first_inducing(stream: StreamState) -> StreamState:
    assert stream.window is not None
    settings, basis = stream.settings, inducing(stream.state)
    z = selection.first(basis, stream.window.all().x, settings.budget)
    stream = _moved(stream, lambda state: state.project(basis.over(z)))
    choosing = stream.n_seen < settings.candidates
    window = stream.window if choosing or settings.window is not None else None
    return stream.changed(stream.state, window=window, choosing=choosing, candidates=NO_CANDIDATES)


def _with_hyperparameters(stream: StreamState) -> StreamState:
    state = stream.state
    given = None if stream.settings.learns_precision else state.spec.prior_precision
    delta, likelihood = learn(Natural.of(state), state.likelihood, given)
    return stream.changed(state.with_spec(prior_precision=delta, likelihood=likelihood))


def _exchanged(stream: StreamState) -> StreamState:
    pool, basis = stream.candidates.pool, inducing(stream.state)
    assert pool is not None
    stream = replace(stream, candidates=NO_CANDIDATES)
    z = selection.exchanged(basis, pool[0], stream.settings.budget)
    if z is None:
        return stream
    before = stream.state.sums
    stream = _moved(stream, lambda state: state.project(basis.over(z)))
    if stream.window is not None:
        return stream
    residual = stream.residual.after_exchange(before, stream.state.sums)
    return replace(stream, residual=residual, exact_since=stream.now)


def _moved(stream: StreamState, carry: Callable[[State], State]) -> StreamState:
    """Sums carried to other inducing inputs or weights; nothing may be pending.

    Where samples are stored they are all there is, and evaluated again, exactly.
    """
    window, rebuilt = stream.window, stream.rebuilt
    if window is None:
        return stream.changed(carry(stream.state))
    state = carry(stream.state.with_sums(stream.state.no_sums()))
    split = len(window) - (0 if rebuilt is None else rebuilt.count)
    newer = _totals(stream, window.between(split, len(window)), state)
    totals = _totals(stream, window.between(0, split), state) + newer
    return stream.changed(
        state.with_sums(totals.sums),
        rebuilt=None if rebuilt is None else newer,
        residual=totals.residual,
    )


def _totals(stream: StreamState, window: Window, state: State) -> Totals:
    """What samples come to over a state's features, with the weights they have now."""
    totals, size = Totals(state.no_sums()), min(stream.settings.block, state.basis.batch_size)
    for start in range(0, len(window), size):
        samples = window.between(start, start + size).all()
        before = state.add(totals.sums) if state.spec.at_posterior else state
        totals = totals + stream.totals_of(Batch.of(before, samples))
    return totals


# Forgetting ---------------------------------------------------------------------------------------


def forgotten(
    stream: StreamState, x: Inputs, y: Tensor, at: Tensor | None, weight: float
) -> StreamState:
    """Without some samples, exactly as if they had never been learned."""
    stream.state.spec.require_order_free("to forget samples")
    stream = stream.flush()
    if stream.window is not None:
        return _forgotten_from_window(stream, stream.window, x, y, at)
    if at is None and stream.settings.ages:
        raise ArgumentError(
            "expected at=..., the position or time the samples were learned at, got none: their "
            "weight depends on it"
        )
    if stream.exact_since > -torch.inf and (at is None or bool((at <= stream.exact_since).any())):
        raise DataError(
            f"expected samples learned after {stream.exact_since:g}, when inducing inputs or "
            f"weights were last exchanged, got earlier ones (or no at=...): they can't be taken "
            f"out exactly; use swap=False or a window"
        )
    latest = max(stream.now, stream.clock)
    if at is None:
        at = torch.full((len(y),), latest, dtype=torch.float64, device=y.device)
    if bool((at > latest).any()):
        raise DataError(f"expected times of at most {latest:g}, the latest, got a later one")
    batch = Batch.of(stream.state, Samples(x, y, at, torch.full_like(at, weight)))
    batch.require_moderate(stream.state)
    return _without(stream, batch)


def _without(stream: StreamState, batch: Batch, **changes: Any) -> StreamState:
    gone = stream.totals_of(batch)
    residual = stream.residual - gone.residual
    stream = stream.changed(stream.state.remove(gone.sums), residual=residual, **changes)
    return _without_rows(stream, batch.samples.x)


def _without_rows(stream: StreamState, x: Inputs) -> StreamState:
    """Without what is stored of forgotten inputs: inducing inputs, and candidates to be some."""
    found = stream.state.basis.drawn_from(x)
    stream = replace(stream, candidates=stream.candidates.without(x))
    if stream.choosing and bool(found.any()) and stream.window is not None and len(stream.window):
        return _with_first_inducing(stream)
    dropped = stream.state.droppable(found)
    if not bool(dropped.any()):
        return stream
    state, rebuilt = stream.state.restricted(dropped), stream.rebuilt
    if rebuilt is not None:
        sums = stream.state.with_sums(rebuilt.sums).restricted(dropped).sums
        residual = rebuilt.residual.after_drop(rebuilt.sums, sums)
        rebuilt = replace(rebuilt, sums=sums, residual=residual)
    return replace(_over_fewer(stream, state), rebuilt=rebuilt)


def _over_fewer(stream: StreamState, state: State) -> StreamState:
    """Over some of the inducing inputs, exactly."""
    residual = stream.residual.after_drop(stream.state.sums, state.sums)
    return stream.changed(state, residual=residual)


def _forgotten_from_window(
    stream: StreamState, window: Window, x: Inputs, y: Tensor, at: Tensor | None
) -> StreamState:
    positions: list[int] = []
    for row in range(length(x)):
        one = slice(row, row + 1)
        time = None if at is None else float(at[row])
        positions.append(window.find(take(x, one), y[one], time, set(positions)))
    positions.sort()
    batch = Batch.of(stream.state, window.all().take(torch.tensor(positions)))
    rebuilt = stream.rebuilt
    if rebuilt is not None:
        earlier = bisect_left(positions, len(window) - rebuilt.count)
        rebuilt = rebuilt - stream.totals_of(batch.take(slice(earlier, None)))
    return _without(stream, batch, window=window.without(positions), rebuilt=rebuilt)


def discounted(stream: StreamState, gamma: float) -> StreamState:
    """With a share of all weight so far."""
    stream = stream.flush()
    return stream.summed(
        stream.totals * gamma,
        window=None if stream.window is None else stream.window.scaled(gamma),
        rebuilt=None if stream.rebuilt is None else stream.rebuilt * gamma,
    )


# Merging and moving -------------------------------------------------------------------------------


def merged(stream: StreamState, other: StreamState) -> StreamState:
    """With all that another one over the same inducing inputs and weights knows."""
    stream, other = stream.flush(), other.flush()
    if stream.window is not None or other.window is not None:
        raise DataError(
            "expected streams that store no samples, got one with a window, or one that is still "
            "choosing its inducing inputs: give both the same inducing inputs, and no window"
        )
    common = aligned(stream.state, other.state)
    if common is None:
        raise MismatchError("expected streams with the same inducing inputs, got different ones")
    stream, other = _over_fewer(stream, common[0]), _over_fewer(other, common[1])
    device = stream.state.basis.network.device
    mine, theirs, now = stream.totals, other.totals.to(device), stream.now
    reference = stream.state.reference + other.state.reference.to(device)
    if stream.settings.ages and stream.settings.discount_per == "second":
        now = max(stream.now, other.now)
        mine, theirs = mine * stream.aging(now), theirs * other.aging(now)
    totals, exact_since = mine + theirs, stream.exact_since
    if other.exact_since > -math.inf:  # theirs are forgotten by the moment they were merged at
        exact_since = _no_later_than(max(stream.clock, now))
    state = replace(
        stream.state.with_sums(totals.sums, reference),
        scores=stream.state.scores + other.state.scores,
        bound=stream.state.bound + other.state.bound,
        discriminant=stream.state.discriminant and other.state.discriminant,
    )
    return stream.changed(
        state,
        monitor=stream.monitor.merged(other.monitor, state),
        residual=totals.residual,
        clock=max(stream.clock, now),
        now=now,
        exact_since=exact_since,
    )


@dataclass(frozen=True)
class Relinearized:
    """What it cost to carry a posterior to other weights.

    Args:
        divergence: mean Kullback-Leibler divergence, in nats, of the new predictions at Z from the
            old; ``None`` where torch knows none for a custom likelihood.
        nlpd_before: of the data given, at the old weights; ``None`` without data.
        nlpd_after: of the data given, at the new weights.

    >>> import torch
    >>> from sfr_cl import SFRPosterior, StreamingPosterior
    >>> _ = torch.manual_seed(0)
    >>> old, new = (
    ...     torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    ...     for _ in range(2)
    ... )
    >>> stream = StreamingPosterior(SFRPosterior(old, "classification", inducing=4))
    >>> x = torch.linspace(-2, 2, 20)[:, None]
    >>> y = (x[:, 0] > 0).long()
    >>> stream.learn_many(x, y)
    >>> cost = stream.relinearize(new, data=(x, y))
    >>> f"{cost.divergence:.3f} nats, NLPD {cost.nlpd_before:.2f}, then {cost.nlpd_after:.1f}"
    '0.002 nats, NLPD 0.14, then 0.1'
    """

    divergence: float | None
    nlpd_before: float | None = None
    nlpd_after: float | None = None


def relinearized(stream: StreamState, empty: State) -> StreamState:
    """At the weights of an empty state over the same Z."""
    stream = stream.flush()
    spec = stream.state.spec
    empty = empty.with_spec(prior_precision=spec.prior_precision, likelihood=spec.likelihood)
    basis = inducing(empty).like_origin(inducing(stream.state))
    before = stream.state
    empty = replace(
        empty,
        basis=basis,
        scores=before.scores,
        bound=before.bound,
        discriminant=before.discriminant,
    )
    after = _moved(stream, lambda state: Sites.of(state).at(empty))
    if after.window is None:
        exact_since = _no_later_than(max(stream.clock, stream.now))
        residual = ResidualBound(after.state.sums.trace())
        after = replace(after, residual=residual, exact_since=exact_since)
    return after


def divergence(old: Distribution, new: Distribution) -> float | None:
    """See :class:`Relinearized`; of predictions for a batch."""
    try:
        found = kl_divergence(old, new).double()
    except NotImplementedError:
        return None
    return float(found.sum() / len(found))


def _no_later_than(time: float) -> float:
    """A time for ``exact_since``: finite, also where no sample has come to tell the time."""
    return max(time, -sys.float_info.max)


def grown(stream: StreamState, num_outputs: int) -> StreamState:
    """With more outputs, that no target has observed; a shared kernel at the prior."""
    stream = stream.flush()
    state = stream.state.with_outputs(num_outputs)
    rebuilt = stream.rebuilt
    if rebuilt is not None:
        extra = num_outputs - stream.state.num_outputs
        sums = rebuilt.sums.pad_outputs(state.basis.factor, extra, carry=True)
        rebuilt = replace(rebuilt, sums=sums)
    return stream.changed(state, rebuilt=rebuilt)
