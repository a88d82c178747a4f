"""`sfr-cl update`: late data absorbed by conditioning, against training on it."""

import argparse
from typing import TYPE_CHECKING

from ..harness import options
from . import names

if TYPE_CHECKING:
    from .classes import Case as ClassesCase
    from .experiment import Case

COMMAND = "update"
CLASSIFICATION = "update --classification"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `sfr-cl update`."""
    known = (*names.REGRESSION, *names.CLASSIFICATION)
    options.add_names(parser, "--data", known, default="all of the kind asked for")
    parser.add_argument(
        "--classification",
        action="store_true",
        help="instead, absorb late labels: more rows, other rows, or a new class; against "
        "fine-tuning and retraining",
    )
    options.add_seeds(parser, range(5), "splits and networks")
    options.add_data_root(parser)
    options.add_resume(parser)


def run(arguments: argparse.Namespace) -> int:
    """A row for each case; then the report: the exit code."""
    out, resume = arguments.out, arguments.resume
    known = names.CLASSIFICATION if arguments.classification else names.REGRESSION
    if arguments.data is None:
        arguments.data = list(known)
    options.check_names("data", arguments.data, known)
    options.check_seeds(arguments.seeds)
    options.check_data_root(arguments.data_root)

    from ..harness.run import compare

    if arguments.classification:
        from . import classes_report

        return compare(late_labels(arguments), out, CLASSIFICATION, classes_report, resume=resume)
    from . import report

    return compare(regressions(arguments), out, COMMAND, report, resume=resume)


def late_labels(arguments: argparse.Namespace) -> "list[ClassesCase]":
    """A row for each data set, kind of late data, and seed."""
    from .classes import LATE, Case, Problem

    return [
        Case(Problem(name, late, seed))
        for name in arguments.data
        for late in LATE
        for seed in arguments.seeds
    ]


def regressions(arguments: argparse.Namespace) -> "list[Case]":
    """A row for each data set, seed, kernel and mean form; wrong tables are refused here."""
    from . import data
    from .experiment import KERNELS, MEANS, Case, Problem

    tables = [data.load(name, arguments.data_root) for name in arguments.data]
    problems = [Problem(table, seed) for table in tables for seed in arguments.seeds]
    return [
        Case(problem, kernel, mean) for problem in problems for kernel in KERNELS for mean in MEANS
    ]
