"""The command `sfr-cl`: one sub-command per experiment."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

EXTRA_PACKAGES = {"laplace", "matplotlib", "rich", "sklearn"}


@dataclass(frozen=True)
class Command:
    """A sub-command; `module` defines `run(out: Path) -> int`, the exit code."""

    name: str
    module: str
    help: str


COMMANDS = (
    Command(
        "demo",
        "sfr_cl.benchmarks.figure1",
        "turn a trained network into a sparse posterior, add data to it without retraining, "
        "and plot both (the paper's first figure)",
    ),
    Command(
        "speed",
        "sfr_cl.benchmarks.speed",
        "time and memory of kernel, sums, fit and prediction against other packages, in one run",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sub-command named by `argv` and return its exit code."""
    arguments = _parser().parse_args(argv)
    command: Command = arguments.command
    try:
        # Imported here, so that help and version work without the extra.
        status: int = import_module(command.module).run(arguments.out)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRA_PACKAGES:
            raise
        print(
            f"sfr-cl {command.name} needs {missing}, "
            'which this command installs: pip install "sfr-cl[benchmarks]"',
            file=sys.stderr,
        )
        return 2
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sfr-cl",
        description="Sparse function-space posteriors of neural networks: the experiments.",
    )
    parser.add_argument("--version", action="version", version=f"sfr-cl {version('sfr-cl')}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = subparsers.add_parser(command.name, help=command.help, description=command.help)
        subparser.add_argument(
            "--out",
            type=Path,
            default=Path("results", command.name),
            metavar="DIR",
            help="folder the results are written to (default: %(default)s)",
        )
        subparser.set_defaults(command=command)
    return parser
