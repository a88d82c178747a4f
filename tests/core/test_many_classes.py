"""Many classes are read as a linear discriminant of f; f stays what it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sfr_cl import SFRPosterior, StreamingPosterior
from sfr_cl.core.calibration import GRID
from sfr_cl.likelihoods import MANY_CLASSES
from support.posteriors import FEATURES, inputs, mlp

CLASSES, ROWS = 32, 320
CLOSE = {"rtol": 1e-8, "atol": 1e-8}

Pair = tuple[Tensor, Tensor]


def many(rows: int = ROWS, classes: int = CLASSES, seed: int = 1) -> Pair:
    """Classes around centres; they take turns, and are not all of the same size."""
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(classes, FEATURES, generator=torch.Generator().manual_seed(7))
    y = torch.arange(rows) % classes
    y[: rows // 10] = 0
    return centres[y] + 0.4 * torch.randn(rows, FEATURES, generator=generator), y


def fitted(data: Pair | None = None, *, outputs: int = CLASSES, **options: object) -> SFRPosterior:
    posterior = SFRPosterior(
        mlp(), "classification", inducing=inputs(12, seed=2), num_outputs=outputs, **options
    )
    return posterior.init() if data is None else posterior.fit(data)


def rows_of(data: Pair, which: object) -> Pair:
    return data[0][which], data[1][which]


def features(posterior: SFRPosterior, x: Tensor) -> Tensor:
    return torch.cat([part.phi[0] for _, part in posterior.state.walk(x)])


def reference(posterior: SFRPosterior, train: Pair, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the logits at scale 1, from f of all training data, row by row."""
    (x_train, y), classes = train, posterior.num_outputs
    known = sorted(set(y.tolist()))
    phi, delta = features(posterior, x_train), posterior.prior_precision
    onehot = nn.functional.one_hot(y, classes).double()[:, known]
    b = 1 / len(known)
    precision = delta * torch.eye(phi.shape[1], dtype=torch.float64) + b * phi.mT @ phi
    v = torch.linalg.solve(precision, phi.mT @ (onehot - b)).mT  # weights of f by class
    f, f_new = phi @ v.mT, features(posterior, x) @ v.mT
    means = torch.stack([f[y == c].mean(0) for c in known])
    within = len(known) * delta * v @ v.mT  # the ridge's penalty
    for row, c in zip(f, y.tolist(), strict=True):
        apart = row - means[known.index(c)]
        within = within + torch.outer(apart, apart)
    inverse = torch.linalg.pinv(within, rtol=1e-9, hermitian=True)
    near = [torch.cat([f[y == c], f.mean(0)[None]]).mean(0) for c in known]
    near += [f.mean(0)] * (classes - len(known))

    def distances(of: Tensor) -> Tensor:
        return torch.stack([-((of - m) @ inverse * (of - m)).sum(1) / 2 for m in near], 1)

    def centred(of: Tensor) -> Tensor:
        logits = distances(of)
        return logits - logits[:, : len(known)].mean(1, keepdim=True)

    counts = onehot.sum(0)
    size = (counts * means.diagonal()).sum() / (counts * centred(means).diagonal()).sum()
    matrix = torch.stack(near) @ inverse
    matrix = size * (matrix - matrix[: len(known)].mean(0))
    variance = posterior.predict_f(x).variance[:, :1] * matrix.square().sum(1)
    return size * centred(f_new), variance


def log_probs(posterior: SFRPosterior, x: Tensor, **options: str) -> Tensor:
    return posterior.predict(x, **options).logits.log_softmax(1)


@pytest.mark.parametrize("classes", [CLASSES, CLASSES - 2])
def test_logits_are_distances_to_class_means(classes: int) -> None:
    """Those of the last outputs, where no datum has observed them, to the mean of all."""
    train, (x, _) = many(classes=classes), many(30, seed=3)
    posterior = fitted(train, logit_scale=0.8, dtype=torch.float64)
    mean, variance = reference(posterior, train, x)
    torch.testing.assert_close(log_probs(posterior, x), (0.8 * mean).log_softmax(1), **CLOSE)
    moderated = 0.8 * mean / (1 + torch.pi / 8 * 0.64 * variance).sqrt()
    found = log_probs(posterior, x, link="probit")
    torch.testing.assert_close(found, moderated.log_softmax(1), **CLOSE)


