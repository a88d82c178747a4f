"""Trained networks are saved and read again."""

from pathlib import Path

import pytest
import torch

from sfr_cl.benchmarks.uci import training
from sfr_cl.benchmarks.uci.networks import Networks
from sfr_cl.errors import FileError


def test_networks_are_saved_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PATIENCE": 20, "MOST_EPOCHS": 5}.items():
        monkeypatch.setattr(training, name, value)
    first = Networks(tmp_path, [0, 1], reuse=False).problem("glass", 1, lambda _: None)
    trained = training.train
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("trained again"))
    again = Networks(tmp_path, [0, 1], reuse=True).problem("glass", 1, lambda _: None)
    for ours, theirs in zip(first.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    # Other seeds add networks, and leave those that are there.
    monkeypatch.setattr(training, "train", trained)
    kept = Networks(tmp_path, [2], reuse=True).problem("glass", 2, lambda _: None)
    monkeypatch.setattr(training, "train", lambda *_: pytest.fail("trained again"))
    for seed, network in ((1, first.network), (2, kept.network)):
        again = Networks(tmp_path, [2, 1], reuse=True).problem("glass", seed, lambda _: None)
        assert torch.equal(again.network[0].weight, network[0].weight)
    # Another protocol is another network.
    monkeypatch.setattr(training, "train", trained)
    monkeypatch.setattr(training, "MOST_EPOCHS", 10)
    other = Networks(tmp_path, [0, 1], reuse=True).problem("glass", 1, lambda _: None)
    assert not torch.equal(other.network[0].weight, first.network[0].weight)
    (tmp_path / "glass.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(FileError, match=r"glass\.safetensors"):
        Networks(tmp_path, [0, 1], reuse=True).problem("glass", 1, lambda _: None)
