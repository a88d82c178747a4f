"""The pictures of `sfr-cl cl`: one by one for the page, and together in PNGs for a README."""

from collections.abc import Callable, Sequence
from pathlib import Path

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..report import numbers, plots, svg
from ..report.style import marks
from .summary import Strategy

Strategies = Sequence[Strategy]

WIDE, TALL = 5.0, 3.9
"""Inches: a picture 360 points wide, and its height."""
COLUMNS = 4
"""Of a PNG of many."""

DOTS = {"forgetting": "forgetting, points", "nlpd": "NLPD, nats"}
POINTS = 100
"""A share of one is this many points."""
COSTS = {"stored_samples": "stored samples", "seconds": "processor seconds"}
CLOSE = 0.15
"""Strategies this close to the best are drawn again, larger, if others are far below."""


def for_page(strategies: Strategies) -> dict[str, Markup]:
    """The pictures that show all strategies, by what they show; none of what no row has."""
    with plots.drawing():
        text = "Lines: mean accuracy on the experiences seen, after each experience."
        pictures = {"curves": svg.picture((WIDE, TALL), "curves", text, curves, strategies)}
        if best := close_to_best(strategies):
            text = "Lines: the same for the strategies close to the best, enlarged."
            pictures["close"] = svg.picture((WIDE, TALL), "close", text, curves, strategies, best)
        for measure in _there(strategies, DOTS):
            text = f"Dots: {DOTS[measure]} of each strategy."
            size = WIDE, _tall(strategies)
            pictures[measure] = svg.picture(size, measure, text, dots, strategies, measure)
        for measure in _there(strategies, COSTS):
            figure = Figure((WIDE, TALL))
            cost(plots.fixed_axes(figure, 1)[0], strategies, measure)
            text = f"Scatter plot: final accuracy against {COSTS[measure]}."
            pictures[measure] = svg.inline(figure, measure, text)
    return pictures


def write_pngs(out: Path, strategies: Strategies) -> list[Path]:
    """`accuracy.png`, `forgetting.png` and the others below: those there is data for."""
    reliable = [strategy for strategy in strategies if strategy.reliability]
    with plots.drawing():
        figures = {
            "accuracy": _accuracy(strategies),
            "forgetting": _dots(strategies),
            "matrices": _many(strategies, matrix),
            "calibration": _many(reliable, reliability),
            "cost": _cost(strategies),
        }
        return [
            plots.save_png(figure, out / f"{name}.png")
            for name, figure in figures.items()
            if figure is not None
        ]


def close_to_best(strategies: Strategies) -> list[Strategy]:
    """Those whose lines can't be told apart beside the worst; none where enlarging won't help."""
    ends = [strategy.curve[-1] for strategy in strategies]
    best = [s for s, end in zip(strategies, ends, strict=True) if end > max(ends) - CLOSE]
    lowest = min(float(strategy.curve.min()) for strategy in strategies)
    lowest_of_best = min(float(strategy.curve.min()) for strategy in best)
    return best if len(best) > 2 and lowest_of_best > max(lowest + 2 * CLOSE, 0.5) else []


def curves(ax: Axes, strategies: Strategies, shown: Strategies | None = None) -> None:
    """Accuracy so far, after each experience, of those `shown` or of all."""
    looks = marks([strategy.name for strategy in strategies])
    kept = strategies if shown is None else shown
    plots.lines(ax, [plots.Line(s.name, looks[s.name], s.curve) for s in kept])
    ax.set_xlabel("after experience")
    ax.set_ylabel("accuracy on those seen")


def dots(ax: Axes, strategies: Strategies, measure: str) -> None:
    """One measure of each strategy that has it, the best on top."""
    looks = marks([strategy.name for strategy in strategies])
    scale = POINTS if measure == "forgetting" else 1
    values = [
        plots.Dot(s.name, looks[s.name], spread.times(scale))
        for s in strategies
        if (spread := s.measures[measure])
    ]
    plots.dots(ax, values, DOTS[measure], may_be_log=measure == "nlpd")


def cost(ax: Axes, strategies: Strategies, measure: str) -> None:
    """Final accuracy against a cost, of each strategy that has both."""
    looks = marks([strategy.name for strategy in strategies])
    ax.set_ylabel("final accuracy")
    points = [
        plots.Point(s.name, looks[s.name], cost, accuracy)
        for s in strategies
        if (cost := s.measures[measure]) and (accuracy := s.measures["accuracy"])
    ]
    plots.scatter(ax, points, COSTS[measure], from_zero=measure == "stored_samples")


def matrix(ax: Axes, strategy: Strategy) -> None:
    """Accuracy [after experience, on experience]."""
    plots.heat(ax, strategy.matrix)
    ax.set_title(strategy.name)
    ax.set_xlabel("on experience")
    ax.set_ylabel("after experience")


def reliability(ax: Axes, strategy: Strategy) -> None:
    """Accuracy against confidence."""
    assert strategy.reliability is not None
    plots.reliability(ax, strategy.reliability)
    nlpd, ece = strategy.measures["nlpd"], strategy.measures["ece"]
    ax.set_title(f"{strategy.name}\nNLPD {numbers.plain(nlpd, 2)}, ECE {numbers.plain(ece, 3)}")


def _accuracy(strategies: Strategies) -> Figure:
    groups = [group for group in (strategies, close_to_best(strategies)) if group]
    figure = plots.panels(len(groups), WIDE, TALL)
    for ax, group in zip(figure.axes, groups, strict=True):
        curves(ax, strategies, group)
    return figure


def _dots(strategies: Strategies) -> Figure | None:
    measures = _there(strategies, DOTS)
    if not measures:
        return None
    figure = plots.panels(len(measures), WIDE, _tall(strategies))
    for ax, measure in zip(figure.axes, measures, strict=True):
        dots(ax, strategies, measure)
    return figure


def _cost(strategies: Strategies) -> Figure | None:
    measures = _there(strategies, COSTS)
    if not measures:
        return None
    figure = Figure((WIDE * len(measures), TALL))
    for ax, measure in zip(plots.fixed_axes(figure, len(measures)), measures, strict=True):
        cost(ax, strategies, measure)
    return figure


def _many(strategies: Strategies, draw: Callable[[Axes, Strategy], None]) -> Figure | None:
    """One small picture per strategy."""
    if not strategies:
        return None
    figure = plots.panels(len(strategies), 2.5, 2.75, COLUMNS)
    for ax, strategy in zip(figure.axes, strategies, strict=True):
        draw(ax, strategy)
        ax.label_outer()
    return figure


def _there(strategies: Strategies, measures: Sequence[str] | dict[str, str]) -> list[str]:
    """The measures that some strategy has."""
    return [m for m in measures if any(s.measures[m] for s in strategies)]


def _tall(strategies: Strategies) -> float:
    """Inches of a picture with one line per strategy."""
    return (max(len(strategies), 3) * plots.ROW + plots.AXIS) / 72
