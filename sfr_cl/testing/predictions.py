"""What a strategy predicted, written down by a plug-in, and metrics computed from it by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from sfr_cl import torchvision_operators

torchvision_operators.declare()  # before the first import of Avalanche, which imports torchvision

# isort: split

from avalanche.core import SupervisedPlugin  # noqa: E402

BINS = 15
"""Of the calibration error."""


@dataclass(frozen=True)
class MiniBatch:
    """One mini-batch a strategy has seen."""

    experience: int
    x: Tensor
    y: Tensor
    labels: Tensor | None
    """Task labels, if the strategy has any."""
    outputs: Tensor
    """``strategy.mb_output``."""
    predictive: Distribution | None
    """``strategy.mb_predictive``, if it was left."""
    loss: float
    """``strategy.loss``, with all that plug-ins added."""

    @staticmethod
    def of(strategy: Any) -> MiniBatch:
        """That of now."""
        return MiniBatch(
            strategy.experience.current_experience,
            strategy.mb_x.detach().clone(),
            strategy.mb_y.detach().clone(),
            strategy.mb_task_id.clone() if len(strategy.mbatch) > 2 else None,
            strategy.mb_output.detach().clone(),
            getattr(strategy, "mb_predictive", None),
            float(strategy.loss.detach()),
        )


@dataclass(eq=False)
class Witness(SupervisedPlugin):  # type: ignore[misc] # Avalanche ships no types
    """Writes down the mini-batches of the last epoch of training, and of the last evaluation."""

    trained: list[MiniBatch] = field(default_factory=list)
    evaluated: list[MiniBatch] = field(default_factory=list)

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        self.trained = []

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        self.trained.append(MiniBatch.of(strategy))

    def before_eval(self, strategy: Any, **kwargs: Any) -> None:
        self.evaluated = []

    def after_eval_iteration(self, strategy: Any, **kwargs: Any) -> None:
        self.evaluated.append(MiniBatch.of(strategy))


def metrics_of_evaluation(batches: Iterable[MiniBatch], criterion: nn.Module) -> dict[str, float]:
    """Metrics by name, ``Top1_Acc_Exp/Exp001`` or ``Top1_Acc_Stream``, one sample after another.

    Args:
        batches: of an evaluation.
        criterion: ``CrossEntropyLoss`` or ``MSELoss``: what the loss is.
    """
    batches = list(batches)
    found: dict[str, float] = {}
    for index in sorted({batch.experience for batch in batches}):
        own = [batch for batch in batches if batch.experience == index]
        for name, value in _by_hand(own, criterion).items():
            found[f"{name}_Exp/Exp{index:03d}"] = value
    for name, value in _by_hand(batches, criterion).items():
        found[f"{name}_Stream"] = value
    return found


def metrics_of_training(batches: Iterable[MiniBatch]) -> dict[str, float]:
    """``Top1_Acc_Epoch`` and ``Loss_Epoch``; the loss is what was descended on."""
    batches = list(batches)
    count = sum(len(batch.y) for batch in batches)
    loss = sum(batch.loss * len(batch.y) for batch in batches) / count
    if batches[0].y.is_floating_point():
        return {"Loss_Epoch": loss}
    return {"Top1_Acc_Epoch": _accuracy(_rows(batches)), "Loss_Epoch": loss}


def _by_hand(batches: list[MiniBatch], criterion: nn.Module) -> dict[str, float]:
    if not isinstance(criterion, nn.MSELoss):
        rows = _rows(batches)
        return {
            "Top1_Acc": _accuracy(rows),
            "Loss": _nlpd(rows),
            "NLPD": _nlpd(rows),
            "Brier": _brier(rows),
            "ECE": _ece(rows),
        }
    squares = [
        (output - target) ** 2
        for batch in batches
        for output, target in zip(
            batch.outputs.double().flatten().tolist(), batch.y.flatten().tolist(), strict=True
        )
    ]
    found = {"Loss": math.fsum(squares) / len(squares)}
    if all(isinstance(batch.predictive, Normal) for batch in batches):
        found["NLPD"] = _density(batches)
    return found


# One sample after another ------------------------------------------------------------------------

Rows = list[tuple[list[float], int]]
"""Log probabilities of the classes, and the class."""


def _rows(batches: list[MiniBatch]) -> Rows:
    rows = []
    for batch in batches:
        for outputs, y in zip(batch.outputs.double().tolist(), batch.y.tolist(), strict=True):
            top = max(outputs)
            total = top + math.log(math.fsum(math.exp(value - top) for value in outputs))
            rows.append(([value - total for value in outputs], y))
    return rows


def _accuracy(rows: Rows) -> float:
    return sum(log_p.index(max(log_p)) == y for log_p, y in rows) / len(rows)


def _nlpd(rows: Rows) -> float:
    return -math.fsum(log_p[y] for log_p, y in rows) / len(rows)


def _brier(rows: Rows) -> float:
    squares = [
        (math.exp(value) - (c == y)) ** 2 for log_p, y in rows for c, value in enumerate(log_p)
    ]
    return math.fsum(squares) / len(rows)


def _ece(rows: Rows) -> float:
    """sum_b |hits_b - confidence_b| / n over bins of equal width."""
    gaps = [0.0] * BINS
    for log_p, y in rows:
        top = max(log_p)
        confidence = math.exp(top)
        gaps[min(BINS - 1, math.floor(confidence * BINS))] += (log_p.index(top) == y) - confidence
    return math.fsum(abs(gap) for gap in gaps) / len(rows)


def _density(batches: list[MiniBatch]) -> float:
    """Mean of -log N(y; m, v), summed over outputs."""
    total, count = 0.0, 0
    for batch in batches:
        assert batch.predictive is not None
        moments = (batch.predictive.mean, batch.predictive.variance)
        mean, variance = (part.double().flatten().tolist() for part in moments)
        for m, v, y in zip(mean, variance, batch.y.flatten().tolist(), strict=True):
            total += 0.5 * (math.log(2 * math.pi * v) + (y - m) ** 2 / v)
        count += len(batch.y)
    return total / count
