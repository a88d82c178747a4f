"""`sfr-cl update`: halves, training, the update's own oracle, the report, resuming, bad input."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sfr_cl import SFRPosterior
from sfr_cl.benchmarks import cli
from sfr_cl.benchmarks.harness import datasets
from sfr_cl.benchmarks.update import data, experiment, report, training
from sfr_cl.benchmarks.update.data import Part, Table
from sfr_cl.benchmarks.update.experiment import Case, Problem
from sfr_cl.benchmarks.update.summary import checks, data_sets
from sfr_cl.errors import ArgumentError, DataError
from support.results import rows_in

Row = dict[str, Any]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of a second, and as few inducing inputs as they have data."""
    monkeypatch.setattr(training, "LEARNING_RATE", 1e-2)
    monkeypatch.setattr(training, "HIDDEN", 16)
    monkeypatch.setattr(training, "PATIENCE", 50)
    monkeypatch.setattr(training, "MOST_STEPS", 300)
    monkeypatch.setattr(experiment, "NUM_INDUCING", {"boston": 20})
    monkeypatch.setattr(experiment, "REPEATS", 2)


def values(rows: int = 200) -> Tensor:
    """Thirteen features, and a smooth function of two of them with noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 13, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, generator=generator, dtype=torch.float64)
    return torch.cat([x, (2 * x[:, 0].tanh() + x[:, 1] + 0.1 * noise)[:, None]], dim=1)


def table() -> Table:
    content = values()
    return Table("boston", content[:, :-1], content[:, -1:])


def write_csv(root: Path, content: Tensor) -> Path:
    path = root / "regression" / "boston.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(map(repr, row)) for row in content.tolist()]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_halves_part_the_first_feature_and_lose_no_row() -> None:
    halves = data.halves(table(), seed=0)
    parts = [[*vars(half).values()] for half in (halves.first, halves.second)]
    low, high = (torch.cat([pairs.x[:, 0] for pairs in half]) for half in parts)
    assert low.max() < high.min()
    assert [len(pairs.y) for pairs in parts[0]] == [70, 15, 15]
    assert len(low) + len(high) == 200
    train = halves.both.train
    for pairs in train:
        assert torch.allclose(pairs.mean(0), torch.zeros_like(pairs[0]), atol=1e-12)
        assert torch.allclose(pairs.std(0), torch.ones_like(pairs[0]))


def test_halves_follow_the_seed() -> None:
    once, again, other = (data.halves(table(), seed).first.train.x for seed in (0, 0, 1))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


def test_training_keeps_the_best_weights_and_learns_the_noise() -> None:
    part = data.halves(table(), seed=0).both
    shares: list[float] = []
    trained = training.train(part, 0, shares.append)
    assert 50 <= trained.steps <= 300
    assert 0 < shares[0] < shares[-1] <= 1
    constant = 0.5 * math.log(2 * math.pi * math.e)  # predicting mean and deviation
    assert trained.nlpd(part.valid) < constant / 2
    assert 0 < trained.noise_variance < 0.5


def test_training_stops_where_nothing_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "MOST_STEPS", 10_000)
    part = data.halves(table(), seed=0).first
    shuffled = part.train._replace(y=part.train.y.flip(0))
    trained = training.train(Part(shuffled, part.valid, part.test), 0)
    assert trained.steps < 5_000


@pytest.mark.parametrize("kernel", experiment.KERNELS)
@pytest.mark.parametrize("mean", ["natural", "network"])
def test_row_is_that_of_a_posterior_fitted_at_once(kernel: str, mean: str) -> None:
    problem = Problem(table(), 0)
    row = Case(problem, kernel, mean).run(lambda _: None)
    first, second, test = problem.halves.first, problem.halves.second, problem.halves.both.test
    torch.manual_seed(0)
    chosen = SFRPosterior(
        problem.before.network, "regression", inducing=20, parameters=kernel, mean=mean
    ).fit(first.train)
    assert row["nlpd_before"] == pytest.approx(chosen.nlpd(test))
    late = SFRPosterior(
        problem.before.network,
        "regression",
        inducing=chosen.inducing_inputs,
        parameters=kernel,
        mean=mean,
    )
    if mean == "natural":
        late.fit(first.train + second.train)
    else:  # the network was trained on D1 alone, which is part of what it says
        late.fit(first.train).update(second.train)
    assert row["nlpd_updated"] == pytest.approx(late.nlpd(test))
    assert row["nlpd_updated"] < row["nlpd_before"]
    assert 0 < row["seconds_update"] < row["seconds_retrain"]


def test_timing_leaves_the_posterior_as_it_is() -> None:
    halves = data.halves(table(), seed=0)
    network = training.new_network(13, 0)
    posterior = SFRPosterior(network, "regression", inducing=20).fit(halves.first.train)
    before = posterior.nlpd(halves.both.test)
    assert min(experiment.update_seconds(posterior, halves.second.train, halves.both.test.x)) > 0
    assert posterior.num_data == len(halves.first.train.y)
    assert posterior.nlpd(halves.both.test) == before


def run_command(root: Path, out: Path, *options: str) -> int:
    arguments = ["update", "--data", "boston", "--data-root", str(root), "--out", str(out)]
    return cli.main([*arguments, *options])


def test_command_writes_everything_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_csv(tmp_path, values())
    out = tmp_path / "out"
    assert run_command(tmp_path, out, "--seeds", "0") == 0
    rows = rows_in(out)
    forms = {(row["parameters"], row["mean"]) for row in rows}
    assert forms == {(k, m) for k in experiment.KERNELS for m in experiment.MEANS}
    assert {path.name for path in out.iterdir()} == {
        "results.json",
        "report.html",
        "table.md",
        "nlpd.png",
        "seconds.png",
    }
    assert "boston" in capsys.readouterr().out
    assert run_command(tmp_path, out, "--seeds", "0,1", "--resume") == 0
    resumed = rows_in(out)
    assert resumed[: len(rows)] == rows  # the times they took included
    assert {row["seed"] for row in resumed[len(rows) :]} == {1}


def make_row(mean: str, seed: int, **changes: Any) -> Row:
    numbers = {
        "nlpd_before": 2.0,
        "nlpd_updated": 1.25,
        "nlpd_retrained": 1.0,
        "nlpd_updated_validation": 1.3,
        "nlpd_network_before": 5.0,
        "nlpd_network_retrained": 1.1,
        "seconds_update": 0.004,
        "seconds_first_prediction": 0.009,
        "seconds_retrain": 2.0,
    }
    key = {"data": "boston", "parameters": "all", "mean": mean, "seed": seed, "inducing_used": 20}
    return {**key, **numbers, **changes}


def test_form_is_chosen_on_validation_and_checks_follow_the_rows(tmp_path: Path) -> None:
    better = {"nlpd_updated": 1.0, "nlpd_updated_validation": 1.4, "nlpd_before": 1.5}
    rows = [make_row("natural", 0), make_row("natural", 1), make_row("network", 0, **better)]
    (one,) = data_sets(rows)
    assert one.chosen.mean == "natural"  # though the other's test NLPD is better
    assert one.chosen.closed == pytest.approx(0.75)
    assert one.chosen.ratio == pytest.approx(2.0 / (0.004 + 0.009))
    assert one.best_before == 1.5
    assert one.closed_between_bests == pytest.approx(0.5)
    assert [check.met for check in checks([one])] == [True, True]
    slow = [make_row("natural", 0, nlpd_updated=1.5, seconds_update=0.02)]
    assert [check.met for check in checks(data_sets(slow))] == [False, False]
    text = report.write(tmp_path, slow).read_text(encoding="utf-8")
    assert "missed" in text
    assert "| boston | 2.00 | 1.50 | 1.00 | 50% |" in (tmp_path / "table.md").read_text("utf-8")


def test_missing_table_is_refused_with_its_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SFR_CL_DATA", raising=False)
    monkeypatch.setattr(datasets, "roots", lambda root: [root])
    assert run_command(tmp_path, tmp_path / "out") == 2
    message = capsys.readouterr().err
    assert "expected regression/boston.csv (13 features" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("nothing", "message"),
    [("--data=", "expected data of "), ("--seeds=", "expected seeds ")],
)
def test_nothing_to_run_is_refused(
    nothing: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(tmp_path, tmp_path / "out", nothing) == 2
    refusal = capsys.readouterr().err
    assert message in refusal
    assert "got none" in refusal
    assert not (tmp_path / "out").exists()


def test_wrong_tables_are_refused(tmp_path: Path) -> None:
    content = values(20)
    write_csv(tmp_path, content[:, 1:])
    with pytest.raises(DataError, match=r"expected 14 columns .* got 13"):
        data.load("boston", tmp_path)
    content[3, 2] = math.nan
    path = write_csv(tmp_path, content)
    with pytest.raises(DataError, match="finite"):
        data.load("boston", tmp_path)
    path.write_text("crime,rooms\n1,2\n", encoding="utf-8")
    with pytest.raises(DataError, match="numbers separated by commas"):
        data.load("boston", tmp_path)
    with pytest.raises(ArgumentError, match="airfoil"):
        data.load("wine", tmp_path)


def test_real_tables_have_their_shapes(data_root: Path) -> None:
    shapes = {name: tuple(data.load(name, data_root).x.shape) for name in data.FEATURES}
    assert shapes == {"airfoil": (1503, 5), "boston": (506, 13), "protein": (45730, 9)}
