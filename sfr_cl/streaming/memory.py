"""All that a stream knows. Immutable: an operation makes another one, whole or not at all.

It is a function of what was learned, forgotten and so on, in that order: when it was read or saved
in between, and in how many calls the samples came, makes no difference beyond rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from sfr_cl.duals import DualSums
from sfr_cl.state import State
from sfr_cl.streaming.budget import NO_CANDIDATES, Candidates
from sfr_cl.streaming.coverage import NO_COVERAGE, Coverage
from sfr_cl.streaming.kept import Fresh, Kept
from sfr_cl.streaming.reading import Reading
from sfr_cl.streaming.rows import Rows, Samples
from sfr_cl.streaming.scores import Scores
from sfr_cl.streaming.settings import Settings


@dataclass(frozen=True)
class Memory:
    """See the module."""

    settings: Settings
    state: State
    """The folded sums, of the time ``clock``."""
    prior_precision: float
    scores: Scores
    clock: float = -math.inf
    """Unknown until a sample comes, where time is not the number of samples."""
    now: float = -math.inf
    """Time of the latest sample."""
    learned: int = 0
    """Samples learned so far."""
    folded_at: int = 0
    """Samples learned when sums were last folded."""
    due: int | None = None
    """Samples learned when inducing inputs, or hyperparameters, are chosen again."""
    choosing: bool = False
    """Whether inducing inputs are still being chosen from the first samples, all of them kept."""
    pending: tuple[Rows, ...] = ()
    """Samples that wait to be folded."""
    kept: Kept | None = None
    fresh: Fresh | None = None
    coverage: Coverage = NO_COVERAGE
    candidates: Candidates = NO_CANDIDATES
    exact_since: float = -math.inf
    """Samples of this time or later can be forgotten exactly."""

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: readings are made anew when they are needed."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def room(self) -> int:
        """Samples that can come before something has to be done about them."""
        room = self.settings.block - (self.learned - self.folded_at)
        return room if self.due is None else min(room, self.due - self.learned)

    def with_samples(self, samples: Samples) -> Memory:
        """With at most :attr:`room` more samples, checked; they are pending."""
        rows = Rows.of(self.state, samples.copied())
        rows.require_moderate(self.state)
        memory = replace(
            self,
            pending=(*self.pending, rows),
            clock=self.clock if self.clock > -math.inf else float(samples.times[0]),
            learned=self.learned + len(rows),
            now=max(self.now, float(samples.times.max())),
            scores=self.scores.after(self, rows),
        )
        for name in ("reading", "next_out"):  # of what is folded: still right
            if name in self.__dict__:
                memory.__dict__[name] = self.__dict__[name]
        if "answer" in self.__dict__:
            memory.__dict__["_last_answer"] = (self.answer, len(self.pending))
        return memory

    def folded(self) -> Memory:
        """With nothing pending."""
        if not self.pending:
            return self
        rows = Rows.join(self.pending)
        weights = self.weights(rows.samples)
        sums, kept = self._summed(rows)
        more, part = rows.sums(weights), Coverage.of(rows, weights)
        coverage = self.coverage * self.aging(self.now) + part
        fresh = self.fresh
        if fresh is not None and kept is not None:
            fresh = fresh.scaled(self.aging(self.now)).with_samples(more, part, len(rows))
            if leaving := self._leaving(rows):
                out = self.next_out.take(slice(0, leaving))
                coverage = coverage - Coverage.of(out, self.weights(out.samples))
                fresh = self._without_leaving(fresh, out, len(kept))
            if len(kept) == fresh.count:
                sums, coverage = fresh.sums, fresh.coverage
                fresh = Fresh.none(self.state)
        candidates = self.candidates.having_seen(rows) if self.settings.swap else self.candidates
        return replace(
            self,
            state=self.state.with_sums(sums),
            clock=self.now,
            folded_at=self.learned,
            pending=(),
            kept=kept,
            fresh=fresh,
            coverage=coverage,
            candidates=candidates,
            scores=self.scores.folded(),
        )

    def weights(self, samples: Samples) -> Tensor | None:
        """What is left of some samples; ``None`` if each still counts once."""
        if not self.settings.ages and bool((samples.scale == 1).all()):
            return None
        now = max(self.now, self.clock)
        return samples.scale * self.settings.weights(now - samples.times)

    @property
    def link(self) -> str:
        """How the uncertainty of logits becomes that of probabilities."""
        return "map" if self.state.options.at_prior else "probit"

    # What it says -------------------------------------------------------------------------------

    @property
    def sums(self) -> DualSums:
        """Of all that is to be remembered now."""
        return self._summed(Rows.join(self.pending))[0] if self.pending else self.state.sums

    @cached_property
    def reading(self) -> Reading:
        """The folded sums, solved."""
        return Reading.of(self.state, self.prior_precision)

    @cached_property
    def answer(self) -> Reading:
        """All sums, solved."""
        if not self.pending:
            return self.reading
        if not (self.settings.ages or self.settings.window):
            reading, start = self.__dict__.get("_last_answer") or (self.reading, 0)
            rows = Rows.join(self.pending[start:])
            if reading.can_take(rows):
                return reading.with_rows(rows)
        return Reading.of(self.state.with_sums(self.sums), self.prior_precision)

    @cached_property
    def next_out(self) -> Rows:
        """The kept samples that leave the window before the next fold is over."""
        assert self.kept is not None
        return Rows.of(self.state, self.kept.oldest(self.settings.block))

    # Private ------------------------------------------------------------------------------------

    def aging(self, now: float) -> float:
        """What will be left of the folded sums; until a sample comes, time stands still."""
        if not self.settings.ages or -math.inf in (self.clock, now):
            return 1.0
        return self.settings.weight(now - self.clock)

    def _leaving(self, rows: Rows) -> int:
        if self.kept is None or self.settings.window is None:
            return 0
        return max(0, len(self.kept) + len(rows) - self.settings.window)

    def _without_leaving(self, fresh: Fresh, out: Rows, remaining: int) -> Fresh:
        """Without the samples among those leaving that are fresh themselves: the last ones."""
        too_many = fresh.count - remaining
        if too_many <= 0:
            return fresh
        out = out.take(slice(len(out) - too_many, None))
        weights = self.weights(out.samples)
        return fresh.without(out.sums(weights), Coverage.of(out, weights), len(out))

    def _summed(self, rows: Rows) -> tuple[DualSums, Kept | None]:
        """The sums of now: aged, with the pending rows, without those a window lets go."""
        sums = self.state.sums * self.aging(self.now) + rows.sums(self.weights(rows.samples))
        kept = None if self.kept is None else self.kept.with_samples(rows.samples)
        leaving = self._leaving(rows)
        if leaving and kept is not None:
            out = self.next_out.take(slice(0, leaving))
            sums = sums - out.sums(self.weights(out.samples))
            kept = kept.without_oldest(leaving)
        return sums, kept
