"""A person forgotten by a stream: no row in its files, and the stream that never met them."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sfr_cl import SFRPosterior, SFRWarning, StreamingPosterior, noise
from sfr_cl.data.inputs import matching
from sfr_cl.errors import ArgumentError, DataError, NotFittedError
from sfr_cl.streaming import Autosave
from sfr_cl.streaming.river import StreamingClassifier, StreamingRegressor
from support.paths import ROOT
from support.posteriors import assert_same_contents, contents
from support.streams import assert_same_sums, sums
from support.users import (
    DRAWN,
    bytes_left,
    forget_everybody,
    leaving,
    network,
    people,
    stays,
    traces,
)

X, Y = people()


def posterior(inducing: Any) -> SFRPosterior:
    torch.manual_seed(0)
    return SFRPosterior(network(), "classification", inducing=inducing, prior_precision=1.0)


def learned(inducing: Any = 40, **settings: Any) -> StreamingPosterior:
    """In portions, as they come."""
    live = StreamingPosterior(posterior(inducing), **settings)
    for start in range(0, len(X), 90):
        live.learn_many(X[start : start + 90], Y[start : start + 90])
    return live


# Everybody, in turn --------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAWN)
def test_a_hundred_people_leave_a_stream_over_drawn_inputs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = StreamingPosterior(posterior(DRAWN[name]).fit((X[:300], Y[:300])))
    live.learn_many(X[300:], Y[300:])
    forget_everybody(live, live.forget_many, tmp_path / "stream", monkeypatch)


@pytest.mark.parametrize(
    "settings",
    [{}, {"window": 360, "swap": True}],
    ids=str,
)
def test_a_hundred_people_leave_a_stream_that_chose(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = learned(**settings)
    forget_everybody(live, live.forget_many, tmp_path / "stream", monkeypatch)


def test_a_hundred_people_leave_while_inducing_inputs_are_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All samples are stored then, and inducing inputs chosen again from those that stay."""
    live = learned(200)
    assert live.state.choosing
    forget_everybody(live, live.forget_many, tmp_path / "stream", monkeypatch)
    assert live.state.choosing
    left = X[stays(list(leaving()))].double()
    assert matching(live.inducing_inputs, left).all()


def test_a_hundred_people_leave_a_stream_that_ages(tmp_path: Path) -> None:
    live, path = learned(discount=0.999), tmp_path / "stream"
    gone = list(leaving())
    for rows in gone:
        live.forget_many(X[rows], Y[rows], at=torch.arange(rows.start, rows.stop))
    live.save(path)
    others = stays(gone)
    assert traces(path, X[~others]) == []
    state = live.posterior.state
    expected = state.no_sums()
    for row in others.nonzero()[:, 0].tolist():
        one = state.sums_of([(X[row : row + 1], Y[row : row + 1])])
        expected = expected + one * 0.999 ** (359 - row)
    assert_same_sums(state.sums, expected)


def test_rows_that_wait_and_candidates_are_gone_too(tmp_path: Path) -> None:
    """Samples that are not yet in the sums, and those that may become inducing inputs."""
    live, path = learned(swap=True), tmp_path / "stream"
    new = 1.5 * X[:30] + torch.tensor([4.0, 0, 0, 0, 0])
    live.learn_many(new, Y[:30])
    live.save(path)
    assert live.state.pending
    pool = live.state.flush().candidates.pool
    assert pool is not None
    assert traces(path, new)
    live.forget_many(new[:29], Y[:29], at=torch.arange(360, 389))
    live.save(path)
    assert traces(path, new[:29]) == []
    assert bytes_left(pickle.dumps(live), new[:29]) == []
    assert live.state.candidates.pool is not None


def test_the_promise_of_the_readme(tmp_path: Path) -> None:
    """Of a stream as it is by default, that has gone on for long, in another region."""
    row = "| `forget_one`, `forget_many`: exact, however long ago, after a save and load too |"
    assert f"| someone must be forgotten {row}" in (ROOT / "README.md").read_text()
    live, path = StreamingPosterior(posterior(40)), tmp_path / "stream"
    for shift in range(5):
        live.learn_many(X + 2.0 * shift, Y)
    live.save(path)
    live.close()
    loaded, _ = StreamingPosterior.load(path, network())
    loaded.forget_one(X[0], Y[0])
    loaded.forget_many(X[1:40], Y[1:40])
    loaded.save(path)
    assert traces(path, X[:40]) == []
    never = posterior(loaded.inducing_inputs).init()
    never.update([(X + 2.0 * shift, Y) for shift in range(1, 5)]).update((X[40:], Y[40:]))
    assert_same_sums(sums(loaded), never.state.sums)
    found, expected = loaded.predict_f(X), never.predict_f(X)
    torch.testing.assert_close(found.mean, expected.mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.variance, expected.variance, atol=1e-6, rtol=0)


