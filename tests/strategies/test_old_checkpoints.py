"""Checkpoints of earlier versions load, and go on as they would have there."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dill
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from sfr_cl import SFRPosterior
from sfr_cl.core import DualSums, State
from sfr_cl.strategies import conditioning, maybe_load_checkpoint, predictive, save_checkpoint

FIXTURES = Path(__file__).parent / "fixtures"
FOLDER = FIXTURES / "0.1.0"


@pytest.fixture(scope="module")
def make() -> Any:
    """The script that made the files."""
    spec = importlib.util.spec_from_file_location("make", FIXTURES / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NAMES = ("sfr", "consolidated", "conditioning", "regression")


OF_UNSEEN = {"saved NLPD_Stream/eval_phase/test_stream", "saved log probabilities"}
"""Version 0.1.0 gave classes that were never seen what probability was left."""


@pytest.mark.parametrize("name", NAMES)
def test_loads_and_goes_on(name: str, make: Any) -> None:
    found, expected = loaded_answers(name, make)
    assert found.keys() == expected.keys()
    of_classes = name != "regression"
    require_same(name, found, expected, expected.keys() - (OF_UNSEEN if of_classes else set()))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "regression"])
def test_only_the_classes_an_answer_covers_are_others(
    name: str, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (conditioning, predictive):
        monkeypatch.setattr(module, "of_seen_classes", lambda _, found, *_classes: found)
    found, expected = loaded_answers(name, make)
    require_same(name, found, expected, expected.keys())


def loaded_answers(name: str, make: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What a strategy that is loaded gives, and what it gave when it was saved."""
    loaded, first = maybe_load_checkpoint(make.strategy(name), FOLDER / f"{name}.checkpoint")
    assert first == make.STOP
    return make.answers(loaded, name), load_file(FOLDER / f"{name}.expected.safetensors")


def require_same(
    name: str, found: dict[str, Tensor], expected: dict[str, Tensor], keys: Iterable[str]
) -> None:
    for key in keys:
        value = expected[key]
        # Training is in float32, whose last digit depends on the processor.
        trained = name in ("sfr", "consolidated") and key.startswith("later")
        tolerance = 1e-5 if trained or value.dtype == torch.float32 else 1e-10
        torch.testing.assert_close(found[key], value, rtol=tolerance, atol=tolerance, msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_loaded_is_saved_as_of_now(name: str, make: Any, tmp_path: Path) -> None:
    loaded, _ = maybe_load_checkpoint(make.strategy(name), FOLDER / f"{name}.checkpoint")
    save_checkpoint(loaded, tmp_path / "run")
    # Without the mapping: only classes of now are in it.
    written = torch.load(tmp_path / "run", weights_only=False, pickle_module=dill)["strategy"]
    torch.manual_seed(1)
    expected = make.answers(loaded, name)
    torch.manual_seed(1)
    found = make.answers(written, name)
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_classes_are_those_of_now(make: Any) -> None:
    loaded, _ = maybe_load_checkpoint(
        make.strategy("conditioning"), FOLDER / "conditioning.checkpoint"
    )
    assert type(loaded.posterior) is SFRPosterior
    assert type(loaded.posterior.state) is State
    assert type(loaded.posterior.state.sums) is DualSums
