"""Pictures that several pages have, as SVG."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup
from matplotlib.figure import Figure

from . import plots, svg
from .seeds import Reliability
from .style import marks

SMALL = 2.1
"""Inches: the side of one picture among many."""


def swatches(names: Sequence[str]) -> dict[str, Markup]:
    """The line and marker of each name."""
    pictures = {}
    with plots.drawing():
        for i, (name, look) in enumerate(marks(names).items()):
            figure = Figure((0.45, 0.16))
            plots.swatch(figure.add_axes((0, 0, 1, 1)), look)
            pictures[name] = svg.inline(figure, f"mark{i}", "")
    return pictures


def reliability(
    bins: Mapping[str, Reliability | None], key: str = "bins", on: str = ""
) -> dict[str, Markup]:
    """A reliability diagram for each name that has one.

    Args:
        bins: by name.
        key: starts the pictures' keys.
        on: ends their descriptions; says what the predictions are of, if a page has several.
    """
    pictures = {}
    with plots.drawing():
        for i, (name, of_name) in enumerate(bins.items()):
            if of_name:
                text = f"Reliability diagram of {name}{on}: accuracy against confidence."
                pictures[name] = svg.picture(
                    (SMALL, SMALL), f"{key}{i}", text, plots.reliability, of_name
                )
    return pictures
