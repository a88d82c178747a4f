"""Committed results come from a commit of the history, and their pages say from which."""

import subprocess
from pathlib import Path

import pytest

from sfr_cl.benchmarks.harness import results
from support.paths import ROOT

FOLDERS = sorted(path.parent for path in (ROOT / "docs" / "results").glob("*/results.json"))
WITH_PAGES = [folder for folder in FOLDERS if (folder / "report.html").exists()]
COMMANDS = {
    "figure1": "figure1",
    "ood": "ood",
    "speed": "speed",
    "stream": "stream",
    "stream-limits": "stream --limits",
    "uci": "uci",
    "update": "update",
    "update-classes": "update --classification",
}
"""Of each folder; the others are of `cl`."""


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def history() -> None:
    """All of it."""
    try:
        shallow = git("rev-parse", "--is-shallow-repository")
    except OSError:
        pytest.skip("needs git")
    if not (ROOT / ".git").exists() or shallow.stdout.strip() != "false":
        pytest.skip("needs the history: this is no clone, or a shallow one")


def origins(folder: Path) -> set[tuple[str | None, bool | None]]:
    """The commits of a folder's rows, and whether files differed from them."""
    rows = results.read(folder, COMMANDS.get(folder.name, "cl"))
    assert rows
    return {(row["commit"], row["dirty"]) for row in rows}


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_rows_come_from_a_commit_of_the_history(folder: Path) -> None:
    for commit, dirty in origins(folder):
        assert commit, "run the command again in a clone of the repository"
        known = git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0
        assert known, f"{commit} is not in the history: run the command again from one that is"
        assert not dirty, f"files differed from {commit}: commit them, and run the command again"


@pytest.mark.parametrize("folder", WITH_PAGES, ids=lambda folder: folder.name)
def test_pages_show_the_commits_of_their_rows(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    found = origins(folder)
    for commit, dirty in found:
        shown = f"<dd>{commit}{', with uncommitted changes' if dirty else ''}"
        assert shown in page
    assert page.count("<dt>commit</dt>") == len(found)
    assert (f"The rows come from {len(found)} commits." in page) == (len(found) > 1)
