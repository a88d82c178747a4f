"""`sfr-cl figure1`: the paper's first figure, its table and its picture."""

import argparse

COMMAND = "figure1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options besides `--out`."""


def run(arguments: argparse.Namespace) -> int:
    """Run the experiment, print its table, write `results.json` and `figure1.png` into `--out`."""
    from dataclasses import asdict

    import torch
    from rich.console import Console

    from ..harness import results
    from ..harness.exit_codes import DONE
    from ..harness.run import announce
    from ..harness.timing import one_thread
    from . import report
    from .experiment import SEED, experiment
    from .panels import draw

    console = Console()
    with one_thread(), torch.random.fork_rng(devices=[]):
        results.begin(arguments.out, COMMAND)
        environment = results.environment()  # before this run changes a file
        with console.status("training, updating, retraining ..."):
            rows, panels = experiment(SEED)
        results.write(arguments.out, COMMAND, [asdict(row) | environment for row in rows])
    picture = draw(panels, arguments.out / "figure1.png")
    console.print(report.table(rows))
    announce(console, "picture", picture)
    return DONE
