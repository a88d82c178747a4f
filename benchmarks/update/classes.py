"""Late labels absorbed by conditioning, against fine-tuning and retraining: when it is enough."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional

from sfr_cl import SFRPosterior

from ..harness.measure import accuracy, nlpd
from ..harness.networks import mlp, seeded
from ..harness.results import Row
from ..harness.run import ShowShare
from ..harness.timing import processor_timed
from ..uci import data as tables
from ..uci.data import Pair, Split

FIRST_SHARE = 0.2
"""Of the training data, in D1 where D2 is more of the same."""
HIDDEN = 64
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-4
"""lambda of the mean loss."""
BATCH = 64
PATIENCE = 500
"""Steps without a better validation NLPD."""
INTERVAL = 10
"""Steps between looks at the validation data."""
MOST_STEPS = 50_000

METHODS = ("network", "conditioned", "fine-tuned", "fine-tuned on all", "retrained")
LATE = {
    "more": "a fifth of the rows, drawn at random; D2 the rest",
    "shift": "the half whose features have the smaller mean; D2 the other half",
    "class": "all classes but the last; D2 the last class",
}
"""What D1 is, by how D2 differs from it."""


@dataclass(frozen=True)
class Part:
    """Rows for training, and for early stopping."""

    train: Pair
    valid: Pair


@dataclass(frozen=True)
class Problem:
    """A data set split by a seed: what is there when the network is trained, and what is late."""

    name: str
    late: str
    seed: int

    def parts(self) -> tuple[Part, Part, Part, Split]:
        """D1, D2, both, and the split with the test, which holds rows of both."""
        split = tables.split(self.name, self.seed)
        halves = [self._halves(pair, split) for pair in (split.train, split.valid)]
        first, second = (Part(*pairs) for pairs in zip(*halves, strict=True))
        return first, second, Part(split.train, split.valid), split

    def _halves(self, pair: Pair, split: Split) -> tuple[Pair, Pair]:
        x, y = pair
        if self.late == "class":
            early = y < split.num_classes - 1
        elif self.late == "shift":
            early = x.mean(1) < split.train[0].mean(1).median()
        else:
            generator = torch.Generator().manual_seed(self.seed)
            early = torch.rand(len(y), generator=generator) < FIRST_SHARE
        return (x[early], y[early]), (x[~early], y[~early])


@dataclass(frozen=True)
class Case:
    """A row: one problem, all methods."""

    problem: Problem

    fixed: ClassVar[Sequence[str]] = ()
    varies: ClassVar[Sequence[str]] = ("data", "late", "seed")

    @property
    def key(self) -> Row:
        """What tells this row from others; also the row's first columns."""
        settings = {
            "hidden": HIDDEN,
            "learning_rate": LEARNING_RATE,
            "weight_decay": WEIGHT_DECAY,
            "batch": BATCH,
            "patience": PATIENCE,
            "first_share": FIRST_SHARE,
        }
        problem = self.problem
        return {
            "data": problem.name,
            "late": problem.late,
            "seed": problem.seed,
            "settings": settings,
        }

    @property
    def label(self) -> str:
        return f"{self.problem.name}, {self.problem.late}, seed {self.problem.seed}"

    def run(self, show: ShowShare) -> Row:
        """The row: every method predicts the same test rows, of D1 and D2 alike."""
        first, second, both, split = self.problem.parts()
        seed = self.problem.seed
        test_x, test_y = split.test
        network = train(new_network(split, seed), first, seed)
        show(0.25)
        posterior = SFRPosterior(network, "classification").fit(first.train)
        (conditioned, found), seconds = processor_timed(
            lambda: _conditioned(posterior, second, test_x)
        )
        row = self.key | {
            "data_first": len(first.train[1]),
            "data_second": len(second.train[1]),
            "inducing_used": len(conditioned.inducing_inputs),
        }
        row |= _columns("network", log_probs(network, test_x), test_y, 0.0)
        row |= _columns("conditioned", found, test_y, seconds)
        trained: dict[str, Callable[[], nn.Module]] = {
            "fine-tuned": lambda: train(copy.deepcopy(network), second, seed),
            "fine-tuned on all": lambda: train(copy.deepcopy(network), both, seed),
            "retrained": lambda: train(new_network(split, seed), both, seed),
        }
        for index, (method, work) in enumerate(trained.items(), start=2):
            again, seconds = processor_timed(work)
            row |= _columns(method, log_probs(again, test_x), test_y, seconds)
            show(index / 4)
        return row

    def line(self, row: Row) -> str:
        """The row in short: accuracies in the order of `METHODS`."""
        return "  ".join(f"{100 * row[column('accuracy', method)]:.1f}" for method in METHODS)


def column(measure: str, method: str) -> str:
    """The name of a measure's column in a row.

    >>> column("nlpd", "fine-tuned on all")
    'nlpd_fine_tuned_on_all'
    """
    return f"{measure}_{method.replace('-', ' ').replace(' ', '_')}"


def new_network(split: Split, seed: int) -> nn.Sequential:
    """Two hidden layers with an output for every class, as torch initialises them."""
    with seeded(seed):
        return mlp(split.num_features, HIDDEN, HIDDEN, split.num_classes)


def train(network: nn.Sequential, part: Part, seed: int) -> nn.Sequential:
    """The network as it is at the best validation NLPD; every method trains by this."""
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, fused=True)
    best, best_step, kept = float("inf"), 0, copy.deepcopy(network.state_dict())
    for step, (x, y) in enumerate(_batches(part.train, seed), start=1):
        square_norm = torch.stack([w.square().sum() for w in network.parameters()]).sum()
        loss = functional.cross_entropy(network(x), y) + WEIGHT_DECAY / 2 * square_norm
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % INTERVAL == 0:
            found = nlpd(log_probs(network, part.valid[0]), part.valid[1])
            if found < best:
                best, best_step, kept = found, step, copy.deepcopy(network.state_dict())
            if step >= min(best_step + PATIENCE, MOST_STEPS):
                break
    network.load_state_dict(kept)
    return network


@torch.no_grad()
def log_probs(network: nn.Module, x: Tensor) -> Tensor:
    """log p of every class, ``[B, C]``."""
    return functional.log_softmax(network(x).double(), dim=1)


def _conditioned(posterior: SFRPosterior, second: Part, x: Tensor) -> tuple[SFRPosterior, Tensor]:
    found = posterior.update(second.train).predict(x)
    assert isinstance(found, Categorical)
    return posterior, found.logits


def _columns(method: str, found: Tensor, y: Tensor, seconds: float) -> Row:
    return {
        column("accuracy", method): accuracy(found, y),
        column("nlpd", method): nlpd(found, y),
        column("seconds", method): seconds,
    }


def _batches(pair: Pair, seed: int) -> Iterator[Pair]:
    generator = torch.Generator().manual_seed(seed)
    x, y = pair
    while True:
        for rows in torch.randperm(len(y), generator=generator).split(BATCH):
            yield x[rows], y[rows]
