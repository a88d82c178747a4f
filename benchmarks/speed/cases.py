"""The jobs that are timed, each with the baseline that does the same."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sfr_cl import SFRPosterior
from sfr_cl.data.inputs import length

from ..harness.baselines import contraction, laplace, loader, quiet
from ..harness.kernel_cases import CASES
from ..harness.networks import cnn, mlp
from .experiment import Case
from .training import training_cases

MLP = (784, 256, 256, 10)


def sums_flops(sizes: tuple[int, ...], num_data: int, num_inducing: int) -> float:
    """Of the sums of an MLP with one kernel per output.

    Forward and backward; the kernel, 2 (d_in + 1 + C d_out) for a pair at each layer and
    2 (d_in + 1) at the last; whitening, M^2; and W, 2 M^2 for each output.
    """
    outputs = sizes[-1]
    pairs = list(itertools.pairwise(sizes))
    rows = num_data + num_inducing
    forward = rows * sum(2 * a * b for a, b in pairs)
    backward = rows * outputs * sum(2 * a * b for a, b in pairs[1:])
    per_pair = sum(2 * (a + 1 + outputs * b) for a, b in pairs[:-1]) + 2 * (sizes[-2] + 1)
    kernel = rows * num_inducing * per_pair
    return forward + backward + kernel + 3 * num_data * outputs * num_inducing**2


def cases() -> Iterator[Callable[[], Case]]:
    """Every case, made when its turn comes."""
    for dtype in (torch.float64, torch.float32):
        yield partial(sums_of_mlp, dtype)
        yield partial(
            laplace_fit,
            "sums",
            "FunctionalLaplace",
            "FunctionalLaplace, subset of 200",
            80,
            dtype,
            n_subset=200,
            independent_outputs=True,
        )
    yield sums_of_cnn
    for index in range(len(CASES)):
        yield partial(case_table, index)
    yield many_outputs
    yield prediction
    for dtype in (torch.float64, torch.float32):
        yield partial(laplace_fit, "fit", "KronLaplace", "Kronecker fit", 2, dtype)
    yield from training_cases()


def named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def digits_like(count: int, outputs: int, *shape: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, *shape), torch.randint(outputs, (count,))


def per_output(network: nn.Module, z: Tensor, dtype: torch.dtype = torch.float64) -> SFRPosterior:
    return SFRPosterior(
        network, "classification", inducing=z, output_kernel="per_output", dtype=dtype
    )


def sums_of_mlp(dtype: torch.dtype) -> Case:
    network, (x, y) = mlp(*MLP), digits_like(2000, 10, 784)
    z = torch.randn(200, 784)
    reference = mlp(*MLP).to(dtype).requires_grad_(False)
    return Case(
        case=f"sums, MLP 784-256-256-10, N = 2000, M = 200, per output, {named(dtype)}",
        baseline="vmap(grad) contraction, class by class",
        ours=lambda: per_output(network, z, dtype).fit((x, y)),
        theirs=contraction(reference, z.to(dtype), x[:200].to(dtype), 10),
        target=100,
        flops=sums_flops(MLP, 2000, 200),
        dtype=dtype,
        baseline_share=(200 + 200) / (2000 + 200),
    )


def laplace_fit(
    what: str, kind: str, name: str, target: float, dtype: torch.dtype, **options: Any
) -> Case:
    """Fitting the MLP's posterior, against one of laplace-torch's."""
    network, (x, y) = mlp(*MLP), digits_like(2000, 10, 784)
    z = torch.randn(200, 784)
    return Case(
        case=f"{what}, MLP 784-256-256-10, N = 2000, M = 200, per output, {named(dtype)}",
        baseline=f"laplace-torch {name}, float32",
        ours=lambda: per_output(network, z, dtype).fit((x, y)),
        theirs=lambda: laplace(kind, network, **options).fit(loader(x, y)),
        target=target,
    )


def sums_of_cnn() -> Case:
    network, (x, y) = cnn(), digits_like(1000, 10, 1, 28, 28)
    z = torch.randn(200, 1, 28, 28)
    reference = cnn().double().requires_grad_(False)
    return Case(
        case="sums, CNN of two convolutions, 34k parameters, N = 1000, M = 200, per output",
        baseline="vmap(grad) contraction, class by class",
        ours=lambda: per_output(network, z).fit((x, y)),
        theirs=contraction(reference, z.double(), x.double(), 10),
        target=4,
    )


def case_table(index: int) -> Case:
    entry = CASES[index]
    network = entry.network().eval().requires_grad_(False)
    x, z = entry.inputs(2000), entry.inputs(200, seed=1)
    with torch.no_grad():
        outputs = network(x).shape[1]
    posterior = SFRPosterior(network, "regression", inducing=z, output_kernel="per_output")
    y = torch.randn(length(x), outputs)
    return Case(
        case=f"sums, case table, {entry.name}, N = 2000, M = 200",
        baseline="vmap(grad) contraction, class by class",
        ours=lambda: posterior.fit((x, y)),
        theirs=contraction(network, z, x, outputs),
        target=1,
    )


def many_outputs() -> Case:
    network, (x, y) = mlp(512, 512, 1000), digits_like(10_000, 1000, 512)
    z = torch.randn(500, 512)

    def ours() -> None:
        SFRPosterior(network, "classification", inducing=z, parameters="last_layer").fit((x, y))

    def theirs() -> None:
        laplace("KronLLLaplace", network).fit(loader(x[:500], y[:500]))

    return Case(
        case="last layer, 1000 outputs, 512 features, N = 10,000, M = 500, shared",
        baseline="laplace-torch last layer, Kronecker",
        ours=ours,
        theirs=theirs,
        target=1,
        baseline_share=0.05,
    )


def prediction() -> Case:
    network, (x, y) = mlp(*MLP), digits_like(2000, 10, 784)
    posterior = per_output(network, torch.randn(200, 784)).fit((x, y))
    fitted = laplace("KronLaplace", network)
    with quiet():
        fitted.fit(loader(x, y))
    test = torch.randn(1000, 784)
    return Case(
        case="mean and variance of f, 1000 inputs, MLP 784-256-256-10, M = 200, per output",
        baseline="laplace-torch GLM, Kronecker",
        ours=lambda: posterior.predict_f(test),
        theirs=lambda: fitted._glm_predictive_distribution(test[:100]),
        target=300,
        baseline_share=0.1,
    )
