"""A figure as SVG inside a page: it takes the page's font, and its colours by day and by night."""

import re
from collections.abc import Callable
from io import StringIO
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib.figure import Figure

from .style import COLOURS

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
VARIABLES = {colour.light: f"var(--{colour.name})" for colour in COLOURS}
COLOUR = re.compile("|".join(VARIABLES))
REFERENCE = re.compile(r"#([\w-]+)\)?")
FONT_FAMILY = re.compile(r"font-family: [^;]*; ?")
NUMBER = re.compile(r"-?\d+\.\d+")


def picture(
    size: tuple[float, float], key: str, description: str, draw: Callable[..., object], *what: Any
) -> Markup:
    """The SVG element of one plot, `size` inches large: `draw` is given the axes, then `what`."""
    figure = Figure(size, layout="constrained")
    draw(figure.subplots(), *what)
    return inline(figure, key, description)


def inline(figure: Figure, key: str, description: str) -> Markup:
    """The figure's SVG element; `key` is unique on the page, `description` is read aloud."""
    root = _parse(figure)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-label": description,
        "style": f"max-width: {1.4 * 72 * figure.get_figwidth():.0f}px",
    }
    _drop(root, ("metadata", "style"))
    _rename(root, key)
    for element in root.iter():
        _shorten(element)
        if "style" in element.attrib:
            element.attrib["style"] = _themed(element.attrib["style"])
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _parse(figure: Figure) -> ElementTree.Element:
    text = StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    # Without namespaces: inside HTML the parser knows SVG's elements, and `href` needs no prefix.
    plain = text.getvalue().replace(f'xmlns="{SVG}"', "").replace("xlink:href", "href")
    return ElementTree.fromstring(plain.replace(f'xmlns:xlink="{XLINK}"', ""))


def _drop(root: ElementTree.Element, tags: tuple[str, ...]) -> None:
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in tags]:
            parent.remove(child)


def _rename(root: ElementTree.Element, key: str) -> None:
    """Keep the ids something refers to, under names that are unique on the page."""
    used = {
        match
        for element in root.iter()
        for name in ("href", "clip-path")
        for match in REFERENCE.findall(element.attrib.get(name, ""))
    }
    names = {old: f"{key}-{i}" for i, old in enumerate(sorted(used))}
    for element in root.iter():
        old = element.attrib.pop("id", None)
        if old in names:
            element.attrib["id"] = names[old]
        for name in ("href", "clip-path"):
            if name in element.attrib:
                element.attrib[name] = REFERENCE.sub(
                    lambda found: found[0].replace(found[1], names[found[1]]),
                    element.attrib[name],
                )


def _shorten(element: ElementTree.Element) -> None:
    """A hundredth of a point is fine enough, and indentation is of no use."""
    for name in ("d", "x", "y", "transform", "points"):
        if name in element.attrib:
            rounded = NUMBER.sub(lambda found: f"{float(found[0]):.2f}", element.attrib[name])
            element.attrib[name] = " ".join(rounded.split())
    if element.attrib.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    element.tail = None
    if element.text and not element.text.strip():
        element.text = None


def _themed(style: str) -> str:
    """The page's font, and its colours."""
    return COLOUR.sub(lambda found: VARIABLES[found[0]], FONT_FAMILY.sub("", style))