# What is left --------------------------------------------------------------------------------


def test_residuals_are_those_of_the_inputs_that_stay() -> None:
    live = learned()
    live.forget_many(X[:60], Y[:60])
    assert len(live.inducing_inputs) < 30
    found = live.residual_bound
    features = live.posterior.state.basis.features(X[60:].double(), diagonal=True)
    assert features.diagonal is not None
    missed = features.diagonal - features.phi.square().sum(2)
    assert found.missed == pytest.approx(float(missed.sum()))
    assert found.total == pytest.approx(float(features.diagonal.sum()))
    assert found.exchange_error == 0


def test_a_window_goes_on_after_forgetting() -> None:
    """Also the sums that rebuild it."""
    live = learned(window=100)
    live.forget_many(X[300:330], Y[300:330])
    live.learn_many(X[:90], Y[:90])
    z = live.inducing_inputs
    expected = posterior(z).fit((torch.cat([X[350:], X[:90]]), torch.cat([Y[350:], Y[:90]])))
    assert not matching(z, X[300:330].double()).any()
    assert live.num_data == 100
    assert_same_sums(sums(live), expected.state.sums)


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_the_first_samples_may_be_forgotten(rows: int, tmp_path: Path) -> None:
    live = StreamingPosterior(posterior(40))
    live.learn_many(X[: rows + 1], Y[: rows + 1])
    live.forget_many(X[:rows], Y[:rows])
    live.save(tmp_path / "stream")
    assert traces(tmp_path / "stream", X[:rows]) == []
    live.learn_many(X[rows + 1 :], Y[rows + 1 :])
    expected = posterior(live.inducing_inputs).fit((X[rows:], Y[rows:]))
    assert_same_sums(sums(live), expected.state.sums)


def test_the_only_sample_is_refused_and_stays() -> None:
    live = StreamingPosterior(posterior(40))
    live.learn_one(X[0], Y[0])
    before = sums(live)
    with pytest.raises(DataError, match="expected to leave some inducing input"):
        live.forget_one(X[0], Y[0])
    assert_same_sums(sums(live), before, 0.0)
    live.learn_one(X[1], Y[1])
    live.forget_one(X[0], Y[0])
    assert live.num_data == 1


def test_given_inducing_inputs_stay_with_a_warning(tmp_path: Path) -> None:
    live = learned(X[:40])
    with pytest.warns(SFRWarning, match="3 of the inducing inputs that were given"):
        live.forget_many(X[:3], Y[:3])
    assert len(live.inducing_inputs) == 40
    over_noise = learned(posterior(noise(40)).init((X, Y)).inducing_inputs)
    over_noise.forget_many(X[:3], Y[:3])
    over_noise.save(tmp_path / "stream")
    assert traces(tmp_path / "stream", X) == []


BAD = {
    "never learned": (X[:3] + 9, Y[:3]),
    "no label": (X[:3], Y[:3] + 5),
    "of another form": (X[:3, :2], Y[:3]),
    "too many": (torch.cat([X, X]), torch.cat([Y, Y])),
    "the last not finite": (torch.cat([X[:3], X[:1] / 0]), Y[:4]),
    "all inducing inputs": (X, Y),
}


@pytest.mark.parametrize("window", [None, 400])
@pytest.mark.parametrize("case", BAD)
def test_a_refusal_changes_nothing(case: str, window: int | None) -> None:
    live = learned(window=window)
    before, bound = contents(live.posterior), live.residual_bound
    with pytest.raises(DataError, match="expected"):
        live.forget_many(*BAD[case])
    assert_same_contents(live.posterior, before)
    assert live.residual_bound == bound
    assert window is None or len(live.state.flush().window or ()) == 360


