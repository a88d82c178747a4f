"""What a strategy predicts, and what it has forgotten."""

from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from torch import Tensor

Pair = tuple[Tensor, Tensor]
"""Log probabilities ``[N, C]``, labels ``[N]``."""


class Recorder(SupervisedPlugin):  # type: ignore[misc] # Avalanche ships no types
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

    def by_experience(self) -> list[Pair]:
        """For each experience of the last evaluation."""
        return [
            (torch.cat(log_probs), torch.cat(labels))
            for log_probs, labels in zip(self.log_probs, self.labels, strict=True)
        ]


def pooled(parts: list[Pair]) -> Pair:
    """Of all experiences."""
    log_probs, labels = zip(*parts, strict=True)
    return torch.cat(log_probs), torch.cat(labels)


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
