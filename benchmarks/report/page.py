"""The frame every report shares: one file with all it needs, asking nobody for anything."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..harness import results
from ..harness.results import Row
from .style import variables

FOLDER = Path(__file__).parent
STYLES = ("page.css", "print.css")


def write(path: Path, template: Path, content: Mapping[str, Any], rows: Sequence[Row]) -> Path:
    """Fill `template`, which extends `page.html`, and write it; `rows` tell where they are from."""
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
        environment=_environment(rows),
        commits=_commits(rows),
        **content,
    )
    return results.write_file(path, text)


def _environment(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Of the rows, not of who draws them."""
    found = []
    for name, values in results.shared(rows).items():
        if name not in ("commit", "dirty"):
            several = values if isinstance(values, list) else [values]
            words = ["not known" if value is None else str(value) for value in several]
            found.append(
                ("sfr-cl" if name == "sfr_cl" else name.replace("_", " "), ", ".join(words))
            )
    return found


def _commits(rows: Sequence[Row]) -> list[tuple[str, int]]:
    """The commits that rows are from, and how many are from each."""
    return list(Counter(map(_commit, rows)).items())


def _commit(row: Row) -> str:
    name, dirty = row.get("commit"), row.get("dirty")
    if name is None:
        return "not known"
    return f"{name}, with uncommitted changes" if dirty else str(name)
