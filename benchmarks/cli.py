"""The command `sfr-cl`: one sub-command per experiment."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from types import ModuleType

from sfr_cl.errors import ArgumentError, DataError, FileError

from .harness import folder, options
from .harness.exit_codes import INTERRUPTED, WRONG_USE

EXTRA_PACKAGES = {
    "avalanche",
    "jinja2",
    "laplace",
    "matplotlib",
    "platformdirs",
    "rich",
    "river",
    "sklearn",
    "torchmetrics",
    "torchvision",
}


@dataclass(frozen=True)
class Command:
    """A sub-command.

    `module` defines `add_arguments(parser)`, which adds options besides `--out`, and
    `run(arguments) -> int`, the exit code.
    """

    name: str
    module: str
    help: str


COMMANDS = (
    Command(
        "demo",
        "sfr_cl.benchmarks.cl.demo",
        "learn handwritten digits two classes at a time: our strategies against EWC, replay and "
        "others, with a report",
    ),
    Command(
        "cl",
        "sfr_cl.benchmarks.cl.run",
        "compare continual-learning strategies, ours and Avalanche's, on a stream of tasks",
    ),
    Command(
        "tune",
        "sfr_cl.benchmarks.cl.run_tune",
        "choose a value for each strategy on held-out training data; `cl` reads the settings file",
    ),
    Command(
        "uci",
        "sfr_cl.benchmarks.uci.run",
        "the paper's table: NLPD of five methods and ours on eight classification sets; with "
        "--figure, against the number of inducing inputs",
    ),
    Command(
        "stream",
        "sfr_cl.benchmarks.stream.run",
        "predict every sample of a stream before learning it: ours against river's, "
        "scikit-learn's and a network trained on the way",
    ),
    Command(
        "figure1",
        "sfr_cl.benchmarks.figure1.run",
        "turn a trained network into a sparse posterior, add data to it without retraining, "
        "and plot both (the paper's first figure)",
    ),
    Command(
        "update",
        "sfr_cl.benchmarks.update.run",
        "absorb half of a regression data set by conditioning, against retraining on all of it; "
        "with --classification, late labels",
    ),
    Command(
        "ood",
        "sfr_cl.benchmarks.ood.run",
        "tell clothes from digits by predictive uncertainty, and measure calibration: our "
        "posterior against the network and other packages",
    ),
    Command(
        "speed",
        "sfr_cl.benchmarks.speed.run",
        "time and memory of kernel, sums, fit and prediction against other packages, in one run",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sub-command named by `argv` and return its exit code."""
    words = list(_joined(sys.argv[1:] if argv is None else argv))
    named = next((word for word in words if not word.startswith("-")), None)
    command = next((command for command in COMMANDS if command.name == named), None)
    try:
        # Only the command's own module is imported: help and version work without the extra.
        module = import_module(command.module) if command else None
        arguments = _parser(command, module).parse_args(words)
        assert module is not None  # the parser insists on a command
        with folder.claimed(arguments.out):
            status: int = module.run(arguments)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRA_PACKAGES:
            raise
        return _refuse(
            f"sfr-cl {named} needs {missing}, "
            'which this command installs: pip install "sfr-cl[benchmarks]"'
        )
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ArgumentError, DataError, FileError) as error:
        return _refuse(f"sfr-cl {named}: {error}")
    return status


def _joined(words: Sequence[str]) -> Iterator[str]:
    """`--seeds -1` as `--seeds=-1`: a number below zero is a value, whatever argparse thinks."""
    waiting: str | None = None
    for word in words:
        number = word[:1] == "-" and word[1:2].isdigit()
        if waiting is not None:
            yield f"{waiting}={word}" if number else waiting
            waiting = None
            if number:
                continue
        if word.startswith("--") and "=" not in word:
            waiting = word
        else:
            yield word
    if waiting is not None:
        yield waiting


def _refuse(message: str) -> int:
    print(message, file=sys.stderr)
    return WRONG_USE


def _parser(chosen: Command | None, module: ModuleType | None) -> argparse.ArgumentParser:
    """All commands, and the options of the chosen one."""
    parser = argparse.ArgumentParser(
        prog="sfr-cl",
        description="Sparse function-space posteriors of neural networks: the experiments.",
    )
    parser.add_argument("--version", action="version", version=f"sfr-cl {version('sfr-cl')}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = subparsers.add_parser(command.name, help=command.help, description=command.help)
        options.add_out(subparser, command.name)
        if command is chosen and module is not None:
            module.add_arguments(subparser)
    return parser
