"""`sfr-cl cl`: strategies compared on a stream of tasks."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from .. import runner
from ..arguments import name_list, number_list
from . import data, scenarios, settings, strategies
from .experiment import Case

COMMAND = "cl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `sfr-cl cl`."""
    add_shared_arguments(parser)
    parser.add_argument(
        "--seeds",
        type=number_list,
        default=[0, 1, 2],
        metavar="A,B,...",
        help="a row for each strategy and seed (default: 0,1,2)",
    )


def add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that `sfr-cl tune` has too."""
    parser.add_argument(
        "--data",
        default="digits",
        help=f"{', '.join(data.NAMES)}, a folder of images (train/CLASS/*, test/CLASS/*), or a "
        ".pt, .npz or .safetensors file with x_train, y_train, x_test, y_test "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--scenario", help="class, domain or task (default: class; domain for pmnist)"
    )
    parser.add_argument(
        "--strategies",
        type=name_list,
        metavar="A,B,...",
        help=f"of {', '.join(strategies.RECIPES)} (default: all that can do the scenario)",
    )
    parser.add_argument(
        "--memory",
        type=int,
        default=200,
        help="stored samples per task, for strategies that store any (default: %(default)s)",
    )
    parser.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="settings that `sfr-cl tune` has written (default: those in the package)",
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
    """Run every strategy with every seed, and write the report: the exit code."""
    return compare(plan(arguments), arguments.out, COMMAND, resume=arguments.resume)


def plan(arguments: argparse.Namespace) -> list[Case]:
    """The rows asked for. All that can be refused is refused here, the quick checks first."""
    name, memory = arguments.data, arguments.memory
    scenario = arguments.scenario or scenarios.default(name)
    scenarios.check(name, scenario)
    names = arguments.strategies
    if names is None:
        names = strategies.able(scenario)
    strategies.check(names, scenario)
    content = settings.read(name, scenario, arguments.settings)
    loaded = data.load(name, arguments.data_root)
    strategies.check_memory(names, memory, scenarios.classes_per_task(loaded))
    return [
        Case(loaded, scenario, strategy, seed, memory, settings.setting(content, memory, strategy))
        for seed in arguments.seeds
        for strategy in names
    ]


def compare(cases: Sequence[Case], out: Path, command: str, *, resume: bool) -> int:
    """Run the cases that have no row yet; then the report, and the table: the exit code."""
    from ..report import cl as report

    console = Console()
    rows, status = runner.work_through(cases, out, command, resume=resume, console=console)
    if rows:
        path = report.write(out, rows)
        console.print(report.table(rows))
        console.print(f"The report: {path}", soft_wrap=True, highlight=False, markup=False)
    return status
