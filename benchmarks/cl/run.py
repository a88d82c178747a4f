"""`sfr-cl cl`: strategies compared on a stream of tasks."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sfr_cl.errors import ArgumentError

from ..harness import options
from . import names

if TYPE_CHECKING:
    from .experiment import Case

COMMAND = "cl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `sfr-cl cl`."""
    add_shared_arguments(parser)
    add_strategies(parser)
    options.add_seeds(parser, (0, 1, 2), "a row for each strategy and seed")


def add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that `sfr-cl tune` has too."""
    parser.add_argument(
        "--data",
        default="digits",
        help=f"{', '.join(names.DATA)}, a folder of images (train/CLASS/*, test/CLASS/*), or a "
        ".pt, .npz or .safetensors file with x_train, y_train, x_test, y_test "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--scenario", help="class, domain or task (default: class; domain for pmnist)"
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


def add_strategies(parser: options.Options) -> None:
    """`--strategies`."""
    options.add_names(
        parser, "--strategies", names.STRATEGIES, default="all that can do the scenario"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run every strategy with every seed, and write the report: the exit code."""
    return compare(plan(arguments), arguments.out, COMMAND, resume=arguments.resume)


def plan(arguments: argparse.Namespace) -> "list[Case]":
    """The rows asked for. All that can be refused is refused here, the quick checks first."""
    name, memory = arguments.data, arguments.memory
    options.check_seeds(arguments.seeds)
    scenario = arguments.scenario or names.default_scenario(name)
    names.check_scenario(name, scenario)
    chosen = names.able(scenario) if arguments.strategies is None else arguments.strategies
    names.check_strategies(chosen, scenario)
    check_data(name, arguments.data_root)

    from sfr_cl import torchvision_operators

    torchvision_operators.declare()  # before the first import of Avalanche

    from . import data, scenarios, settings, strategies
    from .experiment import Case

    content = settings.read(name, scenario, arguments.settings)
    loaded = data.load(name, arguments.data_root)
    strategies.check_memory(chosen, memory, scenarios.classes_per_task(loaded))
    return [
        Case(loaded, scenario, strategy, seed, memory, settings.setting(content, memory, strategy))
        for seed in arguments.seeds
        for strategy in chosen
    ]


def check_data(name: str, data_root: Path | None) -> None:
    """Refuse data that is neither known nor there."""
    options.check_data_root(data_root)
    if name not in names.DATA and not Path(name).expanduser().exists():
        raise ArgumentError(
            f"expected data to be one of {', '.join(names.DATA)}, or a folder or file, got "
            f"{name!r}: check the name"
        )


def compare(cases: "Sequence[Case]", out: Path, command: str, *, resume: bool) -> int:
    """Run the cases that have no row yet; then the report, and the table: the exit code."""
    from ..harness import run as harness
    from . import report

    return harness.compare(cases, out, command, report, resume=resume)
