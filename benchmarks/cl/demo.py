"""`sfr-cl demo`: Split-Digits, class by class, our strategies against baselines."""

import argparse
from typing import TYPE_CHECKING

from ..harness.exit_codes import DONE
from . import run as cl

if TYPE_CHECKING:
    from .experiment import Case

COMMAND = "demo"
STRATEGIES = "sfr,sfr-condition,ewc,replay,der++,naive,joint"
MEMORY = 20
NEXT = """What to try next:
  sfr-cl cl --data mnist --memory 200    the same on Split-MNIST, every strategy
  sfr-cl cl --help                       other data, your own too, and other scenarios
  sfr-cl figure1                         new data absorbed without training, in a picture"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options besides `--out`."""


def cases() -> "list[Case]":
    """What `sfr-cl cl` would run with these options, and its default data and seeds."""
    parser = argparse.ArgumentParser()
    cl.add_arguments(parser)
    return cl.plan(parser.parse_args(["--strategies", STRATEGIES, "--memory", str(MEMORY)]))


def run(arguments: argparse.Namespace) -> int:
    """Run the comparison; end with the table, the report, and what to try next: the exit code."""
    status = cl.compare(cases(), arguments.out, COMMAND, resume=False)
    if status == DONE:
        from rich.console import Console

        Console().print(NEXT, soft_wrap=True, highlight=False, markup=False)
    return status
