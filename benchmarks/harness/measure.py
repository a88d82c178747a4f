"""Measures of predictive probabilities."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .results import Row
from .run import DivergedError

BINS = 15


@dataclass(frozen=True)
class Reliability:
    """Predictions by confidence, in bins of equal width."""

    confidence: list[float]
    accuracy: list[float]
    count: list[int]

    @property
    def ece(self) -> float:
        """The expected calibration error: mean |accuracy - confidence|, weighted by count."""
        gaps = zip(self.confidence, self.accuracy, self.count, strict=True)
        return sum(count * abs(a - c) for c, a, count in gaps) / sum(self.count)

    @property
    def columns(self) -> Row:
        """As a row of results holds them."""
        return {
            "reliability_confidence": self.confidence,
            "reliability_accuracy": self.accuracy,
            "reliability_count": self.count,
        }


def accuracy(log_probs: Tensor, y: Tensor) -> float:
    """The share of labels ``[N]`` that are the most probable class of ``[N, C]``."""
    if not log_probs.isfinite().all():
        raise DivergedError("expected finite predictions, got others: lower the learning rate")
    return (log_probs.argmax(1) == y).double().mean().item()


def nlpd(log_probs: Tensor, y: Tensor) -> float:
    """Mean -log p(y | x)."""
    return -log_probs.gather(1, y[:, None]).mean().item()


def reliability(log_probs: Tensor, y: Tensor) -> Reliability:
    """Over all samples; an empty bin has the confidence of its middle, and accuracy 0."""
    confidence, predicted = log_probs.exp().max(1)
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    count = torch.bincount(bins, minlength=BINS)
    sums = [
        torch.bincount(bins, weights, BINS) for weights in (confidence, (predicted == y).double())
    ]
    middles = (torch.arange(BINS, dtype=torch.float64) + 0.5) / BINS
    means = [torch.where(count > 0, total / count.clamp(min=1), 0.0) for total in sums]
    return Reliability(
        confidence=torch.where(count > 0, means[0], middles).tolist(),
        accuracy=means[1].tolist(),
        count=count.tolist(),
    )
