"""Networks as people write them: their kernels, and posteriors that learn, equal dense oracles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfr_cl import SFRPosterior
from sfr_cl.data.inputs import Inputs, length, take
from sfr_cl.errors import ArgumentError, DataError, SFRError
from sfr_cl.kernel.network import FrozenNetwork
from support.oracles import jacobian_by_rows, sfr_moments
from support.zoo import OUTPUTS, ZOO, Case, Net, checkpointed, mlp

Z, FIRST, LATER, TEST = slice(0, 4), slice(3, 7), slice(6, 10), slice(8, 12)
"""Rows of the inducing inputs, of two batches, and those predicted."""

NOISE = 0.3


@dataclass(frozen=True)
class Problem:
    """A network of the zoo, and what it is compared with."""

    case: Case
    x: Inputs
    y: Tensor
    j: Tensor
    """J(x), ``[B, C, P]``, from the oracle."""

    @property
    def network(self) -> nn.Module:
        return self.case.network()

    @property
    def parameters(self) -> str | list[str]:
        return self.case.parameters(self.network)


@pytest.fixture(scope="module", params=ZOO)
def problem(request: pytest.FixtureRequest) -> Problem:
    case = ZOO[request.param]
    network, x = case.network(), case.inputs(12)
    y = torch.randn(12, OUTPUTS, dtype=torch.float64)
    return Problem(case, x, y, jacobian_by_rows(network, x, case.parameters(network)))


def test_kernels(problem: Problem) -> None:
    x, j = problem.x, problem.j
    posterior = SFRPosterior(
        problem.network,
        "regression",
        inducing=take(x, Z),
        noise_variance=NOISE,
        parameters=problem.parameters,
        output_kernel="per_output",
    ).init()
    basis = posterior.state.basis
    values = basis.at_z(basis.prepare(take(x, TEST)), diagonal=True)
    expected = torch.einsum("acp,bcp->cab", j, j)
    close = {"rtol": 1e-9, "atol": 1e-9 * float(expected.abs().max())}
    torch.testing.assert_close(values.cross, expected[:, TEST, Z], **close)
    torch.testing.assert_close(basis.at_z.gram, expected[:, Z, Z], **close)
    torch.testing.assert_close(basis.gram(basis.prepare(x)), expected, **close)
    diagonal = expected[:, TEST, TEST].diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(values.diagonal, diagonal, **close)
    outputs = problem.network.eval()(take(x, TEST))
    torch.testing.assert_close(values.outputs, outputs.detach())


def test_posteriors(problem: Problem, tmp_path: Path) -> None:
    x, y, j = problem.x, problem.y, problem.j
    posterior = SFRPosterior(
        problem.network,
        "regression",
        inducing=take(x, Z),
        noise_variance=NOISE,
        parameters=problem.parameters,
        prior_precision=1.0,
    ).fit((take(x, FIRST), y[FIRST]))
    found = posterior.update((take(x, LATER), y[LATER])).predict_f(take(x, TEST))
    kernel = torch.einsum("acp,bcp->ab", j, j) / OUTPUTS
    seen = [*range(length(x))[FIRST], *range(length(x))[LATER]]
    precision = torch.full((len(seen),), 1 / NOISE, dtype=torch.float64)
    for output in range(OUTPUTS):
        mean, variance = sfr_moments(
            kernel[Z, Z],
            kernel[Z][:, seen],
            kernel[TEST, Z],
            kernel.diagonal()[TEST],
            y[seen, output] / NOISE,
            precision,
            torch.zeros_like(precision),
        )
        torch.testing.assert_close(found.mean[:, output], mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found.variance[:, output], variance, rtol=1e-6, atol=1e-6)
    posterior.save(tmp_path / "p")
    loaded = SFRPosterior.load(tmp_path / "p", problem.network)
    torch.testing.assert_close(loaded.predict_f(take(x, TEST)).mean, found.mean)


def test_tangents_and_gradients(problem: Problem) -> None:
    x, y, j = problem.x, problem.y, problem.j
    frozen = FrozenNetwork(problem.network, problem.parameters, torch.float64)
    frozen.bind(x)
    generator = torch.Generator().manual_seed(0)
    direction = {
        name: torch.randn(p.shape, generator=generator, dtype=p.dtype)
        for name, p in frozen.parameters.items()
    }
    close = {"rtol": 1e-8, "atol": 1e-8 * float(j.abs().max())}
    torch.testing.assert_close(frozen.tangent(x, direction), j @ flat(direction), **close)
    gradient = flat(frozen.gradient(x, y))
    torch.testing.assert_close(gradient, torch.einsum("bcp,bc->p", j, y), **close)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_checkpoints() -> None:
    """autograd.grad, and so the oracle, does not take them: they equal the other kind."""
    x = ZOO["checkpoint"].inputs(6)
    kernels = []
    for reentrant in (False, True):
        torch.manual_seed(0)
        network = checkpointed(reentrant)
        basis = SFRPosterior(network, "classification", inducing=x).init().state.basis
        kernels.append(basis.at_z.gram)
    torch.testing.assert_close(*kernels)


def flat(values: dict[str, Tensor]) -> Tensor:
    """All numbers, complex ones as their two parts."""
    real = [torch.view_as_real(v.resolve_conj()) if v.is_complex() else v for v in values.values()]
    return torch.cat([v.reshape(-1) for v in real])


class Drifts(nn.Module):
    """A running mean that moves in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return self.body(x - self.mean)


