"""`results.json`: what a command found, and the environment each row was found in."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import sfr_cl
from sfr_cl.errors import FileError, SFRError
from sfr_cl.io.files import remove_leftovers, replacing

Row = dict[str, Any]
"""One flat record of plain numbers and strings, so that a data frame reads rows as they are."""

NAME = "results.json"
ENVIRONMENT = ("python", "torch", "sfr_cl", "cores", "torch_threads", "commit", "dirty")
"""Columns of every row: what a reader needs to judge, or to repeat, a timing or a number."""
NOT_CODE = "docs"
"""A folder whose changes, such as results that a command has just written, change no number."""


def write_file(path: Path, content: str | bytes) -> Path:
    """Write a file in one step, its folder too: a reader finds the old content or the new."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content.encode() if isinstance(content, str) else content)
    except SFRError:
        raise
    except OSError as error:
        raise FileError(
            f"expected to write {path}, got an error of the system ({error.strerror}): what was "
            "there is as it was; mend that, or choose another --out"
        ) from error
    return path


def write(out: Path, command: str, rows: Sequence[Row]) -> Path:
    """Write `out/results.json` and return its path.

    A number that is not finite is refused: JSON has no word for it, and a result should not be one.
    """
    content = {"command": command, "environment": shared(rows), "rows": list(rows)}
    return write_file(out / NAME, json.dumps(content, indent=2, allow_nan=False) + "\n")


def read(out: Path, command: str) -> list[Row]:
    """The rows of an earlier run in `out`, each with its environment; none if there was no run.

    Those of another command are refused, and what is no file of results.
    """
    path = out / NAME
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found, rows = content["command"], [dict(row) for row in content["rows"]]
        environment = _columns(content.get("environment") or {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(
            f"expected rows of an earlier run in {path}, got {error!r}: "
            "remove it, or choose another --out"
        ) from error
    if found != command:
        raise FileError(
            f"expected results of `sfr-cl {command}` in {path}, got those of `sfr-cl {found}`: "
            "choose another --out"
        )
    missing = [{name: environment[name] for name in environment if name not in row} for row in rows]
    return [row | columns for row, columns in zip(rows, missing, strict=True)]


def begin(out: Path, command: str) -> None:
    """Make place for a run's results; those of an earlier one stay, under another name.

    On a terminal the user is asked first.
    """
    path = out / NAME
    rows = read(out, command)
    remove_leftovers(path)
    if not rows:
        return
    target = beside(path)
    many = f"{len(rows)} rows" if len(rows) > 1 else "a row"
    if sys.stdin.isatty() and sys.stdout.isatty():
        question = (
            f"{out} holds {many} of an earlier run. Keep as {target.name}, start again? [y/N] "
        )
        if not _agreed(question):
            raise FileError(
                f"{path} stays as it is: choose another --out, or add --resume "
                "if the command has it"
            )
    else:
        print(f"{out} holds {many} of an earlier run, kept as {target.name}", file=sys.stderr)
    path.rename(target)


def set_aside(path: Path) -> None:
    """Keep a file that is there under another name."""
    if path.exists():
        path.rename(beside(path))


def beside(path: Path) -> Path:
    """The first free name: `results.1.json`, `results.2.json`, ..."""
    number = 1
    while (target := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    return target


def _agreed(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False


def environment() -> dict[str, str | int | None]:
    """The columns of :data:`ENVIRONMENT` as they are now."""
    name, dirty = commit(Path(sfr_cl.__file__).parents[1])
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sfr_cl": version("sfr-cl"),
        "cores": available_cores(),
        "torch_threads": torch.get_num_threads(),
        "commit": name,
        "dirty": dirty,
    }


def shared(rows: Sequence[Row]) -> Row:
    """The environment of the rows: a value that all of them have, or a list of those there are."""
    if not rows:
        return dict(environment())
    found = {name: list(dict.fromkeys(row.get(name) for row in rows)) for name in ENVIRONMENT}
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def _columns(environment: Mapping[str, Any]) -> Row:
    """The columns of rows without any, from the environment of their file.

    Files of version 0.1.0 marked a commit with changes in its name.
    """
    found = {name: environment.get(name) for name in ENVIRONMENT}
    if isinstance(found["commit"], str) and "dirty" not in environment:
        found["dirty"] = found["commit"].endswith("-dirty")
        found["commit"] = found["commit"].removesuffix("-dirty")
    return found


def available_cores() -> int:
    """Cores this process may use: in a container often fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def commit(root: Path) -> tuple[str | None, bool | None]:
    """The commit checked out at `root`, and whether files of the code differ from it.

    Only a repository that starts at `root` counts: a package installed into an environment inside
    someone else's repository must not report their commit as its own. `None` if there is none.
    """
    if not (root / ".git").exists():
        return None, None
    changes = ["status", "--porcelain", "--untracked-files=no", "--", ".", f":(exclude){NOT_CODE}"]
    try:
        name, changed = (_git(root, *words) for words in (["rev-parse", "HEAD"], changes))
    except (OSError, subprocess.CalledProcessError):
        return None, None
    return name, bool(changed)


def _git(root: Path, *words: str) -> str:
    command = ["git", *words]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return found.stdout.strip()