def test_a_copy_keeps_what_the_other_forgets() -> None:
    live = learned()
    loaded = pickle.loads(pickle.dumps(live))
    live.forget_many(X[:60], Y[:60])
    assert len(loaded.inducing_inputs) == 40
    assert loaded.num_data == 360


def test_other_weights_know_what_was_drawn_from_data() -> None:
    for live, size in ((learned(window=400), None), (learned(X[:40], window=400), 40)):
        live.relinearize(network().double())
        if size is None:
            live.forget_many(X[:60], Y[:60])
            assert len(live.inducing_inputs) < 40
        else:
            with pytest.warns(SFRWarning, match="stay"):
                live.forget_many(X[:60], Y[:60])


# Merging, and files --------------------------------------------------------------------------


def test_streams_that_forgot_differently_are_merged(tmp_path: Path) -> None:
    start = posterior(40).init((X, Y))
    one, two = StreamingPosterior(start), StreamingPosterior(start)
    one.learn_many(X[:180], Y[:180])
    one.forget_many(X[:60], Y[:60])
    two.learn_many(X[180:], Y[180:])
    two.forget_many(X[180:240], Y[180:240])
    one.merge(two)
    left = torch.cat([torch.arange(60, 180), torch.arange(240, 360)])
    expected = posterior(one.inducing_inputs).fit((X[left], Y[left]))
    assert_same_sums(sums(one), expected.state.sums)
    features = one.posterior.state.basis.features(X[left].double(), diagonal=True)
    assert one.residual_bound.missed == pytest.approx(float(features.unexplained.sum()))
    one.save(tmp_path / "stream")
    assert traces(tmp_path / "stream", torch.cat([X[:60], X[180:240]])) == []


def test_autosave_writes_what_was_forgotten_since(tmp_path: Path) -> None:
    live, path = learned(), tmp_path / "stream"
    with Autosave(live, path, samples=10_000) as autosave:
        autosave(1)
        live.forget_many(X[:60], Y[:60])
    assert traces(path, X[:60]) == []
    loaded, cursor = StreamingPosterior.load(path, network())
    assert (loaded.num_data, cursor) == (300, 1)


# river ---------------------------------------------------------------------------------------


def named(row: Tensor) -> dict[str, float]:
    return dict(zip("abcde", row.tolist(), strict=True))


@pytest.mark.parametrize("kind", [StreamingClassifier, StreamingRegressor])
@pytest.mark.parametrize("settings", [{}, {"window": 400}, {"discount": 0.999}], ids=str)
def test_river_faces_forget_one(kind: Any, settings: dict[str, Any]) -> None:
    model = kind(inducing=40, hidden=16, **settings)
    labels = ["low", "middle", "high"] if kind is StreamingClassifier else [0.0, 1.0, 2.0]
    for row, label in zip(X[:120], Y.tolist(), strict=False):
        model.learn_one(named(row), labels[label])
    for row in range(0, 120, 2):
        at = {"at": row} if "discount" in settings else {}
        model.forget_one(named(X[row]), labels[int(Y[row])], **at)
    assert bytes_left(pickle.dumps(model), X[0:120:2]) == []
    left = [settings.get("discount", 1.0) ** (119 - row) for row in range(1, 120, 2)]
    assert model._stream.num_data == pytest.approx(sum(left))
    assert len(model._stream.inducing_inputs) < 40


def test_river_faces_refuse_what_was_never_learned() -> None:
    model = StreamingClassifier(inducing=8, hidden=8)
    with pytest.raises(NotFittedError, match="expected a model that has learned"):
        model.forget_one({"a": 1.0}, "x")
    for step in range(20):
        model.learn_one({"a": float(step)}, "x" if step % 2 else "y")
    with pytest.raises(DataError, match="a label that was learned"):
        model.forget_one({"a": 3.0}, "z")
    before = model.predict_proba_one({"a": 3.0})
    with pytest.raises(DataError, match="expected samples that were absorbed"):
        model.forget_one({"a": 300.0}, "x")
    assert model.predict_proba_one({"a": 3.0}) == before
    aging = StreamingClassifier(inducing=8, hidden=8, discount=0.9)
    for step in range(20):
        aging.learn_one({"a": float(step)}, step % 2)
    with pytest.raises(ArgumentError, match="at="):
        aging.forget_one({"a": 19.0}, 1)
