"""Inputs that are dictionaries, mini-batches that are, and mini-batches without targets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.benchmarks.utils.data import AvalancheDataset
from avalanche.training.supervised import Naive
from torch import Tensor, nn
from torch.utils.data import Dataset

from sfr_cl.errors import DataTypeError
from sfr_cl.strategies import SFR, SFRConditioning, SFRPlugin
from sfr_cl.testing import check_refusal
from sfr_cl.testing.streams import (
    blobs,
    class_benchmark,
    online,
    regression_benchmark,
    silent,
    single_head,
)

Item = Callable[[Tensor, int], Any]


class Items(Dataset[Any]):
    def __init__(self, x: Tensor, y: Tensor, item: Item) -> None:
        self.x, self.y, self.item, self.targets = x, y, item, y.tolist()

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> Any:
        return self.item(self.x[index].flatten(), int(self.y[index]))


def plain(x: Tensor, y: int) -> Any:
    return x, y


def in_two(x: Tensor, y: int) -> Any:
    return {"left": x[:2], "right": (x[2:],)}, y


class Joining(nn.Module):
    """A network of inputs in two parts, or in one."""

    def __init__(self) -> None:
        super().__init__()
        self.network = single_head()

    def forward(self, x: Any) -> Tensor:
        whole = x if isinstance(x, Tensor) else torch.cat([x["left"], *x["right"]], dim=1)
        found: Tensor = self.network(whole)
        return found


def benchmark(item: Item) -> Any:
    def part(seed: int, classes: int) -> Any:
        x, y = blobs(seed)
        own = y // 2 == classes
        return as_classification_dataset(Items(x[own], y[own], item))

    train, test = ([part(seed, i) for i in range(3)] for seed in (1, 2))
    return benchmark_from_datasets(train=train, test=test)


def inputs(item: Item) -> Any:
    x = blobs(2)[0].flatten(1)
    return x if item is plain else {"left": x[:, :2], "right": (x[:, 2:],)}


def shared(model: nn.Module) -> dict[str, Any]:
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), 0.05),
        "train_mb_size": 8,
        "evaluator": silent(),
    }


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"predict_with": "posterior"}, None),
        ({"consolidated": True, "predict_with": "posterior", "inducing": "greedy"}, None),
        ({"predict_with": "posterior"}, 20),
    ],
    ids=["tasks", "consolidated", "online"],
)
def test_inputs_in_parts_are_held_as_those_in_one(options: dict[str, Any], parts: Any) -> None:
    found = []
    for item in (plain, in_two):
        torch.manual_seed(0)
        model = Joining()
        strategy = SFR(num_inducing=10, verbose=False, **options, **shared(model))
        known = benchmark(item)
        for experience in known.train_stream if parts is None else online(known, parts):
            strategy.train(experience)
        strategy.eval(known.test_stream)
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        predicted = strategy.sfr.predictive(model).predict(inputs(item))[0]
        found.append((weights, predicted))
    torch.testing.assert_close(*found)


def test_inputs_in_parts_are_absorbed_as_those_in_one() -> None:
    found = []
    for item in (plain, in_two):
        torch.manual_seed(0)
        strategy = SFRConditioning(
            model=Joining(), num_inducing=20, inducing="random", verbose=False, evaluator=silent()
        )
        known = benchmark(item)
        strategy.train(known.train_stream[0])
        strategy.absorb(known.train_stream[1])
        strategy.train(known.train_stream[2])
        strategy.eval(known.test_stream)
        found.append(strategy.posterior.predict_f(inputs(item)).mean)
    torch.testing.assert_close(*found)


# Mini-batches that are dictionaries --------------------------------------------------------------


class OfDictionaries(Naive):  # type: ignore[misc]
    """How Avalanche is used with such: by a strategy that they write."""

    mb_x = property(lambda self: self.mbatch["features"])
    mb_y = property(lambda self: self.mbatch["labels"])

    def _unpack_minibatch(self) -> None:
        self.mbatch = {name: part.to(self.device) for name, part in self.mbatch.items()}


@pytest.mark.parametrize("kind", ["plug-in", "strategy", "conditioning"])
def test_a_minibatch_that_is_a_dictionary_is_refused(kind: str) -> None:
    def item(x: Tensor, y: int) -> Any:
        return {"features": x, "labels": y}

    x, y = blobs(1)
    known = benchmark_from_datasets(train=[AvalancheDataset([Items(x, y, item)])])
    model = single_head()
    said = {"num_inducing": 10, "likelihood": "classification"}
    make = {
        "plug-in": partial(OfDictionaries, plugins=[SFRPlugin(**said)]),
        "strategy": partial(SFR, **said),
        "conditioning": partial(SFRConditioning, inducing="noise", train_first=True, **said),
    }[kind]
    strategy = make(**shared(model), criterion=nn.CrossEntropyLoss())
    check_refusal(
        lambda: strategy.train(known.train_stream[0]),
        model.state_dict,
        error=DataTypeError,
        message=r"mini-batches \(x, y\).*got a dict of 'features', 'labels'",
    )


# Mini-batches without targets --------------------------------------------------------------------


def conditioned(known: Any, model: nn.Module, **options: Any) -> SFRConditioning:
    strategy = SFRConditioning(
        model=model, num_inducing=20, inducing="noise", verbose=False, evaluator=silent(), **options
    )
    for experience in known.train_stream:
        strategy.train(experience)
    strategy.eval(known.test_stream)
    return strategy


@pytest.mark.parametrize("kind", ["classes", "regression"])
def test_a_minibatch_to_predict_needs_no_targets(kind: str) -> None:
    x = torch.randn(5, 1, 2, 2)
    if kind == "classes":
        strategy = conditioned(class_benchmark(), single_head())
        expected = strategy.posterior.predict(x).logits
    else:
        strategy = conditioned(regression_benchmark(), single_head(1), criterion=nn.MSELoss())
        expected = strategy.posterior.predict(x).mean
    strategy.is_training = False
    strategy.mbatch = [x]
    torch.testing.assert_close(strategy.forward(), expected.float())
