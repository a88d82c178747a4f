"""`sfr-cl uci`: the paper's table of eight classification sets, and its figure over M."""

import argparse

from rich.console import Console

from sfr_cl.errors import ArgumentError

from .. import runner
from ..arguments import name_list, number_list
from . import data
from .experiment import Case, Results, figure_cases, table_cases
from .networks import Networks

COMMAND = "uci"
SEEDS = [0, 1, 2, 3, 4]
M_PERCENT = 20
PERCENTS = [1, 2, 5, 10, 15, 20, 40, 60, 80, 100]
IN_FIGURE = ["australian", "breast_cancer", "digits", "glass", "vehicle", "waveform"]
"""Six panels, as in the paper: not Satellite, whose last points are matrices of 4504 rows, one for
each of six classes, nor Ionosphere."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `sfr-cl uci`."""
    parser.add_argument(
        "--data",
        type=name_list,
        metavar="A,B,...",
        help=f"of {', '.join(data.SETS)} (default: all; those of the paper's figure with --figure)",
    )
    parser.add_argument(
        "--seeds",
        type=number_list,
        default=SEEDS,
        metavar="A,B,...",
        help="splits and networks (default: 0,1,2,3,4)",
    )
    parser.add_argument(
        "--figure",
        action="store_true",
        help="NLPD against M instead of the table; rows in --out are kept, networks used again",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep the rows and networks that an earlier run has written, and add what is missing",
    )


def plan(arguments: argparse.Namespace) -> list[Case]:
    """The rows asked for. All that can be refused is refused here."""
    names = arguments.data
    if names is None:
        names = IN_FIGURE if arguments.figure else list(data.SETS)
    data.check(names)
    if not arguments.seeds or min(arguments.seeds) < 0:
        raise ArgumentError(
            f"expected seeds that are whole numbers from 0, got {arguments.seeds}: name some"
        )
    keep = arguments.resume or arguments.figure
    networks = Networks(arguments.out / "networks", arguments.seeds, reuse=keep)
    results = Results(networks)
    if arguments.figure:
        return figure_cases(names, arguments.seeds, results, PERCENTS)
    return table_cases(names, arguments.seeds, results, M_PERCENT)


def run(arguments: argparse.Namespace) -> int:
    """Make the rows that are missing, then the report: the exit code."""
    from ..report import uci as report

    console = Console()
    cases = plan(arguments)
    resume = arguments.resume or arguments.figure
    rows, status = runner.work_through(
        cases, arguments.out, COMMAND, resume=resume, console=console
    )
    if rows:
        path = report.write(arguments.out, rows)
        console.print(report.table(rows))
        console.print(f"The report: {path}", soft_wrap=True, highlight=False, markup=False)
    return status
