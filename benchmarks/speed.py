"""`sfr-cl speed`: time and memory against what others do for the same job, in one run."""

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from sfr_cl import SFRPosterior
from sfr_cl.data.inputs import length

from . import results
from .cl.cost import training_cases
from .memory import peak_megabytes
from .networks import CASES, mlp
from .peers import contraction, laplace, loader, quiet
from .speed_growth import draw, growth
from .timing import timed

Work = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """One row: our work, a peer's, and what was promised."""

    case: str
    peer: str
    ours: Work
    theirs: Work
    target: float
    """The least ratio of the peer's time to ours."""
    flops: float | None = None
    """Operations of the formulas our work stands for."""
    dtype: torch.dtype = torch.float64
    peer_share: float = 1.0
    """The part of the job the peer was given; its time is scaled up by it."""


@dataclass(frozen=True)
class Row:
    """A line of the table, and of `results.json`."""

    case: str
    peer: str
    seconds: float
    peer_seconds: float
    ratio: float
    target: float
    flop_share: float | None
    peak_mb: float | None
    peer_peak_mb: float | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options besides `--out`."""


def run(arguments: argparse.Namespace) -> int:
    """Measure every case, print the table, write `results.json` and `growth.png` into `--out`."""
    out: Path = arguments.out
    console = Console()
    torch.manual_seed(0)
    rates = {dtype: product_rate(dtype) for dtype in (torch.float64, torch.float32)}
    content: list[dict[str, Any]] = [
        {"case": f"matrix product, {str(dtype).removeprefix('torch.')}", "gflops": rate / 1e9}
        for dtype, rate in rates.items()
    ]
    rows = []
    for make in cases():
        case = make()
        with console.status(f"{case.case} against {case.peer} ..."):
            rows.append(measure(case, rates))
        content.append(asdict(rows[-1]))
        results.write(out, "speed", content)
        console.print(f"{rows[-1].ratio:8.3g} x  {case.case}  |  {case.peer}", highlight=False)
    with console.status("a stream of a million samples ..."):
        lengths = growth()
    results.write(out, "speed", [*content, *(asdict(point) for point in lengths)])
    picture = draw(lengths, out / "growth.png")
    console.print(table(rows))
    console.print(f"The picture: {picture}", soft_wrap=True, highlight=False, markup=False)
    return 0


def measure(case: Case, rates: dict[torch.dtype, float]) -> Row:
    """Our time and memory, and the peer's."""
    with quiet():
        seconds, peak = time_and_memory(case.ours, repeats=7)
        peer_seconds, peer_peak = time_and_memory(case.theirs, repeats=3)
    peer_seconds /= case.peer_share
    share = case.flops / seconds / rates[case.dtype] if case.flops else None
    return Row(
        case=case.case,
        peer=case.peer,
        seconds=seconds,
        peer_seconds=peer_seconds,
        ratio=peer_seconds / seconds,
        target=case.target,
        flop_share=share,
        peak_mb=peak,
        peer_peak_mb=peer_peak,
    )


def time_and_memory(work: Work, repeats: int) -> tuple[float, float | None]:
    """Median seconds after a first run, which shows the peak; work of many seconds is run once."""
    peak, first = timed(lambda: peak_megabytes(work))
    if first > 3:
        return first, peak
    return statistics.median(timed(work)[1] for _ in range(repeats)), peak


def product_rate(dtype: torch.dtype) -> float:
    """Operations per second of a large matrix product."""
    a = torch.randn(2000, 2000, dtype=dtype)
    return 2 * 2000**3 / time_and_memory(lambda: a @ a, repeats=9)[0]


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
        yield partial(functional_laplace, dtype)
    yield sums_of_cnn
    for index in range(len(CASES)):
        yield partial(case_table, index)
    yield many_outputs
    yield prediction
    for dtype in (torch.float64, torch.float32):
        yield partial(fitting, dtype)
    for make in training_cases():
        yield partial(of_training, make)


def of_training(make: Callable[[], dict[str, Any]]) -> Case:
    return Case(**make())


def digits_like(count: int, outputs: int, *shape: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, *shape), torch.randint(outputs, (count,))


def per_output(network: nn.Module, z: Tensor, dtype: torch.dtype = torch.float64) -> SFRPosterior:
    return SFRPosterior(
        network, "classification", inducing=z, output_kernel="per_output", dtype=dtype
    )


