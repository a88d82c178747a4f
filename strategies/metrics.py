"""Metrics of predicted probabilities for Avalanche's ``EvaluationPlugin``: NLPD, ECE and Brier."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from avalanche.evaluation import GenericPluginMetric
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import one_hot
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import BinaryCalibrationError

from sfr_cl.errors import ArgumentError, DataError

BINS = 15
"""Bins of equal width of the calibration error: the usual number."""

BELOW_ONE = math.nextafter(1.0, 0.0)

SUFFIXES = {"experience": "Exp", "stream": "Stream"}

Measure = Callable[[Any], tuple[Tensor, ...]]
"""What a strategy's current mini-batch adds to a torchmetrics metric: values of ``update``."""


class PredictiveMetric(GenericPluginMetric):  # type: ignore[misc] # Avalanche ships no types
    """A torchmetrics metric fed with each evaluated mini-batch, emitted under Avalanche's names.

    A NaN among the predictions makes the value NaN, and so does an empty experience: torchmetrics
    would leave the first out and warn of the second.
    """

    def __init__(self, name: str, level: str, metric: Metric, measure: Measure) -> None:
        super().__init__(metric, reset_at=level, emit_at=level, mode="eval")
        self._name = f"{name}_{SUFFIXES[level]}"
        self._measure = measure
        self._has_nan = False

    def update(self, strategy: Any) -> None:
        values = self._measure(strategy)
        self._has_nan = self._has_nan or bool(values[0].isnan().any())
        self._metric.update(*values)

    def result(self) -> float:
        if self._has_nan or not self._metric.update_called:
            return math.nan
        return float(self._metric.compute())

    def reset(self) -> None:
        super().reset()
        self._has_nan = False

    def __str__(self) -> str:
        return self._name


def nlpd_metrics(*, experience: bool = False, stream: bool = False) -> list[PredictiveMetric]:
    """Negative log predictive density, the mean of -log p(y | x).

    For classes p is the softmax of ``strategy.mb_output``: logits and log predictive probabilities
    serve alike. For regression it is ``strategy.mb_predictive``, the distribution of the current
    mini-batch's targets that a strategy leaves there; its outputs' terms are summed.

    Args:
        experience: one value per evaluated experience, ``NLPD_Exp``.
        stream: one value for all experiences of an evaluated stream, ``NLPD_Stream``.

    Returns:
        Metrics for ``EvaluationPlugin``.

    Raises:
        ArgumentError: when a batch of real targets is scored, and no distribution was left.

    >>> [str(metric) for metric in nlpd_metrics(experience=True, stream=True)]
    ['NLPD_Exp', 'NLPD_Stream']
    """
    return [PredictiveMetric("NLPD", level, _mean(), _nlpd) for level in _on(experience, stream)]


def ece_metrics(*, experience: bool = False, stream: bool = False) -> list[PredictiveMetric]:
    """Expected calibration error of the most probable class, sum_b n_b / n |accuracy - confidence|.

    Args:
        experience: one value per evaluated experience, ``ECE_Exp``.
        stream: one value for all experiences of an evaluated stream, ``ECE_Stream``.

    Returns:
        Metrics for ``EvaluationPlugin``.

    Raises:
        ArgumentError: when a batch is scored whose targets are no classes.

    >>> [str(metric) for metric in ece_metrics(stream=True)]
    ['ECE_Stream']
    """
    # Of confidences and hits alone, so that heads may grow while a stream is evaluated.
    return [
        PredictiveMetric("ECE", level, BinaryCalibrationError(n_bins=BINS, norm="l1"), _top_label)
        for level in _on(experience, stream)
    ]


def brier_metrics(*, experience: bool = False, stream: bool = False) -> list[PredictiveMetric]:
    """Brier score, the mean of sum_c (p(c | x) - [y = c])^2: between 0 and 2.

    Args:
        experience: one value per evaluated experience, ``Brier_Exp``.
        stream: one value for all experiences of an evaluated stream, ``Brier_Stream``.

    Returns:
        Metrics for ``EvaluationPlugin``.

    Raises:
        ArgumentError: when a batch is scored whose targets are no classes.

    >>> [str(metric) for metric in brier_metrics(stream=True)]
    ['Brier_Stream']
    """
    return [PredictiveMetric("Brier", level, _mean(), _brier) for level in _on(experience, stream)]


def _on(experience: bool, stream: bool) -> list[str]:
    return [level for level, on in zip(SUFFIXES, (experience, stream), strict=True) if on]


def _mean() -> Metric:
    return MeanMetric(nan_strategy="ignore").set_dtype(torch.float64)


# What a mini-batch adds --------------------------------------------------------------------------


def _nlpd(strategy: Any) -> tuple[Tensor]:
    if strategy.mb_y.is_floating_point():
        return (-_log_density(getattr(strategy, "mb_predictive", None), strategy.mb_y),)
    log_probs, y = _log_probs(strategy, "NLPD")
    return (-log_probs.gather(1, y[:, None])[:, 0],)


def _top_label(strategy: Any) -> tuple[Tensor, Tensor]:
    log_probs, y = _log_probs(strategy, "ECE")
    log_confidence, label = log_probs.max(1)
    # torchmetrics puts a confidence of exactly 1 into a bin of its own, beyond the last.
    return log_confidence.exp().clamp(max=BELOW_ONE), (label == y).long()


def _brier(strategy: Any) -> tuple[Tensor]:
    log_probs, y = _log_probs(strategy, "Brier")
    return ((log_probs.exp() - one_hot(y, log_probs.shape[1])).square().sum(1),)


def _log_probs(strategy: Any, name: str) -> tuple[Tensor, Tensor]:
    """Log probabilities ``[B, C]`` in float64, and classes ``[B]``, on the CPU."""
    output, y = strategy.mb_output, strategy.mb_y
    if y.is_floating_point():
        raise ArgumentError(
            f"expected classes as integers for {name}, got targets of {y.dtype}: {name} is for "
            f"classification; nlpd_metrics is for regression too"
        )
    if output.ndim != 2 or y.shape != output.shape[:1]:
        raise DataError(
            f"expected outputs [B, C] and classes [B] for {name}, got {list(output.shape)} and "
            f"{list(y.shape)}: give each input one class"
        )
    y = y.cpu().long()
    if len(y) and not 0 <= y.min() <= y.max() < output.shape[1]:
        raise DataError(
            f"expected classes from 0 to {output.shape[1] - 1} for {name}, as the network has "
            f"{output.shape[1]} outputs, got {int(y.min())} to {int(y.max())}: give it more outputs"
        )
    return output.detach().cpu().double().log_softmax(1), y


def _log_density(predictive: Distribution | None, y: Tensor) -> Tensor:
    """log p(y | x) of each row, summed over its outputs, in float64 on the CPU."""
    if predictive is None:
        raise ArgumentError(
            f"expected strategy.mb_predictive, a torch.distributions.Distribution of the "
            f"mini-batch's targets, for NLPD with targets of {y.dtype}, got none: evaluate a "
            f"strategy that predicts with a posterior, or leave nlpd_metrics out"
        )
    shape = predictive.batch_shape + predictive.event_shape
    if not shape or shape[0] != len(y) or shape.numel() != y.numel():
        raise DataError(
            f"expected strategy.mb_predictive to be of the mini-batch's targets, {list(y.shape)}, "
            f"got one of {list(shape)}: set it for every mini-batch"
        )
    # [B] against [B, 1] would be broadcast to [B, B].
    log_prob = predictive.log_prob(y.detach().reshape(shape))
    return log_prob.detach().cpu().double().reshape(len(y), -1).sum(1)
