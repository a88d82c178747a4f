"""`sfr-cl figure1` runs, writes what it says, and shows what it claims."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from sfr_cl.benchmarks.figure1 import run as figure1
from sfr_cl.benchmarks.harness.results import ENVIRONMENT


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one real run has written."""
    # Folders that are not there yet, as with the default `results/figure1`.
    folder = tmp_path_factory.mktemp("figure1") / "results" / "figure1"
    torch.set_num_threads(2)  # the run takes one, and must give the other back
    generator = torch.get_rng_state()
    assert figure1.run(Namespace(out=folder)) == 0
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), generator)
    return folder


@pytest.fixture(scope="module")
def rows(out: Path) -> dict[str, dict[str, Any]]:
    """The rows of `results.json` by method."""
    content = json.loads((out / "results.json").read_text(encoding="utf-8"))
    return {row["method"]: row for row in content["rows"]}


def test_results_hold_every_posterior(rows: dict[str, dict[str, Any]]) -> None:
    assert list(rows) == ["D1 only", "updated", "retrained", "fitted on all"]
    assert [row["num_data"] for row in rows.values()] == [120, 150, 150, 150]
    for row in rows.values():
        parts = ("seconds_train", "seconds_absorb", "seconds_first_prediction")
        assert row["seconds"] == pytest.approx(sum(row[part] for part in parts))


def test_results_name_their_environment(out: Path) -> None:
    content = json.loads((out / "results.json").read_text(encoding="utf-8"))
    environment = content["environment"]
    assert environment["torch"] == torch.__version__
    assert environment["torch_threads"] == 1
    assert set(environment) == set(ENVIRONMENT)
    for row in content["rows"]:
        assert {name: row[name] for name in ENVIRONMENT} == environment


def test_update_improves_the_posterior(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["updated"]["nlpd"] < rows["D1 only"]["nlpd"] - 0.2
    assert rows["updated"]["rmse"] < rows["D1 only"]["rmse"]


def test_update_is_as_good_as_retraining_and_faster(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["updated"]["nlpd"] == pytest.approx(rows["retrained"]["nlpd"], abs=0.05)
    assert rows["updated"]["seconds"] < rows["retrained"]["seconds"]


@pytest.mark.parametrize("name", ["nlpd", "rmse", "noise_sd", "prior_precision"])
def test_update_equals_fit_on_everything(rows: dict[str, dict[str, Any]], name: str) -> None:
    assert rows["updated"][name] == pytest.approx(rows["fitted on all"][name], rel=1e-7)


def test_picture_is_a_readable_picture(out: Path) -> None:
    path = out / "figure1.png"
    assert 20_000 < path.stat().st_size < 150_000
    with Image.open(path) as picture:
        assert picture.size == (1800, 720)
        assert len(picture.convert("RGB").getcolors(maxcolors=2**24) or []) > 50
