"""`sfr-cl cl` as people and scripts use it: files, exit codes, resuming, refusing."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from sfr_cl.benchmarks import cli
from sfr_cl.benchmarks.cl.experiment import Case
from sfr_cl.benchmarks.cl.settings import Setting
from sfr_cl.benchmarks.harness import run as runner
from sfr_cl.errors import FileError
from support.cl_runs import SHORT, command, short_case
from support.results import rows_in


def test_command_writes_table_results_and_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    torch.set_num_threads(2)
    assert command("cl", out, "--strategies", "naive,replay", "--seeds", "0,1") == 0
    assert torch.get_num_threads() == 2  # as before the run
    printed = capsys.readouterr().out
    rows = rows_in(out)
    assert [(row["strategy"], row["seed"]) for row in rows] == [
        ("naive", 0),
        ("replay", 0),
        ("naive", 1),
        ("replay", 1),
    ]
    content = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert content["command"] == "cl"
    assert content["environment"]["torch_threads"] == 1
    assert (out / "report.html").stat().st_size > 1000
    assert "replay" in printed
    assert "report.html" in printed


def test_own_data_is_compared_untuned_and_the_table_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(80) % 4
    x = 0.2 * torch.rand(80, 6, generator=generator) + 0.2 * y[:, None]
    file = tmp_path / "mine.npz"
    parts = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    np.savez(file, **{name: value.numpy() for name, value in parts.items()})
    words = ["--data", str(file), "--strategies", "naive", "--memory", "20"]
    out = ["--seeds", "0", "--out", str(tmp_path / "out")]
    assert cli.main(["cl", *words, *out]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "naive ‡" in printed
    assert "`sfr-cl tune --all`" in printed
    assert "results/tune/mine-class.json" in printed
    assert cli.main(["tune", *words, "--out", str(tmp_path / "tune")]) == 0
    settings = tmp_path / "tune" / "mine-class.json"
    assert f"--settings {settings}" in capsys.readouterr().out
    out[-1] = str(tmp_path / "tuned")
    assert cli.main(["cl", *words, "--settings", str(settings), *out]) == 0
    assert "‡" not in capsys.readouterr().out


def work(out: Path, cases: list[Case], *, resume: bool = True) -> int:
    """The command's exit code, without its report."""
    return runner.work_through(cases, out, "cl", resume=resume, console=Console())[1]


def test_resume_adds_what_is_missing_and_repeats_nothing(tmp_path: Path) -> None:
    naive, replay, joint = (short_case(name) for name in ("naive", "replay", "joint"))
    assert work(tmp_path, [naive]) == 0
    first = rows_in(tmp_path)
    assert work(tmp_path, [replay, naive]) == 0
    rows = rows_in(tmp_path)
    assert [row["strategy"] for row in rows] == ["naive", "replay"]
    assert rows[0] == first[0]  # the time it took included
    assert work(tmp_path, [naive, replay]) == 0
    assert rows_in(tmp_path) == rows
    assert work(tmp_path, [joint]) == 0
    assert rows_in(tmp_path)[:2] == rows
    kept = rows_in(tmp_path)
    assert work(tmp_path, [joint], resume=False) == 0
    assert [row["strategy"] for row in rows_in(tmp_path)] == ["joint"]
    assert json.loads((tmp_path / "results.1.json").read_text(encoding="utf-8"))["rows"] == kept


def test_resume_of_other_settings_is_refused_before_any_work(tmp_path: Path) -> None:
    naive, replay = short_case("naive"), short_case("replay")
    assert work(tmp_path, [naive]) == 0
    before = (tmp_path / "results.json").read_bytes()
    others = [
        replace(naive, setting=Setting(naive.setting.common, {"lr": 1e-3})),
        replace(naive, setting=Setting(naive.setting.common, {"lr": 1e-3}), seed=1),
        replace(replay, memory=40),
        replace(replay, scenario="domain"),
        replace(replay, data=replace(replay.data, name="other")),
    ]
    for case, what in zip(
        others,
        ["lr was 0.01, now 0.001"] * 2
        + ["memory was 20, now 40", "scenario was class", "data was digits, now other"],
        strict=True,
    ):
        with pytest.raises(FileError, match=f"expected rows of the same settings .*{what}"):
            work(tmp_path, [replay, case])
        assert (tmp_path / "results.json").read_bytes() == before
        assert len(list(tmp_path.iterdir())) == 1


def test_diverging_strategies_fail_and_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    naive, joint = short_case("naive"), short_case("joint")
    broken = replace(naive, setting=Setting(naive.setting.common, {"lr": 1e30}))
    assert work(tmp_path, [broken, joint]) == 1
    assert "naive, seed 0: expected finite predictions" in capsys.readouterr().out
    assert [row["strategy"] for row in rows_in(tmp_path)] == ["joint"]


def test_interrupted_run_leaves_valid_results_and_goes_on(tmp_path: Path) -> None:
    out, settings = tmp_path / "out", tmp_path / "short.json"
    settings.write_text(json.dumps(SHORT), encoding="utf-8")
    seeds = ",".join(map(str, range(60)))
    arguments = ["cl", "--memory", "20", "--settings", str(settings), "--out", str(out)]
    options = ["--strategies", "naive", "--seeds"]
    # Ctrl-C is heard even where the tests are a shell's background job, which ignores it.
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from sfr_cl.benchmarks.cli import main; sys.exit(main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments, *options, seeds],
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
    assert work(out, [short_case("naive", seed=seed) for seed in range(len(rows) + 1)]) == 0
    assert rows_in(out)[:-1] == rows


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
