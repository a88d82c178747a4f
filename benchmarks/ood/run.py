"""`sfr-cl ood`: out-of-distribution images told from test images by uncertainty; calibration."""

import argparse
from typing import TYPE_CHECKING

from ..harness import options
from .names import METHODS

if TYPE_CHECKING:
    from .experiment import Case

COMMAND = "ood"
PAIRS = (("fmnist", "mnist"), ("mnist", "fmnist"))
"""The data set trained on, and the out-of-distribution one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `sfr-cl ood`."""
    options.add_names(parser, "--methods", METHODS)
    options.add_seeds(parser, (0, 1, 2), "networks and choices of images")
    options.add_data_root(parser)
    options.add_resume(parser)


def run(arguments: argparse.Namespace) -> int:
    """A row for each direction, seed and method; then the report: the exit code."""
    cases = plan(arguments)

    from ..harness.run import compare
    from . import report

    return compare(cases, arguments.out, COMMAND, report, resume=arguments.resume)


def plan(arguments: argparse.Namespace) -> "list[Case]":
    """The rows asked for; methods and data that are not there are refused here."""
    options.check_names("methods", arguments.methods, METHODS)
    options.check_seeds(arguments.seeds)
    options.check_data_root(arguments.data_root)

    from ..harness import images
    from .experiment import Case
    from .problem import Problem

    names = dict.fromkeys(name for pair in PAIRS for name in pair)
    loaded = {name: images.idx(name, arguments.data_root) for name in names}
    problems = [
        Problem(loaded[data], loaded[ood], seed) for seed in arguments.seeds for data, ood in PAIRS
    ]
    return [Case(problem, method) for problem in problems for method in arguments.methods]
