"""What `sfr-cl cl` shows: a table on the terminal, PNGs, and `report.html`."""

import math
import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from ..harness.results import Row
from ..report import numbers, page, pictures, terminal
from . import figures, report_settings, summary
from .settings import file_name
from .summary import Strategy

TEMPLATE = Path(__file__).with_name("report.html")
BENCHMARKS = {
    "digits": "Split-Digits",
    "mnist": "Split-MNIST",
    "fmnist": "Split-FMNIST",
    "pmnist": "Permuted-MNIST",
    "cifar10": "Split-CIFAR-10",
}
COLUMNS = (
    ("accuracy", "Accuracy", "%"),
    ("kept", "Kept", "bytes"),
    ("seconds", "Seconds", "processor"),
    ("stored", "Stored", "samples"),
    ("forget", "Forgetting", "points"),
    ("NLPD", "NLPD", "nats"),
    ("ECE", "ECE", ""),
    ("seeds", "Seeds", ""),
)
"""Of the headline: names on the terminal and on the page, and units."""
REFERENCE = "joint"
"""Trains on all data at once: what the others are measured by, not one of them."""


def write(out: Path, rows: list[Row]) -> Path:
    """Write the pictures and `report.html` into `out`; return the page's path.

    Rows may be those of an unfinished run: any strategies, any seeds, even none.
    """
    strategies = summary.strategies(rows)
    if strategies:
        figures.write_pngs(out, strategies)
    return page.write(out / "report.html", TEMPLATE, _content(rows, strategies), rows)


def table(rows: list[Row]) -> Table:
    """The headline, 80 columns wide; how many seeds there are is said once below it."""
    grid = terminal.grid("strategy")
    for name, _, _ in COLUMNS[:-1]:
        grid.add_column(name, justify="right", no_wrap=True)
    strategies = summary.strategies(rows)
    for strategy in strategies:
        marks = (" †" if strategy.on_edge else "") + (" ‡" if strategy.untuned else "")
        label = Text(strategy.name + marks)
        grid.add_row(label, *cells(strategy)[:-1])
    notes = [f"{_count(len({row['seed'] for row in rows}), 'seed')}"]
    if any(strategy.on_edge for strategy in strategies):
        notes.append("† best value on the edge of its validation grid")
    notes += untuned(strategies)
    grid.caption = "; ".join(notes)
    return grid


def untuned(strategies: Sequence[Strategy]) -> list[str]:
    """Which strategies ran with defaults, and how to tune them; nothing if there are none."""
    names = [strategy.name for strategy in strategies if strategy.untuned]
    if not names:
        return []
    row = next(strategy for strategy in strategies if strategy.untuned).rows[0]
    which = "--all" if len(names) == len(strategies) else f"--strategies {','.join(names)}"
    file = Path("results", "tune", file_name(row["data"], row["scenario"]))
    return [
        "‡ not tuned, settings are defaults for any data: "
        f"`sfr-cl tune {which}`, with the same --data, --scenario and --memory, tunes them; then "
        f"add --settings {file} here"
    ]


def cells(strategy: Strategy) -> list[str]:
    """The headline's figures of one strategy, in the order of `COLUMNS`."""
    measures = strategy.measures
    return [
        numbers.percent(measures["accuracy"]),
        numbers.size(measures["state_bytes"]),
        numbers.seconds(measures["seconds"]),
        numbers.plain(measures["stored_samples"], 0),
        numbers.percent(measures["forgetting"], spread=False),
        numbers.plain(measures["nlpd"], 2),
        numbers.plain(measures["ece"], 3),
        str(len(strategy.seeds)),
    ]


def _content(rows: Sequence[Row], strategies: list[Strategy]) -> dict[str, Any]:
    if not rows:
        return {
            "title": "Continual learning",
            "over": "sfr-cl",
            "sections": [],
            "strategies": [],
            "command": "",
        }
    experiences = max(strategy.experiences for strategy in strategies)
    settings = [used for strategy in strategies for used in report_settings.used(strategy)]
    drawn = figures.for_page(strategies)
    reliability = pictures.reliability({s.name: s.reliability for s in strategies})
    return {
        "title": _title(rows[0]),
        "over": "sfr-cl, continual learning",
        "sections": list(_sections(drawn.keys(), bool(reliability))),
        "facts": list(_facts(rows, strategies)),
        "headline": list(_headline(strategies)),
        "strategies": strategies,
        "experiences": experiences,
        "untuned": untuned(strategies),
        "columns": [(name, unit) for _, name, unit in COLUMNS],
        "cells": {strategy.name: cells(strategy) for strategy in strategies},
        "swatches": pictures.swatches([strategy.name for strategy in strategies]),
        "pictures": drawn,
        "reliability": reliability,
        "ece": {s.name: numbers.plain(s.measures["ece"], 3) for s in strategies},
        "settings": settings,
        "shared": report_settings.shared(settings),
        "matrix_width": 12 if experiences <= 6 else 17,
        "matrix_digits": 1 if experiences <= 6 else 0,
        "percent": _percent,
        "command": _command(rows, strategies),
    }


def _title(row: dict[str, Any]) -> str:
    data = str(row["data"])
    return f"{BENCHMARKS.get(data, data)}, {row['scenario']}-incremental"


def _sections(pictures: Collection[str], reliability: bool) -> Iterator[tuple[str, str]]:
    yield "results", "Results"
    yield "accuracy", "Accuracy"
    yield "matrices", "Matrices"
    if {"forgetting", "nlpd"} & set(pictures):
        yield "forgetting", "Forgetting and NLPD"
    if reliability:
        yield "calibration", "Calibration"
    if {"stored_samples", "seconds"} & set(pictures):
        yield "cost", "Memory and time"
    yield "settings", "Settings"
    yield "environment", "Environment"


def _facts(rows: Sequence[Row], strategies: list[Strategy]) -> Iterator[str]:
    yield _count(max(strategy.experiences for strategy in strategies), "experience")
    yield _count(len(strategies), "strategy", "strategies")
    yield _count(len({row["seed"] for row in rows}), "seed")
    if memory := _memory(rows):
        yield f"{memory:,} stored samples per task"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _memory(rows: Sequence[Row]) -> int | None:
    """Strategies that store no sample may say zero."""
    return max((row["memory"] for row in rows if row.get("memory")), default=None)


def _headline(strategies: list[Strategy]) -> Iterator[tuple[str, str, str]]:
    """What is said first: what it is, of which strategy, and its accuracy."""
    others = [strategy for strategy in strategies if strategy.name != REFERENCE]
    for strategy in others[:1]:
        yield "Highest final accuracy", strategy.name, _accuracy(strategy)
    for strategy in strategies:
        if strategy.name == REFERENCE:
            yield "Trained on all data at once", strategy.name, _accuracy(strategy)


def _accuracy(strategy: Strategy) -> str:
    return f"{numbers.percent(strategy.measures['accuracy'])} %"


def _percent(share: float, digits: int) -> str:
    return numbers.NONE if math.isnan(share) else f"{100 * share:.{digits}f}"


def _command(rows: Sequence[Row], strategies: list[Strategy]) -> str:
    first = rows[0]
    lines = [
        ["sfr-cl", "cl", "--data", str(first["data"]), "--scenario", str(first["scenario"])],
        ["--strategies", ",".join(strategy.name for strategy in strategies)],
        ["--seeds", ",".join(str(seed) for seed in sorted({row["seed"] for row in rows}))],
    ]
    if memory := _memory(rows):
        lines[2] += ["--memory", str(memory)]
    return " \\\n    ".join(shlex.join(words) for words in lines)
