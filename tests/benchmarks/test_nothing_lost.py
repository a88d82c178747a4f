"""Rows that took hours stay: a run again, two at once, other settings, kills."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from sfr_cl.benchmarks.harness import folder
from sfr_cl.errors import FileError
from support.cl_runs import MEMORY, SHORT, command
from support.commands import PROGRAM
from support.paths import ROOT
from support.results import rows_in

KILLS = 10
SEEDS = 8


def test_a_run_again_keeps_the_earlier_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ["--strategies", "naive", "--seeds"]
    assert command("cl", out, *options, "0,1") == 0
    first = rows_in(out)
    capsys.readouterr()
    assert command("cl", out, *options, "2") == 0
    errors = capsys.readouterr().err
    assert errors == f"{out} holds 2 rows of an earlier run, kept as results.1.json\n"
    assert json.loads((out / "results.1.json").read_text(encoding="utf-8"))["rows"] == first
    assert command("cl", out, *options, "3") == 0
    assert [row["seed"] for row in rows_in(out)] == [3]
    kept = json.loads((out / "results.2.json").read_text(encoding="utf-8"))["rows"]
    assert [row["seed"] for row in kept] == [2]


def test_resume_with_another_memory_poisons_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ["--strategies", "naive", "--seeds", "0,1", "--resume"]
    assert command("cl", out, *options) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    capsys.readouterr()
    assert command("cl", out, *options, "--memory", "40") == 2
    errors = capsys.readouterr().err
    assert "memory was 20, now 40" in errors
    assert errors.count("\n") == 1
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert command("cl", out, *options) == 0


def answered(answer: str, out: Path) -> tuple[int, str]:
    """`sfr-cl figure1` on a terminal: the exit code, and what was shown."""
    process, terminal = pty.fork()
    if process == 0:
        os.execv(PROGRAM, [PROGRAM, "figure1", "--out", str(out)])
    shown = b""
    sent = False
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the terminal is gone
            break
        if not part:
            break
        shown += part
        if not sent and b"[y/N]" in shown:
            os.write(terminal, f"{answer}\n".encode())
            sent = True
    _, status = os.waitpid(process, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), shown.decode()


def test_a_terminal_is_asked(tmp_path: Path) -> None:
    earlier = {"command": "figure1", "environment": {}, "rows": [{"method": "mine"}]}
    path = tmp_path / "results.json"
    path.write_text(json.dumps(earlier), encoding="utf-8")
    code, shown = answered("n", tmp_path)
    assert code == 2
    assert "holds a row of an earlier run. Keep as results.1.json, start again? [y/N]" in shown
    assert "Traceback" not in shown
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]
    assert json.loads(path.read_text(encoding="utf-8")) == earlier
    code, shown = answered("y", tmp_path)
    assert code == 0, shown
    assert json.loads((tmp_path / "results.1.json").read_text(encoding="utf-8")) == earlier
    assert len(rows_in(tmp_path)) == 4


def test_a_killed_command_leaves_no_lock(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; "
        "from sfr_cl.benchmarks.harness.folder import claimed\n"
        "with claimed(Path(sys.argv[1])): print('mine', flush=True); time.sleep(600)"
    )
    held = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(held, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "mine\n"
        with (
            pytest.raises(FileError, match="another one that is running"),
            folder.claimed(tmp_path),
        ):
            pytest.fail("claimed twice")
        process.kill()
        process.wait()
        with folder.claimed(tmp_path):
            assert list(tmp_path.iterdir()) == []


def test_killed_at_random_instants_and_resumed_every_row_is_there_once(tmp_path: Path) -> None:
    settings, log, out = tmp_path / "short.json", tmp_path / "log", tmp_path / "out"
    settings.write_text(json.dumps(SHORT), encoding="utf-8")
    seeds = ",".join(map(str, range(SEEDS)))
    words = ["cl", "--memory", str(MEMORY), "--strategies", "naive", "--seeds", seeds]
    program = [sys.executable, "-m", "support.killed_runs", str(log), str(out), str(KILLS)]
    found = subprocess.run(
        [*program, *words, "--settings", str(settings)],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    seen = json.loads(found.stdout)
    assert seen["code"] == 0, log.read_text(encoding="utf-8")
    assert seen["killed"] >= KILLS / 2
    assert seen["counts"] == sorted(seen["counts"])
    assert seen["counts"][-1] > 0
    rows = rows_in(out)
    assert sorted(row["seed"] for row in rows) == list(range(SEEDS))
    never_killed = {row["seed"]: row["accuracy"] for row in rows_in(tmp_path / "out-never-killed")}
    assert {row["seed"]: row["accuracy"] for row in rows} == never_killed
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []
    assert (out / "report.html").exists()
