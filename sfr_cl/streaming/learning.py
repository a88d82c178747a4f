"""Samples learned, and what is done every so many of them.

At the start all samples are kept, and inducing inputs chosen from them whenever there are twice as
many: every choice is a fit to all data. Later ones are exchanged, and the sums projected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sfr_cl.duals import DualSums
from sfr_cl.evidence import Natural, learn
from sfr_cl.inputs import Inputs
from sfr_cl.likelihoods import GaussianLikelihood
from sfr_cl.state import State
from sfr_cl.streaming import budget
from sfr_cl.streaming.coverage import NO_COVERAGE, Coverage
from sfr_cl.streaming.kept import Fresh
from sfr_cl.streaming.memory import Memory
from sfr_cl.streaming.rows import Rows, Samples

RENEWED_EVERY = 4096
"""Samples after which learned hyperparameters are renewed, at the latest."""


def learned(memory: Memory, samples: Samples) -> Memory:
    """With any number of checked samples."""
    start = 0
    while start < len(samples):
        end = start + memory.room
        memory = memory.with_samples(samples.take(slice(start, end)))
        start = end
        if memory.room <= 0:
            memory = looked_after(memory.folded())
    return memory


def next_due(memory: Memory) -> int | None:
    """When something is to be chosen again."""
    if memory.choosing:
        return min(2 * max(memory.learned, 1), memory.settings.candidates)
    if learns(memory):
        lifetime = memory.settings.lifetime or RENEWED_EVERY
        return memory.learned + min(max(memory.learned, 1), RENEWED_EVERY, lifetime)
    return None


def learns(memory: Memory) -> bool:
    """Whether hyperparameters follow the evidence."""
    likelihood = memory.state.likelihood
    if not isinstance(likelihood, GaussianLikelihood):
        return False
    return likelihood.learn or memory.settings.learns_precision


def moved(memory: Memory, carry: Callable[[State], State]) -> Memory:
    """Sums carried over to other inducing inputs or weights; nothing may be pending.

    Where samples are kept they are all there is, and seen anew, exactly.
    """
    if memory.kept is None:
        return replace(memory, state=carry(memory.state))
    none = DualSums.zeros(memory.state.num_outputs, memory.state.factor)
    state = carry(memory.state.with_sums(none))
    if not len(memory.kept):
        fresh = None if memory.fresh is None else Fresh.none(state)
        return replace(memory, state=state, fresh=fresh, coverage=NO_COVERAGE)
    samples, fresh = memory.kept.all(), memory.fresh
    split = len(samples) - (0 if fresh is None else fresh.count)
    older, older_coverage = _summed(memory, samples.take(slice(0, split)), state)
    newer, newer_coverage = _summed(memory, samples.take(slice(split, None)), state)
    if fresh is not None:
        fresh = Fresh(newer, newer_coverage, fresh.count)
    return replace(
        memory,
        state=state.with_sums(older + newer),
        fresh=fresh,
        coverage=older_coverage + newer_coverage,
    )


def _summed(memory: Memory, samples: Samples, state: State) -> tuple[DualSums, Coverage]:
    """The terms of samples as a state sees them, with the weights they have now."""
    sums, coverage = DualSums.zeros(state.num_outputs, state.factor), NO_COVERAGE
    size = memory.settings.block
    for start in range(0, len(samples), size):
        rows = Rows.of(state, samples.take(slice(start, start + size)))
        weights = memory.weights(rows.samples)
        sums, coverage = sums + rows.sums(weights), coverage + Coverage.of(rows, weights)
    return sums, coverage


def looked_after(memory: Memory) -> Memory:
    """Whatever is due after a fold."""
    if memory.learned == memory.due:
        if memory.choosing:
            memory = _with_first_inducing(memory)
        if learns(memory):
            memory = _with_hyperparameters(memory)
        return replace(memory, due=next_due(memory))
    settings = memory.settings
    if settings.swap and memory.candidates.looked_at >= max(settings.budget, settings.block):
        return _exchanged(memory)
    return memory


def _with_first_inducing(memory: Memory) -> Memory:
    assert memory.kept is not None
    settings = memory.settings
    z = budget.first(memory.state.kernel, memory.kept.all().x, settings.budget)
    memory = moved(memory, lambda state: state.replace_inducing(z))
    choosing = memory.learned < settings.candidates
    kept = memory.kept if choosing or settings.window is not None else None
    return replace(memory, choosing=choosing, kept=kept, candidates=budget.NO_CANDIDATES)


def _with_hyperparameters(memory: Memory) -> Memory:
    state = memory.state
    natural = Natural.read(state.sums, state.likelihood, at_prior=state.options.at_prior)
    given = None if memory.settings.learns_precision else memory.prior_precision
    prior_precision, likelihood = learn(natural, state.likelihood, given)
    state = state.with_likelihood(likelihood)
    return replace(memory, state=state, prior_precision=prior_precision)


def _exchanged(memory: Memory) -> Memory:
    found = memory.candidates.x
    memory = replace(memory, candidates=budget.NO_CANDIDATES)
    z: Inputs = budget.exchanged(memory.state, found, memory.settings.budget)
    if z is None:
        return memory
    before = memory.state.sums
    memory = moved(memory, lambda state: state.replace_inducing(z))
    if memory.kept is not None:
        return memory
    coverage = memory.coverage.after_exchange(before, memory.state.sums)
    return replace(memory, coverage=coverage, exact_since=memory.now)
