"""SFR beside elastic weight consolidation: two plug-ins, whose penalties add up.

    python examples/with_ewc.py

EWC holds weights, SFR holds what the network computes. In class-incremental learning the first
alone forgets all but the last task.
"""

from __future__ import annotations

import torch
from split_digits import learn, mlp, split_digits
from torch import nn

from sfr_cl.strategies import SFRPlugin, nlpd_metrics  # before Avalanche

# isort: split

from avalanche.core import SupervisedPlugin
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.logging import BaseLogger
from avalanche.training.plugins import EvaluationPlugin, EWCPlugin
from avalanche.training.supervised import Naive


def plugins(name: str) -> list[SupervisedPlugin]:
    """The plug-ins a name stands for."""
    ewc = EWCPlugin(ewc_lambda=10.0)
    sfr = SFRPlugin(num_inducing=20, tau=0.5)
    return {"EWC": [ewc], "SFR": [sfr], "EWC + SFR": [ewc, sfr]}[name]


def main() -> dict[str, dict[str, float]]:
    """Accuracy and NLPD over all classes, at the end, with each plug-in and with both."""
    benchmark, results = split_digits(), {}
    for name in ("EWC", "SFR", "EWC + SFR"):
        torch.manual_seed(0)
        model = mlp()
        strategy = Naive(
            model=model,
            optimizer=torch.optim.Adam(model.parameters(), 3e-3),
            criterion=nn.CrossEntropyLoss(),
            train_mb_size=16,
            train_epochs=10,
            eval_mb_size=512,
            plugins=plugins(name),
            evaluator=EvaluationPlugin(
                accuracy_metrics(stream=True), nlpd_metrics(stream=True), loggers=[BaseLogger()]
            ),
        )
        results[name] = found = learn(strategy, benchmark)
        accuracy, nlpd = found["Top1_Acc_Stream"], found["NLPD_Stream"]
        print(f"{name:<10} accuracy {accuracy:.3f}  NLPD {nlpd:.2f}")
    return results


if __name__ == "__main__":
    main()
