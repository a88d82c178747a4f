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
    environment = results.environment()
    rows = [{"method": method, "nlpd": 0.5} | environment for method in ("a", "b")]
    path = results.write(tmp_path / "new" / "folder", "demo", rows)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["command"] == "demo"
    assert content["rows"] == rows
    assert content["environment"] == environment
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
    nothing = None, None
    assert results.commit(tmp_path) == nothing
    git(tmp_path, "init", "--quiet")
    assert results.commit(tmp_path) == nothing  # nothing committed
    (tmp_path / "file").write_text("1", encoding="utf-8")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "--message=first")
    head = git(tmp_path, "rev-parse", "HEAD").strip()
    git(tmp_path, "tag", "v1")
    assert results.commit(tmp_path) == (head, False)
    (tmp_path / "notes").write_text("not of the code", encoding="utf-8")
    assert results.commit(tmp_path) == (head, False)
    (tmp_path / "file").write_text("2", encoding="utf-8")
    assert results.commit(tmp_path) == (head, True)
    inside = tmp_path / "environment"
    inside.mkdir()
    assert results.commit(inside) == nothing


def test_results_that_were_written_are_no_change_of_the_code(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    page = tmp_path / "docs" / "results" / "page.html"
    page.parent.mkdir(parents=True)
    page.write_text("1", encoding="utf-8")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=first")
    page.write_text("2", encoding="utf-8")
    assert results.commit(tmp_path)[1] is False


def test_environment_is_that_of_the_rows(tmp_path: Path) -> None:
    one = {"value": 1} | results.environment() | {"commit": "a", "dirty": False}
    other = one | {"commit": "b"}
    assert results.shared([one, one])["commit"] == "a"
    assert results.shared([one, other]) == results.shared([one]) | {"commit": ["a", "b"]}
    results.write(tmp_path, "demo", [one, other])
    assert results.read(tmp_path, "demo") == [one, other]


def test_rows_of_version_0_1_0_have_the_environment_of_their_file(tmp_path: Path) -> None:
    old = {
        "command": "demo",
        "environment": {"python": "3.11.7", "torch": "2.13.0", "commit": "a-dirty"},
        "rows": [{"value": 1}],
    }
    (tmp_path / "results.json").write_text(json.dumps(old), encoding="utf-8")
    (row,) = results.read(tmp_path, "demo")
    assert (row["torch"], row["commit"], row["dirty"], row["cores"]) == ("2.13.0", "a", True, None)
