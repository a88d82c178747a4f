"""The scripts in the folder of examples run, and show what they say."""

from __future__ import annotations

import csv
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from support.paths import ROOT

EXAMPLES = ROOT / "examples"
RUN_HERE = {"with_ewc", "with_loggers", "with_replay"}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Any]:
    """A script's function ``main``, by the script's name: as Python runs it, by its path."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    return lambda name: runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]


def test_every_script_is_run_here() -> None:
    found = {path.stem for path in EXAMPLES.glob("*.py")}
    assert found == RUN_HERE | {"split_digits"}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"examples/{name}.py" in text for name in RUN_HERE)


def test_beside_ewc(script: Callable[[str], Any]) -> None:
    found = script("with_ewc")()
    assert found["EWC"]["Top1_Acc_Stream"] < 0.4
    assert found["EWC + SFR"]["Top1_Acc_Stream"] > 0.9
    assert found["EWC + SFR"] != found["SFR"]


def test_beside_replay(script: Callable[[str], Any]) -> None:
    found = script("with_replay")()
    both = found.pop("replay + SFR")
    for alone in found.values():
        assert both["Top1_Acc_Stream"] > alone["Top1_Acc_Stream"]
        assert both["NLPD_Stream"] < alone["NLPD_Stream"]


def test_loggers(script: Callable[[str], Any], tmp_path: Path) -> None:
    found = script("with_loggers")(tmp_path)
    events = EventAccumulator(str(tmp_path / "board")).Reload()
    logged = {tag.split("/")[0]: tag for tag in events.Tags()["scalars"] if "_Stream/eval" in tag}
    assert logged.keys() == found.keys()
    for name, tag in logged.items():
        assert events.Scalars(tag)[-1].value == pytest.approx(found[name], rel=1e-6)
    with (tmp_path / "csv" / "eval_results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["eval_exp"] for row in rows] == list("01234")
    assert all(float(row["eval_accuracy"]) > 0.8 for row in rows)
