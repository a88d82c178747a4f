"""All that a stream knows. Immutable: an operation makes another one, complete or not at all.

It is a function of what was learned, forgotten and so on, in that order: when it was read or saved
in between, and in how many calls the samples came, makes no difference beyond rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from sfr_cl.core.solve import Solved
from sfr_cl.core.state import State
from sfr_cl.core.sums import DualSums
from sfr_cl.streaming.inducing import NO_CANDIDATES, NO_RESIDUAL, Candidates, ResidualBound
from sfr_cl.streaming.monitor import Calibration, ExcessNLL, Monitor
from sfr_cl.streaming.samples import Batch, Samples, rows
from sfr_cl.streaming.settings import Settings
from sfr_cl.streaming.window import Totals, Window


@dataclass(frozen=True)
class Flushed:
    """The sums of some moment, and the samples stored then."""

    state: State
    """At the delta and the noise in use."""
    window: Window | None
    block: int
    """Samples that come at most before the next flush."""

    @cached_property
    def solved(self) -> Solved:
        """The sums, solved."""
        return Solved.as_given(self.state)

    @cached_property
    def has_data(self) -> bool:
        """Whether any sample is left in the sums."""
        return self.state.has_data

    @cached_property
    def next_out(self) -> Batch:
        """The stored samples that leave the window before the next flush is over."""
        assert self.window is not None
        return Batch.of(self.state, self.window.between(0, self.block).all())

    def __getstate__(self) -> dict[str, Any]:
        """For pickles and copies: what is computed is computed again."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class StreamState:
    """See the module."""

    settings: Settings
    flushed: Flushed
    """The sums of the time ``clock``."""
    monitor: Monitor
    clock: float = -math.inf
    """Unknown until a sample comes, where time is not the number of samples."""
    now: float = -math.inf
    """Time of the latest sample."""
    n_seen: int = 0
    """Samples learned so far."""
    flushed_at: int = 0
    """Samples learned when sums were last flushed."""
    maintenance_at: int | None = None
    """Samples learned when inducing inputs, or hyperparameters, are chosen again."""
    choosing: bool = False
    """Whether inducing inputs are still being chosen from the first samples, all of them stored."""
    pending: tuple[Batch, ...] = ()
    """Samples that wait to be flushed."""
    rebuilt: Totals | None = None
    """Of the latest samples in a window; see :mod:`sfr_cl.streaming.window`."""
    residual: ResidualBound = NO_RESIDUAL
    candidates: Candidates = NO_CANDIDATES
    exact_since: float = -math.inf
    """Samples of this time or later can be forgotten exactly."""
    cache: tuple[Solved, int] | None = field(default=None, compare=False, repr=False)
    """All sums solved, and how many of the pending batches were in them."""

    @staticmethod
    def init(
        settings: Settings, state: State, *, watched: bool, choosing: bool = False
    ) -> StreamState:
        """Nothing learned yet.

        Args:
            settings: of the stream.
            state: empty, or what a posterior knew before.
            watched: whether somebody is to be told of drift.
            choosing: whether inducing inputs are chosen from the first samples.
        """
        calibrates = settings.calibrate and state.likelihood.has_logits
        window = settings.window is not None
        return StreamState(
            settings=settings,
            flushed=Flushed(state, Window() if window or choosing else None, settings.block),
            monitor=Monitor(
                Calibration(state.scores) if calibrates else None, ExcessNLL() if watched else None
            ),
            clock=-1.0 if settings.discount_per == "sample" else -math.inf,
            choosing=choosing,
            rebuilt=Totals(state.no_sums()) if window else None,
        )

    def __getstate__(self) -> dict[str, Any]:
        """For pickles and copies: what is computed is computed again."""
        return {**{each.name: getattr(self, each.name) for each in fields(self)}, "cache": None}

    @property
    def state(self) -> State:
        """The flushed sums, and what they mean."""
        return self.flushed.state

    @property
    def totals(self) -> Totals:
        """What the flushed samples come to; they are not counted."""
        return Totals(self.state.sums, self.residual)

    @property
    def window(self) -> Window | None:
        """The samples stored when the sums were flushed."""
        return self.flushed.window

    @property
    def capacity(self) -> int:
        """Samples that can come before something has to be done about them."""
        left = self.flushed.block - (self.n_seen - self.flushed_at)
        return left if self.maintenance_at is None else min(left, self.maintenance_at - self.n_seen)

    def summed(self, totals: Totals, **changes: Any) -> StreamState:
        """With other flushed sums over the same features."""
        state = self.state.with_sums(totals.sums)
        return self.changed(state, residual=totals.residual, **changes)

    def changed(self, state: State, **changes: Any) -> StreamState:
        """With other flushed sums, over whatever inducing inputs; nothing may be pending."""
        window = changes.pop("window", self.window)
        flushed = Flushed(state, window, self.flushed.block)
        return replace(self, flushed=flushed, cache=None, **changes)

    def with_samples(self, samples: Samples) -> StreamState:
        """With at most :attr:`capacity` more samples, checked; they are pending."""
        samples, state = samples.copied(), self.flushed.state
        if not state.spec.at_posterior:
            return self._with_batch(Batch.of(state, samples))
        stream = self
        for sample, features in rows(state, samples):
            terms = stream.solved.terms_of_row(features, sample.y)
            stream = stream._with_batch(Batch(sample, features, terms))
        return stream

    def _with_batch(self, batch: Batch) -> StreamState:
        batch.require_moderate(self.flushed.state)
        samples, monitor = batch.samples, self.monitor
        watches = monitor.calibration is not None or monitor.excess is not None
        if watches and self.flushed.has_data:
            monitor = monitor.after(self.flushed.solved, batch, self.n_seen)
        times = samples.times
        return replace(
            self,
            pending=(*self.pending, batch),
            clock=self.clock if self.clock > -math.inf else float(times[0]),
            n_seen=self.n_seen + len(times),
            now=max(self.now, float(times.max())),
            monitor=monitor,
        )

    def flush(self) -> StreamState:
        """With nothing pending."""
        if not self.pending:
            return self
        batch = Batch.join(self.pending)
        more, out = self.totals_of(batch), self._leaving(batch)
        window, rebuilt, aging = self.window, self.rebuilt, self.aging(self.now)
        totals = self.totals * aging + more
        if window is not None:
            window = window.with_samples(batch.samples)
            if out is not None:
                totals = totals - self.totals_of(out)
                window = window.between(len(out), len(window))
            if rebuilt is not None:
                rebuilt = rebuilt * aging + more
                if out is not None and rebuilt.count > len(window):  # the last of those leaving
                    left = slice(len(out) - (rebuilt.count - len(window)), None)
                    rebuilt = rebuilt - self.totals_of(out.take(left))
                if rebuilt.count == len(window):
                    totals, rebuilt = rebuilt, Totals(self.state.no_sums())
        candidates = self.candidates
        return self.summed(
            totals,
            window=window,
            clock=self.now,
            flushed_at=self.n_seen,
            pending=(),
            rebuilt=rebuilt,
            candidates=candidates.having_seen(batch) if self.settings.swap else candidates,
            monitor=self.monitor.flushed(self.state.with_sums(totals.sums)),
        )

    def weights(self, samples: Samples) -> Tensor | None:
        """What is left of some samples; ``None`` if each still counts once."""
        if not self.settings.ages and bool((samples.scale == 1).all()):
            return None
        now = max(self.now, self.clock)
        return samples.scale * self.settings.discount ** (now - samples.times)

    def totals_of(self, batch: Batch) -> Totals:
        """What some samples come to, with the weights they have now."""
        return Totals.of(batch, self.weights(batch.samples))

    def aging(self, now: float) -> float:
        """What will be left of the flushed sums; until a sample comes, time stands still."""
        if not self.settings.ages or -math.inf in (self.clock, now):
            return 1.0
        return float(self.settings.discount ** (now - self.clock))

    # Reading ------------------------------------------------------------------------------------

    @property
    def sums(self) -> DualSums:
        """Of all that is to be remembered now."""
        if not self.pending:
            return self.state.sums
        batch = Batch.join(self.pending)
        sums = self.state.sums * self.aging(self.now) + self._sums_of(batch)
        out = self._leaving(batch)
        return sums if out is None else sums - self._sums_of(out)

    @property
    def solved(self) -> Solved:
        """All sums, solved; pending samples are a low-rank update where they can be.

        With R R' = delta I + W of the flushed sums, a sample costs two products with R instead of a
        factorisation.
        """
        if not self.pending:
            return self.flushed.solved
        if self.cache is None or self.cache[1] < len(self.pending):
            object.__setattr__(self, "cache", (self._solve(), len(self.pending)))
        assert self.cache is not None
        return self.cache[0]

    def _solve(self) -> Solved:
        if not (self.settings.ages or self.settings.window):
            solved, start = self.cache or (self.flushed.solved, 0)
            batch = Batch.join(self.pending[start:])
            if solved.can_take(batch.terms):
                return solved.with_terms(batch.features.phi, batch.terms)
        return Solved.as_given(self.state.with_sums(self.sums))

    def _leaving(self, batch: Batch) -> Batch | None:
        """The stored samples that leave the window for some that come."""
        if self.window is None or self.settings.window is None:
            return None
        count = len(self.window) + len(batch) - self.settings.window
        return self.flushed.next_out.take(slice(0, count)) if count > 0 else None

    def _sums_of(self, batch: Batch) -> DualSums:
        return DualSums.of(batch.features.phi, batch.terms, self.weights(batch.samples))
