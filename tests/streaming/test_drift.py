"""Streams whose world changes: aged, watched, and carried to other weights."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import StudentT

from sfr_cl import SFRPosterior, StreamingPosterior
from sfr_cl.errors import ArgumentError, DataError, MismatchError
from sfr_cl.likelihoods import GaussianLikelihood
from sfr_cl.streaming import Drift
from sfr_cl.streaming.monitor import ExcessNLL
from support.posteriors import inputs, mlp
from support.streams import assert_same_sums, posterior, samples, stream, sums


def test_old_samples_count_for_less() -> None:
    x, y = samples(rows=300)
    flipped = (y + 1) % 3
    forgets, remembers = stream(discount=0.95), stream()
    for live in (forgets, remembers):
        live.learn_many(x[:200], y[:200])
        live.learn_many(x[200:], flipped[200:])
    assert forgets.nlpd((x, flipped)) < remembers.nlpd((x, flipped))
    assert forgets.num_data == pytest.approx((1 - 0.95**300) / 0.05)


def test_seconds_are_those_given() -> None:
    x, y = samples()
    live = stream(discount=0.5, discount_per="second")
    live.learn_one(x[0], y[0], time=100.0)
    live.learn_one(x[1], y[1], time=102.0)
    live.learn_one(x[2], y[2], time=101.0)  # late
    assert live.num_data == pytest.approx(0.25 + 1 + 0.5)
    live.learn_one(x[3], y[3])  # the system's time: much later
    assert live.num_data == pytest.approx(1)
    with pytest.raises(DataError, match="one time"):
        live.learn_many(x[:3], y[:3], time=[1.0, 2.0])
    with pytest.raises(ArgumentError, match="discount_per='second'"):
        stream().learn_one(x[0], y[0], time=3.0)


def test_drift_is_told_once_and_soon() -> None:
    x, y = samples(rows=1200)
    told: list[Drift] = []
    live = stream(on_drift=told.append)
    live.learn_many(x[:800], y[:800])
    assert told == []
    assert abs(live.excess_nll) < 5
    live.learn_many(x[800:], (y[800:] + 1) % 3)
    assert [drift.position for drift in told][:1] == [min(drift.position for drift in told)]
    assert 800 < told[0].position < 860
    assert told[0].score > 5
    assert len(told) <= 2


def test_a_callback_may_change_the_stream() -> None:
    x, y = samples(rows=1200)

    def react(_: Drift) -> None:
        live.discount(0.05)

    live, idle = stream(on_drift=react), stream(on_drift=lambda _: None)
    for stream_ in (live, idle):
        for start in range(0, 900, 10):
            later = y[start : start + 10] + (1 if start >= 800 else 0)
            stream_.learn_many(x[start : start + 10], later % 3)
    new = (x[900:], (y[900:] + 1) % 3)
    assert live.nlpd(new) < idle.nlpd(new)


def test_watching_does_not_depend_on_portions() -> None:
    x, y = samples(rows=300)
    one, many = [], []
    single, batch = stream(on_drift=one.append), stream(on_drift=many.append)
    y = torch.where(torch.arange(300) < 200, y, (y + 1) % 3)
    for row in range(300):
        single.learn_one(x[row], int(y[row]))
    batch.learn_many(x, y)
    assert [drift.position for drift in one] == [drift.position for drift in many]
    assert single.excess_nll == pytest.approx(batch.excess_nll)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_relinearized_without_data(kind: str) -> None:
    x, y = samples(kind)
    live = stream(kind)
    live.learn_many(x, y)
    before = live.predict_f(x).mean
    same = live.relinearize(mlp(live.posterior.num_outputs))
    assert same.divergence == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(live.predict_f(x).mean, before, rtol=1e-4, atol=1e-4)
    other = mlp(live.posterior.num_outputs, seed=7)
    cost = live.relinearize(other, data=(x, y))
    assert cost.divergence is not None
    assert same.divergence is not None
    assert cost.divergence > same.divergence
    assert cost.nlpd_before is not None
    assert cost.nlpd_after is not None
    assert cost.nlpd_after != cost.nlpd_before
    carried = SFRPosterior(other, kind).from_sites(_fitted(kind).sites)
    assert_same_sums(sums(live), carried.state.sums, 1e-6)
    with pytest.raises(DataError, match="exchanged"):
        live.forget_one(x[0], y[0])
    live.learn_one(x[0], y[0])
    live.forget_one(x[0], y[0], at=live.n_seen - 1)
    assert_same_sums(sums(live), carried.state.sums, 1e-6)


def _fitted(kind: str) -> SFRPosterior:
    return posterior(kind).fit(samples(kind))


def test_a_window_is_evaluated_again_at_other_weights() -> None:
    x, y = samples()
    live = stream(window=20)
    live.learn_many(x, y)
    live.relinearize(mlp(seed=7))
    network = mlp(seed=7)
    fit = SFRPosterior(network, "classification", inducing=inputs(8, seed=2))
    assert_same_sums(sums(live), fit.fit((x[-20:], y[-20:])).state.sums)
    live.forget_one(x[-1], y[-1])
    assert_same_sums(sums(live), fit.fit((x[-20:-1], y[-20:-1])).state.sums)


def test_relinearizing_refuses_other_outputs() -> None:
    live = stream()
    live.learn_many(*samples())
    before = sums(live)
    with pytest.raises((DataError, ArgumentError, ValueError)):
        live.relinearize(mlp(1, features=2))
    assert_same_sums(sums(live), before, 0.0)
    assert isinstance(live, StreamingPosterior)


def test_data_from_before_the_stream_ages_with_it() -> None:
    x, y = samples()
    fitted = posterior().fit((x[:20], y[:20]))
    read, unread = (StreamingPosterior(fitted, discount=0.99) for _ in range(2))
    for row in range(20, 28):
        read.learn_one(x[row], y[row])
        read.discount(1.0)
        unread.learn_one(x[row], y[row])
    expected = 20 * 0.99**8 + (1 - 0.99**8) / 0.01
    assert unread.num_data == pytest.approx(expected)
    assert read.num_data == pytest.approx(expected)
    seconds = StreamingPosterior(fitted, discount=0.5, discount_per="second")
    seconds.learn_one(x[20], y[20], time=100.0)  # its time is the first that is known
    assert seconds.num_data == pytest.approx(21)
    seconds.learn_one(x[21], y[21], time=101.0)
    assert seconds.num_data == pytest.approx(10.5 + 1)


def test_a_callback_may_train_and_is_told_after_learning() -> None:
    x, y = samples(rows=600)
    seen = []

    def retrain(_: Drift) -> None:
        network = mlp()
        torch.nn.functional.cross_entropy(network(x.float()), y).backward()
        seen.append(live.n_seen)
        raise RuntimeError("its own trouble")

    live = stream(on_drift=retrain)
    live.learn_many(x[:500], y[:500])
    with pytest.raises(RuntimeError, match="its own trouble"):
        live.learn_many(x[500:], (y[500:] + 1) % 3)
    assert seen == [600]
    assert live.n_seen == 600


def test_relinearized_keeps_its_classes(tmp_path: Path) -> None:
    x, y = samples()
    live = StreamingPosterior(
        SFRPosterior(mlp(1), "classification", inducing=inputs(8, seed=2), num_outputs=2)
    )
    live.grow_outputs(3)
    live.learn_many(x[:60], y[:60])
    live.save(tmp_path / "stream")
    live.close()
    loaded, _ = StreamingPosterior.load(tmp_path / "stream", mlp(1))
    for each in (live, loaded):
        each.relinearize(mlp(1, seed=7))
        each.learn_many(x[60:], y[60:])
        assert each.predict_proba_many(x).shape == (len(x), 3)
    assert_same_sums(sums(loaded), sums(live), 1e-12)


def test_relinearize_refuses_another_number_of_outputs() -> None:
    x, y = samples("regression")
    live = StreamingPosterior(posterior("regression", output_kernel="per_output"))
    live.learn_many(x, y)
    before = sums(live)
    with pytest.raises(MismatchError, match="outputs"):
        live.relinearize(mlp(3))
    assert_same_sums(sums(live), before, 0.0)


def test_relinearize_measures_on_data_that_comes_once() -> None:
    x, y = samples()
    live = stream()
    live.learn_many(x[:60], y[:60])
    cost = live.relinearize(mlp(seed=7), ((x[row], y[row]) for row in (slice(60, 70),)))
    assert cost.nlpd_before is not None
    assert cost.nlpd_after == pytest.approx(live.nlpd((x[60:70], y[60:70])))


@pytest.mark.parametrize("rate", [0.0005, 0.002, 0.01])
def test_a_rare_mistake_is_no_drift(rate: float) -> None:
    """Right but for a share of ``rate``, as predicted; then wrong a third of the time."""
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(20_000, generator=generator) < rate
    wrong[-300:] = torch.rand(300, generator=generator) < 1 / 3
    nats = torch.where(wrong, -math.log(rate), -math.log(1 - rate))
    expected = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
    excess, told = ExcessNLL(), []
    for position, value in enumerate((nats - expected).tolist()):
        excess = excess.after(value)
        if excess.is_drift:
            told.append(position)
            break
    assert told
    assert 0 <= told[0] - 19_700 < 100


def test_relinearized_fits_are_not_forgotten_wrongly() -> None:
    x, y = samples("regression")
    for settings in ({}, {"discount": 0.9, "discount_per": "second"}):
        live = StreamingPosterior(posterior("regression").fit((x, y)), **settings)
        live.relinearize(mlp(1, seed=7))
        with pytest.raises((DataError, ArgumentError), match="at="):
            live.forget_one(x[0], y[0])


def test_relinearized_workers_are_not_forgotten_wrongly() -> None:
    x, y = samples()
    one, other = stream(), stream()
    one.learn_many(x[:10], y[:10])
    other.learn_many(x[10:20], y[10:20])
    other.relinearize(mlp(seed=7))
    one.relinearize(mlp(seed=7))
    one.learn_many(x[20:40], y[20:40])
    one.merge(other)
    merged = one.n_seen - 1
    with pytest.raises(DataError, match="can't be taken out exactly"):
        one.forget_one(x[12], y[12], at=merged)


def test_what_relinearizing_costs_is_that_of_predictions() -> None:
    x, y = samples()
    fitted = posterior().fit((x, y))
    state = fitted.state.with_spec(logit_scale=3.0)  # as tuning would choose it
    fitted = SFRPosterior.of(fitted.spec, fitted.network, state)
    live = StreamingPosterior(fitted, calibrate=False)
    assert live.logit_scale == 3.0
    z = live.inducing_inputs
    before = live.predict(z)
    cost = live.relinearize(mlp(seed=7))
    found = torch.distributions.kl_divergence(before, live.predict(z)).mean()
    assert cost.divergence == pytest.approx(float(found))


def test_relinearized_with_a_custom_likelihood() -> None:
    class Heavy(GaussianLikelihood):
        name = "heavy"

        def predictive(self, mean: Tensor, variance: Tensor, link: str) -> StudentT:
            return StudentT(3.0, mean, (variance + self.noise_variance).sqrt())

    x, y = samples("regression")
    given = SFRPosterior(mlp(1), Heavy(0.1), prior_precision=1.0, inducing=inputs(8, seed=2))
    live = StreamingPosterior(given)
    live.learn_many(x, y)
    cost = live.relinearize(mlp(1, seed=7), data=(x, y))
    assert cost.divergence is None
    assert cost.nlpd_after != cost.nlpd_before
    assert isinstance(live.posterior.predict(x), StudentT)
    assert live.nlpd((x, y)) == pytest.approx(-float(live.predict(x).log_prob(y).mean()))
