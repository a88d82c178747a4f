"""`sfr-cl speed`: time and memory against what others do for the same job, in one run."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ..harness import results
from ..harness.exit_codes import DONE
from ..harness.run import announce
from . import report
from .cases import cases, named
from .experiment import measure, product_rate
from .growth import growth

COMMAND = "speed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options besides `--out`."""


def run(arguments: argparse.Namespace) -> int:
    """Measure every case, print the table, write `results.json` and `growth.png` into `--out`."""
    out: Path = arguments.out
    console = Console()
    torch.manual_seed(0)
    rates = {dtype: product_rate(dtype) for dtype in (torch.float64, torch.float32)}
    content: list[dict[str, Any]] = [
        {"case": f"matrix product, {named(dtype)}", "gflops": rate / 1e9}
        for dtype, rate in rates.items()
    ]
    rows = []
    for make in cases():
        case = make()
        with console.status(f"{case.case} against {case.baseline} ..."):
            rows.append(measure(case, rates))
        content.append(asdict(rows[-1]))
        results.write(out, COMMAND, content)
        line = f"{rows[-1].ratio:8.3g} x  {case.case}  |  {case.baseline}"
        console.print(line, highlight=False)
    with console.status("a stream of a million samples ..."):
        lengths = growth()
    results.write(out, COMMAND, [*content, *(asdict(point) for point in lengths)])
    picture = report.draw(lengths, out / "growth.png")
    console.print(report.table(rows))
    announce(console, "picture", picture)
    return DONE
