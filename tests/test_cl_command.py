"""`sfr-cl cl` as people and scripts use it: files, exit codes, resuming, refusing."""

import json
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
import torch
from cl_runs import DIGITS, SHORT, command, rows_in

from sfr_cl.benchmarks import cli


def test_command_writes_table_results_and_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results" / "cl"
    assert command("cl", tmp_path / "out", "--strategies", "naive,replay", "--seeds", "0,1") == 0
    printed = capsys.readouterr().out
    rows = rows_in(tmp_path / "out")
    assert [(row["strategy"], row["seed"]) for row in rows] == [
        ("naive", 0),
        ("replay", 0),
        ("naive", 1),
        ("replay", 1),
    ]
    content = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert content["command"] == "cl"
    assert content["environment"]["torch_threads"] == 1
    assert (tmp_path / "out" / "report.html").stat().st_size > 1000
    assert "replay" in printed
    assert "report.html" in printed
    assert not out.exists()


def test_resume_adds_what_is_missing_and_repeats_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert command("cl", out, "--strategies", "naive", "--seeds", "0") == 0
    first = rows_in(out)
    options = ["--strategies", "replay,naive", "--seeds", "0,1", "--resume"]
    assert command("cl", out, *options) == 0
    rows = rows_in(out)
    assert rows[0] == first[0]  # the time it took included
    assert len(rows) == 4
    assert command("cl", out, *options) == 0
    assert rows_in(out) == rows


def test_resume_replaces_rows_of_other_settings(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert command("cl", out, "--strategies", "naive,replay", "--seeds", "0") == 0
    before = rows_in(out)
    changed = json.loads(json.dumps(SHORT))
    memory = changed["memories"]["20"]
    memory["strategies"]["naive"] = {"values": {"lr": 1e-3}, "chosen_by": "default"}
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(changed))
    arguments = ["--memory", "20", "--settings", str(file), "--out", str(out)]
    options = ["--strategies", "naive,replay", "--seeds", "0", "--resume"]
    assert cli.main(["cl", *arguments, *options]) == 0
    rows = {row["strategy"]: row for row in rows_in(out)}
    assert len(rows_in(out)) == 2
    assert rows["replay"] == before[1]
    assert rows["naive"]["settings"]["lr"] == 1e-3


def test_without_resume_a_run_starts_anew(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert command("cl", out, "--strategies", "naive", "--seeds", "0") == 0
    assert command("cl", out, "--strategies", "joint", "--seeds", "0") == 0
    assert [row["strategy"] for row in rows_in(out)] == ["joint"]


def test_interrupted_run_leaves_valid_results_and_goes_on(tmp_path: Path) -> None:
    out, settings = tmp_path / "out", tmp_path / "short.json"
    settings.write_text(json.dumps(SHORT), encoding="utf-8")
    seeds = ",".join(map(str, range(60)))
    arguments = ["cl", "--memory", "20", "--settings", str(settings), "--out", str(out)]
    options = ["--strategies", "naive", "--seeds"]
    program = Path(sysconfig.get_path("scripts"), "sfr-cl")
    process = subprocess.Popen(
        [sys.executable, str(program), *arguments, *options, seeds],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (out / "results.json").exists() or len(rows_in(out)) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "--resume" in printed
    assert "Traceback" not in errors
    rows = rows_in(out)
    assert 2 <= len(rows) < 60
    assert (out / "report.html").exists()
    more = ",".join(map(str, range(len(rows) + 1)))
    assert cli.main([*arguments, *options, more, "--resume"]) == 0
    assert rows_in(out)[:-1] == rows


def test_diverging_strategies_fail_and_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = json.loads(json.dumps(SHORT))
    strategies = broken["memories"]["20"]["strategies"]
    strategies["naive"] = {"values": {"lr": 1e30}, "chosen_by": "default"}
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(broken))
    arguments = ["--memory", "20", "--settings", str(file), "--out", str(tmp_path / "out")]
    options = ["--strategies", "naive,joint", "--seeds", "0"]
    assert cli.main(["cl", *arguments, *options]) == 1
    assert "naive, seed 0: expected finite predictions" in capsys.readouterr().out
    assert [row["strategy"] for row in rows_in(tmp_path / "out")] == ["joint"]


def test_data_of_one_s_own(tmp_path: Path) -> None:
    content = {
        name: getattr(DIGITS, name)[::3].clone()
        for name in ("x_train", "y_train", "x_test", "y_test")
    }
    torch.save(content, tmp_path / "mine.pt")
    options = ["--data", str(tmp_path / "mine.pt"), "--strategies", "joint", "--seeds", "0"]
    assert command("cl", tmp_path / "out", *options) == 0
    assert rows_in(tmp_path / "out")[0]["data"] == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--strategies", "naive,icarl"], "sfr, sfr-l2, sfr-condition"),
        (["--strategies", ","], "got none"),
        (["--data", "imagenet"], "digits, mnist, fmnist, pmnist, cifar10"),
        (["--scenario", "online"], "class, domain, task"),
        (["--data", "pmnist", "--scenario", "task"], "whose tasks all have the same classes"),
        (["--scenario", "task", "--strategies", "der"], "one head per task"),
        (["--strategies", "replay", "--memory", "1"], "at least 2"),
        (["--settings", "missing.json"], "sfr-cl tune"),
    ],
)
def test_impossible_requests_are_one_sentence(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["cl", "--out", str(tmp_path / "out"), *options]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("sfr-cl cl: expected ")
    assert message in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_results_of_something_else_are_not_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "results.json").write_text("{", encoding="utf-8")
    assert command("cl", out, "--strategies", "naive", "--resume") == 2
    assert "choose another --out" in capsys.readouterr().err
    assert (out / "results.json").read_text(encoding="utf-8") == "{"


def test_words_that_are_no_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["cl", "--seeds", "0,one"])
    assert stopped.value.code == 2
    assert "--seeds" in capsys.readouterr().err
