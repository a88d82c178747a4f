"""Inducing inputs exchanged where new regions appear: never too many, and the error is bounded."""

import pytest
import torch
from torch import Tensor

from sfr_cl import SFRPosterior, StreamingPosterior
from sfr_cl.errors import ArgumentError, DataError
from support.posteriors import mlp
from support.streams import assert_same_sums, sums

BUDGET = 10


def regions(rows: int = 400) -> tuple[Tensor, Tensor]:
    """First one region of inputs, then another that the first says little about."""
    generator = torch.Generator().manual_seed(0)
    x = 0.3 * torch.randn(rows, 3, generator=generator)
    x[rows // 2 :, 0] += 3
    y = (x[:, 1] > 0).long()
    return x, y


def live(**settings: object) -> StreamingPosterior:
    posterior = SFRPosterior(mlp(2), "classification", inducing=BUDGET)
    return StreamingPosterior(posterior, **{"swap": True, **settings})  # type: ignore[arg-type]


def test_new_regions_get_inducing_inputs() -> None:
    x, y = regions()
    fixed, swapping = live(swap=False), live()
    for each in (fixed, swapping):
        each.learn_many(x, y)
    assert (fixed.inducing_inputs[:, 0] > 1.5).sum() == 0
    assert (swapping.inducing_inputs[:, 0] > 1.5).sum() > 0
    assert len(swapping.inducing_inputs) == BUDGET
    assert swapping.nlpd((x[200:], y[200:])) < fixed.nlpd((x[200:], y[200:]))


def test_the_budget_holds_at_any_time() -> None:
    x, y = regions()
    each = live()
    for row in range(0, len(x), 7):
        each.learn_many(x[row : row + 7], y[row : row + 7])
        assert len(each.inducing_inputs) <= BUDGET


@pytest.mark.parametrize("settings", [{}, {"discount": 0.99}])
def test_errors_stay_within_their_bounds(settings: dict[str, float]) -> None:
    """Against features computed again from all data, whose weights are known."""
    x, y = regions()
    each = live(**settings)
    each.learn_many(x, y)
    state, bound = each.posterior.state, each.residual_bound
    weights = settings.get("discount", 1.0) ** torch.arange(len(x) - 1, -1, -1).double()
    features = state.basis.features(x.double(), diagonal=True)
    phi, diagonal = features.phi[0], features.diagonal
    exact = state.sums.weight.new_zeros(state.sums.weight.shape)
    exact = exact + (weights[:, None] * phi).mT @ phi
    assert diagonal is not None
    total = float((weights * diagonal[0]).sum())
    assert bound.total == pytest.approx(total)
    error = float(torch.linalg.svdvals(exact - state.sums.weight).sum())
    assert 0 < error <= 2 * bound.exchange_error * total
    assert 0 < bound.exchange_error <= bound.unexplained + 1e-12 or bound.unexplained > 0


def test_without_exchange_nothing_is_lost() -> None:
    x, y = regions()
    each = live(swap=False)
    each.learn_many(x, y)
    assert each.residual_bound.exchange_error == 0
    unexplained = each.residual_bound.missed
    state = each.posterior.state
    features = state.basis.features(x.double(), diagonal=True)
    assert features.diagonal is not None
    missed = features.diagonal - features.phi.square().sum(2)
    assert unexplained == pytest.approx(float(missed.sum()))


def test_a_window_loses_nothing_in_an_exchange() -> None:
    x, y = regions()
    each = live(window=120)
    each.learn_many(x, y)
    assert (each.inducing_inputs[:, 0] > 1.5).sum() > 0
    fit = SFRPosterior(mlp(2), "classification", inducing=each.inducing_inputs)
    assert_same_sums(sums(each), fit.fit((x[-120:], y[-120:])).state.sums)
    assert each.residual_bound.exchange_error == 0
    each.forget_one(x[-1], y[-1])
    assert_same_sums(sums(each), fit.fit((x[-120:-1], y[-120:-1])).state.sums)


def test_what_came_before_an_exchange_is_not_forgotten_wrongly() -> None:
    x, y = regions()
    each = live()
    each.learn_many(x, y)
    before = sums(each)
    with pytest.raises(DataError, match="use swap=False or a window"):
        each.forget_one(x[0], y[0])
    with pytest.raises(DataError, match="use swap=False or a window"):
        each.forget_one(x[0], y[0], at=0)
    assert_same_sums(sums(each), before, 0.0)
    each.learn_one(x[0], y[0])
    each.forget_one(x[0], y[0], at=len(x))
    assert_same_sums(sums(each), before)


def test_large_inputs_are_not_mistaken_for_new_ones() -> None:
    x, y = regions()
    x = x[:200]
    each = live()
    each.learn_many(x, y[:200])
    each.learn_many(1e3 * x[:1].expand(40, 3), y[:1].expand(40))
    assert float(each.inducing_inputs.abs().max()) <= 1e3 * float(x.abs().max())
    assert torch.isfinite(each.predict_proba_many(x)).all()


def test_requests_in_between_do_not_stop_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfr_cl.streaming.settings.BLOCK", 16)
    x, y = regions()
    busy = live()
    for start in range(0, len(x), 10):
        busy.learn_many(x[start : start + 10], y[start : start + 10])
        busy.discount(1.0)
    assert (busy.inducing_inputs[:, 0] > 1.5).sum() > 0


def test_data_of_unknown_residual_is_not_exchanged() -> None:
    x, y = regions()
    fitted = SFRPosterior(mlp(2), "classification", inducing=BUDGET).fit((x, y))
    with pytest.raises(ArgumentError, match="swap=False"):
        StreamingPosterior(fitted, swap=True)
