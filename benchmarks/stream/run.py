"""`sfr-cl stream`: test-then-train on streams, and what endless data costs."""

import argparse
from typing import TYPE_CHECKING

from sfr_cl.errors import ArgumentError

from ..harness import options
from . import names

if TYPE_CHECKING:
    from .data import Stream

COMMAND, TUNE, LIMITS = "stream", "stream --tune", "stream --limits"
"""Their rows do not go together."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `sfr-cl stream`."""
    options.add_names(parser, "--data", names.DATA)
    options.add_names(parser, "--methods", names.METHODS)
    options.add_seeds(parser, (0,), "a row for each method and seed")
    parser.add_argument("--samples", type=int, help="the first so many only (default: all)")
    other = parser.add_mutually_exclusive_group()
    other.add_argument(
        "--tune",
        action="store_true",
        help="instead, choose each method's setting on samples that are never scored",
    )
    other.add_argument(
        "--limits",
        action="store_true",
        help="instead, measure ours: a million samples, and the latency of an answer",
    )
    options.add_data_root(parser)
    options.add_resume(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run every method on every stream, and write the report: the exit code."""
    check(arguments)

    from rich.console import Console

    from ..harness.run import compare, work_through
    from . import limits, report, settings, tune
    from .experiment import Case

    out, resume = arguments.out, arguments.resume
    if arguments.limits:
        return work_through(limits.jobs(), out, LIMITS, resume=resume, console=Console())[1]
    streams = load(arguments)
    if arguments.tune:
        trials = tune.trials(streams, arguments.methods, arguments.seeds[0])
        return tune.run(trials, out, TUNE, resume=resume)
    cases = [
        Case(stream, method, seed, settings.of(stream.name, method))
        for stream in streams
        for seed in arguments.seeds
        for method in arguments.methods
    ]
    return compare(cases, out, COMMAND, report, resume=resume)


def check(arguments: argparse.Namespace) -> None:
    """Refuse names, seeds and folders that can't be used."""
    options.check_names("data", arguments.data, names.DATA)
    options.check_names("methods", arguments.methods, names.METHODS)
    options.check_seeds(arguments.seeds)
    if arguments.samples is not None and arguments.samples < 2:
        raise ArgumentError(f"expected --samples of at least 2, got {arguments.samples}")
    options.check_data_root(arguments.data_root)


def load(arguments: argparse.Namespace) -> "list[Stream]":
    """The streams asked for; data that is not there is refused here."""
    from . import data

    return [
        data.load(name, arguments.data_root).first(arguments.samples) for name in arguments.data
    ]
