"""Every strategy on Split-Digits, shortened: a row of finite numbers, the same twice."""

import json
import math
from typing import Any

import pytest

from sfr_cl.benchmarks.cl import names
from sfr_cl.benchmarks.cl.strategies import RECIPES, Stores
from sfr_cl.benchmarks.harness.measure import BINS
from support.cl_runs import DIGITS, MEMORY, short_case, short_row

API_KEYS = {
    "data",
    "scenario",
    "strategy",
    "seed",
    "accuracy",
    "accuracy_matrix",
    "forgetting",
    "nlpd",
    "ece",
    "seconds",
    "stored_samples",
    "state_bytes",
}
NUM_TASKS = 5


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    """Rows by strategy, each made by the first test that asks."""
    return {}


def row_of(strategy: str, rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if strategy not in rows:
        rows[strategy] = short_row(strategy)
    return rows[strategy]


def without_time(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "seconds"}


def numbers(value: Any) -> list[float]:
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [value] if isinstance(value, int | float) else []


@pytest.mark.parametrize("strategy", RECIPES)
def test_row_is_complete_and_finite(strategy: str, rows: dict[str, dict[str, Any]]) -> None:
    row = row_of(strategy, rows)
    assert set(row) >= API_KEYS
    assert all(math.isfinite(number) for value in row.values() for number in numbers(value))
    assert json.loads(json.dumps(row)) == row
    matrix = row["accuracy_matrix"]
    assert len(matrix) == (1 if strategy == "joint" else NUM_TASKS)
    assert all(len(after) == NUM_TASKS for after in matrix)
    assert row["accuracy"] == pytest.approx(sum(matrix[-1]) / NUM_TASKS)
    assert sum(row["reliability_count"]) == len(DIGITS.y_test)
    assert len(row["reliability_confidence"]) == len(row["reliability_accuracy"]) == BINS
    assert row["seconds"] > 0


@pytest.mark.parametrize(
    "strategy", ["sfr", "sfr-l2", "sfr-condition", "replay+sfr", "joint", "replay", "der++", "gem"]
)
def test_strategies_that_remember_do(strategy: str, rows: dict[str, dict[str, Any]]) -> None:
    assert row_of(strategy, rows)["accuracy"] > 0.4
    assert row_of("naive", rows)["accuracy"] < 0.25


@pytest.mark.parametrize("strategy", RECIPES)
def test_same_seed_gives_the_same_numbers(strategy: str, rows: dict[str, dict[str, Any]]) -> None:
    assert without_time(short_row(strategy)) == without_time(row_of(strategy, rows))


def test_another_seed_gives_other_numbers(rows: dict[str, dict[str, Any]]) -> None:
    assert short_row("replay", seed=1)["nlpd"] != row_of("replay", rows)["nlpd"]


@pytest.mark.parametrize(
    ("strategy", "scenario"),
    [(name, scenario) for scenario in ("domain", "task") for name in names.able(scenario)],
)
def test_other_scenarios_run(strategy: str, scenario: str) -> None:
    row = short_row(strategy, scenario)
    assert all(math.isfinite(number) for value in row.values() for number in numbers(value))
    assert row["accuracy"] > 0.4  # of two classes


@pytest.mark.parametrize("strategy", RECIPES)
def test_what_is_stored_is_what_was_asked_for(
    strategy: str, rows: dict[str, dict[str, Any]]
) -> None:
    row = row_of(strategy, rows)
    if strategy == "replay+sfr":
        assert row["stored_samples"] == 2 * NUM_TASKS * MEMORY  # of each of its two parts
    elif strategy == "joint":
        assert row["stored_samples"] == len(DIGITS.x_train)
    elif RECIPES[strategy].stores is Stores.NOTHING:
        assert row["stored_samples"] == 0
    else:
        assert row["stored_samples"] == NUM_TASKS * MEMORY


def test_bytes_of_the_state(rows: dict[str, dict[str, Any]]) -> None:
    weights = 4 * (64 * 32 + 32 + 32 * 10 + 10)
    sample = 64 * 4 + 2 * 8  # pixels, label and task label
    assert row_of("naive", rows)["state_bytes"] == 0
    assert row_of("joint", rows)["state_bytes"] == len(DIGITS.x_train) * sample
    assert row_of("ewc", rows)["state_bytes"] == NUM_TASKS * 2 * weights
    assert row_of("lwf", rows)["state_bytes"] == weights
    assert row_of("replay", rows)["state_bytes"] == NUM_TASKS * MEMORY * sample
    assert row_of("der", rows)["state_bytes"] == NUM_TASKS * MEMORY * (sample + 10 * 4)


def test_every_strategy_gets_as_many_trials() -> None:
    assert len({len(recipe.grid) for recipe in RECIPES.values()}) == 1
    for name, recipe in RECIPES.items():
        assert list(recipe.grid) == sorted(set(recipe.grid)), name


def test_all_train_the_same_way_unless_settings_say_otherwise() -> None:
    shared = ("network", "hidden", "optimizer", "lr", "batch", "epochs")
    common = short_case("naive").setting.common
    for name, recipe in RECIPES.items():
        values = short_case(name).values
        if recipe.trains:
            assert {key: values[key] for key in shared} == {key: common[key] for key in shared}
        else:
            assert "lr" not in values
