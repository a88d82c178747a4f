"""What is done to a stream on request: forget, discount, merge, relinearise, grow."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from sfr_cl.errors import ArgumentError, DataError
from sfr_cl.inputs import Inputs, length, take
from sfr_cl.removal import removed
from sfr_cl.state import State
from sfr_cl.streaming.coverage import Coverage
from sfr_cl.streaming.kept import Kept
from sfr_cl.streaming.learning import moved
from sfr_cl.streaming.memory import Memory
from sfr_cl.streaming.rows import Rows, Samples
from sfr_cl.value_sites import ValueSites


def forgotten(memory: Memory, x: Inputs, y: Tensor, at: Tensor | None, weight: float) -> Memory:
    """Without some samples, exactly as if they had never been learned."""
    memory = memory.folded()
    if memory.kept is not None:
        return _forgotten_from_kept(memory, memory.kept, x, y, at)
    if at is None and memory.settings.ages:
        raise ArgumentError(
            "expected at=..., the position or time the samples were learned at, got none: their "
            "weight depends on it"
        )
    if memory.exact_since > -torch.inf and (at is None or bool((at <= memory.exact_since).any())):
        raise DataError(
            f"expected samples learned after {memory.exact_since:g}, when inducing inputs or "
            f"weights were last exchanged, got earlier ones (or no at=...): they can't be taken "
            f"out exactly; use swap=False or a window"
        )
    latest = max(memory.now, memory.clock)
    times = torch.full((len(y),), latest, dtype=torch.float64, device=y.device)
    times = times if at is None else at
    if bool((times > latest).any()):
        raise DataError(f"expected times of at most {latest:g}, the latest, got a later one")
    rows = Rows.of(memory.state, Samples(x, y, times, torch.full_like(times, weight)))
    rows.require_moderate(memory.state)
    weights = memory.weights(rows.samples)
    return replace(
        memory,
        state=removed(memory.state, rows.sums(weights)),
        coverage=memory.coverage - Coverage.of(rows, weights),
    )


def _forgotten_from_kept(
    memory: Memory, kept: Kept, x: Inputs, y: Tensor, at: Tensor | None
) -> Memory:
    positions: list[int] = []
    for row in range(length(x)):
        one = slice(row, row + 1)
        time = None if at is None else float(at[row])
        positions.append(kept.find(take(x, one), y[one], time, set(positions)))
    gone = kept.all().take(torch.tensor(positions))
    rows = Rows.of(memory.state, gone)
    weights = memory.weights(gone)
    fresh = memory.fresh
    if fresh is not None:
        start = len(kept) - fresh.count
        newer = torch.tensor([position >= start for position in positions]).nonzero()[:, 0]
        if len(newer):
            part = Rows.of(memory.state, gone.take(newer))
            part_weights = memory.weights(part.samples)
            covered = Coverage.of(part, part_weights)
            fresh = fresh.without(part.sums(part_weights), covered, len(part))
    return replace(
        memory,
        state=removed(memory.state, rows.sums(weights)),
        kept=kept.without(positions),
        fresh=fresh,
        coverage=memory.coverage - Coverage.of(rows, weights),
    )


def discounted(memory: Memory, gamma: float) -> Memory:
    """With a share of all weight so far."""
    memory = memory.folded()
    return replace(
        memory,
        state=memory.state.with_sums(memory.state.sums * gamma),
        kept=None if memory.kept is None else memory.kept.scaled(gamma),
        fresh=None if memory.fresh is None else memory.fresh.scaled(gamma),
        coverage=memory.coverage * gamma,
    )


def merged(memory: Memory, other: Memory) -> Memory:
    """With all that another one over the same inducing inputs and weights knows."""
    memory, other = memory.folded(), other.folded()
    if memory.kept is not None or other.kept is not None:
        raise DataError(
            "expected streams that keep no samples, got one with a window, or one that is still "
            "choosing its inducing inputs: give both the same inducing inputs, and no window"
        )
    device = memory.state.network.device
    mine, theirs = memory.state.sums, other.state.sums.to(device)
    reference = memory.state.reference + other.state.reference.to(device)
    coverage, now = (memory.coverage, other.coverage), memory.now
    if memory.settings.ages and memory.settings.discount_per == "second":
        now = max(memory.now, other.now)
        ages = [part.aging(now) for part in (memory, other)]
        mine, theirs = mine * ages[0], theirs * ages[1]
        coverage = (coverage[0] * ages[0], coverage[1] * ages[1])
    exact_since = memory.exact_since
    if other.exact_since > -math.inf:  # theirs are forgotten by the moment they were merged at
        exact_since = _no_later_than(max(memory.clock, now))
    return replace(
        memory,
        state=memory.state.with_sums(mine + theirs, reference),
        coverage=coverage[0] + coverage[1],
        clock=max(memory.clock, now),
        now=now,
        exact_since=exact_since,
    )


@dataclass(frozen=True)
class Relinearised:
    """What it cost to carry a posterior over to other weights."""

    divergence: float | None
    """Mean Kullback-Leibler divergence, in nats, of the new predictions at Z from the old; ``None``
    where torch knows none for a likelihood of one's own."""
    nlpd_before: float | None = None
    """Of the data given."""
    nlpd_after: float | None = None


def relinearised(memory: Memory, empty: State) -> Memory:
    """At the weights of a state without data over the same Z."""
    memory = memory.folded()
    empty = empty.with_likelihood(memory.state.likelihood)
    after = moved(memory, lambda state: ValueSites.of(state).at(empty))
    if after.kept is None:
        trace = float(after.state.sums.weight.diagonal(dim1=-2, dim2=-1).sum())
        exact_since = _no_later_than(max(memory.clock, memory.now))
        after = replace(after, coverage=Coverage(trace), exact_since=exact_since)
    return after


def divergence(old: Distribution, new: Distribution) -> float | None:
    """See :class:`Relinearised`; of predictions for a batch."""
    try:
        found = kl_divergence(old, new).double()
    except NotImplementedError:
        return None
    return float(found.sum() / len(found))


def _no_later_than(time: float) -> float:
    """A time for ``exact_since``: finite, also where no sample has come to tell the time."""
    return max(time, -sys.float_info.max)


def grown(memory: Memory, num_outputs: int) -> Memory:
    """With room for outputs that no target has spoken of; a shared kernel at the prior."""
    memory = memory.folded()
    state = memory.state
    larger = state.add_outputs(state.network, num_outputs, carry=True)
    fresh = memory.fresh
    if fresh is not None:
        extra = num_outputs - state.num_outputs
        fresh = replace(fresh, sums=fresh.sums.pad_outputs(state.factor, extra, carry=True))
    return replace(memory, state=larger, fresh=fresh)
