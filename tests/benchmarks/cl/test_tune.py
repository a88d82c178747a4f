"""`sfr-cl tune`: the same budget for all, validation data only, settings that `cl` reads."""

import argparse
import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sfr_cl.benchmarks.cl import run, run_tune, settings, tune
from sfr_cl.benchmarks.cl.strategies import RECIPES
from sfr_cl.errors import FileError
from support.cl_runs import DIGITS, MEMORY, SHORT, command
from support.results import rows_in

PACKAGED = sorted(Path(settings.__file__).with_name("settings").glob("*.json"))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one real run has written."""
    out = tmp_path_factory.mktemp("tune") / "out"
    assert command("tune", out, "--strategies", "joint,lwf") == 0
    return out


def test_every_value_of_the_grid_is_tried(tuned: Path) -> None:
    tried = [(row["strategy"], row["parameter"], row["value"]) for row in rows_in(tuned)]
    assert tried == [
        (name, RECIPES[name].tuned, value)
        for name in ("joint", "lwf")
        for value in RECIPES[name].grid
    ]


def test_the_most_accurate_value_is_written_with_its_grid(tuned: Path) -> None:
    content = json.loads((tuned / "digits-class.json").read_text(encoding="utf-8"))
    entry = content["memories"][str(MEMORY)]["strategies"]["joint"]
    accuracies = {trial["value"]: trial["accuracy"] for trial in entry["grid"]}
    assert accuracies == {
        row["value"]: row["accuracy"] for row in rows_in(tuned) if row["strategy"] == "joint"
    }
    best = entry["values"]["lr"]
    assert accuracies[best] == max(accuracies.values())
    assert accuracies[best] > 0.8
    assert entry["chosen_by"] == "tune"
    assert entry["on_edge"] == (best in (min(accuracies), max(accuracies)))
    assert entry["tuning_seed"] == 0
    assert "training data" in entry["validation"]


def test_cl_reads_what_tune_wrote(tuned: Path) -> None:
    file = tuned / "digits-class.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    entry = content["memories"][str(MEMORY)]["strategies"]["joint"]
    options = ["--strategies", "joint", "--memory", str(MEMORY), "--settings", str(file)]
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    case = run.plan(parser.parse_args(options))[0]
    used = case.key["settings"]
    assert used["lr"] == entry["values"]["lr"]
    assert used["grid"] == entry["grid"]
    assert used["on_edge"] == entry["on_edge"]


def test_resume_repeats_no_trial(tuned: Path) -> None:
    before = rows_in(tuned)
    assert command("tune", tuned, "--strategies", "joint,lwf", "--resume") == 0
    assert rows_in(tuned) == before


def test_test_data_makes_no_difference(tmp_path: Path) -> None:
    """Another test set, the same trials."""
    trials = []
    for name, changed in (("a", False), ("b", True)):
        content: dict[str, Tensor] = {
            part: getattr(DIGITS, part).clone() for part in ("x_train", "y_train")
        }
        content["x_test"] = torch.zeros(10, 1, 8, 8) if changed else DIGITS.x_test
        content["y_test"] = torch.arange(10) if changed else DIGITS.y_test
        folder = tmp_path / name
        folder.mkdir()
        torch.save(content, folder / "mine.pt")
        options = ["--data", str(folder / "mine.pt"), "--strategies", "joint"]
        assert command("tune", folder / "out", *options) == 0
        trials.append([(row["value"], row["accuracy"]) for row in rows_in(folder / "out")])
    assert trials[0] == trials[1]


def row(
    value: float, accuracy: float, nlpd: float | None = 1.0, tasks: int | None = None
) -> dict[str, object]:
    return {
        "tasks": tasks,
        "strategy": "lwf",
        "seed": 0,
        "parameter": "alpha",
        "value": value,
        "accuracy": accuracy,
        "nlpd": nlpd,
    }


def test_choice_prefers_accuracy_then_nlpd() -> None:
    grid = RECIPES["lwf"].grid
    flat = [row(value, 0.5) for value in grid]
    better = [*flat[:2], row(grid[2], 0.6, 9.0), *flat[3:]]
    assert tune.choose("lwf", better)["values"] == {"alpha": grid[2]}
    tie = [*flat[:3], row(grid[3], 0.5, 0.9), *flat[4:]]
    assert tune.choose("lwf", tie)["values"] == {"alpha": grid[3]}
    diverged = [*[row(value, 0.0, None) for value in grid[:-1]], row(grid[-1], 0.0, 2.0)]
    choice = tune.choose("lwf", diverged)
    assert choice is not None
    assert choice["values"] == {"alpha": grid[-1]}
    assert choice["on_edge"]
    assert tune.choose("lwf", flat[:-1]) is None  # a trial is missing


@pytest.mark.parametrize("path", PACKAGED, ids=lambda path: path.stem)
def test_packaged_settings_can_be_read(path: Path) -> None:
    content = settings.read("digits", "class", path)
    for memory, entry in content["memories"].items():
        needed = {"network", "hidden", "optimizer", "lr", "batch", "epochs", "weight_decay"}
        assert set(entry["common"]) == needed
        assert set(entry["strategies"]) <= set(RECIPES)
        for name, own in entry["strategies"].items():
            assert own["chosen_by"] in {"tune", "published", "measured", "default"}, name
            assert settings.setting(content, int(memory), name).own == own["values"]


def test_nearest_memory_is_used_and_named() -> None:
    content = {"memories": {"40": SHORT["memories"]["20"], "200": SHORT["memories"]["20"]}}
    assert settings.setting(content, 200, "naive").chosen == {"chosen_by": "default"}
    assert settings.setting(content, 60, "naive").chosen["settings_for_memory"] == 40
    assert settings.setting(content, 1000, "naive").chosen["settings_for_memory"] == 200


@pytest.mark.parametrize("text", ["", "[]", '{"memories": {}}', '{"memories": {"20": {}}}'])
def test_unusable_settings_are_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(FileError, match="tune again"):
        settings.read("digits", "class", file)


def test_the_better_half_on_the_first_tasks_is_tried_on_all(tmp_path: Path) -> None:
    options = ["--strategies", "naive", "--tasks", "2", "--then-all"]
    assert command("tune", tmp_path, *options) == 0
    first = {row["value"]: row for row in rows_in(tmp_path) if row["tasks"] == 2}
    every = {row["value"]: row for row in rows_in(tmp_path) if row["tasks"] is None}
    assert set(first) == set(RECIPES["naive"].grid)
    assert set(every) == set(sorted(first, key=lambda value: tune.merit(first[value]))[3:])
    assert max(row["accuracy"] for row in first.values()) >= 0.45  # it knows one task of two,
    assert max(row["accuracy"] for row in every.values()) < 0.35  # or one of five
    content = json.loads((tmp_path / "digits-class.json").read_text(encoding="utf-8"))
    entry = content["memories"][str(MEMORY)]["strategies"]["naive"]
    assert entry["values"]["lr"] == max(every, key=lambda value: tune.merit(every[value]))
    assert {
        trial["value"]: (trial["accuracy"], trial.get("accuracy_all")) for trial in entry["grid"]
    } == {
        value: (first[value]["accuracy"], every[value]["accuracy"] if value in every else None)
        for value in first
    }
    assert "the first 2 tasks, then all" in entry["validation"]
    before = rows_in(tmp_path)
    assert command("tune", tmp_path, *options, "--resume") == 0
    assert rows_in(tmp_path) == before


def test_nothing_is_chosen_before_the_second_round() -> None:
    grid = RECIPES["lwf"].grid
    first = [row(value, 0.5, tasks=2) for value in grid]
    assert tune.choose("lwf", first, 2, then_all=True) is None
    late = [row(value, 0.4 + value / 100) for value in grid[:3]]
    chosen = tune.choose("lwf", [*first, *late], 2, then_all=True)
    assert chosen is not None
    assert chosen["values"] == {"alpha": grid[2]}


def test_the_first_tasks_alone_may_decide() -> None:
    grid = RECIPES["lwf"].grid
    chosen = tune.choose("lwf", [row(value, 0.4 + value / 100, tasks=2) for value in grid], 2)
    assert chosen is not None
    assert chosen["values"] == {"alpha": grid[-1]}
    assert chosen["validation"].endswith("the first 2 tasks")
    assert all(set(trial) == {"value", "accuracy"} for trial in chosen["grid"])


def test_then_all_needs_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("tune", tmp_path, "--strategies", "naive", "--then-all") == 2
    assert "expected --tasks with --then-all" in capsys.readouterr().err


def test_tasks_that_are_not_there_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("tune", tmp_path, "--strategies", "naive", "--tasks", "6") == 2
    assert "expected 2 to 5 tasks of digits, got 6" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--all"]], ids=" ".join)
def test_all_strategies_are_tuned_unless_some_are_named(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    run_tune.add_arguments(parser)
    arguments = parser.parse_args([*words, "--memory", str(MEMORY)])
    arguments.seeds = [0]
    assert [case.strategy for case in run.plan(arguments)] == list(RECIPES)


def test_all_and_some_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    run_tune.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--all", "--strategies", "sfr"])
    assert "not allowed with" in capsys.readouterr().err


def test_tuning_again_keeps_what_was_chosen(tuned: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(tuned, out)
    assert command("tune", out, "--strategies", "naive") == 0
    first, kept = (out / name for name in ("digits-class.json", "digits-class.1.json"))
    assert kept.read_bytes() == (tuned / "digits-class.json").read_bytes()
    assert (out / "results.1.json").read_bytes() == (tuned / "results.json").read_bytes()
    chosen = json.loads(first.read_text(encoding="utf-8"))["memories"][str(MEMORY)]["strategies"]
    assert chosen["naive"]["chosen_by"] == "tune"
