"""Anything at all as input: a clear error or a right answer, and never a stream that is broken.

Quick here; ten thousand examples with ``pytest -m long tests/streaming/test_fuzz.py``.
"""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfr_cl import SFRPosterior, StreamingPosterior
from sfr_cl.errors import SFRError
from support.posteriors import mlp
from support.streams import samples, stream

LIMITS = [1e308, -1e308, 1e200, 1e39, 1e16, 5e-324, 1e-310, -0.0, 0.0, 1.0]
NUMBERS = st.one_of(
    st.floats(width=64), st.sampled_from(LIMITS), st.integers(-(2**70), 2**70), st.booleans()
)
ODD = st.one_of(
    st.none(), st.text(max_size=5), st.binary(max_size=5), st.complex_numbers(), st.just(object())
)
DTYPES = st.sampled_from(
    [torch.float64, torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64]
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any few numbers, of any dtype, in any small shape."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    values = draw(
        st.lists(
            st.one_of(st.floats(width=64), st.sampled_from(LIMITS)),
            min_size=math.prod(shape),
            max_size=math.prod(shape),
        )
    )
    return torch.tensor(values, dtype=torch.float64).reshape(shape).to(draw(DTYPES))


@st.composite
def batches(draw: st.DrawFn) -> torch.Tensor:
    """Batches of the right shape, with any numbers."""
    rows = draw(st.integers(1, 4))
    cells = draw(
        st.lists(
            st.one_of(st.floats(-3, 3), st.floats(width=64), st.sampled_from(LIMITS)),
            min_size=3 * rows,
            max_size=3 * rows,
        )
    )
    return torch.tensor(cells, dtype=torch.float64).reshape(rows, 3)


FEATURES = st.dictionaries(
    st.one_of(st.sampled_from("abc"), st.integers(0, 2)), st.one_of(NUMBERS, ODD)
)
INPUTS = st.one_of(batches(), tensors(), FEATURES, ODD, st.lists(NUMBERS, max_size=4), NUMBERS)
TARGETS = st.one_of(
    tensors(),
    st.lists(st.integers(-2, 4), min_size=1, max_size=4).map(torch.tensor),
    st.lists(st.sampled_from([0.5, *LIMITS]), min_size=1, max_size=4).map(torch.tensor),
    NUMBERS,
    ODD,
    st.lists(NUMBERS, max_size=4),
)
CALLS = st.one_of(
    st.tuples(st.just("learn_one"), INPUTS, TARGETS),
    st.tuples(st.just("learn_many"), INPUTS, TARGETS),
    st.tuples(st.just("forget_one"), INPUTS, TARGETS),
    st.tuples(st.just("forget_many"), INPUTS, TARGETS),
    st.tuples(st.sampled_from(["predict_one", "predict_many", "predict_f"]), INPUTS),
    st.tuples(st.just("discount"), st.one_of(NUMBERS, ODD)),
    st.tuples(st.just("grow_outputs"), st.one_of(st.integers(-1, 4), ODD)),
    st.tuples(st.just("merge"), ODD),
)

X, Y = samples(rows=40)
NEW = samples(rows=60)[0][40:]


def starts() -> dict[str, StreamingPosterior]:
    """Streams of every kind, with something learned, and one with nothing."""
    made = {
        "classes": stream(),
        "window": stream(window=10, discount=0.9),
        "choosing": StreamingPosterior(SFRPosterior(mlp(), "classification", inducing=8)),
        "nothing": StreamingPosterior(SFRPosterior(mlp(), "classification", inducing=8)),
    }
    for name in ("classes", "window", "choosing"):
        made[name].learn_many(X[:12], Y[:12])
    numbers = stream("regression")
    numbers.learn_many(*samples("regression", 12))
    return {**made, "numbers": numbers}


STARTS = starts()
EXAMPLES = [150, pytest.param(10_000, marks=pytest.mark.long)]


def known(live: StreamingPosterior) -> Any:
    """All tensors of what a stream knows."""
    if live.is_empty:
        return None
    known = live.state
    scalars = [known.now, known.n_seen, known.clock]
    return [*known.sums.tensors(), known.state.basis.factor, *scalars]


def same(before: Any, after: Any) -> bool:
    if before is None or after is None:
        return before is after
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(before, after, strict=True)
    )


def apply(call: tuple[Any, ...], name: str) -> None:
    """Make a call, and look at what it left."""
    live = copy.copy(STARTS[name])
    before = known(live)
    method, *arguments = call
    refused, answer = None, None
    try:
        answer = getattr(live, method)(*arguments)
    except SFRError as error:
        refused = error
    if refused is not None:
        assert str(refused).startswith("expected"), refused
        assert same(before, known(live)), "an error changed the stream"
    if isinstance(answer, torch.Tensor):
        assert torch.isfinite(answer).all()
    after = known(live)
    if after is not None:
        assert all(v.isfinite().all() for v in after if isinstance(v, torch.Tensor))
        assert torch.isfinite(live.predict_f(NEW).mean).all()
        live.learn_many(X[12:15], live.predict_many(X[12:15]))  # it goes on


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.filterwarnings("ignore::sfr_cl.SFRWarning", "ignore:Casting complex:UserWarning")
def test_any_call(examples: int) -> None:
    @settings(
        deadline=None,
        max_examples=examples,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(call=CALLS, name=st.sampled_from(sorted(STARTS)))
    def calls(call: tuple[Any, ...], name: str) -> None:
        apply(call, name)

    calls()


@pytest.mark.parametrize("examples", EXAMPLES)
def test_any_damage_to_a_file(examples: int, tmp_path: Path) -> None:
    path = tmp_path / "stream"
    live = stream(window=10)
    live.learn_many(X, Y)
    live.save(path, cursor=40)
    live.close()
    complete = path.read_bytes()
    expected = live.predict_proba_many(NEW)

    @settings(
        deadline=None,
        max_examples=examples,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        at=st.integers(0, 8 * len(complete) - 1),
        flips=st.integers(0, 3),
        length=st.one_of(st.none(), st.integers(0, len(complete) - 1)),
    )
    def damaged(at: int, flips: int, length: int | None) -> None:
        content = np.frombuffer(complete, np.uint8).copy()
        for flip in range(flips):
            bit = (at + 7919 * flip) % (8 * len(complete))
            content[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(content.tobytes()[:length])
        try:
            loaded, cursor = StreamingPosterior.load(path, mlp())
        except SFRError:
            assert flips or length is not None
        else:
            assert cursor == 40
            assert torch.equal(loaded.predict_proba_many(NEW), expected)

    damaged()
