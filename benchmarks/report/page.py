"""The frame every report shares: one file with all it needs, asking nobody for anything."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from .. import results
from .style import variables

FOLDER = Path(__file__).parent
STYLES = ("page.css", "print.css")
TEMPLATES = Environment(
    loader=FileSystemLoader(FOLDER),
    autoescape=True,  # whatever comes from data is text, never markup
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def write(path: Path, template: str, content: Mapping[str, Any]) -> Path:
    """Fill `template`, which extends `page.html`, and write it; readers never meet half a page."""
    text = TEMPLATES.get_template(template).render(
        css=Markup("".join((FOLDER / name).read_text(encoding="utf-8") for name in STYLES)),
        light=Markup(variables("light")),
        dark=Markup(variables("dark")),
        environment=_environment(),
        **content,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
    return path


def _environment() -> list[tuple[str, str]]:
    return [
        (
            "sfr-cl" if name == "sfr_cl" else name.replace("_", " "),
            "not known" if value is None else str(value),
        )
        for name, value in results.environment().items()
    ]
