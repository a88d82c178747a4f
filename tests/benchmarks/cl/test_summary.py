"""Rows are gathered by strategy without loss; rows that don't belong together are refused."""

import numpy as np
import pytest

from sfr_cl.benchmarks.cl import report_settings, summary, tune
from sfr_cl.benchmarks.cl.strategies import RECIPES
from sfr_cl.benchmarks.report.seeds import Spread
from sfr_cl.errors import DataError
from support.report_rows import BINS, Row, make_row, make_rows


def one(rows: list[Row]) -> summary.Strategy:
    (strategy,) = summary.strategies(rows)
    return strategy


def test_best_come_first() -> None:
    strategies = summary.strategies(make_rows(["naive", "sfr", "joint", "ewc"]))
    means = [strategy.measures["accuracy"].mean for strategy in strategies]
    assert means == sorted(means, reverse=True)
    assert strategies[0].name == "joint"


def test_measures_are_over_seeds() -> None:
    rows = make_rows(["sfr"])
    for measure, spread in one(rows).measures.items():
        values = [row[measure] for row in rows]
        assert spread.mean == pytest.approx(sum(values) / 3)
        assert spread.sd == pytest.approx(np.std(values, ddof=1))
        assert (spread.low, spread.high) == (min(values), max(values))


def test_one_seed_has_no_deviation_and_missing_values_are_left_out() -> None:
    rows = make_rows(["sfr"], 2)
    rows[0]["nlpd"] = None
    rows[0]["ece"] = rows[1]["ece"] = None
    measures = one(rows).measures
    assert measures["nlpd"] == Spread.of([rows[1]["nlpd"]])
    assert measures["nlpd"].sd is None
    assert measures["ece"] is None


def test_curve_is_the_mean_over_experiences_seen() -> None:
    rows = make_rows(["replay"])
    for i, value in enumerate(one(rows).curve):
        seen = [row["accuracy_matrix"][i][j] for row in rows for j in range(i + 1)]
        assert value == pytest.approx(sum(seen) / len(seen))


def test_training_once_is_a_curve_of_its_end() -> None:
    rows = make_rows(["joint"])
    assert len(rows[0]["accuracy_matrix"]) == 1
    assert one(rows).curve == pytest.approx([np.mean([row["accuracy"] for row in rows])])


def test_reliability_pools_the_predictions_of_all_seeds() -> None:
    rows = make_rows(["agem"])
    rows[0]["reliability_count"][-1] = 0  # empty for one seed only
    rows[0]["reliability_accuracy"][-1] = rows[0]["reliability_confidence"][-1] = None
    bins = one(rows).reliability
    total = sum(sum(row["reliability_count"]) for row in rows)
    expected = []
    for b in range(BINS):
        count = sum(row["reliability_count"][b] for row in rows)
        right = sum(
            row["reliability_count"][b] * (row["reliability_accuracy"][b] or 0) for row in rows
        )
        if count:
            expected.append((right / count, count / total))
    assert len(expected) == BINS - 2
    np.testing.assert_allclose(np.stack([bins.accuracy, bins.share], 1), expected)


def test_rows_without_bins_have_no_reliability() -> None:
    rows = make_rows(["sfr"])
    for row in rows:
        row["reliability_count"] = [0] * BINS
    assert one(rows).reliability is None
    del rows[0]["reliability_count"], rows[1]["reliability_count"], rows[2]["reliability_count"]
    assert one(rows).reliability is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "fmnist"}, "one data set and scenario.*one report for each"),
        ({"scenario": "task"}, "one data set and scenario.*one report for each"),
        ({"seed": 0}, "one row per strategy and seed, got 2 of .'sfr', 0.: write runs"),
        ({"accuracy_matrix": [[1.0]]}, "matrices of one shape for sfr"),
    ],
)
def test_rows_that_do_not_belong_together_are_refused(change: Row, message: str) -> None:
    rows = make_rows(["sfr"], 2)
    with pytest.raises(DataError, match=message):
        summary.strategies([rows[0], rows[1] | change])


