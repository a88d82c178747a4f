"""`sfr-cl cl`: strategies compared on a stream of tasks."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..harness import options
from ..harness import run as harness
from . import data, scenarios, settings, strategies
from .experiment import Case

COMMAND = "cl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `sfr-cl cl`."""
    add_shared_arguments(parser)
    options.add_seeds(parser, (0, 1, 2), "a row for each strategy and seed")


def add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that `sfr-cl tune` has too."""
    parser.add_argument(
        "--data",
        default="digits",
        help=f"{', '.join(data.LOADERS)}, a folder of images (train/CLASS/*, test/CLASS/*), or a "
        ".pt, .npz or .safetensors file with x_train, y_train, x_test, y_test "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--scenario", help="class, domain or task (default: class; domain for pmnist)"
    )
    options.add_names(
        parser, "--strategies", strategies.RECIPES, default="all that can do the scenario"
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
    options.add_data_root(parser)
    options.add_resume(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run every strategy with every seed, and write the report: the exit code."""
    return compare(plan(arguments), arguments.out, COMMAND, resume=arguments.resume)


def plan(arguments: argparse.Namespace) -> list[Case]:
    """The rows asked for. All that can be refused is refused here, the quick checks first."""
    name, memory = arguments.data, arguments.memory
    options.check_seeds(arguments.seeds)
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
    from . import report

    return harness.compare(cases, out, command, report, resume=resume)
