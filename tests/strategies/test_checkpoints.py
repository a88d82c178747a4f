"""A run stopped and resumed from a checkpoint is, bit for bit, the run never stopped."""

import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dill
import numpy as np
import pytest
import torch

from sfr_cl.errors import ArgumentError, FileError
from sfr_cl.strategies.checkpoints import maybe_load_checkpoint, save_checkpoint
from support.checkpointed_runs import (
    EXPERIENCES,
    PLUGINS,
    STOP,
    Labelled,
    advance,
    benchmark,
    naive,
    outcome,
    resumed,
    seed_all,
    stopped,
    straight,
)
from support.paths import ROOT

# LBFGS steps by a closure, SparseAdam takes sparse gradients: no Avalanche template gives either.
LEFT_OUT = {"Optimizer", "LBFGS", "SparseAdam"}
OPTIMIZERS = [
    name
    for name in torch.optim.__all__
    if isinstance(getattr(torch.optim, name), type) and name not in LEFT_OUT
]


# Resumed equals never stopped -------------------------------------------------------------------


def assert_resumes(path: Path, **options: Any) -> None:
    expected = straight(**options)
    stopped(path, **options)
    found = resumed(path, **options)
    assert len(expected["metrics"]["NLPD_Stream/eval_phase/test_stream/Task000"][1]) >= EXPERIENCES
    assert found == expected


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_with_any_optimizer(optimizer: str, tmp_path: Path) -> None:
    assert_resumes(tmp_path / "run", optimizer=optimizer)


def test_the_optimizers_are_those_of_torch() -> None:
    assert {"SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam"} <= set(OPTIMIZERS)
    assert {"RAdam", "RMSprop", "ASGD", "Rprop"} <= set(OPTIMIZERS)


# It warns of the first evaluation whenever an experience begins.
@pytest.mark.filterwarnings("ignore:Metric Loss_Stream used by the EarlyStopping plugin")
@pytest.mark.parametrize("plugins", [name for name in PLUGINS if name != "none"])
def test_with_other_plugins(plugins: str, tmp_path: Path) -> None:
    assert_resumes(tmp_path / "run", optimizer="Adam", plugins=plugins)


def test_with_a_growing_head(tmp_path: Path) -> None:
    assert_resumes(tmp_path / "run", optimizer="Adam", grow=True)


def test_in_a_fresh_process(tmp_path: Path) -> None:
    expected = straight(optimizer="AdamW", plugins="replay and EWC")
    stopped(tmp_path / "run", optimizer="AdamW", plugins="replay and EWC")
    script = (
        "import json, sys, torch; from pathlib import Path\n"
        "from support.checkpointed_runs import resumed\n"
        "torch.set_num_threads(1)\n"
        "found = resumed(Path(sys.argv[1]), optimizer='AdamW', plugins='replay and EWC')\n"
        "Path(sys.argv[2]).write_text(json.dumps(found))\n"
    )
    found = tmp_path / "found.json"
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run"), str(found)],
        cwd=ROOT / "tests",
        check=True,
        stdout=subprocess.DEVNULL,
    )
    assert json.loads(found.read_text()) == expected


def test_stopped_twice(tmp_path: Path) -> None:
    """A checkpoint of a resumed run is as good as that of one begun here."""
    expected = straight(optimizer="Adam")
    stopped(tmp_path / "run", optimizer="Adam")
    scenario, first = benchmark(), 0
    for end in range(STOP + 1, EXPERIENCES + 1):
        seed_all(end)
        strategy, first = maybe_load_checkpoint(naive("Adam"), tmp_path / "run")
        assert first == end - 1
        advance(strategy, scenario, first, end)
        save_checkpoint(strategy, tmp_path / "run")
    assert outcome(strategy) == expected


# What comes back --------------------------------------------------------------------------------


def test_no_file_is_a_run_not_begun(tmp_path: Path) -> None:
    strategy = naive("Adam")
    before = dict(vars(strategy))
    assert maybe_load_checkpoint(strategy, tmp_path / "none") == (strategy, 0)
    assert maybe_load_checkpoint(strategy, str(tmp_path / "none")) == (strategy, 0)
    assert vars(strategy) == before


