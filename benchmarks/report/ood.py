"""What `sfr-cl ood` shows: a table on the terminal, PNGs, `table.md` and `report.html`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from . import numbers, ood_figures, page
from .checks import markdown_checks, markdown_table
from .ood_summary import SCORES, Direction, Method, checks, directions

COLUMNS = (
    "method",
    "accuracy",
    "NLPD",
    "ECE",
    *(f"AUROC {name}" for name in SCORES.values()),
    "seconds",
)


def write(out: Path, rows: list[dict[str, Any]]) -> Path:
    """Write the pictures, `table.md` and `report.html` into `out`; return the page's path.

    Rows may be those of an unfinished run.
    """
    found = directions(rows)
    out.mkdir(parents=True, exist_ok=True)
    ood_figures.write_pngs(out, found)
    tables = [
        f"{one.name}:\n\n{markdown_table(COLUMNS, [cells(m) for m in one.methods.values()])}"
        for one in found
    ]
    text = "\n".join([*tables, markdown_checks(checks(found))])
    (out / "table.md").write_text(text, encoding="utf-8")
    return page.write(out / "report.html", "ood.html", _content(rows, found))


def table(rows: list[dict[str, Any]]) -> Table:
    """The headline, 80 columns wide."""
    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for i, name in enumerate(COLUMNS):
        grid.add_column(name.replace("AUROC ", "AUROC\n"), justify="right" if i else "left")
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
        numbers.plain(measures["nlpd"], 3),
        numbers.plain(measures["ece"], 3),
        *(numbers.plain(measures[score], 4) for score in SCORES),
        numbers.seconds(measures["seconds"]),
    ]


def _content(rows: Sequence[dict[str, Any]], found: Sequence[Direction]) -> dict[str, Any]:
    seeds = sorted({row["seed"] for row in rows})
    methods = dict.fromkeys(row["method"] for row in rows)
    return {
        "title": "Calibration, and telling strangers",
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
        "pictures": ood_figures.for_page(found),
        "reliability": {one.data: ood_figures.reliability_for_page(one) for one in found},
        "ece": {
            one.data: {m.name: numbers.plain(m.measures["ece"], 3) for m in one.methods.values()}
            for one in found
        },
        "settings": rows[0]["settings"],
        "command": f"sfr-cl ood --methods {','.join(methods)} --seeds {','.join(map(str, seeds))}",
    }
