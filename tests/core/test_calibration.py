"""Prior precision and confidence without validation data."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sfr_cl import SFRPosterior, SFRWarning, StreamingPosterior
from sfr_cl.core.absorb import FIRST_ROWS
from sfr_cl.core.calibration import CAUTION, GRID, NO_SCORES, Scores
from sfr_cl.core.evidence import PRODUCT_WIDTH, Natural, learn
from sfr_cl.errors import ArgumentError, DataError
from sfr_cl.likelihoods import PriorReading
from support.posteriors import CLASSES, data, fitted, inputs, mlp
from support.real_data import load, split


def features(posterior: SFRPosterior, x: Tensor) -> Tensor:
    return torch.cat([part.phi[0] for _, part in posterior.state.walk(x)])


def noisy(rows: int = 60, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Classes that can be learned, one in five of them wrong."""
    x, y = data(rows=rows, seed=seed)
    return x, torch.where(torch.arange(rows) % 5 == 0, (y + 1) % CLASSES, y)


@pytest.mark.parametrize("kind", ["classification", "binary"])
def test_delta_is_that_of_a_regression_whose_noise_is_unknown(kind: str) -> None:
    x, y = noisy() if kind == "classification" else data(kind, rows=60)
    posterior = fitted(kind).fit((x, y))
    phi = features(posterior, x)
    if kind == "classification":
        b, targets = 1 / CLASSES, CLASSES * (nn.functional.one_hot(y, CLASSES) - 1 / CLASSES)
    else:
        b, targets = 0.25, 4 * (y[:, None] - 0.5)

    def evidence(log_delta: float) -> float:
        """Of targets ~ N(0, s2 (I / b + phi phi' / delta)) at the best s2, and the prior."""
        covariance = torch.eye(len(x)) / b + phi @ phi.T / math.exp(log_delta)
        factor = torch.linalg.cholesky(covariance)
        white = torch.linalg.solve_triangular(factor, targets.double(), upper=False)
        noise = white.square().mean()
        volume = (
            factor.diagonal().log().sum() * targets.shape[1] + targets.numel() / 2 * noise.log()
        )
        return float(-volume) - log_delta**2 / (2 * PRODUCT_WIDTH**2)

    found = math.log(posterior.prior_precision)
    at = evidence(found)
    assert all(evidence(found + step) < at for step in (-0.05, 0.05))
    assert all(evidence(float(step)) <= at + 1e-9 for step in torch.linspace(-12, 12, 97))


def test_a_delta_that_is_given_stays() -> None:
    assert fitted(prior_precision=3.0).update(noisy()).prior_precision == 3.0
    assert fitted(linearize_at="network").prior_precision == 1.0


def test_without_data_delta_is_one() -> None:
    posterior = SFRPosterior(mlp(), "classification", inducing=inputs(5)).init()
    assert posterior.prior_precision == 1.0
    assert posterior.predict(inputs(3)).probs.isfinite().all()
    assert learn(Natural.of(posterior.state), posterior.likelihood, None)[0] == 1.0


def test_mean_and_variance_of_f_do_not_depend_on_order() -> None:
    x, y = noisy(90)
    one, other = fitted().update((x, y)), fitted()
    for start in (60, 0, 30):
        other.update((x[start : start + 30], y[start : start + 30]))
    a, b = one.predict_f(x), other.predict_f(x)
    assert torch.allclose(a.mean, b.mean, atol=1e-7)
    assert torch.allclose(a.variance, b.variance, rtol=1e-7)


def test_scores_are_of_predictions_made_before() -> None:
    posterior, (x, y) = fitted(), noisy(12)  # half as many as it was fitted to: one part
    posterior = SFRPosterior.of(
        posterior.spec, posterior.network, replace(posterior.state, forecast=None)
    )
    before = posterior.predict_f(x).mean
    costs = []
    for scale in GRID / CLASSES:
        log_p = (scale * before).log_softmax(1)
        costs.append(-log_p.gather(1, y[:, None]).sum())
    assert torch.equal(posterior.state.scores.costs, torch.zeros(len(GRID), dtype=torch.float64))
    posterior.update((x, y))
    assert torch.allclose(posterior.state.scores.costs, torch.stack(costs))
    assert torch.allclose(
        posterior.predict(x).logits.softmax(1).log(),
        (posterior.logit_scale * posterior.predict_f(x).mean).log_softmax(1),
    )


def test_small_updates_are_scored_by_one_forecast_until_an_output_has_grown() -> None:
    posterior, (x, y) = fitted(), data(rows=36, seed=4)  # fitted to 24 data, 8 of each class
    posterior = SFRPosterior.of(
        posterior.spec, posterior.network, replace(posterior.state, forecast=None)
    )
    counts = []
    for row in range(36):
        posterior.update((x[row : row + 1], y[row : row + 1]))
        counts.append(float(posterior.state.forecast.seen.sum()))
    # The classes take turns: when one has 12 of 8, and when one has 17 of 11.
    assert list(dict.fromkeys(counts)) == [24, 34, 50]


