"""The frame every report shares: one file with all it needs, asking nobody for anything."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..harness import results
from .style import variables

FOLDER = Path(__file__).parent
STYLES = ("page.css", "print.css")


def write(path: Path, template: Path, content: Mapping[str, Any]) -> Path:
    """Fill `template`, which extends `page.html`, and write it."""
    templates = Environment(
        loader=FileSystemLoader([template.parent, FOLDER]),
        autoescape=True,  # whatever comes from data is text, never markup
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = templates.get_template(template.name).render(
        css=Markup("".join((FOLDER / name).read_text(encoding="utf-8") for name in STYLES)),
        light=Markup(variables("light")),
        dark=Markup(variables("dark")),
        environment=_environment(),
        **content,
    )
    return results.write_file(path, text)


def _environment() -> list[tuple[str, str]]:
    return [
        (
            "sfr-cl" if name == "sfr_cl" else name.replace("_", " "),
            "not known" if value is None else str(value),
        )
        for name, value in results.environment().items()
    ]
