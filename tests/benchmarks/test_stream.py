"""`sfr-cl stream` on a small stream of its own: rows, report, and what it refuses."""

import json
from pathlib import Path

import pytest
import torch

from sfr_cl.benchmarks.cli import main
from sfr_cl.benchmarks.harness.exit_codes import DONE, WRONG_USE
from sfr_cl.benchmarks.stream import data, limits, settings
from sfr_cl.benchmarks.stream.methods import METHODS
from support.results import rows_in

KEYS = {"data", "method", "seed", "accuracy", "nlpd", "samples_per_second"}
SAMPLES = 60


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data root with a small table in the place of Elec2."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES + 20, 6, generator=generator)
    rows = torch.cat([x, (x[:, :1] > 0).float()], dim=1).tolist()
    path = tmp_path / "data" / "stream" / "elec2.csv"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(",".join(f"{value:.5f}" for value in row) for row in rows))
    return tmp_path / "data"


def test_every_method_makes_a_row(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["stream", "--data", "elec2", "--samples", str(SAMPLES), "--data-root", str(root)]
    assert main([*words, "--out", str(out)]) == DONE
    rows = rows_in(out)
    assert [row["method"] for row in rows] == list(METHODS)
    for row in rows:
        assert row.keys() >= KEYS
        assert 0 <= row["accuracy"] <= 1
        assert row["nlpd"] > 0
        assert len(row["accuracy_curve"]) == len(row["state_bytes_curve"])
    page = (out / "report.html").read_text()
    assert all(f">{name}<" in page for name in METHODS)
    assert (out / "elec2.png").stat().st_size > 1000
    before = rows
    assert main([*words, "--out", str(out), "--resume"]) == DONE
    assert rows_in(out) == before


def test_tuning_gives_every_method_its_best_value(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["stream", "--tune", "--data", "elec2", "--samples", "30", "--data-root", str(root)]
    assert main([*words, "--out", str(out)]) == DONE
    rows = rows_in(out)
    found = json.loads((out / "settings.json").read_text())["elec2"]
    assert set(found) == set(METHODS) - {"no-change"}
    for method, choice in found.items():
        own = [row for row in rows if row["method"] == method]
        assert [row["settings"] for row in own] == list(settings.GRIDS[method])
        assert [trial["nlpd"] for trial in choice["tried"]] == [row["nlpd"] for row in own]
        best = min(own, key=lambda row: row["nlpd"])
        assert choice["chosen"] == best["settings"]


def test_settings_in_the_package_were_tuned() -> None:
    assert {len(grid) for grid in settings.GRIDS.values()} == {6}
    for name in data.LOADERS:
        for method, grid in settings.GRIDS.items():
            found = settings.read()[name][method]
            assert [trial["setting"] for trial in found["tried"]] == list(grid)
            best = min(found["tried"], key=lambda trial: trial["nlpd"])
            assert settings.of(name, method) == best["setting"]


def test_tuning_never_sees_what_is_scored(root: Path, data_root: Path) -> None:
    elec2 = data.elec2(root)
    assert elec2.tuning is not None
    assert elec2.scored_from == data.VALIDATION
    assert torch.equal(elec2.tuning.x, elec2.x[: data.VALIDATION])
    mnist = data.load("mnist", data_root)
    assert mnist.tuning is not None
    assert mnist.tuning.test is not None
    asked = {image.numpy().tobytes() for image in mnist.tuning.test[0]}
    assert not asked & {image.numpy().tobytes() for image in torch.cat([mnist.x, mnist.tuning.x])}


@pytest.mark.parametrize(
    "words",
    [
        ["--data", "none"],
        ["--methods", "magic"],
        ["--samples", "1"],
        ["--data-root", "/nowhere"],
    ],
)
def test_wrong_use_is_one_sentence(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("SFR_CL_DATA", raising=False)
    monkeypatch.setattr("sfr_cl.benchmarks.harness.datasets.user_cache_path", lambda _: tmp_path)
    assert main(["stream", *words, "--out", str(tmp_path / "out")]) == WRONG_USE
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_standardised_by_the_past_alone() -> None:
    x = torch.randn(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = data.standardised_so_far(x)
    torch.testing.assert_close(data.standardised_so_far(x[:20]), found[:20])
    last = (x[-1] - x.mean(0)) / x.std(0, correction=0)
    torch.testing.assert_close(found[-1], last)
    assert torch.equal(found[0], torch.zeros(2, dtype=torch.float64))


def test_classes_of_images_come_two_at_a_time(data_root: Path) -> None:
    stream = data.load("mnist", data_root)
    each = data.PER_CLASS * data.CLASSES_AT_A_TIME
    assert len(stream.y) == 10 * data.PER_CLASS
    assert [sorted(set(part.tolist())) for part in stream.y.split(each)] == [
        [start, start + 1] for start in range(0, 10, 2)
    ]
    assert stream.test is not None


def test_limits_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LATENCIES", 5)
    million = limits.Million(samples=10_000, num_inducing=10)
    row = million.run(lambda _: None)
    assert row["difference_from_fit"] < 1e-9
    assert len(row["resident_mb"]) == limits.MARKS
    assert million.line(row)
    latency = limits.Latency(10, 1000)
    row = latency.run(lambda _: None)
    assert 0 < row["median_ms"] <= row["p99_ms"]
    assert latency.line(row)
    assert len(limits.jobs()) == 7
