"""A stream knows what a fit to all of its data knows, at any moment and in any portions."""

import copy
import pickle

import pytest
import torch

from sfr_cl import SFRPosterior, StreamingPosterior, random
from sfr_cl.errors import ArgumentError, DataError, MismatchError, NotFittedError, SFRError
from support.posteriors import CLASSES, FEATURES, fingerprint, inputs, mlp
from support.streams import ROWS, assert_same_sums, posterior, samples, stream, sums

KINDS = ["classification", "binary", "regression"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [{}, {"output_kernel": "per_output"}, {"linearize_at": "network"}, {"mean": "network"}],
)
def test_equals_a_batch_fit(kind: str, options: dict[str, str]) -> None:
    chosen = {"noise_variance": 0.1} if kind == "regression" else {"logit_scale": 1.0}
    options = {**options, "prior_precision": 1.0, **chosen}
    x, y = samples(kind)
    fitted = posterior(kind, **options).fit((x[:20], y[:20]))
    live = StreamingPosterior(fitted, calibrate=False)
    for row in range(20, 30):
        live.learn_one(x[row], y[row])
        live.predict(x[:3])
    live.learn_many(x[30:], y[30:])
    expected = fitted.update((x[20:], y[20:]))
    assert_same_sums(sums(live), expected.state.sums)
    new = inputs(7, seed=8)
    torch.testing.assert_close(live.predict_f(new).mean, expected.predict_f(new).mean)
    torch.testing.assert_close(live.predict_f(new).variance, expected.predict_f(new).variance)
    assert live.nlpd((x, y)) == pytest.approx(expected.nlpd((x, y)))


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfr_cl.streaming.settings.BLOCK", 16)
    x, y = samples()
    one, many, mixed = stream(), stream(), stream()
    for row in range(ROWS):
        one.learn_one(x[row], int(y[row]))
    many.learn_many(x, y)
    for start, end in [(0, 1), (1, 40), (40, 41), (41, ROWS)]:
        mixed.learn_many(x[start:end], y[start:end])
        mixed.predict(x[:1])
    for other in (many, mixed):
        assert_same_sums(sums(other), sums(one), 1e-12)
        assert other.logit_scale == pytest.approx(one.logit_scale, rel=1e-12)
        torch.testing.assert_close(other.predict_proba_many(x), one.predict_proba_many(x))


def test_a_low_rank_update_needs_no_factoring() -> None:
    x, y = samples()
    live = stream()
    live.learn_many(x[:50], y[:50])
    live.predict(x[:1])
    factored = live.state.solved.precision.factor
    live.learn_many(x[50:60], y[50:60])
    live.predict(x[:1])
    assert live.state.solved.precision.factor is factored


def test_answers_before_anything_was_learned() -> None:
    live = StreamingPosterior(SFRPosterior(mlp(), "classification", inducing=8))
    assert live.predict_proba_one(inputs(1)[0]) == pytest.approx({0: 1 / 3, 1: 1 / 3, 2: 1 / 3})
    assert live.n_seen == 0
    assert live.num_data == 0
    with pytest.raises(NotFittedError, match="learned nothing yet"):
        _ = live.inducing_inputs


def test_chooses_its_inducing_inputs_from_the_first_samples() -> None:
    x, y = samples()
    one = StreamingPosterior(SFRPosterior(mlp(), "classification", inducing=10), swap=False)
    for row in range(ROWS):
        one.learn_one(x[row], int(y[row]))
        assert len(one.inducing_inputs) <= 10
    many = StreamingPosterior(SFRPosterior(mlp(), "classification", inducing=10), swap=False)
    many.learn_many(x, y)
    assert torch.equal(one.inducing_inputs, many.inducing_inputs)
    assert len(one.inducing_inputs) == 10
    fit = SFRPosterior(mlp(), "classification", inducing=one.inducing_inputs).fit((x, y))
    assert_same_sums(sums(one), fit.state.sums)
    assert one.state.window is None  # only while they are being chosen


def test_hyperparameters_of_regression_are_learned() -> None:
    x, y = samples("regression")
    live = StreamingPosterior(SFRPosterior(mlp(1), "regression", inducing=10))
    live.learn_many(x, y)
    found = live.posterior
    z = live.inducing_inputs
    fit = SFRPosterior(mlp(1), "regression", inducing=z).fit((x, y))
    assert found.noise_variance == pytest.approx(fit.noise_variance, rel=0.5)
    new = inputs(20, seed=9)
    torch.testing.assert_close(live.predict(new).mean, fit.predict(new).mean, atol=0.05, rtol=0)
    assert live.predict_one(new[0]) == pytest.approx(float(live.predict(new[:1]).mean))


