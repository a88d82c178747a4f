"""Commands as a user types them: what can't be done is one sentence, soon, and changes nothing."""

import ctypes
import json
import resource
from importlib import import_module
from pathlib import Path

import pytest

from sfr_cl.benchmarks.cli import COMMANDS
from support.commands import files_in, processor_seconds, sfr_cl

SECONDS = 0.7
"""Of the processor, for help and for a refusal that needs no data. torch alone takes more."""
NAMES = [command.name for command in COMMANDS]
WITH_SEEDS = ("cl", "uci", "stream", "update", "ood")


def check_refused(folder: Path, *words: str | Path, says: str = "", soon: bool = True) -> None:
    """Exit code 2, one sentence, files as they were."""
    before, start = files_in(folder), processor_seconds()
    found = sfr_cl(*words, cwd=folder)
    assert found.returncode == 2, found
    assert found.stderr.count("\n") == 1, found.stderr
    assert found.stderr.startswith(f"sfr-cl {words[0]}: ")
    assert says in found.stderr
    assert found.stdout == ""
    assert files_in(folder) == before
    assert not soon or processor_seconds() - start < SECONDS


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], *([name, "--help"] for name in NAMES)], ids=" ".join
)
def test_help_is_there_at_once(words: list[str]) -> None:
    start = processor_seconds()
    found = sfr_cl(*words)
    assert found.returncode == 0
    assert "sfr-cl" in found.stdout
    assert processor_seconds() - start < SECONDS


@pytest.mark.parametrize("words", [["clx"], ["cl", "--strategy-of-mine"], []], ids=" ".join)
def test_misspelt_commands_and_options_are_named_at_once(words: list[str]) -> None:
    start = processor_seconds()
    found = sfr_cl(*words)
    assert found.returncode == 2
    assert "Traceback" not in found.stderr
    assert processor_seconds() - start < SECONDS


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["cl", "--strategies", "sfr,ewk"], "got ewk"),
        (["tune", "--strategies", "ewk"], "got ewk"),
        (["cl", "--data", "mnits"], "got 'mnits'"),
        (["cl", "--scenario", "online"], "got 'online'"),
        (["uci", "--data", "mnist"], "got mnist"),
        (["update", "--data", "mnist"], "got mnist"),
        (["stream", "--methods", "tree"], "got tree"),
        (["ood", "--methods", "tree"], "got tree"),
        (["tune", "--seed", "-1"], "got -1"),
        (["tune", "--then-all"], "--tasks"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_misspelt_names_are_refused_at_once(words: list[str], says: str, tmp_path: Path) -> None:
    check_refused(tmp_path, *words, says=says)


@pytest.mark.parametrize("command", WITH_SEEDS)
@pytest.mark.parametrize("seeds", ["-1", "0,-1", "-1,0", "99999999999"])
def test_impossible_seeds_are_refused(command: str, seeds: str, tmp_path: Path) -> None:
    check_refused(tmp_path, command, "--seeds", seeds, says="expected seeds that are whole numbers")


@pytest.mark.parametrize("command", ["cl", "tune", "stream", "update", "ood"])
def test_a_mistyped_data_root_is_not_made(command: str, tmp_path: Path) -> None:
    check_refused(tmp_path, command, "--data-root", tmp_path / "dta", says="--data-root")


@pytest.mark.parametrize("command", NAMES)
def test_out_that_is_a_file_is_refused(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious", encoding="utf-8")
    for out in (Path("file"), Path("file", "inside")):
        check_refused(tmp_path, command, "--out", out, says="expected --out to be a folder")


@pytest.mark.parametrize("command", NAMES)
def test_out_in_use_is_refused(command: str, tmp_path: Path) -> None:
    import_module("fcntl")
    folder = import_module("sfr_cl.benchmarks.harness.folder")
    with folder.claimed(tmp_path):
        check_refused(tmp_path, command, "--out", tmp_path, says="another one that is running")


def without_privileges() -> None:
    """Root may write anywhere, unless the process gives that right up."""
    drop_from_bounding_set, override = 24, 1
    ctypes.CDLL(None).prctl(drop_from_bounding_set, override, 0, 0, 0)


def test_out_that_is_read_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed").chmod(0o500)
    for out in (Path("closed"), Path("closed", "inside")):
        found = sfr_cl("figure1", "--out", out, cwd=tmp_path, prepare=without_privileges)
        assert found.returncode == 2, found
        assert found.stderr.startswith("sfr-cl figure1: expected an --out that can be ")
        assert found.stderr.count("\n") == 1
    assert files_in(tmp_path) == {"closed": None}


def small_disk() -> None:
    """A file can't have more than 300 bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))


def test_full_disk_is_one_sentence(tmp_path: Path) -> None:
    found = sfr_cl("figure1", "--out", "out", cwd=tmp_path, prepare=small_disk)
    assert found.returncode == 2, found
    errors = found.stderr.splitlines()
    assert errors[-1].startswith("sfr-cl figure1: expected to write out/results.json, got")
    assert "Traceback" not in found.stderr
    assert files_in(tmp_path) == {}


@pytest.mark.parametrize(
    "words", [["figure1"], ["uci", "--data", "glass", "--resume"]], ids=" ".join
)
def test_results_of_another_command_are_refused(words: list[str], tmp_path: Path) -> None:
    content = {"command": "cl", "environment": {}, "rows": [{"data": "glass"}]}
    (tmp_path / "results.json").write_text(json.dumps(content), encoding="utf-8")
    says = f"expected results of `sfr-cl {words[0]}` in results.json, got those of `sfr-cl cl`"
    check_refused(tmp_path, *words, "--out", ".", says=says, soon=False)
