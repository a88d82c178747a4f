"""What a strategy predicts, and the numbers that follow from it."""

from dataclasses import dataclass
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from torch import Tensor

from ..runner import DivergedError

BINS = 15


class Predictions(SupervisedPlugin):  # type: ignore[misc] # Avalanche ships no types
    """Log predictive probabilities and labels of everything evaluated, by experience."""

    def __init__(self) -> None:
        super().__init__()
        self.log_probs: list[list[Tensor]] = []
        self.labels: list[list[Tensor]] = []

    def before_eval(self, strategy: Any, **kwargs: Any) -> None:
        self.log_probs, self.labels = [], []

    def before_eval_exp(self, strategy: Any, **kwargs: Any) -> None:
        self.log_probs.append([])
        self.labels.append([])

    def after_eval_iteration(self, strategy: Any, **kwargs: Any) -> None:
        # Log probabilities, where a posterior has put them, are unchanged by log_softmax.
        self.log_probs[-1].append(strategy.mb_output.detach().double().log_softmax(1))
        self.labels[-1].append(strategy.mb_y)

    def by_experience(self) -> list[tuple[Tensor, Tensor]]:
        """For each experience of the last evaluation: log probabilities [N, C], labels [N]."""
        return [
            (torch.cat(log_probs), torch.cat(labels))
            for log_probs, labels in zip(self.log_probs, self.labels, strict=True)
        ]


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


def accuracies(parts: list[tuple[Tensor, Tensor]]) -> list[float]:
    """Of each experience."""
    if not all(bool(log_probs.isfinite().all()) for log_probs, _ in parts):
        raise DivergedError("expected finite predictions, got others: lower the learning rate")
    return [(log_probs.argmax(1) == y).double().mean().item() for log_probs, y in parts]


def nlpd(parts: list[tuple[Tensor, Tensor]]) -> float:
    """Mean -log p(y | x) over all samples."""
    log_probs, y = pooled(parts)
    return -log_probs.gather(1, y[:, None]).mean().item()


def pooled(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    log_probs, labels = zip(*parts, strict=True)
    return torch.cat(log_probs), torch.cat(labels)


def reliability(parts: list[tuple[Tensor, Tensor]]) -> Reliability:
    """Over all samples; an empty bin has the confidence of its middle, and accuracy 0."""
    log_probs, y = pooled(parts)
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


def forgetting(matrix: list[list[float]]) -> float:
    """Mean fall of earlier experiences' accuracy from its best since they were learned.

    >>> forgetting([[1.0, 0.0], [0.75, 0.5]])
    0.25
    """
    last = len(matrix) - 1
    if last < 1:
        return 0.0
    falls = [max(row[j] for row in matrix[j:last]) - matrix[last][j] for j in range(last)]
    return sum(falls) / last
