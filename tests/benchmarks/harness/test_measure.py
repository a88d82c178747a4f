"""The measures of predictions, against other ways to them."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical

from sfr_cl.benchmarks.harness import measure
from sfr_cl.benchmarks.harness.run import DivergedError

Pair = tuple[Tensor, Tensor]


@pytest.fixture
def predicted() -> Pair:
    """Log probabilities, and labels."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(300, 4, generator=generator).double()
    return logits.log_softmax(1), torch.randint(4, (300,), generator=generator)


def test_nlpd_is_the_mean_over_all_samples(predicted: Pair) -> None:
    log_probs, y = predicted
    expected = -Categorical(logits=log_probs).log_prob(y).mean().item()
    assert measure.nlpd(log_probs, y) == pytest.approx(expected)


def test_ece_is_that_of_torchmetrics(predicted: Pair) -> None:
    # Imported late: torchmetrics imports torchvision, whose operators conftest has declared.
    from torchmetrics.functional.classification import multiclass_calibration_error

    log_probs, y = predicted
    expected = multiclass_calibration_error(log_probs.exp(), y, 4, n_bins=measure.BINS)
    assert measure.reliability(log_probs, y).ece == pytest.approx(expected.item(), abs=1e-6)


def test_reliability_bins_hold_every_sample(predicted: Pair) -> None:
    log_probs, y = predicted
    bins = measure.reliability(log_probs, y)
    assert len(bins.confidence) == len(bins.accuracy) == len(bins.count) == measure.BINS
    assert sum(bins.count) == 300
    right = sum(a * n for a, n in zip(bins.accuracy, bins.count, strict=True))
    assert right == pytest.approx(300 * measure.accuracy(log_probs, y))
    for index, confidence in enumerate(bins.confidence):
        assert index / measure.BINS <= confidence <= (index + 1) / measure.BINS


def test_certain_predictions_fall_into_the_last_bin() -> None:
    bins = measure.reliability(torch.tensor([[0.0, -1000.0]]).double(), torch.tensor([0]))
    assert bins.count[-1] == 1
    assert bins.ece == 0


def test_predictions_that_are_not_finite_are_refused() -> None:
    with pytest.raises(DivergedError, match="finite"):
        measure.accuracy(torch.full((1, 2), float("nan")), torch.tensor([0]))
