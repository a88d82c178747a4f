"""What `sfr-cl update --classification` shows: one table, on the terminal and in `table.md`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from ..harness.results import Row, write_file
from ..report import terminal
from ..report.checks import markdown_table
from ..report.seeds import Spread
from .classes import METHODS, column

TRAINED_ON_ALL = ("fine-tuned on all", "retrained")
COLUMNS = ("data", "D2", *METHODS, "behind", "update", "retrain")
ON_TERMINAL = (
    "network",
    "condi-\ntioned",
    "tuned\non D2",
    "tuned\non all",
    "re-\ntrained",
    "behind",
)


@dataclass(frozen=True)
class Summary:
    """One data set and kind of late data, over seeds."""

    data: str
    late: str
    rows: list[Row]

    def mean(self, measure: str, method: str) -> float:
        """Over seeds."""
        spread = Spread.of(row[column(measure, method)] for row in self.rows)
        assert spread is not None  # results hold finite numbers only
        return spread.mean

    @property
    def behind(self) -> tuple[float, float]:
        """Points and nats that conditioning is behind the best training on all data, by each."""
        accuracy = max(self.mean("accuracy", method) for method in TRAINED_ON_ALL)
        nlpd = min(self.mean("nlpd", method) for method in TRAINED_ON_ALL)
        points = 100 * (accuracy - self.mean("accuracy", "conditioned"))
        return points, self.mean("nlpd", "conditioned") - nlpd


def summaries(rows: Sequence[Row]) -> list[Summary]:
    """In the order of the rows."""
    keys = dict.fromkeys((row["data"], row["late"]) for row in rows)
    return [
        Summary(*key, [row for row in rows if (row["data"], row["late"]) == key]) for key in keys
    ]


def cells(one: Summary) -> list[str]:
    """The figures, in the order of `COLUMNS`."""
    pairs = [
        f"{100 * one.mean('accuracy', method):.1f} / {one.mean('nlpd', method):.2f}"
        for method in METHODS
    ]
    points, nats = one.behind
    seconds = [one.mean("seconds", method) for method in ("conditioned", "retrained")]
    return [
        one.data,
        one.late,
        *pairs,
        f"{points:+.1f} / {nats:+.2f}",
        *(f"{value:.2f} s" for value in seconds),
    ]


def write(out: Path, rows: list[Row]) -> Path:
    """Write `table.md` into `out` and return its path; rows may be those of an unfinished run."""
    return write_file(out / "table.md", markdown_table(COLUMNS, [*map(cells, summaries(rows))]))


def table(rows: list[Row]) -> Table:
    """The same, 80 columns wide: accuracy alone."""
    grid = terminal.grid(*COLUMNS[:2])
    for name in ON_TERMINAL:
        grid.add_column(name, justify="right", no_wrap=True)
    for one in summaries(rows):
        data, late, *figures = cells(one)
        shown = zip(ON_TERMINAL, figures, strict=False)  # the times are left to `table.md`
        grid.add_row(data, late, *(figure.partition(" /")[0] for _, figure in shown))
    grid.caption = (
        "Accuracy. Behind: points behind the better of tuned on all and retrained.\n"
        "table.md has NLPD and processor seconds too."
    )
    return grid
