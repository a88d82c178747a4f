"""Colours, marks and type sizes: every picture and page wears the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Colour:
    """One role, with its colour on white and on the dark page."""

    name: str
    light: str
    dark: str


# Okabe and Ito's colours, which colour-blind readers tell apart. On white, orange and sky blue are
# darker than theirs, on the dark page blue is lighter: a line has a contrast of 3 everywhere.
INK = Colour("ink", "#1a1d21", "#e8eaed")
GREY = Colour("grey", "#6b7280", "#98a2ae")
BLUE = Colour("blue", "#0072b2", "#2f8fd0")
SKY = Colour("sky", "#3391c9", "#8ccbf0")
GREEN = Colour("green", "#009e73", "#10b58a")
ORANGE = Colour("orange", "#bd8200", "#e69f00")
VERMILLION = Colour("vermillion", "#d55e00", "#ea7320")
PURPLE = Colour("purple", "#c4689b", "#d78bb5")
PAPER = Colour("paper", "#ffffff", "#14181d")
RULE = Colour("rule", "#d9dde2", "#363d46")
# Figures in the cells of a heat map are ink, so its darkest cell stays far from ink.
COLD = Colour("cold", "#f7f9fb", "#1b2026")
HOT = Colour("hot", "#56b4e9", "#0b6aa3")

COLOURS = (
    INK,
    GREY,
    BLUE,
    SKY,
    GREEN,
    ORANGE,
    VERMILLION,
    PURPLE,
    PAPER,
    RULE,
    COLD,
    HOT,
)

SIZES = {"*": 9.0, "p": 6.5, "D": 5.0, "X": 6.5, "P": 6.5, "d": 6.5}
"""Points, where the usual size looks smaller or larger than it is."""


@dataclass(frozen=True)
class Mark:
    """How one method looks: no two share shape and filling, so none is known by colour alone."""

    colour: Colour
    marker: str
    filled: bool

    @property
    def point(self) -> dict[str, Any]:
        """Arguments of a point."""
        face = self.colour if self.filled else PAPER
        return {
            "marker": self.marker,
            "markersize": SIZES.get(self.marker, 5.5),
            "markerfacecolor": face.light,
            "markeredgecolor": self.colour.light,
        }

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of a line: dashed where the marker is open."""
        dashes: Any = "solid" if self.filled else (0, (3, 1.5))
        return {"color": self.colour.light, "linestyle": dashes}


MARKS = {
    "sfr": Mark(BLUE, "o", True),
    "sfr-condition": Mark(VERMILLION, "D", True),
    "sfr-condition-cnn": Mark(VERMILLION, "p", True),
    "joint": Mark(INK, "*", True),
    "replay": Mark(GREEN, "s", True),
    "der++": Mark(PURPLE, "^", True),
    "ewc": Mark(ORANGE, "v", True),
    "naive": Mark(GREY, "X", True),
    "gem": Mark(SKY, "d", True),
    "sfr-l2": Mark(BLUE, "o", False),
    "replay+sfr": Mark(VERMILLION, "D", False),
    "lwf": Mark(INK, "P", False),
    "gdumb": Mark(GREEN, "s", False),
    "der": Mark(PURPLE, "^", False),
    "online-ewc": Mark(ORANGE, "v", False),
    "si": Mark(GREY, "X", False),
    "agem": Mark(SKY, "d", False),
}
"""A method looks the same in every report; relatives differ in filling and dashes."""


def marks(names: Sequence[str]) -> dict[str, Mark]:
    """The mark of each name; one that has none of its own gets one that is still free.

    >>> marks(["sfr", "mine"])["mine"].colour.name
    'vermillion'
    """
    free = [mark for name, mark in MARKS.items() if name not in names] or list(MARKS.values())
    unmarked = [name for name in names if name not in MARKS]
    own = {name: free[i % len(free)] for i, name in enumerate(unmarked)}
    return {name: MARKS.get(name) or own[name] for name in names}


FONT = 10.5
"""Points, in pictures drawn 360 points wide: still legible on a phone 360 pixels wide."""

RC: dict[Any, Any] = {
    "font.size": FONT,
    "axes.labelsize": FONT,
    "axes.titlesize": FONT,
    "xtick.labelsize": FONT - 1,
    "ytick.labelsize": FONT - 1,
    "text.color": INK.light,
    "text.parse_math": False,  # a name may hold a dollar
    "axes.labelcolor": INK.light,
    "axes.edgecolor": GREY.light,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": RULE.light,
    "grid.linewidth": 0.7,
    "xtick.color": GREY.light,
    "ytick.color": GREY.light,
    "xtick.labelcolor": INK.light,
    "ytick.labelcolor": INK.light,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "lines.linewidth": 1.6,
    "lines.markeredgewidth": 1.1,
    "figure.constrained_layout.w_pad": 0.07,
    "figure.constrained_layout.h_pad": 0.05,
    "figure.facecolor": PAPER.light,
    "axes.facecolor": PAPER.light,
    "svg.fonttype": "none",  # text stays text: small, searchable, in the page's font
}
"""What matplotlib is told while a picture is drawn."""


def variables(mode: str) -> str:
    """The colours of one mode, `light` or `dark`, as CSS variables."""
    return " ".join(f"--{colour.name}: {getattr(colour, mode)};" for colour in COLOURS)
