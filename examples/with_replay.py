"""SFR beside replay: stored samples in every mini-batch, and the penalty in every loss.

    python examples/with_replay.py

Replay shows the network earlier samples again; SFR's term says what f should stay at 20 inputs of
each earlier task. Their errors differ, so both are better than either.
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
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
from avalanche.training.supervised import Naive


def plugins(name: str) -> list[SupervisedPlugin]:
    """The plug-ins a name stands for."""
    replay = ReplayPlugin(mem_size=100)  # for all tasks; SFR: 20 for each of five
    sfr = SFRPlugin(num_inducing=20, tau=0.1)
    return {"replay": [replay], "SFR": [sfr], "replay + SFR": [replay, sfr]}[name]


def main() -> dict[str, dict[str, float]]:
    """Accuracy and NLPD over all classes, at the end, with each plug-in and with both."""
    benchmark, results = split_digits(), {}
    for name in ("replay", "SFR", "replay + SFR"):
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
        print(f"{name:<12} accuracy {accuracy:.3f}  NLPD {nlpd:.2f}")
    return results


if __name__ == "__main__":
    main()
