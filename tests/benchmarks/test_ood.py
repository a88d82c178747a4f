"""`sfr-cl ood`: scores on a toy case, every method on small images, the report, bad input."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sfr_cl.benchmarks import cli
from sfr_cl.benchmarks.harness import images as harness_images
from sfr_cl.benchmarks.harness.images import Data
from sfr_cl.benchmarks.ood import experiment, methods, problem, report, training
from sfr_cl.benchmarks.ood.experiment import auroc, entropy, measures
from sfr_cl.benchmarks.ood.methods import Moments, Predictions
from sfr_cl.benchmarks.ood.summary import checks, directions
from sfr_cl.benchmarks.report.numbers import NONE
from support.oracles import jacobian
from support.results import rows_in

Row = dict[str, Any]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few images, and short training."""
    for module, name, value in (
        (problem, "CHOSEN_ON", 40),
        (problem, "TESTED", 40),
        (methods, "NUM_INDUCING", 30),
        (methods, "DELTAS", [1.0, 100.0]),
        (training, "EPOCHS", 8),
        (training, "BATCH", 32),
    ):
        monkeypatch.setattr(module, name, value)


def images(name: str, data_root: Path | None = None) -> Data:
    """Ten classes, each a bright square in its own place; the other set has bars instead."""
    del data_root
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(240) % 10
    x = 0.1 * torch.rand(240, 1, 28, 28, generator=generator)
    for image, label in zip(x, y.tolist(), strict=True):
        row, column = 3 + 12 * (label // 5), 1 + 5 * (label % 5)
        if name == "fmnist":
            image[0, row : row + 8, column : column + 5] += 0.8
        else:
            image[0, 2 * label : 2 * label + 3] += 0.8
    return Data(name, x[:180], y[:180], x[180:], y[180:])


@pytest.fixture
def small() -> problem.Problem:
    return problem.Problem(images("fmnist"), images("mnist"), seed=0)


def test_scores_of_a_toy_case() -> None:
    assert auroc(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0])) == 1.0
    assert auroc(torch.tensor([2.0, 3.0]), torch.tensor([0.0, 1.0])) == 0.0
    assert auroc(torch.ones(3), torch.ones(4)) == 0.5
    even = torch.full((1, 4), 0.25)
    sure = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    assert entropy(torch.cat([even, sure])).tolist() == pytest.approx([1.3863, 0.0], abs=1e-4)


def test_variance_alone_tells_ood_images_with_the_same_mean() -> None:
    mean = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    near, far = torch.full((2, 2), 0.1), torch.full((2, 2), 9.0)
    known = Predictions(Moments(mean, near), Moments(mean, far), 1.0, "probit")
    found = measures(known, torch.tensor([0, 1]))
    assert found["accuracy"] == 1.0
    assert found["auroc_variance"] == found["auroc_entropy"] == 1.0
    alone = Predictions(Moments(mean), Moments(mean))
    found = measures(alone, torch.tensor([0, 1]))
    assert found["auroc_entropy"] == 0.5
    assert found["auroc_variance"] is None
    assert found["auroc_novelty"] is None


def test_most_uncertain_of_equals_is_chosen() -> None:
    y = torch.arange(100) % 2
    mean = 4.0 * torch.nn.functional.one_hot(y, 2)
    mean[:10] = -mean[:10]  # some are wrong
    tried = [Moments(mean, torch.full_like(mean, v)) for v in (1000.0, 6.0, 5.0, 0.1)]
    assert methods.most_uncertain(tried, y) == 1


@pytest.mark.parametrize("method", list(methods.METHODS))
def test_every_method_keeps_the_accuracy_and_has_its_scores(
    method: str, small: problem.Problem
) -> None:
    row = experiment.Case(small, method).run(lambda _: None)
    assert row["accuracy"] > 0.9
    assert 0 <= row["ece"] <= 1
    for score in ("auroc_variance", "auroc_novelty"):
        assert (row[score] is None) == (method == "map")
    if method in ("sfr", "gp-subset"):
        assert row["auroc_variance"] > 0.8


