"""SFR's predictions in Avalanche's loggers: TensorBoard and CSV files.

    python examples/with_loggers.py FOLDER
    tensorboard --logdir FOLDER/board

TensorBoard has all metrics: accuracy, loss, forgetting, and the three of predicted probabilities
(NLPD, ECE, Brier). Avalanche's CSV files have columns for accuracy, loss and forgetting.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from split_digits import learn, mlp, split_digits
from torch import nn

from sfr_cl.strategies import (  # before Avalanche
    SFRPlugin,
    brier_metrics,
    ece_metrics,
    nlpd_metrics,
)

# isort: split

from avalanche.evaluation.metrics import accuracy_metrics, forgetting_metrics, loss_metrics
from avalanche.logging import CSVLogger, TensorboardLogger
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive


def main(folder: Path) -> dict[str, float]:
    """Metrics over all classes, at the end; they and all others are in the folder."""
    torch.manual_seed(0)
    board, table = TensorboardLogger(folder / "board"), CSVLogger(str(folder / "csv"))
    levels = {"experience": True, "stream": True}
    evaluator = EvaluationPlugin(
        accuracy_metrics(epoch=True, **levels),
        loss_metrics(epoch=True, **levels),
        forgetting_metrics(**levels),
        nlpd_metrics(**levels),
        ece_metrics(**levels),
        brier_metrics(**levels),
        loggers=[board, table],
    )
    model = mlp()
    strategy = Naive(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), 3e-3),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=16,
        train_epochs=10,
        eval_mb_size=512,
        plugins=[SFRPlugin(num_inducing=20, tau=0.5, predict_with="posterior")],
        evaluator=evaluator,
    )
    found = learn(strategy, split_digits())
    board.writer.close()
    table.close()
    for name, value in found.items():
        print(f"{name:<16} {value:.3f}")
    print(f"written to {folder}")
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "results/loggers"))
