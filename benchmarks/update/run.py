"""`sfr-cl update`: late data absorbed by conditioning, against retraining on all data."""

import argparse
from typing import TYPE_CHECKING

from ..harness import options
from . import names

if TYPE_CHECKING:
    from .experiment import Case

COMMAND = "update"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `sfr-cl update`."""
    options.add_names(parser, "--data", names.DATA)
    options.add_seeds(parser, range(5), "splits and networks")
    options.add_data_root(parser)
    options.add_resume(parser)


def run(arguments: argparse.Namespace) -> int:
    """A row for each data set, seed, kernel and mean form; then the report: the exit code."""
    cases = plan(arguments)

    from ..harness.run import compare
    from . import report

    return compare(cases, arguments.out, COMMAND, report, resume=arguments.resume)


def plan(arguments: argparse.Namespace) -> "list[Case]":
    """The rows asked for; tables that are missing or wrong are refused here."""
    options.check_names("data", arguments.data, names.DATA)
    options.check_seeds(arguments.seeds)
    options.check_data_root(arguments.data_root)

    from . import data
    from .experiment import KERNELS, MEANS, Case, Problem

    tables = [data.load(name, arguments.data_root) for name in arguments.data]
    problems = [Problem(table, seed) for table in tables for seed in arguments.seeds]
    return [
        Case(problem, kernel, mean) for problem in problems for kernel in KERNELS for mean in MEANS
    ]
