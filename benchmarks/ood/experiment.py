"""One row: one method, one seed, one direction."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from ..cl import measure
from ..runner import ShowShare
from ..timing import processor_timed
from . import methods, problem, training
from .methods import METHODS, Moments, Predictions, probabilities
from .problem import Problem

SAMPLES = 200
"""Of f, for the variance of probabilities."""


@dataclass(frozen=True)
class Case:
    """What a row is the result of."""

    problem: Problem
    method: str

    @property
    def key(self) -> dict[str, Any]:
        """What tells this row from others; also the row's first columns."""
        settings = {
            "network": training.NAME,
            "epochs": training.EPOCHS,
            "peak_rate": training.PEAK_RATE,
            "weight_decay": training.WEIGHT_DECAY,
            "batch": training.BATCH,
            "num_inducing": methods.NUM_INDUCING,
            "fitted": len(self.problem.fitted.y),
            "chosen_on": problem.CHOSEN_ON,
            "tested": problem.TESTED,
        }
        return {
            "data": self.problem.inside,
            "ood": self.problem.outside,
            "method": self.method,
            "seed": self.problem.seed,
            "settings": settings,
        }

    @property
    def label(self) -> str:
        return f"{self.problem.inside}, {self.method}, seed {self.problem.seed}"

    def run(self, show: ShowShare) -> dict[str, Any]:
        """The row."""
        self.problem.show = show
        torch.manual_seed(self.problem.seed)
        _ = self.problem.network  # trained before the clock starts
        predictions, seconds = processor_timed(lambda: METHODS[self.method](self.problem))
        return self.key | measures(predictions, self.problem.test.y) | {"seconds": seconds}

    def line(self, row: dict[str, Any]) -> str:
        """The row in short."""
        return f"accuracy {row['accuracy']:.4f}  AUROC {row['auroc_entropy']:.4f} (entropy)"


def measures(predictions: Predictions, y: Tensor) -> dict[str, Any]:
    """Accuracy and calibration on the test images, and how well strangers are told from them."""
    known, strange = predictions.inside, predictions.outside
    inside, outside = (probabilities(moments, predictions.link) for moments in (known, strange))
    parts = [(inside.log(), y)]
    bins = measure.reliability(parts)
    return {
        "accuracy": measure.accuracies(parts)[0],
        "nlpd": measure.nlpd(parts),
        "ece": bins.ece,
        "auroc_entropy": auroc(entropy(inside), entropy(outside)),
        "auroc_variance": None
        if known.variance is None
        else auroc(variance(known), variance(strange)),
        "auroc_novelty": None
        if known.novelty is None or strange.novelty is None
        else auroc(known.novelty, strange.novelty),
        "prior_precision": predictions.prior_precision,
        "link": predictions.link,
        "reliability_confidence": bins.confidence,
        "reliability_accuracy": bins.accuracy,
        "reliability_count": bins.count,
    }


def entropy(probs: Tensor) -> Tensor:
    """-sum_c p_c log p_c, ``[B]``."""
    return torch.special.entr(probs).sum(1)


def variance(moments: Moments) -> Tensor:
    """sum_c Var[p_c] with p = softmax(f) and f as the posterior has it, sampled, ``[B]``."""
    assert moments.variance is not None
    generator = torch.Generator().manual_seed(0)
    shape = SAMPLES, *moments.mean.shape
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    f = moments.mean.double() + moments.variance.double().sqrt() * noise
    return f.softmax(2).var(0).sum(1)


def auroc(inside: Tensor, outside: Tensor) -> float:
    """How often a stranger's score is the higher one.

    >>> auroc(torch.tensor([0.1, 0.4]), torch.tensor([0.3, 0.5]))
    0.75
    """
    labels = np.repeat([0, 1], [len(inside), len(outside)])
    return float(roc_auc_score(labels, torch.cat([inside, outside]).numpy()))
