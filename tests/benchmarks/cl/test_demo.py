"""The demonstration shows what it promises: live with one seed, and in the results it made."""

import json
from collections.abc import Mapping
from statistics import mean

import pytest

from sfr_cl.benchmarks.cl import demo, experiment
from support.paths import ROOT

RESULTS = ROOT / "docs" / "results" / "digits" / "results.json"
PROMISED = {"naive", "ewc", "replay", "der++", "sfr", "sfr-condition", "joint"}


def check_promises(accuracy: Mapping[str, float]) -> None:
    assert accuracy["sfr-condition"] > accuracy["joint"] - 0.01
    assert accuracy["sfr"] > accuracy["ewc"] + 0.40


def test_demo_compares_the_promised_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SFR_CL_DATA", raising=False)  # the data is embedded
    cases = demo.cases()
    assert {case.strategy for case in cases} >= PROMISED
    assert {case.seed for case in cases} == {0, 1, 2}
    assert {(case.data.name, case.scenario, case.memory) for case in cases} == {
        ("digits", "class", 20)
    }


def test_settings_of_the_demo_were_tuned() -> None:
    assert {case.setting.chosen["chosen_by"] for case in demo.cases()} == {"tune"}


def test_one_seed_keeps_the_promises() -> None:
    wanted = {"sfr-condition", "joint", "sfr", "ewc"}
    cases = [case for case in demo.cases() if case.seed == 0 and case.strategy in wanted]
    check_promises({case.strategy: experiment.run(case)["accuracy"] for case in cases})


def test_committed_results_keep_the_promises() -> None:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    by_strategy = {
        name: [row["accuracy"] for row in rows if row["strategy"] == name] for name in PROMISED
    }
    assert all(len(accuracies) == 3 for accuracies in by_strategy.values())
    check_promises({name: mean(accuracies) for name, accuracies in by_strategy.items()})
