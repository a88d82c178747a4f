"""The pictures of `sfr-cl uci`: methods by data set, calibration, and NLPD against M."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ..harness.results import Row
from ..report import plots, svg
from ..report.seeds import Spread, reliability
from ..report.style import GREY, Mark, marks
from .summary import TITLES, Table

CURVES = ("gp subset", "sfr")
WIDE, TALL = 2.9, 2.6
"""Inches of one panel."""
COLUMNS = 3


def curves(rows: Iterable[Row]) -> dict[str, dict[str, dict[int, Spread]]]:
    """Tuned NLPD by data, method and M in percent, of sets with more than one M."""
    found: dict[str, dict[str, dict[int, list[float]]]] = {}
    for row in rows:
        if row["tuned"] and row["method"] in CURVES:
            of_method = found.setdefault(row["data"], {}).setdefault(row["method"], {})
            of_method.setdefault(row["m_percent"], []).append(row["nlpd"])
    return {
        data: {method: _spreads(found[data][method]) for method in found[data]}
        for data in TITLES
        if data in found and max(len(values) for values in found[data].values()) > 1
    }


def _spreads(values: Mapping[int, Sequence[float]]) -> dict[int, Spread]:
    pairs = ((m_percent, Spread.of(values[m_percent])) for m_percent in sorted(values))
    return {m_percent: spread for m_percent, spread in pairs if spread}


def figure(rows: Sequence[Row]) -> Figure | None:
    """NLPD against M, a panel for each set; none if only the table's M was run."""
    of_data = curves(rows)
    if not of_data:
        return None
    table = Table(rows)
    looks = marks(CURVES)
    panels = _panels(len(of_data))
    for ax, (data, lines) in zip(panels.axes, of_data.items(), strict=True):
        for method, spreads in lines.items():
            _curve(ax, method, looks[method], spreads)
        if level := table.mean(data, ("nn map", False)):
            dots = (0, (1, 2))
            ax.axhline(level.mean, label="nn map, untuned", color=GREY.light, lw=0.9, ls=dots)
        ax.set(title=TITLES[data], xscale="log", xlabel="M, % of N", ylabel="NLPD, nats")
        ax.set_xticks([1, 2, 5, 10, 20, 40, 100], ["1", "2", "5", "10", "20", "40", "100"])
        ax.xaxis.set_minor_locator(NullLocator())
    return panels


def _curve(ax: Axes, name: str, look: Mark, spreads: Mapping[int, Spread]) -> None:
    """Mean, and a band of one standard deviation over seeds."""
    x = list(spreads)
    means = [spread.mean for spread in spreads.values()]
    deviations = [spread.sd or 0.0 for spread in spreads.values()]
    low = [mean - sd for mean, sd in zip(means, deviations, strict=True)]
    high = [mean + sd for mean, sd in zip(means, deviations, strict=True)]
    ax.fill_between(x, low, high, color=look.colour.light, alpha=0.18, linewidth=0)
    ax.plot(x, means, label=name, **look.line, **look.point)


def methods(table: Table) -> Figure:
    """Tuned NLPD of every method, a panel for each set, the best on top."""
    settings = table.settings(tuned=True)
    looks = marks([name for name, _ in settings])
    panels = _panels(len(table.data))
    for ax, data in zip(panels.axes, table.data, strict=True):
        spreads = {name: table.mean(data, (name, tuned)) for name, tuned in settings}
        dots = [plots.Dot(name, looks[name], s) for name, s in spreads.items() if s]
        plots.dots(ax, dots, "NLPD, nats", may_be_log=False)
        ax.set_title(TITLES[data])
    return panels


def calibration(table: Table) -> Figure | None:
    """Accuracy against confidence of every tuned method, over all sets and seeds."""
    bins = {}
    for setting in table.settings(tuned=True):
        rows = [row for row in table.rows if (row["method"], row["tuned"]) == setting]
        if found := reliability(rows):
            bins[setting[0]] = found
    if not bins:
        return None
    panels = _panels(len(bins))
    for ax, (name, of_method) in zip(panels.axes, bins.items(), strict=True):
        plots.reliability(ax, of_method)
        ax.set_title(name)
    return panels


def _panels(count: int) -> Figure:
    return plots.panels(count, WIDE, TALL, COLUMNS)


def for_page(rows: Sequence[Row], table: Table) -> dict[str, Markup]:
    """The pictures there are rows for."""
    with plots.drawing():
        text = "Dots: NLPD of each method with delta tuned, a panel for each data set."
        pictures = {"methods": svg.inline(methods(table), "methods", text)}
        if drawn := calibration(table):
            text = "Reliability diagrams: accuracy against confidence, a panel for each method."
            pictures["calibration"] = svg.inline(drawn, "calibration", text)
        if drawn := figure(rows):
            text = "Lines: NLPD against M for SFR and the GP subset, a panel for each data set."
            pictures["figure"] = svg.inline(drawn, "figure", text)
    return pictures


def write_pngs(out: Path, rows: Sequence[Row], table: Table) -> list[Path]:
    """`methods.png`, and `calibration.png` and `figure.png` if there are rows for them."""
    with plots.drawing():
        drawn = {
            "methods": methods(table),
            "calibration": calibration(table),
            "figure": figure(rows),
        }
        if drawn["figure"]:  # the page has a legend of its own
            named = drawn["figure"].axes[0].get_legend_handles_labels()
            drawn["figure"].legend(*named, loc="outside upper center", ncols=3, frameon=False)
        return [
            plots.save_png(picture, out / f"{name}.png")
            for name, picture in drawn.items()
            if picture is not None
        ]
