"""The pictures of `sfr-cl update`, for its page and as PNGs."""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..report import plots, svg
from ..report.style import BLUE, GREY, INK, VERMILLION, Mark
from .summary import WHEN, DataSet, Form

MARKS = {
    "before": Mark(GREY, "o", False),
    "updated": Mark(BLUE, "o", True),
    "retrained": Mark(INK, "*", True),
}
NAMES = {"before": "D1 alone", "updated": "updated", "retrained": "retrained"}
SECONDS = {
    "seconds_update": ("update", Mark(BLUE, "o", True)),
    "seconds_first_prediction": ("first prediction after", Mark(VERMILLION, "D", False)),
    "seconds_retrain": ("retraining", Mark(INK, "*", True)),
}
FAR = 5.0
"""A form whose NLPD is beyond this is left to the table."""
WIDE = 5.0


def for_page(sets: Sequence[DataSet]) -> dict[str, Markup]:
    """NLPD of each data set, by its name, and `seconds`."""
    pictures = {}
    with plots.drawing():
        for one in sets:
            text = f"Dots: NLPD on {one.name} of D1 alone, updated and retrained, by form."
            pictures[one.name] = svg.picture((WIDE, _tall(one)), one.name, text, nlpd, one)
        text = "Dots: seconds of the update, the first prediction after it, and retraining."
        size = WIDE, _seconds_tall(sets)
        pictures["seconds"] = svg.picture(size, "seconds", text, seconds, sets)
    return pictures


def write_pngs(out: Path, sets: Sequence[DataSet]) -> list[Path]:
    """`nlpd.png` and `seconds.png`."""
    with plots.drawing():
        figure = plots.panels(len(sets), WIDE, max(map(_tall, sets)))
        for ax, one in zip(figure.axes, sets, strict=True):
            nlpd(ax, one)
        times = plots.panels(1, WIDE, _seconds_tall(sets))
        seconds(times.axes[0], sets)
        return [
            plots.save_png(figure, out / "nlpd.png"),
            plots.save_png(times, out / "seconds.png"),
        ]


def nlpd(ax: Axes, one: DataSet) -> None:
    """A line per form, the chosen one on top."""
    forms = sorted(shown_forms(one), key=lambda form: -form.at("nlpd_updated_validation"))
    for height, form in enumerate(forms):
        means = [form.at(f"nlpd_{when}") for when in WHEN]
        ax.plot(means[:2], [height] * 2, color=BLUE.light, lw=1.4)
        for when, mean in zip(WHEN, means, strict=True):
            name = NAMES[when] if height == 0 else None
            ax.plot([mean], [height], ls="", label=name, zorder=3, **MARKS[when].point)
    ax.axvline(one.best_retrained, color=GREY.light, lw=0.9, ls=(0, (3, 2)), zorder=1)
    plots.named_lines(ax, [form.name for form in forms])
    ax.set_xlabel(f"{one.name}: test NLPD, nats")
    ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    plots.legend_above(ax)


def seconds(ax: Axes, sets: Sequence[DataSet]) -> None:
    """A line per data set: the chosen form's times."""
    for height, one in enumerate(reversed(sets)):
        for measure, (name, mark) in SECONDS.items():
            label = name if height == 0 else None
            ax.plot([one.chosen.at(measure)], [height], ls="", label=label, **mark.point)
    plots.named_lines(ax, [one.name for one in reversed(sets)])
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(plots.PLAIN)
    ax.set_xlabel("processor seconds, one thread (log scale)")
    plots.legend_above(ax)


def shown_forms(one: DataSet) -> list[Form]:
    """The chosen one, and those whose NLPD a picture has room for."""
    return [
        form
        for form in one.forms
        if form is one.chosen or max(form.at(f"nlpd_{when}") for when in WHEN) < FAR
    ]


def _tall(one: DataSet) -> float:
    return 1.35 + 0.3 * len(shown_forms(one))


def _seconds_tall(sets: Sequence[DataSet]) -> float:
    return 1.1 + 0.3 * len(sets)
