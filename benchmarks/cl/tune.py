"""One value per strategy, chosen on data held out of the training data: `sfr-cl tune`.

Every strategy gets as many trials. The test data is never touched.
"""

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from rich.table import Table

from ..harness.exit_codes import DONE
from ..harness.images import Data
from ..harness.results import Row, set_aside, write_file
from ..harness.run import DivergedError, ShowShare, announce, is_row_of, work_through
from . import settings
from .data import hold_out
from .experiment import Case
from .settings import Setting
from .strategies import RECIPES

VALIDATION = "a tenth of the training data, stratified, drawn with the seed"


@dataclass(frozen=True)
class Trial:
    """One value of one strategy."""

    case: Case
    parameter: str
    value: float

    fixed: ClassVar[Sequence[str]] = Case.fixed
    varies: ClassVar[Sequence[str]] = (*Case.varies, "tasks", "parameter", "value")

    @property
    def key(self) -> Row:
        return {
            **self.case.key,
            "tasks": self.case.tasks,
            "parameter": self.parameter,
            "value": self.value,
        }

    @property
    def label(self) -> str:
        return f"{self.case.strategy}, {self.parameter} {self.value:g}"

    def run(self, show: ShowShare) -> Row:
        """The validation row; a value that makes training diverge has accuracy 0."""
        try:
            row = self.case.run(show)
        except DivergedError:
            return {**self.key, "accuracy": 0.0, "nlpd": None, "seconds": 0.0}
        return {**self.key, **{name: row[name] for name in ("accuracy", "nlpd", "seconds")}}

    def line(self, row: Row) -> str:
        """The row in short."""
        return self.case.line(row)


def run(
    cases: Sequence[Case],
    content: dict[str, Any],
    out: Path,
    command: str,
    *,
    tasks: int | None,
    then_all: bool,
    resume: bool,
) -> int:
    """Try every value of every strategy's grid; write `content` with what was chosen: exit code."""
    console = Console()
    held = hold_out(cases[0].data, cases[0].seed)
    trials = [trial for case in cases for trial in trials_of(case, held, tasks)]
    rows, status = work_through(trials, out, command, resume=resume, console=console)
    if then_all and status == DONE:
        trials += [
            trial
            for case in cases
            for trial in trials_of(case, held)
            if trial.value in best_half(case.strategy, of(trials, case, rows))
        ]
        rows, status = work_through(trials, out, command, resume=True, console=console)
    chosen = {
        case.strategy: choose(case.strategy, of(trials, case, rows), tasks, then_all=then_all)
        for case in cases
    }
    complete = {name: entry for name, entry in chosen.items() if entry is not None}
    if complete:
        if not resume:
            set_aside(out / settings.file_name(cases[0].data.name, cases[0].scenario))
        path = write(content, cases[0], complete, out)
        console.print(table(complete))
        announce(console, "settings", path)
        line = (
            f"To compare with them: sfr-cl cl --settings {path}, and the same --data and --memory"
        )
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    return status


def trials_of(case: Case, held: Data, tasks: int | None = None) -> list[Trial]:
    """A trial for each value of the grid; `held` has validation data for test data."""
    recipe = RECIPES[case.strategy]
    return [
        Trial(
            Case(
                data=held,
                scenario=case.scenario,
                strategy=case.strategy,
                seed=case.seed,
                memory=case.memory,
                setting=Setting(case.setting.common, {**case.setting.own, recipe.tuned: value}),
                tasks=tasks,
            ),
            recipe.tuned,
            value,
        )
        for value in recipe.grid
    ]


def of(trials: Sequence[Trial], case: Case, rows: Sequence[Row]) -> list[Row]:
    """The rows of a case's trials."""
    own = [trial for trial in trials if trial.case.strategy == case.strategy]
    return [row for row in rows if any(is_row_of(row, trial) for trial in own)]


def merit(row: Row) -> tuple[float, float]:
    """The more accurate; of those that are equal, the one with the lower NLPD."""
    return row["accuracy"], -float("inf") if row["nlpd"] is None else -row["nlpd"]


def best_half(strategy: str, rows: Sequence[Row]) -> set[float]:
    """The values that are tried on all tasks."""
    ranked = sorted(rows, key=merit, reverse=True)
    return {row["value"] for row in ranked[: len(RECIPES[strategy].grid) // 2]}


def choose(
    strategy: str, rows: Sequence[Row], tasks: int | None = None, *, then_all: bool = False
) -> dict[str, Any] | None:
    """The settings entry of a strategy; `None` while trials are missing.

    The rows are of the first `tasks`, and, with `then_all`, of all tasks for the better half of
    the values, among which the choice is.
    """
    grid = RECIPES[strategy].grid
    first = {row["value"]: row for row in rows if row["tasks"] == tasks}
    last = {row["value"]: row for row in rows if row["tasks"] is None} if then_all else first
    if set(first) != set(grid) or len(last) < len(grid) // 2:
        return None
    best = max(last, key=lambda value: merit(last[value]))
    validation = VALIDATION
    if tasks is not None:
        validation += f"; the first {tasks} tasks"
    if then_all:
        validation += ", then all for the better half"
    tried = []
    for value in grid:
        tried.append({"value": value, "accuracy": first[value]["accuracy"]})
        if then_all and value in last:
            tried[-1]["accuracy_all"] = last[value]["accuracy"]
    return {
        "values": {rows[0]["parameter"]: best},
        "chosen_by": "tune",
        "parameter": rows[0]["parameter"],
        "grid": tried,
        "on_edge": best in (grid[0], grid[-1]),
        "tuning_seed": rows[0]["seed"],
        "validation": validation,
    }


def write(content: dict[str, Any], case: Case, chosen: dict[str, Any], out: Path) -> Path:
    """The settings file in `out`: the present settings, and the chosen ones over them."""
    renewed = copy.deepcopy(content) | {"data": case.data.name, "scenario": case.scenario}
    _, nearest = settings.entry(renewed, case.memory)
    entry = renewed["memories"].setdefault(str(case.memory), copy.deepcopy(nearest))
    for strategy, choice in chosen.items():
        present = entry["strategies"].get(strategy, {"values": {}})
        values = {**present["values"], **choice["values"]}
        entry["strategies"][strategy] = {**choice, "values": values}
    path = out / settings.file_name(case.data.name, case.scenario)
    return write_file(path, json.dumps(renewed, indent=2) + "\n")


def table(chosen: dict[str, Any]) -> Table:
    """What was tried, and chosen."""
    result = Table(title="Chosen on data held out of the training data", caption="* edge of grid")
    for name in ("strategy", "parameter", "chosen", "accuracy", "tried"):
        result.add_column(name)
    for strategy, choice in chosen.items():
        best = choice["values"][choice["parameter"]]
        accuracies = {
            trial["value"]: trial.get("accuracy_all", trial["accuracy"]) for trial in choice["grid"]
        }
        result.add_row(
            strategy,
            choice["parameter"],
            f"{best:g}{'*' if choice['on_edge'] else ''}",
            f"{accuracies[best]:.3f}",
            ", ".join(f"{value:g}" for value in accuracies),
        )
    return result
