"""`sfr-cl update --classification`: what is late, one row by hand, the table, bad input."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from sfr_cl import SFRPosterior
from sfr_cl.benchmarks import cli
from sfr_cl.benchmarks.uci import data as tables
from sfr_cl.benchmarks.update import classes, classes_report, names
from sfr_cl.benchmarks.update.classes import METHODS, Case, Problem, column
from support.results import rows_in

Row = dict[str, Any]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of a moment."""
    monkeypatch.setattr(classes, "LEARNING_RATE", 1e-2)
    monkeypatch.setattr(classes, "HIDDEN", 16)
    monkeypatch.setattr(classes, "PATIENCE", 30)
    monkeypatch.setattr(classes, "MOST_STEPS", 200)


@pytest.mark.parametrize("late", classes.LATE)
def test_parts_lose_no_row(late: str) -> None:
    first, second, both, split = Problem("vehicle", late, 0).parts()
    for early, other, every in zip(
        first.__dict__.values(), second.__dict__.values(), both.__dict__.values(), strict=True
    ):
        rows = torch.cat([early[0], other[0]])
        assert sorted(rows.tolist()) == sorted(every[0].tolist())
        assert len(early[1]) > 0
        assert len(other[1]) > 0
    assert both.train[1] is split.train[1]


def test_late_rows_are_what_their_name_says() -> None:
    first, second, both, split = Problem("vehicle", "class", 0).parts()
    assert set(first.train[1].tolist()) == set(range(split.num_classes - 1))
    assert set(second.train[1].tolist()) == {split.num_classes - 1}
    first, second, both, _ = Problem("vehicle", "shift", 0).parts()
    assert first.train[0].mean(1).max() < second.train[0].mean(1).min()
    first, _, both, _ = Problem("vehicle", "more", 0).parts()
    assert 0.1 < len(first.train[1]) / len(both.train[1]) < 0.3


def test_row_by_hand() -> None:
    problem = Problem("vehicle", "class", 3)
    row = Case(problem).run(lambda _: None)
    first, second, _, split = problem.parts()
    network = classes.train(classes.new_network(split, 3), first, 3)
    x, y = split.test
    with torch.no_grad():
        logits = network(x).double()
    assert row["accuracy_network"] == float((logits.argmax(1) == y).double().mean())
    assert row["nlpd_network"] == pytest.approx(float(functional.cross_entropy(logits, y)))
    posterior = SFRPosterior(network, "classification").fit(first.train).update(second.train)
    assert row["nlpd_conditioned"] == pytest.approx(posterior.nlpd(split.test))
    assert row["data_first"] + row["data_second"] == len(split.train[1])
    # A network that sees the new class alone forgets the others; conditioning does not.
    assert row["accuracy_fine_tuned"] < row["accuracy_conditioned"]


def test_fine_tuning_starts_from_the_network() -> None:
    first, _, _, split = Problem("vehicle", "more", 0).parts()
    network = classes.new_network(split, 0)
    before = classes.log_probs(network, split.test[0])
    trained = classes.train(network, first, 0)
    assert trained is network
    assert not torch.equal(classes.log_probs(trained, split.test[0]), before)


def make_row(late: str, seed: int, **accuracies: float) -> Row:
    row: Row = {"data": "digits", "late": late, "seed": seed}
    for method in METHODS:
        row[column("accuracy", method)] = accuracies.get(method.replace("-", "_"), 0.5)
        row[column("nlpd", method)] = 1.0
        row[column("seconds", method)] = 2.0
    return row


def test_behind_is_measured_against_the_better_of_the_two_trained_on_all(tmp_path: Path) -> None:
    rows = [make_row("more", seed, conditioned=0.8, retrained=0.9) for seed in (0, 1)]
    rows += [make_row("class", 0, conditioned=0.9, fine_tuned=1.0)]
    text = classes_report.write(tmp_path, rows).read_text("utf-8").splitlines()
    assert "| +10.0 / +0.00 | 2.00 s | 2.00 s |" in text[2]
    assert "| -40.0 / +0.00 |" in text[3]  # trained on D2 alone is no such method
    assert len(text) == 4


def run_command(out: Path, *options: str) -> int:
    return cli.main(["update", "--classification", "--out", str(out), *options])


def test_command_writes_results_and_table_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run_command(out, "--data", "vehicle", "--seeds", "0") == 0
    rows = rows_in(out)
    assert [row["late"] for row in rows] == list(classes.LATE)
    assert {path.name for path in out.iterdir()} == {"results.json", "table.md"}
    shown, _, path = capsys.readouterr().out.partition("The report: ")
    assert Path(path.strip()) == out / "table.md"
    assert max(map(len, shown.splitlines())) <= 80
    assert run_command(out, "--data", "vehicle", "--seeds", "0,1", "--resume") == 0
    assert [row for row in rows_in(out) if row["seed"] == 0] == rows


def test_names_are_of_the_kind_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(tmp_path, "--data", "airfoil") == 2
    assert "expected data of digits, satellite, vehicle, waveform" in capsys.readouterr().err
    assert cli.main(["update", "--data", "digits", "--out", str(tmp_path)]) == 2
    assert "expected data of airfoil, boston, protein" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_every_data_set_is_one_of_the_tables() -> None:
    assert set(names.CLASSIFICATION) <= set(tables.SETS)