def test_a_large_batch_is_scored_as_smaller_ones_are() -> None:
    x, y = noisy(600)
    once, often = fitted().update((x, y)), fitted()
    for start in range(0, 600, 5):
        often.update((x[start : start + 5], y[start : start + 5]))
    assert once.logit_scale == pytest.approx(often.logit_scale, rel=0.1)
    mean = once.predict_f(x).mean
    torch.testing.assert_close(mean, often.predict_f(x).mean, rtol=0, atol=1e-7)


def test_data_the_network_was_trained_on_gives_a_bound() -> None:
    x, y = data(rows=400)
    x = 0.1 * x + nn.functional.one_hot(y, x.shape[1])
    wrong = torch.where(torch.arange(400) % 4 == 0, y.roll(1), y)
    usual = 2.5 / math.sqrt(CLASSES)
    easy, hard = fitted().fit((x, y)), fitted().fit((x, wrong))
    assert easy.logit_scale == pytest.approx(usual)
    assert hard.logit_scale < 0.8 * usual
    for posterior in (easy, hard):
        assert not posterior.state.scores.costs.any()
        assert posterior.state.bound.costs.any()
    # Where it was not trained on them, such data speaks for more.
    assert fitted().update((x, y)).logit_scale > 1.2 * usual


def test_the_usual_scale_holds_until_something_was_predicted() -> None:
    for kind, classes in (("classification", CLASSES), ("binary", 2)):
        first = fitted(kind).fit(data(kind, rows=FIRST_ROWS))
        usual = first.logit_scale
        assert usual == pytest.approx(2.5 / math.sqrt(classes))
        assert first.update(data(kind, rows=9)).logit_scale != pytest.approx(usual)
    assert fitted("regression").logit_scale == 1.0
    assert fitted(linearize_at="network").update(noisy()).logit_scale == 1.0
    assert fitted(logit_scale=0.7).update(noisy()).logit_scale == 0.7


def test_the_scale_is_that_of_least_cost_under_its_prior() -> None:
    reading = PriorReading(unit=4.0, logit_scale=1.5)
    logs = GRID.log()
    assert NO_SCORES.scale(reading, 1.5) == pytest.approx(1.5)
    strong = Scores(1e6 * (logs - math.log(20)).square(), 4)
    assert strong.scale(reading, 1.5) == pytest.approx(5.0, rel=1e-3)
    equal = Scores(CAUTION * (logs - math.log(24)).square(), 4)
    assert equal.scale(reading, 1.5) == pytest.approx(
        3.0
    )  # half way between 1.5 and 6, in logarithms
    for edge in (1e-5, 1e9):
        found = Scores(1e6 * (logs - math.log(edge)).square(), 4).scale(reading, 1.5) * 4
        assert GRID[0] * 0.99 <= found <= GRID[-1] * 1.01


def test_the_scale_never_changes_the_order_of_classes() -> None:
    posterior, (x, y) = fitted(), noisy()
    posterior.update((x, y))
    order = posterior.predict(x).probs.argsort(1)
    assert torch.equal(order, posterior.predict_f(x).mean.argsort(1))


def test_a_new_class_begins_new_scores() -> None:
    x, y = data(rows=60)
    first = y < 2
    posterior = SFRPosterior(mlp(), "classification", inducing=inputs(10)).fit((x[first], y[first]))
    posterior.update((x[first], y[first]))
    assert posterior.state.scores.num_seen == 2
    posterior.update((x[~first], y[~first]))  # none of it could be predicted
    assert posterior.state.scores.num_seen == 2
    posterior.update((x, y))
    assert posterior.state.scores.num_seen == 3
    # At next to no scale all classes are alike: of 60 rows, not 100.
    assert posterior.state.scores.costs[0] == pytest.approx(60 * math.log(3), rel=0.1)


def test_merging_adds_scores_and_forgetting_leaves_them() -> None:
    start, (x, y), (other_x, other_y) = fitted(), noisy(), noisy(seed=5)
    empty = SFRPosterior(mlp(), "classification", inducing=start.inducing_inputs).init()
    empty.update((x[:30], y[:30])).update((x[30:], y[30:]))
    start.update((other_x, other_y))
    merged = start + empty  # learned scales that differ are no obstacle
    assert start.logit_scale != empty.logit_scale
    expected = start.state.scores.costs + empty.state.scores.costs
    assert torch.equal(merged.state.scores.costs, expected)
    before = merged.state.scores
    merged.forget((x, y))
    assert merged.state.scores is before
    assert merged.state.forecast is None  # it had seen them


def test_discounted_data_is_replaced_in_the_forecast() -> None:
    posterior, (x, y) = fitted(), data(rows=24, seed=4)
    forecasts = set()
    for _ in range(6):
        posterior.discount(0.5).update((x, y))
        forecasts.add(id(posterior.state.forecast))
    assert len(forecasts) > 3


