"""Nothing is built twice: one deep copy of the network, and one probe of its kernel."""

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sfr_cl import SFRPosterior, StreamingPosterior
from sfr_cl.kernel import layers, plan
from support.posteriors import data, inputs, mlp


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a network is copied, and a kernel probed."""
    counts: Counter[str] = Counter()
    deepcopy, covered = copy.deepcopy, layers.covered_layers

    def copies(found: Any, *args: Any, **memo: Any) -> Any:
        counts["copies"] += isinstance(found, nn.Module) and not args
        return deepcopy(found, *args, **memo)

    def probes(*args: Any) -> Any:
        counts["probes"] += 1
        return covered(*args)

    monkeypatch.setattr(copy, "deepcopy", copies)
    monkeypatch.setattr(plan, "covered_layers", probes)
    return counts


@pytest.mark.parametrize("inducing", [None, 5, inputs(5)], ids=["default", "count", "tensor"])
def test_a_fit_copies_and_probes_once(built: Counter[str], inducing: Any) -> None:
    posterior = SFRPosterior(mlp(), "classification", inducing=inducing).fit(data())
    posterior.update(data(seed=3)).predict(inputs(seed=5))
    posterior.add_inducing(inputs(2, seed=6)).replace_inducing(inputs(4, seed=7))
    assert built == {"copies": 1, "probes": 1}


def test_a_stream_copies_and_probes_once(built: Counter[str]) -> None:
    stream = StreamingPosterior(SFRPosterior(mlp(), "classification", inducing=5))
    x, y = data()
    for row in x[:3]:
        stream.predict_one(row)
    for row, target in zip(x, y, strict=True):
        stream.learn_one(row, target)
        stream.predict_one(row)
    assert torch.isfinite(stream.predict_f(x).mean).all()
    assert built == {"copies": 1, "probes": 1}


def test_classes_to_come_do_not_solve_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no data: W stays, and with it delta and the factor."""
    posterior = SFRPosterior(mlp(), "classification", inducing=5, num_outputs=3).fit(data())
    before, x = posterior.predict_f(inputs(seed=5)), inputs(seed=5)
    direct = SFRPosterior(
        mlp(), "classification", inducing=posterior.inducing_inputs, num_outputs=7
    )
    expected = direct.fit(data()).predict_f(x)
    monkeypatch.setattr(torch.linalg, "eigh", None)
    found = copy.copy(posterior).grow_outputs(5).grow_outputs(7).predict_f(x)
    assert torch.equal(found.mean[:, :3], before.mean)
    assert torch.allclose(found.mean, expected.mean, atol=1e-12)
    assert torch.allclose(found.variance, expected.variance, atol=1e-12)


def test_classes_to_come_leave_the_delta_that_data_is_scored_with(tmp_path: Path) -> None:
    posterior = SFRPosterior(mlp(), "classification", inducing=5, num_outputs=3).fit(data())
    posterior.update(data(seed=3))
    before = posterior.state.forecast
    assert before is not None
    grown = posterior.grow_outputs(5).state.forecast
    assert grown is not None
    assert (grown.prior_precision, grown.learned_at) == (before.prior_precision, before.learned_at)
    assert grown.is_outdated(posterior.state.sums.seen)
    posterior.save(tmp_path / "grown.safetensors")
    loaded = SFRPosterior.load(tmp_path / "grown.safetensors", mlp())
    x, y = data(seed=4)
    loaded.update((x, y + 1))
    posterior.update((x, y + 1))
    assert torch.equal(loaded.state.scores.costs, posterior.state.scores.costs)
    assert loaded.logit_scale == posterior.logit_scale
