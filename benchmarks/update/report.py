"""What `sfr-cl update` shows: a table on the terminal, PNGs, `table.md` and `report.html`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from ..harness.results import Row, write_file
from ..report import numbers, page, terminal
from ..report.checks import markdown_checks, markdown_table
from . import figures
from .summary import PUBLISHED_RATIOS, DataSet, Form, checks, data_sets

TEMPLATE = Path(__file__).with_name("report.html")

COLUMNS = (
    "data",
    "D1 alone",
    "updated",
    "retrained",
    "closed",
    "bytes kept",
    "update",
    "answer",
    "retrain",
    "ratio",
    "paper's",
)
FORM_COLUMNS = (
    "Kernel, mean",
    "Validation",
    "D1 alone",
    "Updated",
    "Retrained",
    "Gap closed",
    "Update, ms",
    "First prediction, ms",
    "M",
)


def write(out: Path, rows: list[Row]) -> Path:
    """Write the pictures, `table.md` and `report.html` into `out`; return the page's path.

    Rows may be those of an unfinished run.
    """
    sets = data_sets(rows)
    figures.write_pngs(out, sets)
    text = markdown_table(COLUMNS, [cells(one) for one in sets])
    write_file(out / "table.md", f"{text}\n{markdown_checks(checks(sets))}")
    return page.write(out / "report.html", TEMPLATE, _content(sets), rows)


def table(rows: list[Row]) -> Table:
    """The headline, 80 columns wide: without the paper's ratio."""
    grid = terminal.grid()
    for i, name in enumerate(COLUMNS[:-1]):
        grid.add_column(name.replace(" ", "\n"), justify="right" if i else "left", no_wrap=True)
    sets = data_sets(rows)
    for one in sets:
        grid.add_row(*cells(one)[:-1])
    missed = [check for check in checks(sets) if not check.met]
    grid.caption = "; ".join(f"{check.what}: {check.got}, missed" for check in missed) or None
    return grid


def cells(one: DataSet) -> list[str]:
    """The chosen form's figures, in the order of `COLUMNS`."""
    form = one.chosen
    return [
        one.name,
        *(nlpd(form.at(f"nlpd_{when}")) for when in ("before", "updated", "retrained")),
        f"{form.closed:.0%}",
        numbers.size(form.state_bytes),
        f"{1000 * form.at('seconds_update'):.1f} ms",
        f"{1000 * form.at('seconds_first_prediction'):.1f} ms",
        f"{form.at('seconds_retrain'):.1f} s",
        f"{form.ratio:,.0f}",
        str(PUBLISHED_RATIOS[one.name]),
    ]


def nlpd(value: float) -> str:
    """Two decimals, or the power of ten of what is far off.

    >>> [nlpd(0.123), nlpd(-0.004), nlpd(123456.0)]
    ['0.12', '0.00', '1e+05']
    """
    return f"{value:.0e}" if value >= 1000 else f"{value:.2f}".replace("-0.00", "0.00")


def form_cells(form: Form) -> list[str]:
    """One form's figures, in the order of `FORM_COLUMNS`."""
    measures = ("nlpd_updated_validation", "nlpd_before", "nlpd_updated", "nlpd_retrained")
    return [
        form.name,
        *(nlpd(form.at(name)) for name in measures),
        f"{form.closed:.0%}" if form.at("nlpd_updated") < form.at("nlpd_before") else "worse",
        f"{1000 * form.at('seconds_update'):.1f}",
        f"{1000 * form.at('seconds_first_prediction'):.1f}",
        str(form.inducing),
    ]


def _content(sets: Sequence[DataSet]) -> dict[str, Any]:
    names = ",".join(one.name for one in sets)
    seeds = sorted({seed for one in sets for form in one.forms for seed in form.seeds})
    return {
        "title": "Conditioning against retraining",
        "over": "sfr-cl, the paper's experiments",
        "sections": [
            ("results", "Results"),
            ("checks", "What was to be shown"),
            ("forms", "Kernels and means"),
            ("time", "Time"),
            ("protocol", "Protocol"),
            ("environment", "Environment"),
        ],
        "facts": [f"{len(sets)} data sets", f"{len(seeds)} seeds", "D2 arrives after training"],
        "columns": [name.capitalize() if name == "data" else name for name in COLUMNS],
        "rows": [cells(one) for one in sets],
        "checks": checks(sets),
        "sets": sets,
        "nlpd": nlpd,
        "form_columns": FORM_COLUMNS,
        "form_rows": {
            one.name: [
                form_cells(form)
                for form in sorted(one.forms, key=lambda f: f.at("nlpd_updated_validation"))
            ]
            for one in sets
        },
        "pictures": figures.for_page(sets),
        "command": f"sfr-cl update --data {names} --seeds {','.join(map(str, seeds))}",
    }