def sums_of_mlp(dtype: torch.dtype) -> Case:
    network, (x, y) = mlp(*MLP), digits_like(2000, 10, 784)
    z = torch.randn(200, 784)
    peer_network = mlp(*MLP).to(dtype).requires_grad_(False)
    name = str(dtype).removeprefix("torch.")
    return Case(
        case=f"sums, MLP 784-256-256-10, N = 2000, M = 200, per output, {name}",
        peer="vmap(grad) contraction, class by class",
        ours=lambda: per_output(network, z, dtype).fit((x, y)),
        theirs=contraction(peer_network, z.to(dtype), x[:200].to(dtype), 10),
        target=100,
        flops=sums_flops(MLP, 2000, 200),
        dtype=dtype,
        peer_share=(200 + 200) / (2000 + 200),
    )


def functional_laplace(dtype: torch.dtype) -> Case:
    name = str(dtype).removeprefix("torch.")
    network, (x, y) = mlp(*MLP), digits_like(2000, 10, 784)
    z = torch.randn(200, 784)

    def theirs() -> None:
        laplace("FunctionalLaplace", network, n_subset=200, independent_outputs=True).fit(
            loader(x, y)
        )

    return Case(
        case=f"sums, MLP 784-256-256-10, N = 2000, M = 200, per output, {name}",
        peer="laplace-torch FunctionalLaplace, subset of 200, float32",
        ours=lambda: per_output(network, z, dtype).fit((x, y)),
        theirs=theirs,
        target=80,
    )


def sums_of_cnn() -> Case:
    def build() -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 5, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 40),
            nn.ReLU(),
            nn.Linear(40, 10),
        )

    network, (x, y) = build(), digits_like(1000, 10, 1, 28, 28)
    z = torch.randn(200, 1, 28, 28)
    peer_network = build().double().requires_grad_(False)
    return Case(
        case="sums, CNN of two convolutions, 34k parameters, N = 1000, M = 200, per output",
        peer="vmap(grad) contraction, class by class",
        ours=lambda: per_output(network, z).fit((x, y)),
        theirs=contraction(peer_network, z.double(), x.double(), 10),
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
        peer="vmap(grad) contraction, class by class",
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
        peer="laplace-torch last layer, Kronecker",
        ours=ours,
        theirs=theirs,
        target=1,
        peer_share=0.05,
    )


def prediction() -> Case:
    network, (x, y) = mlp(*MLP), digits_like(2000, 10, 784)
    posterior = per_output(network, torch.randn(200, 784)).fit((x, y))
    peer = laplace("KronLaplace", network)
    with quiet():
        peer.fit(loader(x, y))
    test = torch.randn(1000, 784)
    return Case(
        case="mean and variance of f, 1000 inputs, MLP 784-256-256-10, M = 200, per output",
        peer="laplace-torch GLM, Kronecker",
        ours=lambda: posterior.predict_f(test),
        theirs=lambda: peer._glm_predictive_distribution(test[:100]),
        target=300,
        peer_share=0.1,
    )


def fitting(dtype: torch.dtype) -> Case:
    name = str(dtype).removeprefix("torch.")
    network, (x, y) = mlp(*MLP), digits_like(2000, 10, 784)
    z = torch.randn(200, 784)

    def theirs() -> None:
        laplace("KronLaplace", network).fit(loader(x, y))

    return Case(
        case=f"fit, MLP 784-256-256-10, N = 2000, M = 200, per output, {name}",
        peer="laplace-torch Kronecker fit, float32",
        ours=lambda: per_output(network, z, dtype).fit((x, y)),
        theirs=theirs,
        target=2,
    )


def table(rows: list[Row]) -> Table:
    """The rows for a terminal of 80 columns."""
    result = Table(title="Time and memory against others, medians of one run", show_lines=True)
    result.add_column("case, peer", overflow="fold")
    for name in ("ours, peer's", "ratio, target", "flop share", "MB, peer's"):
        result.add_column(name, justify="right")
    for row in rows:
        style = None if row.ratio >= row.target else "bold"
        result.add_row(
            f"{row.case}\n{row.peer}",
            f"{row.seconds:.3g} s\n{row.peer_seconds:.3g} s",
            f"{row.ratio:.3g}\n{row.target:g}",
            shown(row.flop_share),
            f"{shown(row.peak_mb)}\n{shown(row.peer_peak_mb)}",
            style=style,
        )
    return result


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