class TwoArguments(nn.Module):
    """Takes more than one argument."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.body(x + context)


def across_rows() -> nn.Module:
    """Attention that takes the batch for a sequence: `batch_first` was forgotten."""

    def run(net: Any, x: Tensor) -> Tensor:
        h = net.inner(x)
        return net.head(net.attention(h, h, h)[0])

    attention = nn.MultiheadAttention(8, 2)
    return Net(run, inner=nn.Linear(4, 8), attention=attention, head=nn.Linear(8, OUTPUTS))


def odd(run: Callable[[Any, Tensor], Any]) -> Callable[[], nn.Module]:
    """A network of two plain parts that does something odd with them."""
    return lambda: Net(run, body=mlp(), extra=nn.Linear(4, OUTPUTS))


def batch_statistics() -> nn.Module:
    norm = nn.BatchNorm1d(6, track_running_stats=False)
    return nn.Sequential(nn.Linear(4, 6), norm, nn.Linear(6, OUTPUTS))


MIXES = "treats every input by itself"
RANDOM = "gives the same outputs for the same inputs"
SHAPE = r"expected a network whose outputs are floats \[B, C\], got "
INERT = "depend on"

REFUSED: dict[str, tuple[Callable[[], nn.Module], type[SFRError], str]] = {
    "batch statistics": (batch_statistics, ArgumentError, MIXES),
    "batch statistics, functional": (
        odd(lambda net, x: F.batch_norm(net.body(x), None, None, training=True)),
        ArgumentError,
        MIXES,
    ),
    "softmax over the batch": (odd(lambda net, x: net.body(x).softmax(0)), ArgumentError, MIXES),
    "centred over the batch": (
        odd(lambda net, x: net.body(x) - net.body(x).mean(0)),
        ArgumentError,
        MIXES,
    ),
    "attention across rows": (across_rows, ArgumentError, MIXES),
    "the row before": (odd(lambda net, x: net.body(x.roll(1, 0))), ArgumentError, MIXES),
    "rows so far": (odd(lambda net, x: net.body(x).cumsum(0)), ArgumentError, MIXES),
    "the first row": (odd(lambda net, x: net.body(x) + net.extra(x[:1])), ArgumentError, MIXES),
    "the last row": (odd(lambda net, x: net.body(x) + net.extra(x[-1:])), ArgumentError, MIXES),
    "rows in another order": (
        odd(lambda net, x: net.body(x)[x[:, 0].argsort()]),
        ArgumentError,
        MIXES,
    ),
    "the size of the batch": (odd(lambda net, x: net.body(x) / len(x)), ArgumentError, MIXES),
    "dropout": (
        odd(lambda net, x: net.body(F.dropout(x, 0.5, training=True))),
        ArgumentError,
        RANDOM,
    ),
    "a little noise": (
        odd(lambda net, x: net.body(x + 1e-3 * torch.randn_like(x))),
        ArgumentError,
        RANDOM,
    ),
    "samples": (
        odd(lambda net, x: net.body(x) + torch.randn_like(x[:, :3]) * net.extra(x).exp()),
        ArgumentError,
        RANDOM,
    ),
    "statistics that move": (Drifts, ArgumentError, "keeps something between calls"),
    "changes its input": (
        odd(lambda net, x: net.body(x.sub_(1.0))),
        ArgumentError,
        "leaves its input as it is",
    ),
    "tuple": (odd(lambda net, x: (net.body(x), net.extra(x))), DataError, f"{SHAPE}tuple"),
    "dict": (odd(lambda net, x: {"logits": net.body(x)}), DataError, f"{SHAPE}dict"),
    "nothing": (odd(lambda *_: None), DataError, f"{SHAPE}NoneType"),
    "maps": (odd(lambda net, x: net.body(x)[:, None]), DataError, rf"{SHAPE}\[\d+, 1, 3\]"),
    "labels": (
        odd(lambda net, x: net.body(x).argmax(1)),
        DataError,
        rf"{SHAPE}\[\d+\] of torch.int64",
    ),
    "complex outputs": (odd(lambda net, x: torch.fft.fft(net.body(x))), DataError, SHAPE),
    "one row for the batch": (
        odd(lambda net, x: net.body(x).mean(0, keepdim=True)),
        DataError,
        rf"{SHAPE}\[1, 3\]",
    ),
    "a number": (odd(lambda net, x: net.body(x).sum()), DataError, rf"{SHAPE}\[\]"),
    "no outputs": (odd(lambda net, x: net.body(x)[:, :0]), DataError, rf"{SHAPE}\[\d+, 0\]"),
    "two arguments": (TwoArguments, DataError, "missing 1 required positional argument"),
    "another width": (lambda: nn.Linear(5, OUTPUTS), DataError, "the network can take, got shape"),
    "detached": (odd(lambda net, x: net.body(x).detach()), ArgumentError, INERT),
    "no_grad": (odd(torch.no_grad()(lambda net, x: net.body(x))), ArgumentError, INERT),
    "inference_mode": (
        odd(torch.inference_mode()(lambda net, x: net.body(x))),
        ArgumentError,
        INERT,
    ),
    "times zero": (odd(lambda net, x: 0 * net.body(x)), ArgumentError, INERT),
    "lazy": (lambda: nn.LazyLinear(OUTPUTS), ArgumentError, "got lazy ones: run the network on"),
    "no parameters": (nn.Tanh, ArgumentError, "expected a network with parameters"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    build, error, phrase = REFUSED[name]
    torch.manual_seed(0)
    x, y = torch.randn(30, 4, dtype=torch.float64), torch.arange(30) % OUTPUTS
    before = x.clone()
    with pytest.raises(error, match=phrase):
        SFRPosterior(build(), "classification", inducing=x[:8]).fit((x, y))
    assert torch.equal(x, before)
