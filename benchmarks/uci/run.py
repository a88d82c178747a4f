"""`sfr-cl uci`: the paper's table of eight classification sets, and its figure over M."""

import argparse
from typing import TYPE_CHECKING

from ..harness import options
from . import names as known

if TYPE_CHECKING:
    from .experiment import Case

COMMAND = "uci"
SEEDS = [0, 1, 2, 3, 4]
M_PERCENT = 20
PERCENTS = [1, 2, 5, 10, 15, 20, 40, 60, 80, 100]
IN_FIGURE = ["australian", "breast_cancer", "digits", "glass", "vehicle", "waveform"]
"""Six panels, as in the paper: not Satellite, whose last points are matrices of 4504 rows, one for
each of six classes, nor Ionosphere."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `sfr-cl uci`."""
    options.add_names(
        parser, "--data", known.DATA, default="all; those of the paper's figure with --figure"
    )
    options.add_seeds(parser, SEEDS, "splits and networks")
    parser.add_argument(
        "--figure",
        action="store_true",
        help="NLPD against M instead of the table; rows in --out are kept, networks used again",
    )
    options.add_resume(parser, "rows and networks")


def plan(arguments: argparse.Namespace) -> "list[Case]":
    """The rows asked for. All that can be refused is refused here."""
    names = arguments.data
    if names is None:
        names = IN_FIGURE if arguments.figure else list(known.DATA)
    options.check_names("data", names, known.DATA)
    options.check_seeds(arguments.seeds)

    from .experiment import Results, figure_cases, table_cases
    from .networks import Networks

    keep = arguments.resume or arguments.figure
    networks = Networks(arguments.out / "networks", arguments.seeds, reuse=keep)
    results = Results(networks)
    if arguments.figure:
        return figure_cases(names, arguments.seeds, results, PERCENTS)
    return table_cases(names, arguments.seeds, results, M_PERCENT)


def run(arguments: argparse.Namespace) -> int:
    """Make the rows that are missing, then the report: the exit code."""
    cases = plan(arguments)

    from ..harness.run import compare
    from . import report

    resume = arguments.resume or arguments.figure
    return compare(cases, arguments.out, COMMAND, report, resume=resume)
