"""What `sfr-cl ood` shows: a table on the terminal, PNGs, `table.md` and `report.html`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from ..harness.results import Row, write_file
from ..report import numbers, page, pictures, terminal
from ..report.checks import markdown_checks, markdown_table
from . import figures
from .summary import SCORES, Direction, Method, checks, directions

TEMPLATE = Path(__file__).with_name("report.html")
COLUMNS = (
    "method",
    "accuracy",
    "bytes kept",
    "processor seconds",
    "NLPD",
    "ECE",
    *(f"AUROC {name}" for name in SCORES.values()),
)


def write(out: Path, rows: list[Row]) -> Path:
    """Write the pictures, `table.md` and `report.html` into `out`; return the page's path.

    Rows may be those of an unfinished run.
    """
    found = directions(rows)
    figures.write_pngs(out, found)
    tables = [
        f"{one.name}:\n\n{markdown_table(COLUMNS, [cells(m) for m in one.methods.values()])}"
        for one in found
    ]
    text = "\n".join([*tables, markdown_checks(checks(found))])
    write_file(out / "table.md", text)
    return page.write(out / "report.html", TEMPLATE, _content(rows, found), rows)


def table(rows: list[Row]) -> Table:
    """The headline, 80 columns wide."""
    grid = terminal.grid()
    for i, name in enumerate(COLUMNS):
        grid.add_column(name.replace(" ", "\n"), justify="right" if i else "left")
    for one in directions(rows):
        grid.add_row(f"{one.data}:")
        for method in one.methods.values():
            grid.add_row(*cells(method))
        grid.add_section()
    return grid


def cells(method: Method) -> list[str]:
    """Figures in the order of `COLUMNS`."""
    measures = method.measures
    return [
        method.name,
        numbers.percent(measures["accuracy"]),
        numbers.size(measures["state_bytes"]),
        numbers.seconds(measures["seconds"]),
        numbers.plain(measures["nlpd"], 3),
        numbers.plain(measures["ece"], 3),
        *(numbers.plain(measures[score], 4) for score in SCORES),
    ]


def _content(rows: Sequence[Row], found: Sequence[Direction]) -> dict[str, Any]:
    seeds = sorted({row["seed"] for row in rows})
    methods = dict.fromkeys(row["method"] for row in rows)
    return {
        "title": "Calibration, and out-of-distribution inputs",
        "over": "sfr-cl, uncertainty",
        "sections": [
            ("results", "Results"),
            ("checks", "What was to be shown"),
            ("calibration", "Calibration"),
            ("protocol", "Protocol"),
            ("environment", "Environment"),
        ],
        "facts": [f"{len(methods)} methods", f"{len(seeds)} seeds", "both directions"],
        "columns": [name if i else "Method" for i, name in enumerate(COLUMNS)],
        "directions": found,
        "cells": {one.data: [cells(m) for m in one.methods.values()] for one in found},
        "choices": {
            one.data: [[m.name, m.choices] for m in one.methods.values() if m.choices]
            for one in found
        },
        "checks": checks(found),
        "pictures": figures.for_page(found),
        "reliability": {
            one.data: pictures.reliability(
                {name: method.reliability for name, method in one.methods.items()},
                f"bins-{one.data}-",
                f" on {one.data}",
            )
            for one in found
        },
        "ece": {
            one.data: {m.name: numbers.plain(m.measures["ece"], 3) for m in one.methods.values()}
            for one in found
        },
        "settings": rows[0]["settings"],
        "command": f"sfr-cl ood --methods {','.join(methods)} --seeds {','.join(map(str, seeds))}",
    }
