"""`sfr-cl stream --tune`: one setting per method, chosen where nothing is scored later."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from ..harness.results import Row, set_aside, write_file
from ..harness.run import announce, is_row_of, work_through
from . import settings
from .data import Stream
from .experiment import Case


@dataclass(frozen=True)
class Trial(Case):
    """One setting of one method."""

    varies: ClassVar[Sequence[str]] = (*Case.varies, "trial")

    @property
    def key(self) -> Row:
        return {**super().key, "trial": self.label}

    @property
    def label(self) -> str:
        values = ", ".join(f"{name} {value:g}" for name, value in self.setting.items())
        return f"{self.stream.name} {self.method}, {values}"


def trials(streams: Sequence[Stream], methods: Sequence[str], seed: int) -> list[Trial]:
    """A trial for each setting of each method's grid."""
    return [
        Trial(stream.tuning, method, seed, setting)
        for stream in streams
        if stream.tuning is not None
        for method in methods
        for setting in settings.GRIDS.get(method, ())
    ]


def run(found: Sequence[Trial], out: Path, command: str, *, resume: bool) -> int:
    """Run the trials, and write the settings: the exit code."""
    console = Console()
    rows, status = work_through(found, out, command, resume=resume, console=console)
    if rows:
        if not resume:
            set_aside(out / settings.NAME)
        announce(console, "settings", write(rows, found, out))
    return status


def write(rows: Sequence[Row], found: Sequence[Trial], out: Path) -> Path:
    """The settings file in `out`: the package's, and over them what was chosen."""
    content: dict[str, Any] = settings.read()
    for data, method in dict.fromkeys((trial.stream.name, trial.method) for trial in found):
        own = [trial for trial in found if (trial.stream.name, trial.method) == (data, method)]
        tried: list[dict[str, Any]] = [
            {"setting": trial.setting, "nlpd": score(row)}
            for trial in own
            for row in rows
            if is_row_of(row, trial)
        ]
        if len(tried) == len(own):
            best = min(tried, key=lambda trial: trial["nlpd"])
            content.setdefault(data, {})[method] = {"chosen": best["setting"], "tried": tried}
    return write_file(out / settings.NAME, json.dumps(content, indent=2) + "\n")


def score(row: Row) -> float:
    """NLPD: of held-out samples at the end where there are any, or along the stream."""
    return float(row["test_nlpd"] if "test_nlpd" in row else row["nlpd"])
