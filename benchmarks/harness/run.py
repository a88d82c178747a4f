"""Jobs in turn: progress with the time left, each row saved as soon as it is there."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

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
from sfr_cl.io.files import remove_leftovers

from . import results
from .exit_codes import DONE, FAILED, INTERRUPTED
from .results import Row
from .timing import one_thread

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
    def fixed(self) -> Sequence[str]:
        """Columns of the key that all rows of a folder share."""

    @property
    def varies(self) -> Sequence[str]:
        """Columns of the key that tell the rows of a folder apart; the others follow from these,
        and not from the seed.
        """

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
    if resume:
        rows = earlier_rows(out, command, jobs)
    else:
        results.begin(out, command)
        rows = []
    keys = [plain(job.key) for job in jobs]
    missing = [
        job for job, key in zip(jobs, keys, strict=True) if not any(_has(row, key) for row in rows)
    ]
    with one_thread():
        environment = results.environment()  # before this run changes a file
        results.write(out, command, rows)
        try:
            return rows, _run(missing, rows, out, command, environment, console)
        except KeyboardInterrupt:
            console.print(
                f"Interrupted: {out} holds the rows so far. "
                "To go on, add --resume to the same command.",
                highlight=False,
                markup=False,
            )
            return rows, INTERRUPTED


def is_row_of(row: Row, job: Job) -> bool:
    return _has(row, plain(job.key))


def _has(row: Row, key: Row) -> bool:
    return all(row.get(name) == value for name, value in key.items())


def plain(key: Row) -> Row:
    """As a file gives it back: lists for tuples."""
    return {
        name: json.loads(json.dumps(value)) if isinstance(value, dict | list | tuple) else value
        for name, value in key.items()
    }


def earlier_rows(out: Path, command: str, jobs: Sequence[Job]) -> list[Row]:
    """Rows in `out`; refused, before any work, where they do not go together with the jobs'."""
    path = out / results.NAME
    rows = results.read(out, command)
    remove_leftovers(path)
    wanted = [(job, plain(job.key)) for job in jobs]
    for row in rows:
        if not any(key.keys() <= row.keys() for _, key in wanted):
            raise FileError(
                f"expected rows of `sfr-cl {command}` in {path}, got one without some of their "
                "columns: choose another --out"
            )
        for job, key in wanted:
            if name := _differs(row, key, job):
                raise FileError(
                    f"expected rows of the same settings in {path}, got one of others "
                    f"({_first_difference(name, row.get(name), key[name])}; {job.label}): give the "
                    "options of the earlier run, or choose another --out"
                )
    return rows


def _differs(row: Row, key: Row, job: Job) -> str | None:
    """The column that keeps a row from standing beside a job's, if there is one."""
    for name in job.fixed:
        if row.get(name) != key[name]:
            return name
    if any(row.get(name) != key[name] for name in job.varies if name != "seed"):
        return None
    depends = [name for name in key if name not in (*job.fixed, *job.varies)]
    return next((name for name in depends if row.get(name) != key[name]), None)


def _first_difference(name: str, earlier: Any, now: Any) -> str:
    """In words; of settings, the first that differs."""
    if isinstance(earlier, dict) and isinstance(now, dict):
        for inner in {**earlier, **now}:
            if earlier.get(inner) != now.get(inner):
                return _first_difference(inner, earlier.get(inner), now.get(inner))
    return f"{name} was {_short(earlier)}, now {_short(now)}"


def _short(value: Any) -> str:
    text = "not given" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _run(
    jobs: Sequence[Job],
    rows: list[Row],
    out: Path,
    command: str,
    environment: Row,
    console: Console,
) -> int:
    status = DONE
    with _progress_bar(console) as bar:
        everything = bar.add_task("", total=len(jobs))
        for index, job in enumerate(jobs):

            def show(share: float, index: int = index) -> None:
                bar.update(everything, completed=index + share)

            bar.update(everything, description=job.label)
            try:
                rows.append(job.run(show) | environment)
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
