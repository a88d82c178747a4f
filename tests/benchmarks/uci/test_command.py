"""A shortened run of `sfr-cl uci`: rows, report, figure, resuming, refusals."""

from pathlib import Path
from typing import Any

import pytest

from sfr_cl.benchmarks import cli
from sfr_cl.benchmarks.uci import experiment, report, run, training
from sfr_cl.benchmarks.uci.checks import checks
from sfr_cl.benchmarks.uci.summary import METHODS, TITLES, Table, published
from support.results import rows_in

KEYS = {"data", "method", "tuned", "seed", "m_percent", "nlpd", "accuracy", "ece"}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little training of narrow networks, and three points of the figure."""
    for name, value in {"HIDDEN": 6, "MOST_EPOCHS": 20, "LEARNING_RATE": 1e-2}.items():
        monkeypatch.setattr(training, name, value)
    monkeypatch.setattr(run, "PERCENTS", [5, 20, 100])


@pytest.mark.usefixtures("short")
def test_table_figure_and_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["uci", "--data", "glass", "--seeds", "0,1", "--out", str(tmp_path)]
    assert cli.main(words) == 0
    rows = rows_in(tmp_path)
    assert len(rows) == 2 * 2 * 6
    assert {row["method"] for row in rows} == set(experiment.METHODS)
    for row in rows:
        assert row.keys() >= KEYS
        assert row["m_percent"] == (20 if row["method"] in experiment.SPARSE else None)
        assert 0 < row["nlpd"] < 10
        assert 0 <= row["accuracy"] <= 1
        assert 0 <= row["ece"] <= 1
    text = capsys.readouterr().out
    assert "Glass" in text
    assert "(1.02)" in text  # published
    page = (tmp_path / "report.html").read_text()
    assert "out of step" in page
    assert "What it must show" in page
    assert (tmp_path / "table.md").read_text() == report.markdown(rows)
    assert (tmp_path / "methods.png").exists()
    assert (tmp_path / "calibration.png").exists()
    assert not (tmp_path / "figure.png").exists()

    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("trained again"))
    monkeypatch.setitem(experiment.METHODS, "bnn", lambda *_: pytest.fail("run again"))
    assert cli.main([*words, "--resume"]) == 0
    assert rows_in(tmp_path) == rows

    assert cli.main([*words, "--figure"]) == 0
    after = rows_in(tmp_path)
    assert after[: len(rows)] == rows
    added = after[len(rows) :]
    assert {row["m_percent"] for row in added} == {5, 100}  # 20 % was there
    assert {row["method"] for row in added} == {"gp subset", "sfr"}
    assert len(added) == 2 * 2 * 2
    assert (tmp_path / "figure.png").exists()


@pytest.mark.usefixtures("short")
def test_rows_of_another_protocol_are_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(experiment, "METHODS", {"nn map": experiment.METHODS["nn map"]})
    words = ["uci", "--data", "glass", "--seeds", "0", "--out", str(tmp_path)]
    assert cli.main(words) == 0
    before = rows_in(tmp_path)
    monkeypatch.setattr(training, "MOST_EPOCHS", 40)
    assert cli.main([*words, "--resume"]) == 2
    assert "expected rows of the same settings" in capsys.readouterr().err
    assert rows_in(tmp_path) == before
    assert cli.main(words) == 0
    after = rows_in(tmp_path)
    assert len(after) == len(before) == 2
    assert all(old["nlpd"] != new["nlpd"] for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "iris"], "expected data of australian"),
        (["--data", ""], "got none"),
        (["--seeds", "-1"], "expected seeds"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    out = tmp_path / "out"
    joined = [f"{words[0]}={words[1]}"]
    assert cli.main(["uci", *joined, "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def row(data: str, method: str, tuned: bool, seed: int, nlpd: float) -> dict[str, Any]:
    m_percent = 20 if method in experiment.SPARSE else None
    return {
        "data": data,
        "method": method,
        "tuned": tuned,
        "seed": seed,
        "m_percent": m_percent,
        "nlpd": nlpd,
    }


def test_checks_pair_seeds() -> None:
    """Seeds differ by far more than methods do: only differences by seed can tell."""
    rows = []
    for seed, level in enumerate([0.1, 0.5, 0.9]):
        rows += [
            row("glass", "gp subset", True, seed, level),
            row("glass", "sfr", True, seed, level + 0.05),
            row("glass", "sfr (ours)", True, seed, level + 0.015),
            row("glass", "nn map", False, seed, level + 1),
        ]
    subset, paper, best = checks(Table(rows))
    assert not subset.holds
    assert subset.lines[0].difference == pytest.approx(0.05)
    assert subset.lines[0].allowed == pytest.approx(0.02)
    assert paper.lines[0].difference == pytest.approx(0.55 - published()["glass", "sfr", True])
    assert paper.holds
    assert best.holds
    assert best.lines[0].against == "gp subset"


def test_sfr_ahead_of_both_or_not_at_all() -> None:
    def table(sets: dict[str, float]) -> Table:
        rows = []
        for data, nlpd in sets.items():
            rows += [row(data, "sfr", False, 0, 0.5), row(data, "bnn", False, 0, 2.0)]
            rows.append(row(data, "glm", False, 0, nlpd))
        return Table(rows)

    names = ["australian", "breast_cancer", "digits", "glass", "ionosphere", "satellite", "vehicle"]
    seven = dict.fromkeys(names, 0.6)
    (check,) = checks(table({**seven, "waveform": 0.4}))
    assert check.holds
    assert check.count == 7
    (check,) = checks(table({**seven, "vehicle": 0.4, "waveform": 0.4}))
    assert not check.holds
    assert check.verdict == "missed: 6 of 8 sets"


def test_page_names_what_is_missing() -> None:
    rows = [
        row(data, method, tuned, seed, 0.5)
        for data in TITLES
        for method in METHODS
        for tuned in (False, True)
        for seed in (0, 1)
    ]
    assert "Not finished" not in report.markdown(rows)
    some = [r for r in rows if (r["data"], r["method"], r["seed"]) != ("glass", "bnn", 1)]
    assert "Without all rows: bnn on Glass." in report.markdown(some)
    some = [r for r in rows if r["data"] != "digits" and r["method"] != "glm"]
    assert "Without all rows: Digits, glm." in report.markdown(some)


def test_published_table_is_complete() -> None:
    assert len(published()) == 8 * 9
    assert published()["digits", "glm", False] == 3.11
    assert published()["waveform", "sfr", True] == 0.32
