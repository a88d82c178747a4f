"""What `sfr-cl stream` shows: a table on the terminal, PNGs, and `report.html`."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from ..harness.results import Row
from ..report import labels, numbers, page, plots, svg, terminal
from ..report.seeds import Array, Spread, mean_array
from ..report.style import Mark, marks

TEMPLATE = Path(__file__).with_name("report.html")
TITLES = {"elec2": "Electricity prices (Elec2)", "mnist": "MNIST, two classes after two others"}
COLUMNS = (
    ("accuracy", "Accuracy", "%"),
    ("kept", "Bytes kept", "at the end"),
    ("seconds", "Processor seconds", ""),
    ("NLPD", "NLPD", "nats"),
    ("test", "Test accuracy", "% at the end"),
    ("samples/s", "Samples per second", ""),
    ("seeds", "Seeds", ""),
)
WIDE, TALL = 5.0, 3.9


@dataclass(frozen=True)
class Summary:
    """One method on one stream."""

    name: str
    rows: Sequence[Row]

    def spread(self, column: str) -> Spread | None:
        return Spread.of(row.get(column) for row in self.rows)

    def curve(self, column: str) -> Array:
        """Mean over seeds."""
        return mean_array(self.rows, column)

    def cells(self) -> list[str]:
        """In the order of `COLUMNS`."""
        size = Spread.of(row["state_bytes_curve"][-1] for row in self.rows)
        seconds = Spread.of(row["num_samples"] / row["samples_per_second"] for row in self.rows)
        return [
            numbers.percent(self.spread("accuracy")),
            numbers.size(size),
            numbers.seconds(seconds),
            numbers.plain(self.spread("nlpd"), 3),
            numbers.percent(self.spread("test_accuracy")),
            numbers.plain(self.spread("samples_per_second"), 0),
            str(len(self.rows)),
        ]


def write(out: Path, rows: list[Row]) -> Path:
    """Write the pictures and `report.html` into `out`; return the page's path."""
    streams = []
    for name, found in gathered(rows).items():
        with plots.drawing():
            _png(found, out / f"{name}.png")
            pictures = _pictures(name, found)
        streams.append(
            {
                "key": name,
                "title": TITLES.get(name, name),
                "samples": found[0].rows[0]["num_samples"],
                "scored_from": found[0].rows[0]["scored_from"],
                "methods": [(method.name, method.cells()) for method in found],
                "pictures": pictures,
                "settings": [
                    (method.name, sorted(method.rows[0]["settings"].items())) for method in found
                ],
            }
        )
    content = {
        "title": "Test, then train",
        "over": "sfr-cl, streams",
        "sections": [
            *((stream["key"], stream["title"]) for stream in streams),
            ("environment", "Environment"),
        ],
        "streams": streams,
        "columns": [(name, unit) for _, name, unit in COLUMNS],
        "command": _command(rows),
    }
    return page.write(out / "report.html", TEMPLATE, content, rows)


def table(rows: list[Row]) -> Table:
    """The headline, 80 columns wide."""
    grid = terminal.grid("data", "method")
    for name, _, _ in COLUMNS:
        grid.add_column(name, justify="right", no_wrap=True)
    for name, found in gathered(rows).items():
        for method in found:
            grid.add_row(name, method.name, *method.cells())
    return grid


def gathered(rows: list[Row]) -> dict[str, list[Summary]]:
    """Methods by stream, the most accurate first."""
    found: dict[str, list[Summary]] = {}
    for data in dict.fromkeys(row["data"] for row in rows):
        own = [row for row in rows if row["data"] == data]
        names = dict.fromkeys(row["method"] for row in own)
        methods = [Summary(name, [row for row in own if row["method"] == name]) for name in names]
        found[data] = sorted(methods, key=_least_accurate_last)
    return found


def _least_accurate_last(method: Summary) -> float:
    accuracy = method.spread("accuracy")
    return -accuracy.mean if accuracy else 0.0


def _pictures(name: str, methods: Sequence[Summary]) -> dict[str, Markup]:
    pictures = {}
    for kind, draw in (("accuracy", accuracy_over_time), ("memory", memory_over_time)):
        text = f"Lines: {kind} of each method along the stream."
        pictures[kind] = svg.picture((WIDE, TALL), f"{name}-{kind}", text, draw, methods)
    return pictures


def _png(methods: Sequence[Summary], path: Path) -> Path:
    figure = plots.panels(2, WIDE, TALL)
    left, right = figure.axes
    accuracy_over_time(left, methods)
    memory_over_time(right, methods)
    return plots.save_png(figure, path)


def accuracy_over_time(ax: Axes, methods: Sequence[Summary]) -> None:
    """Accuracy on all samples so far."""
    curves = []
    for method in methods:
        parts = method.curve("accuracy_curve")
        curves.append(np.cumsum(parts) / np.arange(1, len(parts) + 1))
    _lines(ax, methods, curves)
    ax.set_ylabel("accuracy so far, %")
    ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}")


def memory_over_time(ax: Axes, methods: Sequence[Summary]) -> None:
    """Size of all a method remembers, when pickled."""
    _lines(ax, methods, [np.log10(method.curve("state_bytes_curve")) for method in methods])
    ax.set_ylabel("state, bytes (log scale)")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.yaxis.set_major_formatter(lambda power, _: f"{10**power:,.0f}")


def _lines(ax: Axes, methods: Sequence[Summary], curves: list[Any]) -> None:
    looks: dict[str, Mark] = marks(sorted(method.name for method in methods))
    for method, curve in zip(methods, curves, strict=True):
        steps = method.rows[0]["curve_every"] * np.arange(1, len(curve) + 1)
        look = looks[method.name]
        spaced = max(1, len(curve) // 6)
        ax.plot(steps, curve, markevery=spaced, **look.line, **look.point)
    ax.set_xlabel("samples")
    ax.xaxis.set_major_formatter(plots.PLAIN)
    labels.beside_axes(
        ax,
        [float(curve[-1]) for curve in curves],
        [method.name for method in methods],
        [looks[method.name] for method in methods],
        plots.AXIS,
    )


def _command(rows: list[Row]) -> str:
    words = ["sfr-cl", "stream"]
    for option, column in (("--data", "data"), ("--methods", "method"), ("--seeds", "seed")):
        words += [option, ",".join(str(value) for value in dict.fromkeys(r[column] for r in rows))]
    return shlex.join(words)
