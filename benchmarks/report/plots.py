"""Kinds of plot, each drawn on axes it is given: for a page and for a PNG alike."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from math import ceil
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context, rcdefaults, rcParams
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    PercentFormatter,
)
from PIL import Image  # a dependency of matplotlib

from ..harness.results import write_file
from . import labels
from .seeds import Reliability, Spread
from .style import BLUE, COLD, FONT, GREY, HOT, RC, Mark

Array = npt.NDArray[np.float64]
HEAT = LinearSegmentedColormap.from_list("heat", [COLD.light, HOT.light])
PLAIN = FuncFormatter(lambda value, _: f"{value:,g}")
ROW = 17.0
"""Points per line of a dot plot."""
AXIS = 40.0
"""Points a horizontal axis and its label take."""
DPI = 200
"""Of PNGs: twice the 100 per inch that a README shows, sharp on fine screens too."""


@dataclass(frozen=True)
class Line:
    """One method's values at 1, 2, ..., `last`; a shorter one ends there too."""

    name: str
    mark: Mark
    values: Array


@dataclass(frozen=True)
class Dot:
    """One method's measure, with the range over seeds."""

    name: str
    mark: Mark
    spread: Spread


@dataclass(frozen=True)
class Point:
    """One method's two measures, with their ranges over seeds."""

    name: str
    mark: Mark
    x: Spread
    y: Spread


@contextmanager
def drawing() -> Iterator[None]:
    """All pictures are drawn inside: a reader's own matplotlibrc changes nothing."""
    with rc_context():
        rcdefaults()
        rcParams.update(RC)
        yield


def fixed_axes(figure: Figure, count: int) -> list[Axes]:
    """Axes side by side whose places don't depend on what is drawn in them."""
    wide, tall = (72 * inches for inches in figure.get_size_inches())
    left, right, top = 56.0, 12.0, 10.0
    own = wide / count
    return [
        figure.add_axes(
            (
                (i * own + left) / wide,
                AXIS / tall,
                (own - left - right) / wide,
                (tall - AXIS - top) / tall,
            )
        )
        for i in range(count)
    ]


def lines(ax: Axes, series: Sequence[Line]) -> None:
    """Shares over steps, each named where it ends; a single value is a level to compare with."""
    last = max(len(line.values) for line in series)
    for line in series:
        start = last - len(line.values) + 1
        steps = range(start, last + 1)
        if len(line.values) == 1 and last > 1:
            level = float(line.values[0])
            ax.plot([1, last], [level, level], color=line.mark.colour.light, lw=0.9, ls=(0, (1, 2)))
        ax.plot(steps, line.values, **line.mark.line, **line.mark.point)
    ax.set_xlim(1 - 0.04 * max(last - 1, 1), last + 0.04 * max(last - 1, 1))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    _percent_axis(ax, min(float(line.values.min()) for line in series))
    labels.beside_axes(
        ax,
        [float(line.values[-1]) for line in series],
        [line.name for line in series],
        [line.mark for line in series],
        AXIS,
    )


def dots(ax: Axes, values: Sequence[Dot], label: str, *, may_be_log: bool) -> None:
    """One line per method, the lowest on top: mean, and the range over seeds."""
    order = sorted(values, key=lambda dot: -dot.spread.mean)
    for height, dot in enumerate(order):
        colour = dot.mark.colour.light
        ax.plot([dot.spread.low, dot.spread.high], [height, height], color=colour, lw=1.4)
        ax.plot([dot.spread.mean], [height], ls="", **dot.mark.point)
    named_lines(ax, [dot.name for dot in order])
    lowest, highest = (f(dot.spread.mean for dot in order) for f in (min, max))
    if may_be_log and 0 < lowest < highest / 20:
        _log_axis(ax)
        label += " (log scale)"
    elif lowest >= 0:
        ax.set_xlim(left=min(0.0, ax.dataLim.x0) - 0.02 * highest)
    ax.set_xlabel(label)


