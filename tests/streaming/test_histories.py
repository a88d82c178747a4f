"""Learned, forgotten, merged, discounted, saved and loaded: the sums are those of a list."""

import math
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfr_cl import StreamingPosterior
from sfr_cl.errors import ArgumentError, DataError
from support.posteriors import OUTPUTS, mlp
from support.streams import Naive, assert_same_sums, samples, stream, sums

POOL = 60
"""Samples that histories draw from."""

OPERATIONS = st.one_of(
    st.tuples(st.just("learn"), st.integers(1, 9), st.booleans()),
    st.tuples(st.just("forget"), st.integers(0, 200), st.booleans()),
    st.tuples(st.just("discount"), st.sampled_from([0.5, 0.9]), st.booleans()),
    st.tuples(st.just("merge"), st.integers(1, 6), st.booleans()),
    st.tuples(st.just("save"), st.just(0), st.booleans()),
    st.tuples(st.just("read"), st.just(0), st.booleans()),
)
SETTINGS = st.sampled_from(
    [
        {},
        {"discount": 0.9},
        {"discount": 0.5, "discount_per": "second"},
        {"window": 7},
        {"window": 12, "discount": 0.8},
        {"window": 5, "discount": 0.7, "discount_per": "second"},
    ]
)


class History:
    """A stream and the list that it should amount to, led through the same operations."""

    def __init__(self, kind: str, chosen: dict) -> None:
        self.kind, self.chosen = kind, chosen
        self.x, self.y = samples(kind, POOL)
        self.stream, self.naive = self._new()
        self.next = 0
        self.discounted = 1.0

    def _new(self) -> tuple[StreamingPosterior, Naive]:
        made = stream(self.kind, **self.chosen)
        start = -math.inf if self.chosen.get("discount_per") == "second" else -1.0
        return made, Naive(self.chosen.get("discount", 1.0), self.chosen.get("window"), start)

    def learn(self, count: int, singly: bool) -> None:
        self._learn(self.stream, self.naive, count, singly)

    def _learn(self, live: StreamingPosterior, naive: Naive, count: int, singly: bool) -> None:
        rows = [(self.next + row) % POOL for row in range(count)]
        self.next += count
        seconds = self.chosen.get("discount_per") == "second"
        start = live.n_seen
        # Every third sample is two seconds late.
        times = [0.25 * (start + i) - (2 if i % 3 == 0 else 0) for i in range(count)]
        when = times if seconds else [float(start + i) for i in range(count)]
        if singly:
            for row, time in zip(rows, when, strict=True):
                live.learn_one(self.x[row], self.y[row], time=time if seconds else None)
        else:
            live.learn_many(self.x[rows], self.y[rows], time=when if seconds else None)
        for row, time in zip(rows, when, strict=True):
            naive.learn(self.x[row], self.y[row], time)

    def forget(self, position: int, _: bool) -> None:
        if not self.naive.stored:
            return
        index = position % len(self.naive.stored)
        time, weight = self.naive.stored[index][2:]
        known = time > -float("inf")  # merged into a stream that has learned nothing itself
        age = self.naive.discount ** (self.naive.now - time) if known else 1.0
        x, y, time = self.naive.forget(index)
        if known or "discount" not in self.chosen:
            self.stream.forget_one(x, y, at=time if known else None, weight=weight / age)
        else:
            self.naive.stored.append((x, y, time, weight))

    def discount(self, gamma: float, _: bool) -> None:
        if self.stream.n_seen:
            self.stream.discount(gamma)
            self.naive.scale(gamma)

    def merge(self, count: int, singly: bool) -> None:
        other, naive = self._new()
        self._learn(other, naive, count, singly)
        if self.chosen.get("window"):
            with pytest.raises(DataError, match="window"):
                self.stream.merge(other)
            return
        if self.chosen.get("discount_per") == "second":
            now = max(self.naive.now, naive.now)
            self.naive._age_to(now)
            naive._age_to(now)
        self.stream.merge(other)
        self.naive.merge(naive)

    def save(self, _: int, __: bool) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "stream")
            self.stream.save(path, cursor={"next": self.next})
            self.stream.close()
            self.stream, cursor = StreamingPosterior.load(path, mlp(OUTPUTS[self.kind], seed=3))
        assert cursor == {"next": self.next}

    def read(self, _: int, __: bool) -> None:
        self.stream.predict(self.x[:2])

    def check(self) -> None:
        assert_same_sums(sums(self.stream), self.naive.sums(self.stream.posterior.state))


@pytest.mark.parametrize("kind", ["classification", "regression"])
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(chosen=SETTINGS, operations=st.lists(OPERATIONS, min_size=1, max_size=9))
def test_any_history_is_that_of_a_list(kind: str, chosen: dict, operations: list[tuple]) -> None:
    history = History(kind, chosen)
    for name, value, singly in operations:
        getattr(history, name)(value, singly)
    history.check()


def test_forgetting_needs_to_know_when() -> None:
    x, y = samples()
    live = stream(discount=0.9)
    live.learn_many(x[:9], y[:9])
    with pytest.raises(ArgumentError, match="at="):
        live.forget_one(x[0], y[0])
    with pytest.raises(DataError, match="latest"):
        live.forget_one(x[0], y[0], at=20)
    live.forget_one(x[0], y[0], at=0)
    expected = stream(discount=0.9)
    expected.learn_many(x[1:9], y[1:9])
    assert_same_sums(sums(live), sums(expected))


def test_what_left_the_window_is_not_forgotten_twice() -> None:
    x, y = samples()
    live = stream(window=5)
    live.learn_many(x[:9], y[:9])
    before = sums(live)
    with pytest.raises(DataError, match="left the window"):
        live.forget_one(x[0], y[0])
    assert_same_sums(sums(live), before, 0.0)
    live.forget_one(x[8], y[8])
    with pytest.raises(DataError, match="left the window"):
        live.forget_one(x[8], y[8])
    assert live.num_data == pytest.approx(4)


def test_more_than_was_learned_is_not_forgotten() -> None:
    x, y = samples()
    live = stream()
    live.learn_many(x[:5], y[:5])
    with pytest.raises(DataError, match="at most what was seen"):
        live.forget_many(x[:9], y[:9])
    assert live.num_data == 5


def test_a_window_leaves_no_rounding_behind() -> None:
    """An outlier that has left is gone to the last digit, three windows later."""
    x, y = samples("regression")
    live, clean = stream("regression", window=8), stream("regression", window=8)
    live.learn_one(x[0], 1e12 * torch.ones(1))
    for row in range(1, 30):
        live.learn_one(x[row], y[row])
        clean.learn_one(x[row], y[row])
    assert_same_sums(sums(live), sums(clean), 1e-14)