def test_f_its_variance_and_the_evidence_are_those_of_the_ridge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train, (x, _) = many(), many(60, seed=3)
    found = fitted(train)
    logits = log_probs(found, x)
    monkeypatch.setattr("sfr_cl.likelihoods.MANY_CLASSES", CLASSES + 1)
    ridge = fitted(train)
    assert found.prior_precision == ridge.prior_precision
    assert found.log_marginal_likelihood() == ridge.log_marginal_likelihood()
    assert torch.equal(found.predict_f(x).mean, ridge.predict_f(x).mean)
    assert torch.equal(found.predict_f(x).variance, ridge.predict_f(x).variance)
    scaled = ridge.logit_scale * ridge.predict_f(x).mean
    torch.testing.assert_close(log_probs(ridge, x), scaled.log_softmax(1), **CLOSE)
    assert not torch.allclose(log_probs(ridge, x), logits, atol=0.1)


def test_it_begins_with_enough_classes_and_ends_with_fewer() -> None:
    few, last = many(classes=MANY_CLASSES - 1), many(30, seed=5)
    new = last[0][:5], torch.full((5,), MANY_CLASSES - 1)
    posterior, (x, _) = fitted(few, logit_scale=0.5), many(20, seed=3)
    before = log_probs(posterior, x)
    f = 0.5 * posterior.predict_f(x).mean
    torch.testing.assert_close(before, f.log_softmax(1), **CLOSE)
    assert posterior.solved.discriminant is None
    posterior.update(new)
    both = torch.cat([few[0], new[0]]), torch.cat([few[1], new[1]])
    expected = 0.5 * reference(posterior, both, x)[0]
    torch.testing.assert_close(log_probs(posterior, x), expected.log_softmax(1), **CLOSE)
    posterior.forget(new)
    torch.testing.assert_close(log_probs(posterior, x), before, rtol=1e-6, atol=1e-6)


def test_scores_are_new_with_the_reading() -> None:
    posterior = fitted().update(many(classes=MANY_CLASSES - 1))
    posterior.update(many(classes=MANY_CLASSES - 1, seed=2))
    assert posterior.state.scores.num_seen == MANY_CLASSES - 1
    posterior.update(many(classes=MANY_CLASSES)).update(many(classes=MANY_CLASSES, seed=3))
    assert posterior.state.scores.num_seen == MANY_CLASSES


def test_scores_are_of_the_logits() -> None:
    """What is predicted before it is absorbed is what the posterior predicts."""
    held_out = many(60, seed=3)
    posterior = fitted(many()).recalibrate(held_out)
    costs = posterior.state.scores.costs
    for place in (8, 12):
        given = posterior.state.with_spec(logit_scale=float(GRID[place]) / CLASSES)
        expected = 60 * SFRPosterior.of(posterior.spec, posterior.network, given).nlpd(held_out)
        assert float(costs[place]) == pytest.approx(expected, rel=1e-9)


def test_order_does_not_matter_nor_who_absorbed_what() -> None:
    (x, y), (x_new, _) = many(), many(30, seed=3)
    whole = fitted(logit_scale=1.0).update((x, y))
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(4))
    shuffled, left, right = (fitted(logit_scale=1.0) for _ in range(3))
    for part in order.split(50):
        shuffled.update((x[part], y[part]))
    left.update((x[:90], y[:90]))
    right.update((x[90:], y[90:]))
    forgotten = fitted(logit_scale=1.0).update((x, y)).update(many(50, seed=6))
    forgotten.forget(many(50, seed=6))
    for other in (shuffled, left + right, forgotten):
        expected = log_probs(whole, x_new)
        torch.testing.assert_close(log_probs(other, x_new), expected, rtol=1e-6, atol=1e-6)


def test_outputs_that_nothing_has_observed_change_no_logit() -> None:
    train, (x, _) = many(), many(20, seed=3)
    found = log_probs(fitted(train, outputs=CLASSES + 5, logit_scale=1.0), x)
    expected = log_probs(fitted(train, logit_scale=1.0), x)
    found = found[:, :CLASSES].log_softmax(1)
    torch.testing.assert_close(found, expected, **CLOSE)