def test_staleness_puts_off_reading() -> None:
    x, y = samples()
    live = stream(staleness=5)
    live.learn_many(x[:50], y[:50])
    before = live.predict_proba_many(x[:2])
    live.learn_many(x[50:55], y[50:55])
    assert torch.equal(live.predict_proba_many(x[:2]), before)
    live.learn_one(x[55], int(y[55]))
    exact = stream()
    exact.learn_many(x[:56], y[:56])
    torch.testing.assert_close(live.predict_f(x[:2]).mean, exact.predict_f(x[:2]).mean)
    live.discount(0.5)  # any change but learning is seen at once
    assert not torch.equal(live.predict_f(x[:2]).mean, exact.predict_f(x[:2]).mean)


def test_logits_are_calibrated_on_samples_not_yet_learned() -> None:
    x, y = samples(rows=700)
    live, plain = stream(), stream(calibrate=False)
    for each in (live, plain):
        each.learn_many(x[:600], y[:600])
    new = x[600:], y[600:]
    assert live.logit_scale > 1
    assert live.nlpd(new) < plain.nlpd(new)


def test_outputs_grow() -> None:
    x, y = samples()
    network = mlp(1)
    live = StreamingPosterior(
        SFRPosterior(network, "classification", num_outputs=2, inducing=inputs(8, seed=2))
    )
    few = y < 2
    live.learn_many(x[few], y[few])
    with pytest.raises(DataError, match="labels in"):
        live.learn_many(x, y)
    live.grow_outputs(CLASSES)
    live.learn_many(x[~few], y[~few])
    fit = SFRPosterior(
        mlp(1), "classification", num_outputs=CLASSES, inducing=inputs(8, seed=2)
    ).fit((x, y))
    assert_same_sums(sums(live), fit.state.sums)


def test_features_by_name() -> None:
    x, y = samples()
    by_name, by_order = stream(), stream()
    for row in range(30):
        values = dict(zip("abc", x[row].tolist(), strict=True))
        by_name.learn_one(dict(reversed(values.items())), int(y[row]))
        by_order.learn_one(x[row], int(y[row]))
    assert_same_sums(sums(by_name), sums(by_order), 1e-6)
    known = {"a": 1.0, "c": 0.5}
    assert by_name.predict_proba_one({**known, "unknown": 3.0}) == by_name.predict_proba_one(
        {**known, "b": 0.0}
    )
    with pytest.raises(SFRError, match="OneHotEncoder"):
        by_name.learn_one({"a": "blue"}, 0)


def test_leaves_network_and_posterior_alone() -> None:
    network = mlp()
    before = fingerprint(network)
    given = SFRPosterior(network, "classification", inducing=inputs(8, seed=2))
    live = StreamingPosterior(given)
    live.learn_many(*samples())
    assert fingerprint(network) == before
    assert not given.is_fitted
    with torch.no_grad():
        network[0].weight.zero_()
    expected = stream()
    expected.learn_many(*samples())
    assert_same_sums(sums(live), sums(expected))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda live: pickle.loads(pickle.dumps(live))])
def test_copies_go_their_own_way(copied) -> None:
    x, y = samples()
    live = stream(window=40)
    live.learn_many(x[:50], y[:50])
    live.predict(x[:1])
    other = copied(live)
    before = live.predict_proba_many(x[:5])
    other.learn_many(x[50:], y[50:])
    assert torch.equal(live.predict_proba_many(x[:5]), before)
    live.learn_many(x[50:], y[50:])
    assert_same_sums(sums(live), sums(other), 1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"discount": 0.0}, "positive discount"),
        ({"discount": 1.1}, "discount in"),
        ({"discount_per": "hour"}, "discount_per"),
        ({"window": 0}, "window"),
        ({"staleness": -1}, "staleness"),
        ({"swap": "yes"}, "swap"),
        ({"on_drift": 3}, "on_drift"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        stream(**settings)


def test_bad_posteriors_are_refused() -> None:
    with pytest.raises(ArgumentError, match="SFRPosterior"):
        StreamingPosterior(mlp())  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="dual"):
        StreamingPosterior(posterior(mean="dual"))
    with pytest.raises(ArgumentError, match="would never leave"):
        StreamingPosterior(posterior().fit(samples()), window=10)
    with pytest.raises(ArgumentError, match="selector"):
        StreamingPosterior(posterior(inducing=random(8)))


