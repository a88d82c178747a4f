"""A child process that learns and saves, killed at random instants, loses nothing.

Quick here; two hundred kills with ``pytest -m long tests/streaming/test_kills.py``.
"""

import multiprocessing
import random
import time
from pathlib import Path

import pytest
import torch

from sfr_cl import StreamingPosterior
from support.killed_streams import learn_and_save
from support.posteriors import mlp
from support.streams import assert_same_sums, samples, sums

SAMPLES = 60_000
"""More than a child learns before it is killed."""


@pytest.mark.parametrize("kills", [12, pytest.param(200, marks=pytest.mark.long)])
def test_killed_at_any_instant(kills: int, tmp_path: Path) -> None:
    path = tmp_path / "stream"
    # Children are forked from one process that has imported everything, and nothing more.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sfr_cl", "support.killed_streams"])
    delays = random.Random(0)
    done = 0
    for _ in range(kills):
        child = context.Process(target=learn_and_save, args=(path, SAMPLES))
        child.start()
        before, deadline = _saved(path), time.monotonic() + 120
        while _saved(path) == before and time.monotonic() < deadline:
            time.sleep(0.005)  # so that every child gets somewhere
        time.sleep(delays.uniform(0, 0.05))
        assert child.is_alive()
        child.kill()
        child.join()
        live, cursor = StreamingPosterior.load(path, mlp())  # complete, whatever was being written
        assert cursor == live.n_seen > done
        done = cursor
    end = done + 30
    child = context.Process(target=learn_and_save, args=(path, end))
    child.start()
    child.join()
    assert child.exitcode == 0
    survivor, cursor = StreamingPosterior.load(path, mlp())
    assert cursor == end
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []
    never_killed = tmp_path / "complete"
    learn_and_save(never_killed, end)
    complete, _ = StreamingPosterior.load(never_killed, mlp())
    assert_same_sums(sums(survivor), sums(complete), 1e-9)
    x = samples()[0]
    torch.testing.assert_close(
        survivor.predict_proba_many(x), complete.predict_proba_many(x), rtol=0, atol=1e-9
    )


def _saved(path: Path) -> int | None:
    """Which save is the last."""
    return path.stat().st_ino if path.exists() else None
