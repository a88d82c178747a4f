"""A mean is a product of kappa(x, Z) with vectors that are solved for once, or one direction."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sfr_cl import SFRPosterior
from sfr_cl.core.basis import InducingInputs
from sfr_cl.kernel import TangentKernel, tangent
from sfr_cl.kernel.factors import Last
from sfr_cl.kernel.network import FrozenNetwork
from support.oracles import ntk
from support.posteriors import data, fitted, inputs, mlp


def conv(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 3)),
        nn.Conv1d(1, 2, 2),
        nn.LayerNorm(2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(4, outputs),
    ).double()


LAST = ["2.weight", "2.bias"]


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per output"])
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "in parts"])
@pytest.mark.parametrize("kind", ["mlp", "last layer", "conv"])
def test_kappa_times_vectors(
    kind: str, kept: bool, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kept:  # no gradients at Z are kept, so that they come four at a time
        monkeypatch.setattr(TangentKernel, "bytes_at_inducing", lambda *_: 0)
    module = conv(3) if kind == "conv" else mlp().double()
    names = LAST if kind == "last layer" else "all"
    network = FrozenNetwork(module, names, torch.float64)
    z, x = inputs(14, seed=2).double(), inputs(9).double()
    kernel = TangentKernel(network, 3, shared, z)
    vectors = torch.randn(3, 14, dtype=torch.float64)
    at_z = kernel.inducing(z, 4)
    outputs, found = (along := at_z.along(vectors))(x)
    cross = ntk(module, x, z, shared=shared, names=None if names == "all" else names)
    expected = torch.einsum("kbm,cm->kbc", cross, vectors)
    expected = expected[0] if shared else torch.stack([expected[c, :, c] for c in range(3)], 1)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert torch.allclose(outputs, module(x))
    assert torch.equal(along(x)[1], found)


OPTIONS: dict[str, dict[str, Any]] = {
    "shared": {},
    "last layer": {"parameters": "last_layer"},
    "per output": {"output_kernel": "per_output"},
    "network": {"mean": "network"},
    "dual": {"mean": "dual"},
    "batches": {"batch_size": 5},
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_prediction_without_variance_is_the_mean_of_f(name: str, dtype: torch.dtype) -> None:
    posterior = fitted(dtype=dtype, **OPTIONS[name])
    x = inputs(30, seed=7)
    found = posterior.predict(x, link="map").logits
    expected = (posterior.logit_scale * posterior.predict_f(x).mean).log_softmax(1)
    assert torch.allclose(found, expected, atol=1e-10 if dtype == torch.float64 else 1e-3)


@pytest.mark.parametrize("name", OPTIONS)
def test_as_many_outputs_as_there_are_change_nothing(name: str) -> None:
    posterior, x = fitted(**OPTIONS[name]), inputs(30, seed=7)
    before = posterior.predict_f(x)
    after = posterior.grow_outputs(posterior.num_outputs).predict_f(x)
    assert torch.allclose(after.mean, before.mean, rtol=1e-12)
    assert torch.allclose(after.variance, before.variance, rtol=1e-12)


def test_many_predictions_solve_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the order of M^2 for each input: features would be a triangular solve."""
    posterior = SFRPosterior(mlp(), "classification", inducing=inputs(20)).fit(data())
    expected = posterior.predict_f(inputs(8, seed=7)).mean
    posterior.predict(inputs(2, seed=6))
    calls: list[int] = []
    original = torch.linalg.solve_triangular

    def counted(*args: Any, **options: Any) -> Tensor:
        calls.append(len(args[1]))
        return original(*args, **options)

    monkeypatch.setattr(torch.linalg, "solve_triangular", counted)
    monkeypatch.setattr(InducingInputs, "features", None)
    logits = posterior.predict(inputs(8, seed=7)).logits
    assert not calls
    scaled = posterior.logit_scale * expected
    assert torch.allclose(logits, scaled.log_softmax(1), atol=1e-10)


def test_a_last_layer_predicts_along_one_direction_for_each_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    posterior = fitted(parameters="last_layer", inducing=inputs(20, seed=2))
    expected = posterior.predict(inputs(30, seed=7)).logits

    def never(*_: Any) -> Tensor:
        raise AssertionError("expected no kernel between a batch and all inducing inputs")

    monkeypatch.setattr(Last, "inner", never)
    assert torch.equal(posterior.predict(inputs(30, seed=7)).logits, expected)


def test_few_inducing_inputs_need_no_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two gradients at Z are less than three directions."""
    monkeypatch.setattr(Last, "along", None)
    posterior = fitted(parameters="last_layer", inducing=inputs(2, seed=2))
    x = inputs(30, seed=7)
    expected = (posterior.logit_scale * posterior.predict_f(x).mean).log_softmax(1)
    assert torch.allclose(posterior.predict(x).logits, expected, atol=1e-10)


def test_directions_take_no_more_memory_than_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tangent, "CACHE_BYTES", 100)
    monkeypatch.setattr(Last, "along", None)
    posterior = fitted(parameters="last_layer", inducing=inputs(20, seed=2))
    x = inputs(30, seed=7)
    expected = (posterior.logit_scale * posterior.predict_f(x).mean).log_softmax(1)
    assert torch.allclose(posterior.predict(x).logits, expected, atol=1e-10)
