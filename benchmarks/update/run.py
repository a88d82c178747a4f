"""`sfr-cl update`: late data absorbed by conditioning, against retraining on all data."""

import argparse
from pathlib import Path

from rich.console import Console

from sfr_cl.errors import ArgumentError

from .. import runner
from ..arguments import name_list, number_list
from . import data
from .experiment import KERNELS, MEANS, Case, Problem

COMMAND = "update"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `sfr-cl update`."""
    parser.add_argument(
        "--data",
        type=name_list,
        default=list(data.FEATURES),
        metavar="A,B,...",
        help=f"of {', '.join(data.FEATURES)} (default: all)",
    )
    parser.add_argument(
        "--seeds",
        type=number_list,
        default=list(range(5)),
        metavar="A,B,...",
        help="splits and networks (default: 0,1,2,3,4)",
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


def run(arguments: argparse.Namespace) -> int:
    """A row for each data set, seed, kernel and mean form; then the report: the exit code."""
    from ..report import update as report

    console = Console()
    cases = plan(arguments)
    rows, status = runner.work_through(
        cases, arguments.out, COMMAND, resume=arguments.resume, console=console
    )
    if rows:
        path = report.write(arguments.out, rows)
        console.print(report.table(rows))
        console.print(f"The report: {path}", soft_wrap=True, highlight=False, markup=False)
    return status


def plan(arguments: argparse.Namespace) -> list[Case]:
    """The rows asked for; tables that are missing or wrong are refused here."""
    if not arguments.data or not arguments.seeds:
        raise ArgumentError("expected data and seeds, got none: name some")
    tables = [data.load(name, arguments.data_root) for name in arguments.data]
    problems = [Problem(table, seed) for table in tables for seed in arguments.seeds]
    return [
        Case(problem, kernel, mean) for problem in problems for kernel in KERNELS for mean in MEANS
    ]
