"""What `sfr-cl speed` shows: a table on the terminal, and the growth of streams as a picture."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.table import Table

from ..report.plots import save_png
from ..report.style import BLUE, VERMILLION
from .experiment import Row
from .growth import Length


def table(rows: Sequence[Row]) -> Table:
    """The rows for a terminal of 80 columns."""
    result = Table(title="Time and memory against others, medians of one run", show_lines=True)
    result.add_column("case, baseline", overflow="fold")
    for name in ("ours, baseline's", "ratio, target", "flop share", "MB, baseline's"):
        result.add_column(name, justify="right")
    for row in rows:
        style = None if row.ratio >= row.target else "bold"
        result.add_row(
            f"{row.case}\n{row.peer}",
            f"{row.seconds:.3g} s\n{row.peer_seconds:.3g} s",
            f"{row.ratio:.3g}\n{row.target:g}",
            shown(row.flop_share),
            f"{shown(row.peak_mb)}\n{shown(row.peer_peak_mb)}",
            style=style,
        )
    return result


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def draw(points: Sequence[Length], path: Path) -> Path:
    """Cost per sample and peak memory against the length of the stream."""
    figure = Figure(figsize=(7, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    lengths = [point.num_data for point in points]
    left.plot(lengths, [point.microseconds_per_sample for point in points], "o-", color=BLUE.light)
    left.set_ylabel("microseconds per sample")
    right.plot(lengths, [point.peak_mb or 0.0 for point in points], "D-", color=VERMILLION.light)
    right.set_ylabel("peak MB above the start")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
        axes.set_xlabel("samples in the stream")
        axes.spines[["top", "right"]].set_visible(False)
    return save_png(figure, path)