def test_files_go_on_and_those_of_before_stay_as_they_were(tmp_path: Path) -> None:
    posterior, (x, _) = fitted(many()).update(many(60, seed=3)), many(20, seed=4)
    posterior.save(tmp_path / "p")
    loaded = SFRPosterior.load(tmp_path / "p", mlp())
    assert torch.equal(log_probs(loaded, x), log_probs(posterior, x))
    for each in (posterior, loaded):
        each.update(many(60, seed=5))
    torch.testing.assert_close(log_probs(loaded, x), log_probs(posterior, x), **CLOSE)
    stored = posterior.state_dict()
    del stored["values"]["discriminant"]
    before = fitted().load_state_dict(stored)
    scaled = before.logit_scale * before.predict_f(x).mean
    torch.testing.assert_close(log_probs(before, x), scaled.log_softmax(1), **CLOSE)
    for one, other in ((posterior, before), (before, posterior)):
        assert (one + other).solved.discriminant is None
        stream = StreamingPosterior(one)
        stream.merge(StreamingPosterior(other))
        assert stream.posterior.solved.discriminant is None
    before.recalibrate(many(60, seed=6))
    assert before.solved.discriminant is not None


def test_samples_of_a_stream_are_the_batch() -> None:
    data, (x, _) = many(), many(20, seed=3)
    settings = {"prior_precision": 0.5, "logit_scale": 1.0}
    whole = fitted(**settings).update(data)
    one, batch = (StreamingPosterior(fitted(**settings), calibrate=False) for _ in range(2))
    for row in range(ROWS):
        one.learn_one(data[0][row], int(data[1][row]))
        if row % 7 == 0:
            one.predict(x)
    batch.learn_many(*data)
    expected = log_probs(whole, x)
    for stream in (one, batch):
        found = stream.predict(x).logits.log_softmax(1)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(log_probs(stream.posterior, x), found, rtol=1e-6, atol=1e-6)


def test_a_stream_is_calibrated_by_what_it_predicts() -> None:
    stream, (x, y) = StreamingPosterior(fitted()), many(257)
    assert stream.logit_scale == pytest.approx(2.5 / 2**0.5)  # no class is known yet
    stream.learn_many(x[:256], y[:256])
    posterior, before = stream.posterior, stream.state.monitor.calibration.scores.costs
    assert stream.state.state.usual_scale == pytest.approx((7 + 1.9 * CLASSES**0.5) / CLASSES)
    stream.learn_one(x[256], int(y[256]))
    found = stream.state.monitor.calibration.scores.costs - (1 - 1e-3) * before
    for place in (8, 12):
        given = posterior.state.with_spec(logit_scale=float(GRID[place]) / CLASSES)
        expected = SFRPosterior.of(posterior.spec, posterior.network, given).nlpd(
            (x[256:], y[256:])
        )
        assert float(found[place]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.filterwarnings("ignore:the best .* lies at the edge")
def test_tuning_reads_the_same_logits() -> None:
    posterior, held_out = fitted(many()), many(90, seed=3)
    posterior.tune_prior_precision(held_out)
    best = posterior.nlpd(held_out)
    state = posterior.state
    for delta in (0.1, 10.0):
        for scale in (0.5, 2.0):
            other = state.with_spec(
                prior_precision=delta * state.spec.prior_precision,
                logit_scale=scale * state.spec.logit_scale,
            )
            assert SFRPosterior.of(posterior.spec, posterior.network, other).nlpd(held_out) >= best


def test_data_that_says_nothing_leaves_equal_probabilities() -> None:
    x = torch.zeros(CLASSES * 2, FEATURES)
    posterior = fitted((x, torch.arange(CLASSES * 2) % CLASSES))
    probs = posterior.predict(x[:3]).probs
    torch.testing.assert_close(probs, torch.full_like(probs, 1 / CLASSES), rtol=0, atol=1e-6)


def test_kernels_by_output_are_read_as_before() -> None:
    posterior = SFRPosterior(
        mlp(CLASSES), "classification", inducing=inputs(12, seed=2), output_kernel="per_output"
    ).fit(many())
    assert posterior.solved.discriminant is None