def test_files_and_checkpoints_go_on_as_if_never_stopped(tmp_path: Path) -> None:
    one = fitted().update(noisy())
    one.save(tmp_path / "p")
    other = SFRPosterior.load(tmp_path / "p", mlp())
    for posterior in (one, other):
        posterior.update(noisy(seed=6))
    for name in ("scores", "bound"):
        mine, theirs = getattr(one.state, name), getattr(other.state, name)
        torch.testing.assert_close(mine.costs, theirs.costs, rtol=1e-9, atol=0)
        assert mine.num_seen == theirs.num_seen
    assert one.logit_scale == pytest.approx(other.logit_scale, rel=1e-9)


def test_recalibrated_by_data_that_was_not_absorbed() -> None:
    posterior, held_out = fitted(logit_scale=20.0), noisy(seed=7)
    before = posterior.nlpd(held_out)
    mean = posterior.predict_f(held_out[0]).mean
    posterior.recalibrate(held_out)
    assert posterior.nlpd(held_out) < before
    assert torch.equal(posterior.predict_f(held_out[0]).mean, mean)
    assert posterior.num_data == 24
    for other in (fitted("regression"), fitted(linearize_at="network")):
        with pytest.raises(ArgumentError, match="classes linearised at the prior"):
            other.recalibrate(held_out)


def test_a_scale_of_what_has_no_logits_is_refused() -> None:
    with pytest.raises(ArgumentError, match="logit_scale"):
        SFRPosterior(mlp(1), "regression", logit_scale=2.0)
    with pytest.raises(ArgumentError, match="positive"):
        SFRPosterior(mlp(), "classification", logit_scale=-1.0)


def test_a_tuned_scale_at_the_edge_is_told() -> None:
    posterior, (x, y) = fitted(), data(rows=200, seed=8)
    easy = x + 4 * nn.functional.one_hot(y, x.shape[1]), y
    with pytest.warns(SFRWarning, match="best scale of logits lies at the edge"):
        posterior.tune_prior_precision(easy)
    assert posterior.spec.logit_scale is None
    assert posterior.state.spec.logit_scale == posterior.logit_scale


def test_a_stream_starts_at_the_scores_of_its_posterior() -> None:
    posterior = fitted().update(noisy())
    assert StreamingPosterior(posterior).logit_scale == pytest.approx(posterior.logit_scale)
    given = StreamingPosterior(fitted(logit_scale=2.5))
    assert given.logit_scale == 2.5


def test_scores_go_from_a_stream_to_its_posterior_and_the_next_stream() -> None:
    stream = StreamingPosterior(fitted())
    stream.learn_many(*noisy())
    scores = stream.state.monitor.calibration.scores
    assert scores.costs.any()
    again = StreamingPosterior(stream.posterior)
    assert torch.equal(again.state.monitor.calibration.scores.costs, scores.costs)
    assert again.logit_scale == stream.logit_scale


@pytest.mark.parametrize("seed", [20, 21])
def test_flipped_labels_are_not_predicted_with_confidence(seed: int) -> None:
    x, y = load("digits")
    flipped = torch.rand(len(y), generator=torch.Generator().manual_seed(seed)) < 0.2
    y = torch.where(flipped, y[torch.randperm(len(y))], y)
    task = split(x, y, "classification", seed)
    network = task.network(seed)
    options = {"inducing": 200}
    default = SFRPosterior(network, "classification", **options)
    fixed = SFRPosterior(network, "classification", prior_precision=1.0, logit_scale=1.0, **options)
    default, fixed = (each.fit(task.first).update(task.later) for each in (default, fixed))
    assert default.nlpd(task.test) < fixed.nlpd(task.test) - 0.1


def test_a_forecast_is_at_the_delta_that_holds() -> None:
    """Scores at another delta would be of an f of another size."""
    x, y = noisy(30)
    posterior = fitted().update((x, y))
    changed = posterior.with_prior_precision(1e4 * posterior.prior_precision)
    changed.update((x, y))
    assert changed.state.forecast.prior_precision == changed.prior_precision


def test_a_scale_stays_while_delta_is_tuned_by_evidence() -> None:
    assert fitted(logit_scale=2.0).tune_prior_precision().logit_scale == 2.0


def test_only_classes_that_were_absorbed_recalibrate() -> None:
    x, y = data(rows=60)
    first = y < 2
    posterior = SFRPosterior(mlp(), "classification", inducing=inputs(10)).fit((x[first], y[first]))
    alone = SFRPosterior.of(posterior.spec, posterior.network, posterior.state)
    alone.recalibrate((x[first], y[first]))
    assert posterior.recalibrate((x, y)).logit_scale == pytest.approx(alone.logit_scale)
    with pytest.raises(DataError, match="classes that were absorbed"):
        posterior.recalibrate((x[~first], y[~first]))


@pytest.mark.filterwarnings("ignore:the best .* lies at the edge")
def test_scales_are_tuned_around_the_usual_one() -> None:
    """The more classes, the larger f and the smaller its best scale."""
    posterior = fitted().tune_prior_precision(noisy(seed=3))
    steps = 10 * math.log10(posterior.logit_scale / (2.5 / math.sqrt(CLASSES)))
    assert steps == pytest.approx(round(steps), abs=1e-9)
