"""One row: one method, one seed, one direction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from ..harness import measure
from ..harness.results import Row
from ..harness.run import ShowShare
from ..harness.timing import processor_timed
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

    fixed: ClassVar[Sequence[str]] = ()
    varies: ClassVar[Sequence[str]] = ("data", "ood", "method", "seed")

    @property
    def key(self) -> Row:
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
            "data": self.problem.data,
            "ood": self.problem.ood,
            "method": self.method,
            "seed": self.problem.seed,
            "settings": settings,
        }

    @property
    def label(self) -> str:
        return f"{self.problem.data}, {self.method}, seed {self.problem.seed}"

    def run(self, show: ShowShare) -> Row:
        """The row."""
        self.problem.show = show
        torch.manual_seed(self.problem.seed)
        _ = self.problem.network  # trained before the clock starts
        predictions, seconds = processor_timed(lambda: METHODS[self.method](self.problem))
        costs = {"seconds": seconds, "state_bytes": predictions.state_bytes}
        return self.key | measures(predictions, self.problem.test.y) | costs

    def line(self, row: Row) -> str:
        """The row in short."""
        return f"accuracy {row['accuracy']:.4f}  AUROC {row['auroc_entropy']:.4f} (entropy)"


def measures(predictions: Predictions, y: Tensor) -> Row:
    """Accuracy and calibration on the test images, and how well OOD images are told from them."""
    test, ood = predictions.test, predictions.ood
    probs, probs_ood = (probabilities(moments, predictions.link) for moments in (test, ood))
    log_probs = probs.log()
    bins = measure.reliability(log_probs, y)
    return {
        "accuracy": measure.accuracy(log_probs, y),
        "nlpd": measure.nlpd(log_probs, y),
        "ece": bins.ece,
        "auroc_entropy": auroc(entropy(probs), entropy(probs_ood)),
        "auroc_variance": None if test.variance is None else auroc(variance(test), variance(ood)),
        "auroc_novelty": None
        if test.novelty is None or ood.novelty is None
        else auroc(test.novelty, ood.novelty),
        "prior_precision": predictions.prior_precision,
        "link": predictions.link,
        **bins.columns,
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


def auroc(test: Tensor, ood: Tensor) -> float:
    """How often an OOD image's score is higher than a test image's.

    >>> auroc(torch.tensor([0.1, 0.4]), torch.tensor([0.3, 0.5]))
    0.75
    """
    labels = np.repeat([0, 1], [len(test), len(ood)])
    return float(roc_auc_score(labels, torch.cat([test, ood]).numpy()))
