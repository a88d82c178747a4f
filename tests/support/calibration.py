"""What defaults cost on held-out data, beside the best delta and scale on validation data.

    python -m support.calibration [--seeds 100 101 102] [--problems digits wine ...]

prints a row for each problem: the mean over seeds.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import geometric_mean, mean
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sfr_cl import SFRPosterior
from support.real_data import Pair, Task, load, split

SEEDS = (100, 101, 102)
"""Nothing was chosen on them."""

BINS = 15
REPEATS, SECONDS = 7, 5.0

Root = Path | None


class Quality(NamedTuple):
    """Of predictions of held-out data."""

    nlpd: float
    ece: float
    accuracy: float


@dataclass(frozen=True)
class Row:
    """A problem, mean over seeds."""

    before: Quality
    """At the delta and the scale that were the defaults before they were learned, of f itself."""
    now: Quality
    """With default arguments."""
    tuned: Quality
    """At the best of both on one half of the held-out data, of the other half; and vice versa."""
    delta: float
    scale: float
    """In one-hot units."""
    tuned_delta: float
    tuned_scale: float
    cost: float
    """Processor time of absorbing, relative to absorbing at a given scale."""


class Absorbed(NamedTuple):
    """A posterior that has absorbed all there is, and how it was before this was learned."""

    posterior: SFRPosterior
    delta_before: float
    test: Pair
    absorb: Callable[[SFRPosterior], object]
    """Absorbs the last part once more."""
    start: SFRPosterior
    """Without the last part."""


# Problems -------------------------------------------------------------------------------------


def small(task: Task, seed: int, *, steps: int = 400) -> Absorbed:
    """A network trained on the first part; the rest absorbed."""
    start = SFRPosterior(task.network(seed, steps), task.likelihood).fit(task.first)
    return absorbed(start, task.later, task.test, 1.0)


def absorbed(start: SFRPosterior, later: Pair, test: Pair, delta_before: float) -> Absorbed:
    def absorb(posterior: SFRPosterior) -> SFRPosterior:
        return posterior.update(later)

    return Absorbed(absorb(copied(start)), delta_before, test, absorb, start)


def copied(posterior: SFRPosterior) -> SFRPosterior:
    return SFRPosterior.of(posterior.spec, posterior.network, posterior.state)


def table(name: str, likelihood: str = "classification", new_classes: int = 0):
    """A set of scikit-learn, or of the data folder."""

    def make(seed: int, root: Root) -> Absorbed:
        file = f"uci/{name}.csv"
        x, y = load(file, root) if root and (root / file).is_file() else load(name)
        y = torch.unique(y, return_inverse=True)[1]
        return small(split(x, y, likelihood, seed, new_classes=new_classes), seed)

    return make


def flipped(seed: int, _root: Root) -> Absorbed:
    """One label in five is drawn from all labels, of the held-out data too."""
    x, y = load("digits")
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(len(y), generator=generator) < 0.2
    y = torch.where(drawn, y[torch.randperm(len(y), generator=generator)], y)
    return small(split(x, y, "classification", seed), seed)


def pairs(seed: int, _root: Root) -> Absorbed:
    """Two digits beside each other, C = 100; no image is in two parts."""
    x, y = load("digits")
    digits = split(x, y, "classification", seed)
    generator = torch.Generator().manual_seed(seed)

    def drawn(part: Pair, count: int) -> Pair:
        left, right = torch.randint(len(part[1]), (2, count), generator=generator)
        x, y = part
        return torch.cat([x[left], x[right]], 1), 10 * y[left] + y[right]

    first, later, test = drawn(digits.first, 4000), drawn(digits.later, 4000), digits.test
    return small(Task("classification", 100, first, later, drawn(test, 2000)), seed, steps=1500)


def stream(name: str):
    """Two classes after the other, conditioned on by a random network."""

    def make(seed: int, root: Root) -> Absorbed:
        from sfr_cl.benchmarks.cl import networks
        from sfr_cl.benchmarks.harness import images
        from sfr_cl.inducing import smooth_noise

        data = images.idx(name, root)
        torch.manual_seed(seed)
        layers, width, scale = networks.ntk_mlp(data.x_train.shape[1:], (1024, 1024))
        head = nn.Linear(width, 1, bias=False)
        nn.init.normal_(head.weight)
        # What SFRConditioning builds, without Avalanche's loop over samples.
        start = SFRPosterior(
            nn.Sequential(*layers, *scale, head),
            "classification",
            inducing=smooth_noise(1000),
            num_outputs=10,
        ).init((data.x_train[:512], data.y_train[:512]))
        for task in range(4):
            rows = data.y_train // 2 == task
            start.update((data.x_train[rows], data.y_train[rows]))
        rows = data.y_train // 2 == 4
        later = data.x_train[rows], data.y_train[rows]
        return absorbed(start, later, (data.x_test, data.y_test), 1e-3)

    return make


PROBLEMS: dict[str, Callable[[int, Root], Absorbed]] = {
    "digits": table("digits"),
    "digits, 20 % flipped": flipped,
    "digits, three new classes": table("digits", new_classes=3),
    "wine": table("wine"),
    "breast cancer": lambda seed, _root: table("breast_cancer")(seed, None),
    "glass": table("glass"),
    "vehicle": table("vehicle"),
    "vehicle, one new class": table("vehicle", new_classes=1),
    "australian": table("australian", "binary"),
    "ionosphere": table("ionosphere", "binary"),
    "satellite": table("satellite"),
    "digit pairs, C = 100": pairs,
    "Split-MNIST": stream("mnist"),
    "Split-FMNIST": stream("fmnist"),
}


# Measures -------------------------------------------------------------------------------------


def quality(posterior: SFRPosterior, test: Pair) -> Quality:
    x, y = test
    probs = posterior.predict(x).probs
    if posterior.likelihood.name == "binary":
        probs = torch.cat([1 - probs, probs], 1)
    return of_probabilities(probs, y)


def of_probabilities(probs: Tensor, y: Tensor) -> Quality:
    confidence, label = probs.max(1)
    right = (label == y).double()
    bins = (confidence * BINS).long().clamp_max(BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, confidence.double() - right)
    nlpd = -probs.gather(1, y[:, None]).clamp_min(1e-300).log().mean()
    return Quality(float(nlpd), float(gaps.abs().sum() / len(y)), float(right.mean()))


def at(found: Absorbed, delta: float | None, scale: float | None) -> SFRPosterior:
    state = found.posterior.state.with_spec(prior_precision=delta, logit_scale=scale)
    return SFRPosterior.of(state.spec, found.posterior.network, state)


def tuned(found: Absorbed) -> tuple[Quality, float, float]:
    (x, y), halves = found.test, []
    for half in (0, 1):
        own = torch.arange(len(y)) % 2 == half
        posterior = at(found, None, None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            posterior.tune_prior_precision((x[own], y[own]))
        found_quality, spec = quality(posterior, (x[~own], y[~own])), posterior.state.spec
        halves.append((found_quality, spec.prior_precision, spec.logit_scale))
    qualities, deltas, scales = zip(*halves, strict=True)
    return averaged(qualities), geometric_mean(deltas), geometric_mean(scales)


def averaged(qualities: Sequence[Quality]) -> Quality:
    return Quality(*(mean(values) for values in zip(*qualities, strict=True)))


def cost(found: Absorbed) -> float:
    """Processor time of absorbing, and scoring, by that of absorbing: taking turns."""
    given = found.start.state.with_spec(logit_scale=1.0)
    times: list[tuple[float, float]] = []
    while len(times) < REPEATS and sum(map(sum, times)) < SECONDS:
        pair = []
        for state in (found.start.state, given):
            posterior = SFRPosterior.of(state.spec, found.start.network, state)
            began = time.process_time()
            found.absorb(posterior)
            pair.append(time.process_time() - began)
        times.append((pair[0], pair[1]))
    scored, plain = (min(column) for column in zip(*times, strict=True))
    return scored / plain


def measure(name: str, seed: int, root: Root) -> Row:
    found = PROBLEMS[name](seed, root)
    now = found.posterior
    as_before = replace(at(found, found.delta_before, 1.0).state, discriminant=False)
    before = SFRPosterior.of(as_before.spec, now.network, as_before)
    best, delta, scale = tuned(found)
    unit = now.state.reading.unit
    return Row(
        quality(before, found.test),
        quality(now, found.test),
        best,
        now.prior_precision,
        now.logit_scale * unit,
        delta,
        scale * unit,
        cost(found),
    )


def over(rows: list[Row]) -> Row:
    """The mean over seeds; of delta and scale the geometric one."""

    columns = {each.name: [getattr(row, each.name) for row in rows] for each in fields(Row)}
    qualities = {part: averaged(columns.pop(part)) for part in ("before", "now", "tuned")}
    numbers = {part: geometric_mean(values) for part, values in columns.items()}
    return Row(**qualities, **numbers)


HEADER = (
    "| problem | NLPD before | now | tuned | ECE before | now | tuned | accuracy before | now "
    "| tuned | delta now | tuned | scale now | tuned | cost |\n" + "|---" * 15 + "|"
)


def line(name: str, row: Row) -> str:
    parts = (row.before, row.now, row.tuned)
    cells = [
        *(f"{part.nlpd:.3f}" for part in parts),
        *(f"{part.ece:.3f}" for part in parts),
        *(f"{100 * part.accuracy:.1f}" for part in parts),
        f"{row.delta:.2g}",
        f"{row.tuned_delta:.2g}",
        f"{row.scale:.1f}",
        f"{row.tuned_scale:.1f}",
        f"{row.cost:.2f}",
    ]
    return f"| {' | '.join([name, *cells])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    root = Path(os.environ["SFR_CL_DATA"])
    print(HEADER, flush=True)
    for name in arguments.problems:
        print(line(name, over([measure(name, seed, root) for seed in arguments.seeds])), flush=True)


if __name__ == "__main__":
    main()
