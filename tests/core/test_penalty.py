"""The penalty in any precision, of any network."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sfr_cl import SFRPosterior
from sfr_cl.errors import MismatchError
from support.posteriors import data, fitted, grown, inputs, mlp

KERNELS = ("shared", "per_output")
PRECISIONS = (torch.float32, torch.float64)


def by_formula(posterior: SFRPosterior, network: nn.Module) -> Tensor:
    """1/(2M) sum_c d_c' P_c d_c in float64; all outputs are observed."""
    penalty = posterior.as_penalty()
    z, precision = penalty.z.double(), penalty.precision.double()
    change = network.double()(z) - penalty.targets.double()
    every = precision.expand(change.shape[1], -1, -1)
    return torch.einsum("mc,cmn,nc->", change, every, change) / (2 * len(z))


def moved(dtype: torch.dtype) -> nn.Module:
    return mlp(seed=4).to(dtype)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("of", PRECISIONS)
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_any_precision_meets_any_other(dtype: torch.dtype, of: torch.dtype, kernel: str) -> None:
    posterior = fitted(dtype=dtype, output_kernel=kernel, linearize_at="network")
    network = moved(of)
    found = posterior.penalty(network)
    gradients = torch.autograd.grad(found, list(network.parameters()))
    assert found.dtype == of
    exact = by_formula(posterior, network)
    tolerance = 1e-9 if dtype == of == torch.float64 else 1e-4
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=0)
    for ours, true in zip(
        gradients, torch.autograd.grad(exact, list(network.parameters())), strict=True
    ):
        scale = float(true.abs().max())
        torch.testing.assert_close(ours.double(), true, rtol=0, atol=10 * tolerance * scale)


def test_a_network_of_less_precision_costs_later_ones_none() -> None:
    posterior = fitted(linearize_at="network")
    before = posterior.penalty(moved(torch.float64))
    posterior.penalty(moved(torch.float32))
    assert torch.equal(posterior.penalty(moved(torch.float64)), before)
    assert posterior.as_penalty().precision.dtype == torch.float64


@pytest.mark.parametrize("make", [mlp, lambda: grown(mlp(), 5)], ids=["its-own", "five"])
def test_a_class_the_network_has_no_unit_for_is_refused(make: Any) -> None:
    x, y = data()
    posterior = SFRPosterior(mlp(), "classification", inducing=inputs(6), num_outputs=5)
    posterior.fit((x, y))
    at_three = posterior.penalty(mlp(seed=4)).item()
    assert at_three == pytest.approx(fitted(inducing=inputs(6)).penalty(mlp(seed=4)).item())
    posterior.update((x[:2], torch.tensor([4, 4])))
    with pytest.raises(MismatchError, match="each class it has seen, got class 4 and 3 outputs"):
        posterior.penalty(make())