def test_baseline_is_what_laplace_torch_predicts(small: problem.Problem) -> None:
    baseline = methods.laplace("KronLaplace", methods.trainable(small.network))
    with methods.quiet():
        baseline.fit(methods.loader(*small.fitted))
        (found,) = methods.baseline_moments(baseline, small.test.x, [3.0])
        baseline.prior_precision = 3.0
        mean, covariance = baseline._glm_predictive_distribution(small.test.x)
    assert torch.allclose(found.mean, mean, atol=1e-5)
    assert found.variance is not None
    diagonal = covariance.diagonal(dim1=1, dim2=2)
    assert torch.allclose(found.variance, diagonal, rtol=1e-3, atol=1e-5)
    prior = jacobian(small.network, small.test.x[:3]).square().sum(2) / 3.0
    assert found.novelty is not None
    assert torch.allclose(found.novelty[:3], (diagonal[:3] / prior).mean(1), rtol=1e-3)


def test_subset_holds_the_inducing_inputs_alone(small: problem.Problem) -> None:
    z, labels = methods.inducing(small, training.DENSE_LAYERS)
    assert len(z) == len(labels) == 30
    rows = [(small.fitted.x == one).flatten(1).all(1).nonzero()[0, 0] for one in z]
    assert torch.equal(small.fitted.y[torch.stack(rows)], labels)


def test_command_writes_everything_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness_images, "idx", images)
    options = ["ood", "--out", str(tmp_path), "--seeds", "0"]
    assert cli.main([*options, "--methods", "map"]) == 0
    first = rows_in(tmp_path)
    assert [(row["data"], row["ood"]) for row in first] == [
        ("fmnist", "mnist"),
        ("mnist", "fmnist"),
    ]
    assert cli.main([*options, "--methods", "map,sfr-last-layer", "--resume"]) == 0
    assert rows_in(tmp_path)[:2] == first
    assert len(rows_in(tmp_path)) == 4
    assert {path.name for path in tmp_path.iterdir()} == {
        "results.json",
        "report.html",
        "table.md",
        "auroc.png",
        "calibration.png",
    }


def test_unknown_methods_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ood", "--methods", "sfr,swag", "--out", str(tmp_path / "out")]) == 2
    assert "expected methods of map" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--methods=", "--seeds=", "--seeds=-1"])
def test_nothing_to_run_and_impossible_seeds_are_refused(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["ood", option, "--out", str(tmp_path / "out")]) == 2
    assert "expected" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def make_row(method: str, **changes: Any) -> Row:
    return {
        "data": "fmnist",
        "ood": "mnist",
        "method": method,
        "seed": 0,
        "settings": experiment.Case(
            problem.Problem(images("fmnist"), images("mnist"), 0), method
        ).key["settings"],
        "accuracy": 0.9,
        "nlpd": 0.3,
        "ece": 0.02,
        "auroc_entropy": 0.9,
        "auroc_variance": 0.98,
        "auroc_novelty": 0.98,
        "prior_precision": 10.0,
        "link": "probit",
        "seconds": 1.0,
        "reliability_confidence": [0.5, 0.9],
        "reliability_accuracy": [0.5, 0.9],
        "reliability_count": [1, 3],
        **changes,
    }


def test_checks_follow_the_rows(tmp_path: Path) -> None:
    network = {"auroc_entropy": 0.8, "auroc_variance": None, "auroc_novelty": None}
    rows = [make_row("map", **network), make_row("kron-glm"), make_row("sfr")]
    assert all(check.met for check in checks(directions(rows)))
    scores = {"auroc_entropy": 0.79, "auroc_variance": 0.9, "auroc_novelty": 0.9}
    worse = {"accuracy": 0.89, **scores}
    behind = [*rows[:2], make_row("sfr", **worse)]
    assert not any(check.met for check in checks(directions(behind)))
    text = report.write(tmp_path, behind).read_text(encoding="utf-8")
    assert "missed" in text
    table = (tmp_path / "table.md").read_text()
    assert f"| sfr | 89.0 | {NONE} | 1 | 0.300 | 0.020 | 0.7900 | 0.9000 | 0.9000 |" in table