def test_what_was_made_before_is_stale(tmp_path: Path) -> None:
    stopped(tmp_path / "run", optimizer="Adam")
    strategy = naive("Adam")
    network, optimizer = strategy.model, strategy.optimizer
    loaded, _ = maybe_load_checkpoint(strategy, tmp_path / "run")
    assert loaded is strategy
    assert strategy.model is not network
    assert strategy.optimizer is not optimizer
    stepped = {id(p) for group in strategy.optimizer.param_groups for p in group["params"]}
    assert stepped == {id(p) for p in strategy.model.parameters()}


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), {"cpu": "cpu"}])
def test_map_location(device: Any, tmp_path: Path) -> None:
    saved = stopped(tmp_path / "run", optimizer="Adam")
    strategy, _ = maybe_load_checkpoint(naive("Adam"), tmp_path / "run", map_location=device)
    assert strategy.device == torch.device("cpu")
    for name, value in saved.model.state_dict().items():
        assert torch.equal(strategy.model.state_dict()[name], value)


def test_unique_objects_are_not_made_again(tmp_path: Path) -> None:
    strategy, data = naive("Adam"), Labelled(0)
    strategy.data = data
    save_checkpoint(strategy, tmp_path / "run")
    again, _ = maybe_load_checkpoint(naive("Adam"), tmp_path / "run", unique_objects=[data])
    assert again.data is data
    made, _ = maybe_load_checkpoint(naive("Adam"), tmp_path / "run")
    assert made.data is not data
    assert torch.equal(made.data.tensors[0], data.tensors[0])


def test_excluded_attributes_stay(tmp_path: Path) -> None:
    saved = naive("Adam")
    saved.train_epochs = 7
    save_checkpoint(saved, tmp_path / "run", exclude=["optimizer"])
    assert saved.optimizer is not None
    strategy = naive("Adam")
    optimizer = strategy.optimizer
    maybe_load_checkpoint(strategy, tmp_path / "run")
    assert strategy.optimizer is optimizer
    assert strategy.train_epochs == 7


def test_torch_is_left_as_found(tmp_path: Path) -> None:
    before = dict(vars(torch.optim))
    stopped(tmp_path / "run", optimizer="Adam")
    maybe_load_checkpoint(naive("Adam"), tmp_path / "run")
    assert vars(torch.optim) == before


# What goes wrong --------------------------------------------------------------------------------


def test_exclude_names_attributes(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"got \['optimiser'\]"):
        save_checkpoint(naive("Adam"), tmp_path / "run", exclude=["optimiser"])
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    strategy = stopped(tmp_path / "run", optimizer="Adam")
    content = (tmp_path / "run").read_bytes()
    strategy.unfinished = iter_nothing()
    with pytest.raises(TypeError, match="generator"):
        save_checkpoint(strategy, tmp_path / "run")
    assert (tmp_path / "run").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert not hasattr(torch.optim, "adam")


def iter_nothing() -> Iterator[None]:
    yield


def test_a_killed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the last step, all that is written is beside the file."""
    strategy = stopped(tmp_path / "run", optimizer="Adam")
    content = (tmp_path / "run").read_bytes()
    seen = []

    def killed(source: Any, target: Any) -> None:
        seen.append((torch.load(source, weights_only=False, pickle_module=dill), Path(target)))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(strategy, tmp_path / "run")
    (written, target) = seen[0]
    assert (written["exp_counter"], target) == (STOP, tmp_path / "run")
    assert (tmp_path / "run").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def damaged(whole: bytes) -> dict[str, bytes]:
    return {
        "empty": b"",
        "text": b"accuracy,loss\n0.9,0.1\n",
        "truncated": whole[: len(whole) // 2],
        "last byte missing": whole[:-1],
        "pickle": pickle.dumps({"strategy": 1}),
    }


DAMAGES = list(damaged(b""))


@pytest.mark.parametrize("damage", [*DAMAGES, "weights", "no strategy"])
def test_a_file_that_is_no_checkpoint(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    strategy = stopped(path, optimizer="Adam")
    if damage in DAMAGES:
        path.write_bytes(damaged(path.read_bytes())[damage])
    elif damage == "weights":
        torch.save(strategy.model.state_dict(), path)
    else:
        written = torch.load(path, weights_only=False, pickle_module=dill)
        torch.save({**written, "strategy": None}, path, pickle_module=dill)
    seed_all(2)
    before, state = dict(vars(strategy)), torch.get_rng_state()
    others = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    with pytest.raises(FileError, match="to be a checkpoint written by save_checkpoint"):
        maybe_load_checkpoint(strategy, path)
    assert vars(strategy) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == others  # noqa: NPY002


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="directory"):
        maybe_load_checkpoint(naive("Adam"), tmp_path)
