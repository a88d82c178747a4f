"""Drawing of the first figure: posteriors of one function side by side."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..report.plots import save_png
from ..report.style import BLUE, GREEN, VERMILLION

BLACK, GREY = "#000000", "#4D4D4D"
# Tints of their sky blue and blue, opaque: the legend shows the very colours of the bands.
PALE, MEDIUM = "#CCE8F8", "#85BFE0"

Style = dict[str, Any]
BAND_Y: Style = {"color": PALE, "lw": 0, "label": "$y$: mean ± 2 sd"}
BAND_F: Style = {"color": MEDIUM, "lw": 0, "label": "$f$: mean ± 2 sd"}
MEAN: Style = {"color": BLUE.light, "lw": 1.8, "label": "posterior mean"}
TRUTH: Style = {"color": BLACK, "lw": 1.2, "ls": (0, (4, 2)), "label": "true function"}
MARKS: Style = {"ls": "", "mew": 0}
BELOW_CURVES = 1.5
FIRST = MARKS | {"color": GREY, "marker": "o", "ms": 2.8, "label": "training data $D_1$"}
NEW = MARKS | {"color": VERMILLION.light, "marker": "D", "ms": 3.4, "label": "new data $D_2$"}
INDUCING = MARKS | {
    "color": GREEN.light,
    "marker": "|",
    "ms": 8,
    "mew": 1.2,
    "label": "inducing inputs",
}

Values = list[float]


@dataclass(frozen=True)
class Curves:
    """The posterior, and the function it is after, over a grid."""

    x: Values
    truth: Values
    mean: Values
    sd_f: Values
    sd_y: Values

    def band(self, sd: Values) -> tuple[Values, Values]:
        """mean -+ 2 sd."""
        pairs = list(zip(self.mean, sd, strict=True))
        return [m - 2 * s for m, s in pairs], [m + 2 * s for m, s in pairs]


@dataclass(frozen=True)
class Points:
    """Data."""

    x: Values
    y: Values


@dataclass(frozen=True)
class Panel:
    """What one panel shows."""

    title: str
    note: str
    curves: Curves
    first: Points
    new: Points | None
    inducing: Values


def draw(panels: list[Panel], path: Path) -> Path:
    """Draw the panels side by side and write them as a PNG."""
    # A Figure of its own rather than pyplot's: no display and no global state are involved.
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    grid = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)
    axes: list[Axes] = list(grid[0])
    for ax, panel in zip(axes, panels, strict=True):
        _draw_panel(ax, panel)
    axes[0].set_ylabel("$y$")
    # Below the panels it hides nothing; the last panel has every kind of mark.
    handles, labels = axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return save_png(figure, path)


def _draw_panel(ax: Axes, panel: Panel) -> None:
    curves, first, new, z = panel.curves, panel.first, panel.new, panel.inducing
    ax.fill_between(curves.x, *curves.band(curves.sd_y), **BAND_Y)
    ax.fill_between(curves.x, *curves.band(curves.sd_f), **BAND_F)
    ax.plot(curves.x, curves.mean, **MEAN)
    ax.plot(curves.x, curves.truth, **TRUTH)
    ax.plot(first.x, first.y, zorder=BELOW_CURVES, **FIRST)
    if new is not None:
        ax.plot(new.x, new.y, **NEW)
    ax.plot(z, [0.03] * len(z), transform=ax.get_xaxis_transform(), **INDUCING)
    ax.set_title(panel.title, fontsize=10)
    ax.text(0.97, 0.97, panel.note, transform=ax.transAxes, ha="right", va="top", fontsize=9)
    ax.set_xlabel("$x$")
    ax.set_xlim(curves.x[0], curves.x[-1])
    ax.set_ylim(-2.6, 2.4)
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
