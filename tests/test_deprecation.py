"""Names that were changed: the old ones work, and warn."""

import importlib
import sys
from typing import Any

import pytest
import torch

import sfr_cl.streaming
from sfr_cl import SFRPosterior, StreamingPosterior, likelihoods
from support.posteriors import data, fitted, inputs, mlp


@pytest.fixture
def stream() -> StreamingPosterior:
    found = StreamingPosterior(fitted(), calibrate=False)
    found.learn_many(*data(seed=4))
    return found


def test_fit_sites() -> None:
    posterior, x = fitted(), inputs(seed=5)
    with pytest.warns(FutureWarning, match="fit_sites is from_sites now"):
        again = SFRPosterior(mlp(), "classification").fit_sites(posterior.sites)
    torch.testing.assert_close(again.predict_f(x).mean, posterior.predict_f(x).mean)


def test_relinearise(stream: StreamingPosterior) -> None:
    with pytest.warns(FutureWarning, match="relinearise is relinearize now"):
        cost = stream.relinearise(mlp())
    assert cost.divergence == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("old", "new"),
    [("num_learned", "n_seen"), ("coverage", "residual_bound"), ("surprise", "excess_nll")],
)
def test_properties_of_a_stream(stream: StreamingPosterior, old: str, new: str) -> None:
    with pytest.warns(FutureWarning, match=f"{old} is {new} now"):
        found: Any = getattr(stream, old)
    assert found == getattr(stream, new)


@pytest.mark.parametrize(
    ("old", "new"), [("Coverage", "ResidualBound"), ("Relinearised", "Relinearized")]
)
def test_records_of_a_stream(old: str, new: str) -> None:
    with pytest.warns(FutureWarning, match=f"{old} is {new} now"):
        found = getattr(sfr_cl.streaming, old)
    assert found is getattr(sfr_cl.streaming, new)


def test_a_name_that_never_was() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Anything'"):
        _ = sfr_cl.streaming.Anything


def test_sites() -> None:
    sys.modules.pop("sfr_cl.value_sites", None)
    with pytest.warns(FutureWarning, match=r"is sfr_cl\.core\.transfer\.Sites now"):
        old = importlib.import_module("sfr_cl.value_sites")
    assert old.ValueSites is importlib.import_module("sfr_cl.core.transfer").Sites


def test_likelihoods_by_name() -> None:
    with pytest.warns(FutureWarning, match="named is by_name now"):
        assert likelihoods.named("binary").name == "binary"


def test_river_faces() -> None:
    sys.modules.pop("sfr_cl.streaming.estimators", None)
    with pytest.warns(FutureWarning, match=r"is sfr_cl\.streaming\.river now"):
        old = importlib.import_module("sfr_cl.streaming.estimators")
    river = importlib.import_module("sfr_cl.streaming.river")
    assert old.StreamingClassifier is river.StreamingClassifier
    assert old.random_network is river.random_network