def test_settings_are_listed_once_unless_seeds_differ() -> None:
    rows = make_rows(["sfr"])
    (used,) = report_settings.used(one(rows))
    assert used.seeds == []
    assert used.chosen_by == "published"
    assert ("tau", "0.5") in used.values
    rows[1]["settings"] = rows[1]["settings"] | {"tau": 1.0}
    assert [used.seeds for used in report_settings.used(one(rows))] == [[0, 2], [1]]


def test_shared_settings_are_those_of_everyone() -> None:
    strategies = summary.strategies(make_rows(["sfr", "ewc", "naive"], 1))
    everyone = [used for strategy in strategies for used in report_settings.used(strategy)]
    expected = [("hidden", "256, 256"), ("lr", "0.0001"), ("epochs", "5"), ("batch", "32")]
    assert report_settings.shared(everyone) == expected
    assert report_settings.shared(everyone[:1]) == []


@pytest.mark.parametrize(("name", "label", "edge"), [("ewc", "10000", True), ("der", "0.3", False)])
def test_value_in_use_is_marked_in_its_grid(name: str, label: str, edge: bool) -> None:
    strategy = one(make_rows([name]))
    (used,) = report_settings.used(strategy)
    assert [tried.label for tried in used.grid if tried.best] == [label]
    assert used.validation == "a tenth of the training data, seed 0"
    assert used.edge is edge
    assert strategy.on_edge is edge


def test_of_equal_values_the_one_in_use_is_marked() -> None:
    row = make_row("der", 0)
    for tried in row["settings"]["grid"]:
        tried["accuracy"] = 0.9
    (used,) = report_settings.used(one([row]))
    assert [tried.best for tried in used.grid] == [False, True, False]


def test_grids_may_have_entries_of_several_values() -> None:
    row = make_row("sfr", 0)
    row["settings"]["grid"] = [
        {"values": {"tau": tau, "lr": 0.1}, "accuracy": score}
        for tau, score in ((1, 0.5), (2, None), (3, 0.7))
    ]
    (used,) = report_settings.used(one([row]))
    assert [(tried.label, tried.accuracy, tried.best) for tried in used.grid] == [
        ("tau 1, lr 0.1", "50.0", False),
        ("tau 2, lr 0.1", "\N{EN DASH}", False),
        ("tau 3, lr 0.1", "70.0", True),
    ]


@pytest.mark.parametrize("position", [0, 1, -1])
def test_settings_that_tune_wrote_are_understood(position: int) -> None:
    grid = list(RECIPES["ewc"].grid)
    shared = {"parameter": "ewc_lambda", "accuracy": 0.5, "nlpd": 1.0, "seed": 3, "tasks": None}
    trials = [{**shared, "value": value} for value in grid]
    trials[position]["accuracy"] = 0.6
    entry = tune.choose("ewc", trials)
    settings = {"lr": 0.1} | entry["values"] | {k: v for k, v in entry.items() if k != "values"}
    strategy = one([make_row("ewc", 0) | {"settings": settings}])
    (used,) = report_settings.used(strategy)
    assert used.values == [("lr", "0.1"), ("ewc_lambda", f"{grid[position]:g}")]
    assert [tried.best for tried in used.grid].index(True) == grid.index(grid[position])
    assert strategy.on_edge is used.edge is (position != 1)
    assert used.validation.endswith("seed 3")


def test_accuracies_of_both_rounds_are_shown() -> None:
    grid = [{"value": 1.0, "accuracy": 0.5}, {"value": 2.0, "accuracy": 0.6, "accuracy_all": 0.4}]
    settings = {"alpha": 2.0, "parameter": "alpha", "grid": grid}
    (used,) = report_settings.used(one([make_row("lwf", 0) | {"settings": settings}]))
    assert [(tried.label, tried.accuracy) for tried in used.grid] == [
        ("1", "50.0"),
        ("2", "60.0, 40.0"),
    ]


def test_settings_may_be_missing() -> None:
    row = make_row("sfr", 0)
    del row["settings"]
    strategy = one([row])
    (used,) = report_settings.used(strategy)
    assert (used.values, used.grid, used.edge, strategy.on_edge) == ([], [], False, False)
