"""Refusals of the main classes keep the contract, and the contract can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sfr_cl import SFRPosterior, StreamingPosterior
from sfr_cl.errors import ArgumentError, DataError
from sfr_cl.testing import check_refusal
from support.posteriors import data, fitted, mlp

NAN = torch.full((2, 3), torch.nan), torch.tensor([0, 1])
UNKNOWN = torch.zeros(2, 3), torch.tensor([0, 7])

CALLS: dict[str, Callable[[SFRPosterior], Any]] = {
    "update, NaN": lambda posterior: posterior.update(NAN),
    "update, unknown class": lambda posterior: posterior.update(UNKNOWN),
    "forget, too many": lambda posterior: posterior.forget(data(rows=60)),
    "discount": lambda posterior: posterior.discount(1.5),
    "merge": lambda posterior: posterior + fitted(inducing=torch.zeros(2, 3).add(1)),
    "head": lambda posterior: posterior.grow_outputs(2),
    "delta": lambda posterior: posterior.with_prior_precision(-1.0),
    "fit": lambda posterior: posterior.fit(NAN),
}


@pytest.mark.filterwarnings("ignore::sfr_cl.SFRWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_posterior_refuses_and_stays(name: str) -> None:
    posterior = fitted()
    check_refusal(lambda: CALLS[name](posterior), posterior.state_dict, error=ValueError)


def test_a_stream_refuses_and_stays() -> None:
    stream = StreamingPosterior(SFRPosterior(mlp(), "classification", inducing=5))
    stream.learn_many(*data())

    def contents() -> dict[str, Any]:
        return {**stream.posterior.state_dict(), "n_seen": stream.n_seen}

    check_refusal(lambda: stream.learn_many(*NAN), contents, message="row 0")


def refuse(error: Exception, content: list[Any]) -> None:
    content.append(1)
    raise error


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: 3, "expected an SFRError, got the value 3"),
        (lambda _: 1 / 0, "expected an SFRError, got ZeroDivisionError"),
        (lambda content: refuse(DataError("expected a, got b"), content), "contents of 0"),
        (lambda _: refuse(DataError("it does not work"), []), "what was expected"),
        (lambda _: refuse(ArgumentError("expected a, got b"), []), "a refusal that is"),
    ],
)
def test_what_breaks_the_contract_is_found(call: Callable[[list[Any]], Any], message: str) -> None:
    content: list[Any] = []
    with pytest.raises(AssertionError, match=message):
        check_refusal(lambda: call(content), lambda: content, error=DataError)
