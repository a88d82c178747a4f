"""The numbers of a row, against other ways to them."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical

from sfr_cl.benchmarks.cl import measure
from sfr_cl.benchmarks.runner import DivergedError

Parts = list[tuple[Tensor, Tensor]]


@pytest.fixture
def parts() -> Parts:
    """Predictions of two experiences of different sizes."""
    generator = torch.Generator().manual_seed(0)
    return [
        (
            (3 * torch.randn(n, 4, generator=generator).double()).log_softmax(1),
            torch.randint(4, (n,), generator=generator),
        )
        for n in (200, 100)
    ]


def test_nlpd_is_the_mean_over_all_samples(parts: Parts) -> None:
    logs = [Categorical(logits=log_probs).log_prob(y) for log_probs, y in parts]
    assert measure.nlpd(parts) == pytest.approx(-torch.cat(logs).mean().item())


def test_ece_is_that_of_torchmetrics(parts: Parts) -> None:
    # Imported late: torchmetrics imports torchvision, whose operators `measure` has declared.
    from torchmetrics.functional.classification import multiclass_calibration_error

    log_probs, y = measure.pooled(parts)
    expected = multiclass_calibration_error(log_probs.exp(), y, 4, n_bins=measure.BINS)
    assert measure.reliability(parts).ece == pytest.approx(expected.item(), abs=1e-6)


def test_reliability_bins_hold_every_sample(parts: Parts) -> None:
    bins = measure.reliability(parts)
    assert len(bins.confidence) == len(bins.accuracy) == len(bins.count) == measure.BINS
    assert sum(bins.count) == 300
    right = sum(a * n for a, n in zip(bins.accuracy, bins.count, strict=True))
    log_probs, y = measure.pooled(parts)
    assert right == pytest.approx(int((log_probs.argmax(1) == y).sum()))
    for index, confidence in enumerate(bins.confidence):
        assert index / measure.BINS <= confidence <= (index + 1) / measure.BINS


def test_certain_predictions_fall_into_the_last_bin() -> None:
    certain = [(torch.tensor([[0.0, -1000.0]]).double(), torch.tensor([0]))]
    assert measure.reliability(certain).count[-1] == 1
    assert measure.reliability(certain).ece == 0


def test_forgetting_counts_from_the_best_since_the_experience_was_learned() -> None:
    matrix = [[0.9, 0.8, 0.0], [0.95, 0.7, 0.0], [0.5, 0.6, 1.0]]
    # The 0.8 was there before the second experience: nothing learned, nothing forgotten.
    assert measure.forgetting(matrix) == pytest.approx((0.95 - 0.5 + 0.7 - 0.6) / 2)
    assert measure.forgetting([[0.9, 0.8]]) == 0


def test_predictions_that_are_not_finite_are_refused() -> None:
    broken = [(torch.full((1, 2), float("nan")), torch.tensor([0]))]
    with pytest.raises(DivergedError, match="finite"):
        measure.accuracies(broken)
