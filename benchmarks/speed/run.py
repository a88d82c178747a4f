"""`sfr-cl speed`: time and memory against what others do for the same job, in one run."""

import argparse
from pathlib import Path

COMMAND = "speed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options besides `--out`."""


def run(arguments: argparse.Namespace) -> int:
    """Measure every case, print the table, write `results.json` and `growth.png` into `--out`."""
    from dataclasses import asdict

    import torch
    from rich.console import Console

    from sfr_cl import torchvision_operators

    torchvision_operators.declare()  # before the first import of Avalanche

    from ..harness import results
    from ..harness.exit_codes import DONE
    from ..harness.run import announce
    from . import report
    from .cases import cases, named
    from .experiment import measure, product_rate
    from .growth import growth

    out: Path = arguments.out
    results.begin(out, COMMAND)
    environment = results.environment()  # before this run changes a file
    console = Console()
    torch.manual_seed(0)
    rates = {dtype: product_rate(dtype) for dtype in (torch.float64, torch.float32)}
    content: list[results.Row] = [
        {"case": f"matrix product, {named(dtype)}", "gflops": rate / 1e9} | environment
        for dtype, rate in rates.items()
    ]
    rows = []
    for make in cases():
        case = make()
        with console.status(f"{case.case} against {case.baseline} ..."):
            rows.append(measure(case, rates))
        content.append(asdict(rows[-1]) | environment)
        results.write(out, COMMAND, content)
        line = f"{rows[-1].ratio:8.3g} x  {case.case}  |  {case.baseline}"
        console.print(line, highlight=False)
    with console.status("a stream of a million samples ..."):
        lengths = growth()
    results.write(out, COMMAND, [*content, *(asdict(point) | environment for point in lengths)])
    picture = report.draw(lengths, out / "growth.png")
    console.print(report.table(rows))
    announce(console, "picture", picture)
    return DONE
