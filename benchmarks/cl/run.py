"""`sfr-cl cl`: strategies compared on a stream of tasks."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from sfr_cl.errors import FileError

from .. import results
from ..timing import one_thread
from . import data, experiment, scenarios, settings, strategies
from .experiment import Case
from .measure import DivergedError

COMMAND = "cl"
DONE, FAILED, INTERRUPTED = 0, 1, 130

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `sfr-cl cl`."""
    add_shared_arguments(parser)
    parser.add_argument(
        "--seeds",
        type=_numbers,
        default=[0, 1, 2],
        metavar="0,1,2",
        help="one row for each seed (default: 0,1,2)",
    )
    parser.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="settings written by `sfr-cl tune` (default: those in the package)",
    )


def add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that `tune` has too."""
    parser.add_argument(
        "--data",
        default="digits",
        help=f"{', '.join(data.NAMES)}, a folder of images (train/CLASS/*, test/CLASS/*), or a "
        ".pt, .npz or .safetensors file with x_train, y_train, x_test, y_test "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--scenario",
        help="class, domain or task (default: class; domain for pmnist)",
    )
    parser.add_argument(
        "--strategies",
        type=_names,
        default=list(strategies.RECIPES),
        metavar="A,B,...",
        help=f"of {', '.join(strategies.RECIPES)} (default: all)",
    )
    parser.add_argument(
        "--memory",
        type=int,
        default=200,
        help="stored samples per task, for strategies that store any (default: %(default)s)",
    )
    parser.add_argument(
        "--data-root",
        type=Path,
        metavar="DIR",
        help="where the data sets are (default: SFR_CL_DATA, then the user's cache)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep the rows that an earlier run has written, and add those that are missing",
    )


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in _names(text)]


def run(arguments: argparse.Namespace) -> int:
    """Run every strategy with every seed; save each row as soon as it is there."""
    cases = plan(arguments)
    return compare(cases, arguments.out, COMMAND, resume=arguments.resume)


def plan(arguments: argparse.Namespace) -> list[Case]:
    """The rows asked for; everything that can be refused is refused here."""
    name = arguments.data
    scenario = arguments.scenario or scenarios.default(name)
    scenarios.check(name, scenario)
    strategies.check(arguments.strategies, scenario, arguments.memory, classes=1)
    content = settings.read(Path(name).stem, scenario, arguments.settings)
    loaded = data.load(name, arguments.data_root)
    classes = scenarios.classes_per_task(loaded)
    strategies.check(arguments.strategies, scenario, arguments.memory, classes)
    return [
        Case(
            data=loaded,
            scenario=scenario,
            strategy=strategy,
            seed=seed,
            memory=arguments.memory,
            setting=settings.setting(content, arguments.memory, strategy),
        )
        for seed in arguments.seeds
        for strategy in arguments.strategies
    ]


def compare(cases: Sequence[Case], out: Path, command: str, *, resume: bool) -> int:
    """Run the cases that have no row yet, then write the report: the exit code."""
    console = Console()
    rows = earlier_rows(out, cases) if resume else []
    finished = [{name: row[name] for name in case_names(row)} for row in rows]
    missing = [case for case in cases if case.key not in finished]
    status = DONE
    with one_thread():
        results.write(out, command, rows)
        try:
            status = run_missing(missing, rows, out, command, console)
        except KeyboardInterrupt:
            console.print(f"Interrupted. To go on: the same command with --resume --out {out}")
            status = INTERRUPTED
    if rows:
        finish(out, rows, console)
    return status


def case_names(row: Row) -> list[str]:
    """The columns a case is known by."""
    return [
        name
        for name in ("data", "scenario", "strategy", "seed", "memory", "settings")
        if name in row
    ]


def earlier_rows(out: Path, cases: Sequence[Case]) -> list[Row]:
    """Rows in `out`, less those that a case of other settings takes the place of."""
    path = out / "results.json"
    if not path.exists():
        return []
    try:
        rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))["rows"]
        keys = [case.key for case in cases]
        places = [_place(key) for key in keys]
        return [row for row in rows if _place(row) not in places or _key(row) in keys]
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(
            f"expected rows of an earlier run in {path}, got {error!r}: "
            "remove it, or choose another --out"
        ) from error


def _key(row: Row) -> Row:
    return {name: row[name] for name in case_names(row)}


def _place(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("data", "scenario", "strategy", "seed", "memory"))


def run_missing(
    cases: Sequence[Case], rows: list[Row], out: Path, command: str, console: Console
) -> int:
    """Append a row for each case, and save it; the exit code."""
    status = DONE
    with progress_bar(console) as bar:
        everything = bar.add_task("all", total=len(cases))
        for index, case in enumerate(cases):
            label = f"{case.strategy}, seed {case.seed}"
            bar.update(everything, description=label)

            def show(share: float, index: int = index) -> None:
                bar.update(everything, completed=index + share)

            try:
                rows.append(experiment.run(case, show))
            except DivergedError as error:
                status = FAILED
                console.print(f"{label}: {error}", highlight=False, markup=False)
                continue
            results.write(out, command, rows)
            console.print(line(rows[-1]), highlight=False, markup=False)
        bar.update(everything, completed=len(cases), description="done")
    return status


def progress_bar(console: Console) -> Progress:
    """Progress over all rows, with the time left."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )


def line(row: Row) -> str:
    """A row in one line, as it is finished."""
    return (
        f"{row['strategy']:18} seed {row['seed']}  accuracy {row['accuracy']:.4f}  "
        f"nlpd {row['nlpd']:.3f}  ece {row['ece']:.3f}  {row['seconds']:.1f} s"
    )


def finish(out: Path, rows: list[Row], console: Console) -> None:
    """The report, the table, and where both are."""
    from ..report import cl as report

    path = report.write(out, rows)
    console.print(report.table(rows))
    console.print(f"The report: {path}", soft_wrap=True, highlight=False, markup=False)
