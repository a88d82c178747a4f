"""`sfr-cl stream`: test-then-train on streams, and what endless data costs."""

import argparse
from pathlib import Path

from rich.console import Console

from sfr_cl.errors import ArgumentError

from .. import runner
from ..arguments import name_list, number_list
from ..runner import Job
from . import data, limits, methods, settings, tune
from .experiment import Case
from .tune import Trial

COMMAND = "stream"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `sfr-cl stream`."""
    parser.add_argument(
        "--data",
        type=name_list,
        default=list(data.LOADERS),
        metavar="A,B,...",
        help=f"of {', '.join(data.LOADERS)} (default: all)",
    )
    parser.add_argument(
        "--methods",
        type=name_list,
        default=list(methods.METHODS),
        metavar="A,B,...",
        help=f"of {', '.join(methods.METHODS)} (default: all)",
    )
    parser.add_argument(
        "--seeds",
        type=number_list,
        default=[0],
        metavar="A,B,...",
        help="a row for each method and seed (default: 0)",
    )
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
    """Run every method on every stream, and write the report: the exit code."""
    from ..report import stream as report

    console = Console()
    jobs: list[Case] | list[Trial] | list[Job] = (
        limits.jobs() if arguments.limits else plan(arguments)
    )
    rows, status = runner.work_through(
        jobs, arguments.out, COMMAND, resume=arguments.resume, console=console
    )
    if arguments.limits or not rows:
        return status
    if arguments.tune:
        trials = [job for job in jobs if isinstance(job, Trial)]
        return _say("settings", tune.write(rows, trials, arguments.out), console, status)
    console.print(report.table(rows))
    return _say("report", report.write(arguments.out, rows), console, status)


def _say(what: str, path: Path, console: Console, status: int) -> int:
    console.print(f"The {what}: {path}", soft_wrap=True, highlight=False, markup=False)
    return status


def plan(arguments: argparse.Namespace) -> list[Case] | list[Trial]:
    """The rows asked for. All that can be refused is refused here."""
    unknown = [name for name in arguments.methods if name not in methods.METHODS]
    if unknown:
        raise ArgumentError(
            f"expected --methods of {', '.join(methods.METHODS)}; got {', '.join(unknown)}"
        )
    if arguments.samples is not None and arguments.samples < 2:
        raise ArgumentError(f"expected --samples of at least 2, got {arguments.samples}")
    streams = [
        data.load(name, arguments.data_root).first(arguments.samples) for name in arguments.data
    ]
    if arguments.tune:
        return tune.trials(streams, arguments.methods, arguments.seeds[0])
    return [
        Case(stream, method, seed, settings.of(stream.name, method))
        for stream in streams
        for seed in arguments.seeds
        for method in arguments.methods
    ]
