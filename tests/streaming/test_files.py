"""Files of streams: complete, with the cursor, one writer, and refused when damaged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sfr_cl import SFRPosterior, StreamingPosterior
from sfr_cl.errors import ArgumentError, FileError, NotFittedError, SFRError
from sfr_cl.io import files
from sfr_cl.streaming import Autosave
from sfr_cl.streaming.storage import Writer
from support.posteriors import mlp
from support.streams import assert_same_sums, samples, stream, sums

SETTINGS = [
    {},
    {"discount": 0.9},
    {"discount": 0.5, "discount_per": "second"},
    {"window": 20, "discount": 0.95},
    {"on_drift": print},
]

OTHER_WRITER = """
import sys
from sfr_cl.errors import FileError
from sfr_cl.streaming.storage import Writer
try:
    Writer(sys.argv[1])
except FileError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("rows", [1, 9, 70])
def test_goes_on_as_if_never_saved(settings: dict[str, object], rows: int, tmp_path: Path) -> None:
    x, y = samples()
    times = {"time": torch.arange(90).double()} if "discount_per" in settings else {}
    live = StreamingPosterior(SFRPosterior(mlp(), "classification", inducing=8), **settings)
    live.learn_many(x[:rows], y[:rows], **{name: value[:rows] for name, value in times.items()})
    live.save(tmp_path / "stream", cursor=["part-3", 17, None])
    loaded, cursor = StreamingPosterior.load(
        tmp_path / "stream", mlp(seed=4), on_drift=settings.get("on_drift")
    )
    assert cursor == ["part-3", 17, None]
    for each in (live, loaded):
        rest = {name: value[rows:] for name, value in times.items()}
        each.learn_many(x[rows:], y[rows:], **rest)
    assert_same_sums(sums(loaded), sums(live), 1e-12)
    assert torch.equal(loaded.inducing_inputs, live.inducing_inputs)
    torch.testing.assert_close(loaded.predict_proba_many(x), live.predict_proba_many(x))
    assert loaded.excess_nll == pytest.approx(live.excess_nll)
    assert loaded.residual_bound.missed == pytest.approx(live.residual_bound.missed)


def test_features_are_stored_by_name(tmp_path: Path) -> None:
    live = stream()
    live.learn_one({"c": 1.0, "a": 2.0, "b": 3.0}, 1)
    live.save(tmp_path / "stream")
    loaded, cursor = StreamingPosterior.load(tmp_path / "stream", mlp())
    assert cursor is None
    x = {"b": 1.0, "a": 0.5}
    assert loaded.predict_proba_one(x) == pytest.approx(live.predict_proba_one(x))


