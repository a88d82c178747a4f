"""The pictures of `sfr-cl ood`, for its page and as PNGs."""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..report import numbers, plots, svg
from ..report.style import BLUE, GREEN, VERMILLION, Mark
from .summary import SCORES, Direction, Method

MARKS = {
    "auroc_entropy": Mark(BLUE, "o", True),
    "auroc_variance": Mark(VERMILLION, "D", False),
    "auroc_novelty": Mark(GREEN, "s", True),
}
WIDE = 5.0
"""Inches of a picture for the page."""


def for_page(found: Sequence[Direction]) -> dict[str, Markup]:
    """AUROC of each direction, by the data set trained on."""
    pictures = {}
    with plots.drawing():
        for one in found:
            text = f"Dots: AUROC of each method, {one.name}."
            size = WIDE, _tall(one)
            pictures[one.data] = svg.picture(size, f"auroc-{one.data}", text, auroc, one)
    return pictures


def write_pngs(out: Path, found: Sequence[Direction]) -> list[Path]:
    """`auroc.png`, and `calibration.png` with a row for each direction."""
    with plots.drawing():
        figure = plots.panels(len(found), WIDE, max(map(_tall, found)))
        for ax, one in zip(figure.axes, found, strict=True):
            auroc(ax, one)
        columns = max(len(one.methods) for one in found)
        bins = Figure((2.5 * columns, 2.75 * len(found)), layout="constrained")
        axes = bins.subplots(len(found), columns, squeeze=False)
        for row, one in zip(axes, found, strict=True):
            for ax, method in zip(row, one.methods.values(), strict=False):
                calibration(ax, one, method)
            for ax in row[len(one.methods) :]:
                ax.axis("off")
        return [
            plots.save_png(figure, out / "auroc.png"),
            plots.save_png(bins, out / "calibration.png"),
        ]


def auroc(ax: Axes, one: Direction) -> None:
    """A line per method: mean of each score, and the range over seeds."""
    methods = list(reversed(one.methods.values()))
    for measure, name in SCORES.items():
        colour, label = MARKS[measure].colour.light, name
        for height, method in enumerate(methods):
            spread = method.measures[measure]
            if spread:
                ax.plot([spread.low, spread.high], [height] * 2, color=colour, lw=1.4)
                point = MARKS[measure].point
                ax.plot([spread.mean], [height], ls="", label=label, zorder=3, **point)
                label = "_"  # named once
    plots.named_lines(ax, [method.name for method in methods])
    ax.set_xlim(right=1.005)
    ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    ax.set_xlabel(f"AUROC: {one.name}")
    plots.legend_above(ax)


def calibration(ax: Axes, one: Direction, method: Method) -> None:
    """Accuracy against confidence."""
    if method.reliability:
        plots.reliability(ax, method.reliability)
    ax.set_title(f"{method.name}, {one.data}\nECE {numbers.plain(method.measures['ece'], 3)}")


def _tall(one: Direction) -> float:
    return 1.2 + 0.3 * len(one.methods)