def test_multiple_outputs_and_trees_of_inputs() -> None:
    x = inputs(40)
    y = torch.stack([x.sum(1), x[:, 0]], dim=1)

    class Tree(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = mlp(2)

        def forward(self, x: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.network(x["left"] + x["right"])

    live = StreamingPosterior(SFRPosterior(Tree(), "regression", inducing=6), window=30)
    for row in range(40):
        live.learn_one({"left": x[row], "right": torch.zeros(FEATURES)}, y[row])
    assert len(live.predict_one({"left": x[0], "right": torch.zeros(FEATURES)})) == 2
    assert live.num_data == 30


def test_the_callers_memory_is_the_callers() -> None:
    x, y = samples()
    reused, clean = stream(window=7), stream(window=7)
    buffer = torch.empty_like(x[0])
    for row in range(17):
        reused.learn_one(buffer.copy_(x[row]), y[row])
        clean.learn_one(x[row], y[row])
    assert_same_sums(sums(reused), sums(clean), 0.0)
    batch = x[:60].clone()
    reused.learn_many(batch, y[:60])
    stored = reused.state.window.all().x
    assert stored.untyped_storage().nbytes() <= 2 * 7 * stored[0].nbytes


def test_an_empty_batch_is_refused() -> None:
    live = stream()
    with pytest.raises(DataError, match="at least one sample"):
        live.learn_many(torch.empty(0, FEATURES), torch.empty(0, dtype=torch.long))


def test_a_fitted_regression_predicts_as_before() -> None:
    x, y = samples("regression")
    fitted = posterior("regression").fit((x, y))
    live = StreamingPosterior(fitted)
    torch.testing.assert_close(live.predict_f(x).mean, fitted.predict_f(x).mean)
    torch.testing.assert_close(live.predict(x).stddev, fitted.predict(x).stddev)


def test_only_classes_can_grow() -> None:
    for kind in ("binary", "regression"):
        with pytest.raises(ArgumentError, match="'classification'"):
            stream(kind).grow_outputs(4)
        with pytest.raises(ArgumentError, match="'classification'"):
            StreamingPosterior(SFRPosterior(mlp(1), kind, inducing=4)).grow_outputs(4)


def test_streams_of_different_classes_are_not_merged() -> None:
    x, y = samples()
    one, other = stream(), stream()
    for live in (one, other):
        live.learn_many(x[:9], y[:9])
    other.grow_outputs(CLASSES + 1)
    before = sums(one)
    with pytest.raises(MismatchError, match="number of outputs"):
        one.merge(other)
    assert_same_sums(sums(one), before, 0.0)


def test_hyperparameters_follow_a_window() -> None:
    x, _ = samples("regression", 5000)
    noise = torch.randn(5000, 1, generator=torch.Generator().manual_seed(0))
    y = torch.where(torch.arange(5000)[:, None] < 4150, 0.05, 2.0) * noise
    live = stream("regression", window=50)
    live.learn_many(x, y)
    assert live.posterior.noise_variance == pytest.approx(4, rel=0.5)


def test_merging_trained_workers_is_that_of_their_posteriors() -> None:
    x, y = samples()
    posteriors = [
        posterior(mean="network", linearize_at="network").fit((x[rows], y[rows]))
        for rows in (slice(0, 30), slice(30, 60))
    ]
    one, other = (StreamingPosterior(each, calibrate=False) for each in posteriors)
    one.merge(other)
    expected = posteriors[0] + posteriors[1]
    assert_same_sums(sums(one), expected.state.sums)
    torch.testing.assert_close(one.predict_f(x).mean, expected.predict_f(x).mean)


def test_merged_streams_are_as_confident_either_way() -> None:
    (x, y), streams = samples(rows=60), []
    for order in (1, -1):
        one, other = parts = stream(), stream()
        for live, rows in zip(parts, (slice(0, 40), slice(40, 60)), strict=True):
            live.learn_many(x[rows], y[rows])
        alone = {live.logit_scale for live in parts}
        one, other = parts[::order]
        one.merge(other)
        assert one.logit_scale not in alone
        streams.append(one)
    assert streams[0].logit_scale == pytest.approx(streams[1].logit_scale, rel=1e-12)


def test_what_trained_data_says_of_a_scale_is_merged() -> None:
    x, y = samples(rows=60)
    y = y[torch.randperm(60, generator=torch.Generator().manual_seed(0))]  # nothing to be sure of
    posteriors = [posterior().fit((x[rows], y[rows])) for rows in (slice(0, 40), slice(40, 60))]
    one, other = (StreamingPosterior(each) for each in posteriors)
    one.merge(other)
    assert one.logit_scale == pytest.approx((posteriors[0] + posteriors[1]).logit_scale)


def test_outputs_that_can_not_grow_are_refused_before_anything_was_learned() -> None:
    fixed = StreamingPosterior(
        SFRPosterior(mlp(), "classification", inducing=8, output_kernel="per_output")
    )
    with pytest.raises(ArgumentError, match="shared kernel"):
        fixed.grow_outputs(CLASSES + 1)
    fixed.learn_many(*samples())
    free = StreamingPosterior(
        SFRPosterior(mlp(1), "classification", inducing=8, num_outputs=CLASSES)
    )
    with pytest.raises(ArgumentError, match=f"at least {CLASSES}"):
        free.grow_outputs(2)
    free.learn_many(*samples())