def test_learned_hyperparameters_are_stored(tmp_path: Path) -> None:
    x, y = samples("regression")
    live = StreamingPosterior(SFRPosterior(mlp(1), "regression", inducing=8))
    live.learn_many(x[:50], y[:50])
    live.save(tmp_path / "stream")
    loaded, _ = StreamingPosterior.load(tmp_path / "stream", mlp(1))
    for each in (live, loaded):
        each.learn_many(x[50:], y[50:])
    assert loaded.posterior.noise_variance == pytest.approx(live.posterior.noise_variance)
    assert loaded.posterior.prior_precision == pytest.approx(live.posterior.prior_precision)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    first, second = stream(), stream()
    first.learn_many(*samples())
    second.learn_many(*samples())
    first.save(path, cursor=1)
    with pytest.raises(FileError, match="only writer"):
        second.save(path, cursor=2)
    with pytest.raises(FileError, match="only writer"):
        Autosave(second, path, samples=1)
    result = subprocess.run(
        [sys.executable, "-c", OTHER_WRITER, str(path)], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("refused:")
    assert StreamingPosterior.load(path, mlp())[1] == 1  # readers are not
    first.close()
    second.save(path, cursor=2)
    assert StreamingPosterior.load(path, mlp())[1] == 2


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".stream.0123abcd"
    left.write_bytes(b"half a file")
    other = tmp_path / ".stream.notes"
    other.write_text("mine")
    live = stream()
    live.learn_many(*samples())
    live.save(tmp_path / "stream")
    assert not left.exists()
    assert other.exists()


@pytest.mark.parametrize("cursor", [(1, 2), {1: 2}, {"a": {3}}, float("nan"), b"bytes", object()])
def test_cursors_that_would_come_back_changed_are_refused(cursor: object, tmp_path: Path) -> None:
    live = stream()
    live.learn_many(*samples())
    with pytest.raises(ArgumentError, match="cursor"):
        live.save(tmp_path / "stream", cursor=cursor)
    assert list(tmp_path.iterdir()) == []


def test_nothing_learned_is_nothing_to_save(tmp_path: Path) -> None:
    live = StreamingPosterior(SFRPosterior(mlp(), "classification", inducing=8))
    with pytest.raises(NotFittedError):
        live.save(tmp_path / "stream")


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    live = stream()
    live.learn_many(*samples())
    live.save(tmp_path / "stream")
    live.posterior.save(tmp_path / "posterior")
    with pytest.raises(FileError, match="sfr-cl stream 1"):
        StreamingPosterior.load(tmp_path / "posterior", mlp())
    with pytest.raises(FileError, match="sfr-cl posterior 1"):
        SFRPosterior.load(tmp_path / "stream", mlp())


def test_every_part_of_a_file_is_checked(tmp_path: Path) -> None:
    """Files with a right checksum but a part missing or of another kind."""
    path = tmp_path / "stream"
    live = StreamingPosterior(SFRPosterior(mlp(), "classification", inducing=8), window=20)
    live.learn_many(*samples())
    live.save(path)
    live.close()
    tensors, values = files.read(path, form="sfr-cl stream 1")
    for name in tensors:
        others = {key: value for key, value in tensors.items() if key != name}
        if name.endswith((".y", ".variance")):  # what is absent there was never stored
            continue
        files.write(path, others, values, form="sfr-cl stream 1")
        with pytest.raises(SFRError):
            StreamingPosterior.load(path, mlp())
    for name in values["stream"]:
        for other in ({}, {name: "nonsense"}):
            broken = json.loads(json.dumps(values))
            broken["stream"].pop(name)
            broken["stream"] |= other
            files.write(path, tensors, broken, form="sfr-cl stream 1")
            with pytest.raises(SFRError):
                StreamingPosterior.load(path, mlp())


def test_saves_every_so_many_samples(tmp_path: Path) -> None:
    x, y = samples()
    live = stream()
    saved = []
    with Autosave(live, tmp_path / "stream", samples=20) as autosave:
        for row in range(50):
            live.learn_one(x[row], y[row])
            if autosave(row + 1):
                saved.append(row + 1)
    assert saved == [20, 40]
    loaded, cursor = StreamingPosterior.load(tmp_path / "stream", mlp())
    assert cursor == 50  # once more at the end
    assert_same_sums(sums(loaded), sums(live))
    other = stream()
    other.learn_many(x, y)
    other.save(tmp_path / "stream")  # nobody writes there any more


def test_saves_every_so_many_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    live = stream()
    live.learn_many(*samples())
    autosave = Autosave(live, tmp_path / "stream", seconds=10)
    assert not autosave(1)
    now = 10.0
    assert autosave(2)
    assert not autosave(3)
    with pytest.raises(ArgumentError, match="neither"):
        Autosave(live, tmp_path / "stream")


def test_autosave_never_saves_more_than_its_cursor_says(tmp_path: Path) -> None:
    x, y = samples()
    live = stream()
    with Autosave(live, tmp_path / "stream", samples=100) as save:
        live.learn_one(x[0], y[0])
        save(1)
        live.learn_one(x[1], y[1])
    loaded, cursor = StreamingPosterior.load(tmp_path / "stream", mlp())
    assert cursor == loaded.n_seen == 1


def test_autosave_lets_go_when_it_can_not_save(tmp_path: Path) -> None:
    x, y = samples()
    live = stream()
    save = Autosave(live, tmp_path / "stream", samples=9)
    live.learn_one(x[0], y[0])
    save(object())
    with pytest.raises(ArgumentError, match="cursor"):
        save.__exit__()
    stream().claim(tmp_path / "stream").close()


def test_autosave_of_nothing_writes_nothing(tmp_path: Path) -> None:
    empty = StreamingPosterior(SFRPosterior(mlp(), "classification", inducing=4))
    with Autosave(empty, tmp_path / "s", samples=1) as save:
        save(0)
    assert not (tmp_path / "s").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_may_not_write(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "s")
    child = os.fork()
    if child == 0:
        try:
            writer.write({}, {"a": 1})
        except FileError:
            writer.close()  # must not let go of the parent's lock
            os._exit(3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    found = subprocess.check_output(
        [sys.executable, "-c", OTHER_WRITER, str(tmp_path / "s")], text=True
    )
    assert found.startswith("refused")
    writer.close()


def test_a_save_elsewhere_leaves_autosave_its_path(tmp_path: Path) -> None:
    live, other = stream(), stream()
    for each in (live, other):
        each.learn_many(*samples())
    with Autosave(live, tmp_path / "stream", samples=1) as save:
        live.save(tmp_path / "copy")
        with pytest.raises(FileError, match="only writer"):
            other.save(tmp_path / "stream")
        live.learn_many(*samples())
        assert save(3)
    other.save(tmp_path / "stream")
    with pytest.raises(FileError, match="only writer"):
        other.save(tmp_path / "copy")


def test_a_closed_writer_does_not_write_beside_another(tmp_path: Path) -> None:
    live, other = stream(), stream()
    for each in (live, other):
        each.learn_many(*samples())
    save = Autosave(live, tmp_path / "stream", samples=1)
    live.close()
    other.save(tmp_path / "stream", cursor=1)
    live.learn_many(*samples())
    with pytest.raises(FileError, match="only writer"):
        save(2)
    assert StreamingPosterior.load(tmp_path / "stream", mlp())[1] == 1
    other.close()
    live.learn_many(*samples())
    assert save(3)
