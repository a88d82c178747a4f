"""`results.json`: what a command found, and the environment it found it in."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import sfr_cl
from sfr_cl.io.files import replacing

Row = dict[str, Any]
"""One flat record of plain numbers and strings, so that a data frame reads rows as they are."""


def write_file(path: Path, content: str | bytes) -> Path:
    """Write a file in one step, its folder too: a reader finds the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return path


def write(out: Path, command: str, rows: Sequence[Row]) -> Path:
    """Write `out/results.json` and return its path.

    A number that is not finite is refused: JSON has no word for it, and a result should not be one.
    """
    content = {"command": command, "environment": environment(), "rows": list(rows)}
    return write_file(out / "results.json", json.dumps(content, indent=2, allow_nan=False) + "\n")


def environment() -> dict[str, str | int | None]:
    """What a reader needs to judge, or to repeat, a timing or a number."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sfr_cl": version("sfr-cl"),
        "cores": available_cores(),
        "torch_threads": torch.get_num_threads(),
        "commit": commit(Path(sfr_cl.__file__).parents[1]),
    }


def available_cores() -> int:
    """Cores this process may use: in a container often fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def commit(root: Path) -> str | None:
    """The commit checked out at `root`, marked if files differ from it; `None` if there is none.

    Only a repository that starts at `root` counts: a package installed into an environment inside
    someone else's repository must not report their commit as its own.
    """
    if not (root / ".git").exists():
        return None
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        result = subprocess.run(describe, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()