def named_lines(ax: Axes, names: Sequence[str]) -> None:
    """A vertical axis of names, from the bottom up, one line of a dot plot each."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(-0.6, len(names) - 0.4)
    ax.spines["left"].set_visible(False)


def scatter(ax: Axes, points: Sequence[Point], label: str, *, from_zero: bool) -> None:
    """A share against a cost, on a logarithmic axis unless zero must be on it and there is room."""
    for point in points:
        colour = point.mark.colour.light
        ax.plot([point.x.mean] * 2, [point.y.low, point.y.high], color=colour, lw=1.0)
        ax.plot([point.x.low, point.x.high], [point.y.mean] * 2, color=colour, lw=1.0)
        ax.plot([point.x.mean], [point.y.mean], ls="", **point.mark.point)
    positive = [point.x.mean for point in points if point.x.mean > 0]
    if not from_zero and len(positive) == len(points):
        _log_axis(ax, room=2.0)
        label += " (log scale)"
    elif positive and max(positive) > 20 * min(positive):
        _log_axis_with_zero(ax, positive)
        label += " (log scale)"
    else:
        most = max(positive, default=1.0)
        ax.set_xlim(-0.06 * most, 1.35 * most)
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        ax.xaxis.set_major_formatter(PLAIN)
    ax.set_xlabel(label)
    _percent_axis(ax, min(point.y.low for point in points))
    centres = [(point.x.mean, point.y.mean) for point in points]
    looks = [point.mark for point in points]
    labels.beside_points(ax, centres, [point.name for point in points], looks)


def reliability(ax: Axes, bins: Reliability) -> None:
    """Accuracy against confidence; the area of a dot is the share of predictions in its bin."""
    ax.plot([0, 1], [0, 1], color=GREY.light, lw=0.9, ls=(0, (3, 2)))
    ax.vlines(bins.confidence, bins.accuracy, bins.confidence, color=GREY.light, lw=0.9)
    ax.plot(bins.confidence, bins.accuracy, color=BLUE.light, lw=0.7)
    area = 6 + 90 * bins.share
    dots = ax.scatter(bins.confidence, bins.accuracy, s=area, color=BLUE.light, linewidths=0)
    dots.set(zorder=3, clip_on=False)
    ax.set(xlim=(0, 1.03), ylim=(0, 1.03), aspect="equal")
    ax.set(xlabel="confidence, %", ylabel="accuracy, %")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks([0, 0.5, 1], ["0", "50", "100"])


def heat(ax: Axes, matrix: Array) -> None:
    """A matrix of shares, in percent in the cells; missing rows are those on top."""
    side = matrix.shape[1]
    square = np.full((side, side), np.nan)
    square[side - matrix.shape[0] :] = matrix
    ax.imshow(square, cmap=HEAT, vmin=0, vmax=1, aspect="equal")
    size = min(FONT, 68 / side)
    for (i, j), value in np.ndenumerate(square):
        if not np.isnan(value):
            ax.text(j, i, f"{100 * value:.0f}", ha="center", va="center", fontsize=size)
    numbers = [str(i + 1) for i in range(side)]
    ax.set_xticks(range(side), numbers)
    ax.set_yticks(range(side), numbers)
    ax.grid(visible=False)
    ax.tick_params(length=0, labelsize=8)
    ax.spines[:].set_visible(False)


def swatch(ax: Axes, mark: Mark) -> None:
    """A line and marker, as in a legend."""
    ax.plot([0, 0.5, 1], [0.5] * 3, markevery=[1], **mark.line, **mark.point)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.axis("off")


def legend_above(ax: Axes) -> None:
    """The names of marks, in a line over the axes."""
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=3,
        frameon=False,
        handletextpad=0.2,
        columnspacing=1.2,
        borderaxespad=0.2,
    )


def panels(count: int, wide: float, tall: float, columns: int | None = None) -> Figure:
    """A figure of `count` axes of so many inches, side by side or at most `columns` in a row."""
    columns = min(columns or count, count)
    rows = ceil(count / columns)
    figure = Figure((wide * columns, tall * rows), layout="constrained")
    for ax in list(figure.subplots(rows, columns, squeeze=False).flat)[count:]:
        ax.remove()
    return figure


def save_png(figure: Figure, path: Path) -> Path:
    """Write 256 colours: a third of the size, and no difference to see."""
    pixels, small = BytesIO(), BytesIO()
    figure.savefig(pixels, format="png", dpi=DPI, pil_kwargs={"compress_level": 0})
    Image.open(pixels).convert("RGB").quantize(256).save(small, format="png", optimize=True)
    return write_file(path, small.getvalue())


def _percent_axis(ax: Axes, lowest: float) -> None:
    """Up to 100 %, from 0 unless all lies in the upper half."""
    bottom = 0.0 if lowest < 0.5 else np.floor(10 * lowest - 0.1) / 10
    ax.set_ylim(bottom, 1 + 0.02 * (1 - bottom))
    ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _log_axis(ax: Axes, room: float = 1.3) -> None:
    """`room` beyond the data on both sides, for names and for a lone point."""
    low, high = ax.dataLim.intervalx
    ax.set_xscale("log")
    ax.set_xlim(low / room, high * room)
    subs = (1.0,) if high / low > 100 else (1.0, 2.0, 5.0)
    ax.xaxis.set_major_locator(LogLocator(subs=subs))
    ax.xaxis.set_major_formatter(PLAIN)
    ax.xaxis.set_minor_formatter(NullFormatter())


def _log_axis_with_zero(ax: Axes, positive: Sequence[float]) -> None:
    """Linear from zero to the power of ten below the smallest cost, logarithmic from there."""
    first, last = np.floor(np.log10(min(positive))), np.floor(np.log10(max(positive)))
    start = 10.0**first
    ax.set_xscale("symlog", linthresh=start, linscale=0.5)
    ax.set_xlim(-0.15 * start, 5 * max(positive))
    ax.set_xticks([0, *10.0 ** np.arange(first, last + 1)])
    ax.xaxis.set_major_formatter(PLAIN)
    ax.xaxis.set_minor_formatter(NullFormatter())
