"""`sfr-cl ood`: strangers told from test images by predictive uncertainty; calibration."""

import argparse
from pathlib import Path

from rich.console import Console

from sfr_cl.errors import ArgumentError

from .. import runner
from ..arguments import name_list, number_list
from ..cl import data
from .experiment import Case
from .methods import METHODS
from .problem import Problem

COMMAND = "ood"
PAIRS = (("fmnist", "mnist"), ("mnist", "fmnist"))
"""The data set trained on, and the one to be told from it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `sfr-cl ood`."""
    parser.add_argument(
        "--methods",
        type=name_list,
        default=list(METHODS),
        metavar="A,B,...",
        help=f"of {', '.join(METHODS)} (default: all)",
    )
    parser.add_argument(
        "--seeds",
        type=number_list,
        default=[0, 1, 2],
        metavar="A,B,...",
        help="networks and choices of images (default: 0,1,2)",
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
    """A row for each direction, seed and method; then the report: the exit code."""
    from ..report import ood as report

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
    """The rows asked for; methods and data that are not there are refused here."""
    unknown = [name for name in arguments.methods if name not in METHODS]
    if unknown or not arguments.methods:
        raise ArgumentError(
            f"expected methods of {', '.join(METHODS)}, got {', '.join(unknown) or 'none'}"
        )
    if not arguments.seeds or min(arguments.seeds) < 0:
        raise ArgumentError(
            f"expected seeds that are whole numbers from 0, got {arguments.seeds}: name some"
        )
    loaded = {name: data.load(name, arguments.data_root) for pair in PAIRS for name in pair}
    problems = [
        Problem(loaded[inside], loaded[outside], seed)
        for seed in arguments.seeds
        for inside, outside in PAIRS
    ]
    return [Case(problem, method) for problem in problems for method in arguments.methods]
