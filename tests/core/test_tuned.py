"""A delta that was tuned stays, and the one that was asked for comes back with a fit."""

from pathlib import Path

import pytest
import torch

from sfr_cl import SFRPosterior, StreamingPosterior
from support.posteriors import data, fitted, mlp


def tuned() -> SFRPosterior:
    return fitted("regression").tune_prior_precision(data("regression", seed=4))


def test_a_stream_keeps_a_tuned_precision() -> None:
    posterior = tuned()
    stream = StreamingPosterior(posterior)
    for seed in range(5, 15):
        stream.learn_many(*data("regression", seed=seed))
    assert stream.posterior.prior_precision == posterior.prior_precision


def test_a_stream_keeps_a_given_precision() -> None:
    stream = StreamingPosterior(fitted("regression").with_prior_precision(3.0))
    for seed in range(5, 15):
        stream.learn_many(*data("regression", seed=seed))
    assert stream.posterior.prior_precision == 3.0


def test_a_loaded_posterior_is_fitted_as_it_was_asked_for(tmp_path: Path) -> None:
    posterior = tuned()
    posterior.save(tmp_path / "p")
    loaded = SFRPosterior.load(tmp_path / "p", mlp(1))
    assert loaded.prior_precision == posterior.prior_precision
    again = data("regression", seed=5)
    learned = fitted("regression").fit(again).prior_precision
    assert loaded.fit(again).prior_precision == pytest.approx(learned, rel=1e-9)


def test_tuning_decomposes_the_sums_once(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, validation = fitted("regression"), data("regression", seed=4)
    calls, eigh = [], torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda matrix: calls.append(1) or eigh(matrix))
    posterior.predict_f_at(validation[0], [0.1, 1.0, 10.0])
    assert len(calls) == 1
