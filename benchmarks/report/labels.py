"""Names beside what they name, none on top of another."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox
from sklearn.isotonic import isotonic_regression

from .style import FONT, Mark

SMALL = FONT - 1
GAP = 7.0
"""Points between a marker's centre and its name."""


def spread(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions in [low, high], at least `gap` apart, in the order of `values` and near them.

    With y the sorted values, positions p minimise |p - y|² under p_{i+1} >= p_i + gap: an isotonic
    regression of y_i - i gap.

    >>> spread([0.5, 0.5, 0.0], 0.1, 0.0, 1.0)
    [0.45, 0.55, 0.0]
    """
    order = np.argsort(values, kind="stable")
    gap = min(gap, (high - low) / max(len(values) - 1, 1))
    steps = gap * np.arange(len(values))
    free = isotonic_regression(
        np.asarray(values, dtype=float)[order] - steps, y_min=low, y_max=high - steps[-1]
    )
    positions = np.empty(len(values))
    positions[order] = free + steps
    return [round(float(position), 6) for position in positions]


def beside_axes(
    ax: Axes, heights: Sequence[float], names: Sequence[str], looks: Sequence[Mark], below: float
) -> None:
    """Marks and names in a column right of the axes, each led to its height in data coordinates.

    The axes take all the figure's height but the points `below` them.
    """
    points_high = 72 * ax.figure.bbox.height / ax.figure.dpi - below
    bottom, top = ax.get_ylim()
    starts = [(height - bottom) / (top - bottom) for height in heights]
    ends = spread(starts, 1.18 * SMALL / points_high, 0.0, 0.98)
    right = ax.transAxes
    for name, mark, start, end in zip(names, looks, starts, ends, strict=True):
        lead: dict[str, Any] = {"transform": right, "clip_on": False, "color": mark.colour.light}
        ax.plot([1.0, 1.06], [start, end], lw=0.7, **lead)
        ax.plot([1.07], [end], **lead, **mark.point)
        ax.text(1.1, end, name, transform=right, va="center", fontsize=SMALL)


def beside_points(
    ax: Axes, xy: Sequence[tuple[float, float]], names: Sequence[str], looks: Sequence[Mark]
) -> None:
    """Each name right or left of its point, moved up or down where it is crowded.

    A name that moved is led back to its point. The layout must be final: places are found
    in pixels.
    """
    pixel = ax.figure.dpi / 72
    centres = [tuple(ax.transData.transform(point)) for point in xy]
    taken = [Bbox.from_bounds(x, y, 0, 0).padded(3.5 * pixel) for x, y in centres]
    inside = ax.get_window_extent().padded(2 * pixel)
    for i in sorted(range(len(names)), key=lambda i: -centres[i][1]):
        text = ax.text(0, 0, names[i], fontsize=SMALL)
        size = text.get_window_extent()
        text.remove()
        others = taken[:i] + taken[i + 1 :]
        side, lift = _place(centres[i], size, others, inside, pixel)
        _annotate(ax, names[i], xy[i], looks[i], side, lift)
        taken.append(_box(centres[i], size, side, lift, pixel))


def _place(
    centre: tuple[float, ...], size: Bbox, others: Sequence[Bbox], inside: Bbox, pixel: float
) -> tuple[int, float]:
    """The nearest side and lift that are free, or those in the way of the fewest."""
    least, best = np.inf, (1, 0.0)
    for side, lift in _candidates():
        box = _box(centre, size, side, lift, pixel)
        outside = box.x0 < inside.x0 or box.x1 > inside.x1
        outside |= box.y0 < inside.y0 or box.y1 > inside.y1
        hits = outside + sum(box.overlaps(other) for other in others)
        if hits < least:
            least, best = hits, (side, lift)
        if hits == 0:
            break
    return best


def _away(lift: float) -> float:
    """Points between a point and its name; a name that moved leaves room for its leader."""
    return GAP if abs(lift) < SMALL else 2 * GAP


def _box(centre: tuple[float, ...], size: Bbox, side: int, lift: float, pixel: float) -> Bbox:
    """Where a name would be."""
    near, y = centre[0] + side * _away(lift) * pixel, centre[1] + lift * pixel
    left = near if side > 0 else near - size.width
    return Bbox.from_bounds(left, y - size.height / 2, size.width, size.height)


def _candidates() -> list[tuple[int, float]]:
    """Sides and heights, nearest first."""
    lifts = [sign * step * SMALL / 2 for step in range(25) for sign in (1, -1)]
    return [(side, lift) for lift in lifts for side in (1, -1)]


def _annotate(
    ax: Axes, name: str, xy: tuple[float, float], look: Mark, side: int, lift: float
) -> None:
    leader = {
        "arrowstyle": "-",
        "color": look.colour.light,
        "lw": 0.8,
        "shrinkA": 0,
        "shrinkB": 2,
        "relpos": (0 if side > 0 else 1, 0.5),
    }
    ax.annotate(
        name,
        xy,
        xytext=(side * _away(lift), lift),
        textcoords="offset points",
        ha="left" if side > 0 else "right",
        va="center",
        fontsize=SMALL,
        arrowprops=leader if abs(lift) >= SMALL else None,
        annotation_clip=False,
    )
