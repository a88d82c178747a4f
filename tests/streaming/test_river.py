"""The faces for river pass its checks, fit its pipelines, and need it for nothing else."""

import subprocess
import sys

import pandas as pd
import pytest
import torch
from river import checks, datasets, evaluate, metrics, preprocessing

from sfr_cl.errors import SFRError
from sfr_cl.streaming.river import StreamingClassifier, StreamingRegressor

SMALL = {"inducing": 12, "hidden": 8}

WITHOUT_RIVER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"river", "pandas"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from sfr_cl.streaming.river import StreamingClassifier, StreamingRegressor
model = StreamingClassifier(inducing=4, hidden=4)
for step in range(8):
    model.learn_one({"x": step % 2}, step % 2 == 1)
print(model.predict_one({"x": 1.0}), StreamingRegressor().predict_one({"x": 1.0}))
"""


@pytest.mark.parametrize(
    "check",
    list(checks.yield_checks(StreamingClassifier(**SMALL))),
    ids=lambda check: check.__name__,
)
def test_classifier_passes_rivers_check(check) -> None:
    check(StreamingClassifier(**SMALL))


@pytest.mark.parametrize(
    "check",
    list(checks.yield_checks(StreamingRegressor(**SMALL))),
    ids=lambda check: check.__name__,
)
def test_regressor_passes_rivers_check(check) -> None:
    check(StreamingRegressor(**SMALL))


def test_classifier_in_a_pipeline() -> None:
    model = preprocessing.StandardScaler() | StreamingClassifier(inducing=20)
    accuracy = evaluate.progressive_val_score(
        datasets.Phishing().take(300), model, metrics.Accuracy()
    )
    assert accuracy.get() > 0.8


def test_regressor_in_a_pipeline() -> None:
    regressor = preprocessing.TargetStandardScaler(regressor=StreamingRegressor(inducing=20))
    model = preprocessing.StandardScaler() | regressor
    error = evaluate.progressive_val_score(datasets.TrumpApproval().take(300), model, metrics.MAE())
    assert error.get() < 1.0


def test_labels_of_any_kind_at_any_time() -> None:
    model = StreamingClassifier(**SMALL)
    assert model.predict_proba_one({"x": 1.0}) == {}
    assert model.predict_one({"x": 1.0}) is None
    for label, value in [("low", -2.0), (7, 0.0), (("a", 1), 2.0)] * 12:
        model.learn_one({"x": value}, label)
    found = model.predict_proba_one({"x": -2.0})
    assert set(found) == {"low", 7, ("a", 1)}
    assert sum(found.values()) == pytest.approx(1)
    assert model.predict_one({"x": -2.0}) == "low"
    assert model.predict_one({"x": 2.0}) == ("a", 1)


def test_a_refused_sample_leaves_no_label() -> None:
    model = StreamingClassifier(**SMALL)
    model.learn_one({"x": 1.0}, "a")
    with pytest.raises(SFRError):
        model.learn_one({"x": float("nan")}, "b")
    with pytest.raises(SFRError):
        model.learn_one({"x": 1.0}, ["not", "hashable"])
    assert set(model.predict_proba_one({"x": 1.0})) == {"a"}
    other = StreamingClassifier(**SMALL)
    with pytest.raises(SFRError):
        other.learn_one({"x": float("inf")}, "b")
    other.learn_one({"y": 1.0}, "c")
    assert other.predict_proba_one({"y": 1.0}) == {"c": 1.0}


def test_a_custom_network() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(2, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))
    model = StreamingClassifier(network=network, inducing=6)
    table = pd.DataFrame({"b": [0.0, 1.0, 2.0, 3.0], "a": [1.0, 1.0, 0.0, 0.0]})
    model.learn_many(table, pd.Series([True, True, False, False]))
    assert model.predict_many(table).tolist() == [True, True, False, False]
    assert list(model.predict_proba_many(table).columns) == [True, False]


def test_faces_need_no_river() -> None:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_RIVER], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["True", "0.0"]


def test_a_refused_new_label_does_not_stop_the_others() -> None:
    model = StreamingClassifier(**SMALL)
    for label, value in [("a", -2.0), ("b", 0.0), ("c", 2.0)] * 3:
        model.learn_one({"x": value}, label)
    with pytest.raises(SFRError):
        model.learn_one({"x": float("nan")}, "d")
    with pytest.raises(SFRError):
        model.learn_one({"x": 0.0}, float("nan"))
    model.learn_one({"x": -2.0}, "a")
    assert set(model.predict_proba_one({"x": 0.0})) == {"a", "b", "c"}


def test_many_labels_leave_exchanges_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfr_cl.streaming.settings.BLOCK", 16)
    model = StreamingClassifier(inducing=6, hidden=8, swap=True)
    generator = torch.Generator().manual_seed(0)
    for row, (a, b) in enumerate(torch.randn(120, 2, generator=generator).tolist()):
        model.learn_one({"a": a + (4 if row > 60 else 0), "b": b}, row % 3)
    assert (model._stream.inducing_inputs[:, 0] > 2.5).any()


FEATURES = {"a": 1.0, "b": 0.5}


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (None, 1.0),
        ([1.0, 2.0], 1.0),
        ({"a": torch.ones(2), "b": 1.0}, 1.0),
        ({"a": [1.0], "b": 1.0}, 1.0),
        (FEATURES, torch.ones(2)),
        (FEATURES, ["several"]),
        (FEATURES, (["several"],)),
    ],
)
@pytest.mark.parametrize("kind", [StreamingClassifier, StreamingRegressor])
def test_what_is_no_sample_is_refused(kind, x, y) -> None:
    model = kind(**SMALL)
    with pytest.raises(SFRError, match="expected"):
        model.learn_one(x, y)
    model.learn_one(FEATURES, 1.0)
    before = model.predict_one(FEATURES)
    with pytest.raises(SFRError, match="expected"):
        model.learn_one(x, y)
    assert model.predict_one(FEATURES) == before
    if x is not FEATURES:
        with pytest.raises(SFRError, match="expected"):
            model.predict_one(x)


@pytest.mark.parametrize("y", ["high", None, 10**400], ids=["text", "none", "huge"])
def test_targets_that_are_no_numbers_are_refused(y) -> None:
    model = StreamingRegressor(**SMALL)
    with pytest.raises(SFRError, match="expected targets"):
        model.learn_one(FEATURES, y)
    with pytest.raises(SFRError, match="expected targets"):
        model.learn_many(pd.DataFrame([FEATURES, FEATURES]), pd.Series([y, 1.0], dtype=object))
