"""Jobs in turn: progress with the time left, each row saved as soon as it is there."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from sfr_cl.errors import FileError, SFRError

from . import results
from .exit_codes import DONE, FAILED, INTERRUPTED
from .results import Row
from .timing import one_thread

SETTINGS = "settings"

ShowShare = Callable[[float], None]
"""Told the share of a job that is done, 0 to 1."""


class DivergedError(SFRError, ArithmeticError):
    """A method's predictions are not finite: it has no row."""


class Job(Protocol):
    """Something that makes a row."""

    @property
    def key(self) -> Row:
        """Columns that no other job's row has with these values."""

    @property
    def label(self) -> str:
        """For the progress bar."""

    def run(self, show: ShowShare) -> Row:
        """The row, with the columns of the key."""

    def line(self, row: Row) -> str:
        """The row in short, to be printed when it is there."""


class Report(Protocol):
    """What a command shows of its rows: the module `report` beside its experiment."""

    def write(self, out: Path, rows: list[Row]) -> Path:
        """Write the page, and pictures and tables beside it; return the page's path."""

    def table(self, rows: list[Row]) -> RenderableType:
        """The headline, for the terminal."""


def compare(jobs: Sequence[Job], out: Path, command: str, report: Report, *, resume: bool) -> int:
    """Run the jobs that have no row yet, then show all rows: the exit code."""
    console = Console()
    rows, status = work_through(jobs, out, command, resume=resume, console=console)
    if rows:
        path = report.write(out, rows)
        console.print(report.table(rows))
        announce(console, "report", path)
    return status


def announce(console: Console, what: str, path: Path) -> None:
    """Say where a file is, whatever characters its path has."""
    console.print(f"The {what}: {path}", soft_wrap=True, highlight=False, markup=False)


def work_through(
    jobs: Sequence[Job], out: Path, command: str, *, resume: bool, console: Console
) -> tuple[list[Row], int]:
    """The rows of all jobs, those of an earlier run among them, and the exit code."""
    rows = earlier_rows(out, jobs) if resume else []
    missing = [job for job in jobs if not any(is_row_of(row, job) for row in rows)]
    with one_thread():
        results.write(out, command, rows)
        try:
            return rows, _run(missing, rows, out, command, console)
        except KeyboardInterrupt:
            console.print(
                f"Interrupted: {out} holds the rows so far. "
                "To go on, add --resume to the same command.",
                highlight=False,
                markup=False,
            )
            return rows, INTERRUPTED


def is_row_of(row: Row, job: Job) -> bool:
    return all(row.get(name) == value for name, value in job.key.items())


def earlier_rows(out: Path, jobs: Sequence[Job]) -> list[Row]:
    """Rows in `out`, less those of the same jobs under other settings."""
    path = out / "results.json"
    if not path.exists():
        return []
    try:
        rows = [dict(row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(
            f"expected rows of an earlier run in {path}, got {error!r}: "
            "remove it, or choose another --out"
        ) from error
    return [row for row in rows if not any(_is_outdated(row, job) for job in jobs)]


def _is_outdated(row: Row, job: Job) -> bool:
    place = {name: value for name, value in job.key.items() if name != SETTINGS}
    same_place = all(row.get(name) == value for name, value in place.items())
    return same_place and not is_row_of(row, job)


def _run(jobs: Sequence[Job], rows: list[Row], out: Path, command: str, console: Console) -> int:
    status = DONE
    with _progress_bar(console) as bar:
        everything = bar.add_task("", total=len(jobs))
        for index, job in enumerate(jobs):

            def show(share: float, index: int = index) -> None:
                bar.update(everything, completed=index + share)

            bar.update(everything, description=job.label)
            try:
                rows.append(job.run(show))
            except DivergedError as error:
                status = FAILED
                console.print(f"{job.label}: {error}", highlight=False, markup=False)
                continue
            results.write(out, command, rows)
            console.print(f"{job.label:30} {job.line(rows[-1])}", highlight=False, markup=False)
        bar.update(everything, completed=len(jobs), description="done")
    return status


def _progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )
