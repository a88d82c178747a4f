"""Checkpoints of earlier versions load, and go on as they would have there."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import dill
import pytest
import torch
from safetensors.torch import load_file

from sfr_cl import SFRPosterior
from sfr_cl.core import DualSums, State
from sfr_cl.strategies import maybe_load_checkpoint, save_checkpoint

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


@pytest.mark.parametrize("name", NAMES)
def test_loads_and_goes_on(name: str, make: Any) -> None:
    loaded, first = maybe_load_checkpoint(make.strategy(name), FOLDER / f"{name}.checkpoint")
    assert first == make.STOP
    found = make.answers(loaded, name)
    expected = load_file(FOLDER / f"{name}.expected.safetensors")
    assert found.keys() == expected.keys()
    for key, value in expected.items():
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
