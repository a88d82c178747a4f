"""What every command writes: rows that can be read back, and where they come from."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from sfr_cl.benchmarks.harness import results


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_rows_are_read_back(tmp_path: Path) -> None:
    rows = [{"method": "a", "nlpd": 0.5}, {"method": "b", "nlpd": -0.5}]
    path = results.write(tmp_path / "new" / "folder", "demo", rows)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["command"] == "demo"
    assert content["rows"] == rows
    assert content["environment"]["cores"] >= 1


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        results.write(tmp_path, "demo", [{"nlpd": float("nan")}])
    assert not (tmp_path / "results.json").exists()


def test_a_file_that_could_not_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = results.write_file(tmp_path / "table.md", "old")
    monkeypatch.setattr(os, "replace", lambda *_: pytest.fail("no space"))
    with pytest.raises(pytest.fail.Exception, match="no space"):
        results.write_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_commit_is_the_repositorys_own(tmp_path: Path) -> None:
    assert results.commit(tmp_path) is None
    git(tmp_path, "init", "--quiet")
    assert results.commit(tmp_path) is None  # nothing committed
    (tmp_path / "file").write_text("1", encoding="utf-8")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "--message=first")
    head = git(tmp_path, "rev-parse", "HEAD").strip()
    git(tmp_path, "tag", "v1")
    assert results.commit(tmp_path) == head
    (tmp_path / "file").write_text("2", encoding="utf-8")
    assert results.commit(tmp_path) == f"{head}-dirty"
    inside = tmp_path / "environment"
    inside.mkdir()
    assert results.commit(inside) is None
