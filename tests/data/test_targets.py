"""What people give as targets is named for what it is, and the advice works."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfr_cl import SFRError, SFRPosterior
from sfr_cl.data.targets import flags, labels, numbers
from sfr_cl.errors import DataError
from support.posteriors import inputs, mlp

X = inputs(30, seed=1)
SOFT = torch.softmax(3 * X, dim=1)
MULTI = (X > 0).long()
ONE_HOT = nn.functional.one_hot(X.argmax(1), 3)

MATRICES = {
    "soft": (SOFT, r"class probabilities \(soft labels\), which are not supported.*y\.argmax"),
    "multi": (MULTI, "several labels of one input, which are not supported.*'regression'"),
    "multi-float": (MULTI.float(), "several labels of one input, which are not supported"),
    "one-hot": (ONE_HOT, r"one-hot rows.*y\.argmax\(1\)"),
    "one-hot-float": (ONE_HOT.double(), r"one-hot rows.*y\.argmax\(1\)"),
    "numbers": (X, r"got \[30, 3\]: give one target for each input"),
}


@pytest.mark.parametrize(("y", "message"), MATRICES.values(), ids=MATRICES)
def test_matrices(y: Tensor, message: str) -> None:
    for read, outputs in ((labels, 3), (flags, 1)):
        with pytest.raises(DataError, match=message):
            read(y, outputs)


COLUMNS = {
    "complex": (labels, torch.tensor([0j, 1]), "integer class labels, got torch.complex64"),
    "whole": (labels, torch.tensor([0.0, 1, 2]), r"use y\.long\(\)"),
    "real": (labels, torch.tensor([0.3, 1, 2]), "use 'regression' for real targets"),
    "column": (labels, torch.tensor([[0], [1]]), r"got \[2, 1\]: use y\.reshape\(-1\)"),
    "soft": (flags, torch.tensor([0.3, 1, 0]), r"\(soft labels\), which are not supported.*> 0\.5"),
    "signs": (flags, torch.tensor([-1, 1, 1]), "got -1 and 1: use y > 0"),
    "classes": (flags, torch.tensor([0, 1, 2]), "use 'classification' for more classes"),
}


@pytest.mark.parametrize(("read", "y", "message"), COLUMNS.values(), ids=COLUMNS)
def test_columns(read, y: Tensor, message: str) -> None:
    with pytest.raises(SFRError, match=message):
        read(y, 3 if read is labels else 1)


@pytest.mark.parametrize("y", [SOFT.argmax(1), SOFT.multinomial(1)[:, 0], ONE_HOT.argmax(1)])
def test_advice_for_soft_labels(y: Tensor) -> None:
    posterior = SFRPosterior(mlp(3), "classification", inducing=X[:20]).fit((X, y))
    assert posterior.nlpd((X, y)) < 1.0


class Only(nn.Module):
    """One logit of a network."""

    def __init__(self, network: nn.Module, index: int) -> None:
        super().__init__()
        self.network, self.index = network, index

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)[:, self.index]


def test_advice_for_several_labels_of_one_input() -> None:
    network = mlp(3)
    every = SFRPosterior(network, "regression", inducing=X[:20]).fit((X, MULTI))
    assert ((every.predict(X).mean > 0.5) == (MULTI > 0)).double().mean() > 0.9
    for label in range(3):
        each = SFRPosterior(Only(network, label), "binary", inducing=X[:20])
        each.fit((X, MULTI[:, label]))
        right = (each.predict(X).probs[:, 0] > 0.5) == (MULTI[:, label] > 0)
        assert right.double().mean() > 0.85


def test_advice_for_probabilities_of_one_label() -> None:
    y = SOFT[:, 0]
    for threshold in (y > 0.5, y.bernoulli()):
        posterior = SFRPosterior(mlp(1), "binary", inducing=X[:20]).fit((X, threshold))
        assert posterior.nlpd((X, threshold)) < 1.0


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.int8, torch.int32])
def test_integers_of_any_size_are_labels(dtype: torch.dtype) -> None:
    y = torch.arange(30) % 3
    assert torch.equal(labels(y.to(dtype), 3), y)
    with pytest.raises(DataError, match=r"labels in 0\.\.1, got 2"):
        labels(y.to(dtype), 2)
    assert torch.equal(flags((y > 0).to(dtype), 1)[:, 0], (y > 0).double())
    assert torch.equal(numbers(y.to(dtype), 1)[:, 0], y.double())


def test_sums_hold_no_history_of_their_targets() -> None:
    y = X.sum(1).requires_grad_()
    posterior = SFRPosterior(mlp(1), "regression", inducing=X[:5]).fit((X, y)).update((X, y))
    assert not any(value.requires_grad for value in posterior.state.sums.tensors())


def test_an_array_is_a_noise_for_each_output() -> None:
    given = np.array([0.1, 0.2, 0.3])
    posterior = SFRPosterior(mlp(3), "regression", inducing=X[:5], noise_variance=given).init()
    assert posterior.noise_variance.tolist() == [0.1, 0.2, 0.3]


WIDE = {
    "network": lambda: SFRPosterior(mlp(5), "binary", inducing=X[:5]).init(),
    "num_outputs": lambda: SFRPosterior(mlp(1), "binary", inducing=X[:5], num_outputs=5).init(),
    "grow": lambda: SFRPosterior(mlp(1), "binary", inducing=X[:5]).init().grow_outputs(5),
}


@pytest.mark.parametrize("make", WIDE.values(), ids=WIDE)
def test_a_binary_posterior_has_one_output(make: Callable[[], SFRPosterior]) -> None:
    wanted = "one output .* got 5: use 'classification'.*several labels at once"
    with pytest.raises(DataError, match=wanted):
        make()


def test_a_noise_for_each_output_fits_their_number() -> None:
    posterior = SFRPosterior(mlp(3), "regression", inducing=X[:5], noise_variance=[0.1, 0.2])
    with pytest.raises(DataError, match="one noise_variance, or 3"):
        posterior.init()
