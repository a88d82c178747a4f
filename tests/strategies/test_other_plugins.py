"""Avalanche's training plug-ins beside ours: each trains rightly, or is refused by a sentence."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.models import BaseModel, NCMClassifier, TrainEvalModel
from avalanche.models.generator import MlpVAE
from avalanche.models.utils import FeatureExtractorModel
from avalanche.training.plugins import (
    AGEMPlugin,
    CurrentDataNCMUpdate,
    CWRStarPlugin,
    EarlyStoppingPlugin,
    EWCPlugin,
    FeatureDistillationPlugin,
    FromScratchTrainingPlugin,
    GDumbPlugin,
    GEMPlugin,
    GenerativeReplayPlugin,
    LFLPlugin,
    LRSchedulerPlugin,
    LwFPlugin,
    MASPlugin,
    MemoryNCMUpdate,
    MIRPlugin,
    NCMOracle,
    RARPlugin,
    ReplayPlugin,
    RWalkPlugin,
    SynapticIntelligencePlugin,
)
from avalanche.training.supervised import Naive
from avalanche.training.supervised.strategy_wrappers import VAETraining
from torch import Tensor, nn

from sfr_cl.errors import ArgumentError
from sfr_cl.strategies import SFRConditioning, SFRPlugin
from sfr_cl.testing.streams import CLASSES, HIDDEN, body, class_benchmark, silent, single_head
from support.plugins import task

Others = Callable[[nn.Module, torch.optim.Optimizer], Any]


class WithFeatures(BaseModel, nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.network = single_head()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.network(x)
        return found

    def get_features(self, x: Tensor) -> Tensor:
        found: Tensor = self.network[0](x)
        return found


def two_classifiers() -> nn.Module:
    torch.manual_seed(0)
    return TrainEvalModel(body(), nn.Linear(HIDDEN, CLASSES), NCMClassifier(normalize=False))


def keeping_features() -> nn.Module:
    torch.manual_seed(0)
    return FeatureExtractorModel(body(), nn.Linear(HIDDEN, CLASSES))


def generator() -> Any:
    model = MlpVAE((1, 2, 2), nhid=2)
    return VAETraining(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), 1e-2),
        train_mb_size=20,
        train_epochs=1,
        evaluator=silent(),
        plugins=[GenerativeReplayPlugin()],
    )


def scheduler(optimizer: torch.optim.Optimizer) -> Any:
    return LRSchedulerPlugin(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))


PLUGINS: dict[str, Others] = {
    "CWR*": lambda model, _: CWRStarPlugin(model),
    "EWC": lambda *_: EWCPlugin(1.0),
    "feature distillation": lambda *_: FeatureDistillationPlugin(),
    "from scratch": lambda *_: FromScratchTrainingPlugin(),
    "MAS": lambda *_: MASPlugin(),
    "NCM": lambda *_: CurrentDataNCMUpdate(),
    "replay": lambda *_: ReplayPlugin(30),
    "RWalk": lambda *_: RWalkPlugin(delta_t=2),
    "SI": lambda *_: SynapticIntelligencePlugin(1.0),
}
OTHERS: dict[str, Others] = {
    "AGEM": lambda *_: AGEMPlugin(5, 8),
    "early stopping": lambda *_: EarlyStoppingPlugin(2, "train_stream"),
    "GDumb": lambda *_: GDumbPlugin(30),
    "GEM": lambda *_: GEMPlugin(5, 0.5),
    "generative replay": lambda *_: GenerativeReplayPlugin(generator_strategy=generator()),
    "LFL": lambda *_: LFLPlugin(0.1),
    "LwF": lambda *_: LwFPlugin(1, 2),
    "MIR": lambda *_: MIRPlugin(batch_size_mem=5, mem_size=30, subsample=10),
    "NCM, memory": lambda *_: MemoryNCMUpdate(30),
    "NCM, oracle": lambda *_: NCMOracle(),
    "RAR": lambda *_: RARPlugin(5, 30, opt_lr=0.1, name_ext_layer="1"),
    "schedule": lambda _, optimizer: scheduler(optimizer),
}
"""BiC and GSS are not among them: here they fail by themselves."""
MODELS = {
    "feature distillation": keeping_features,
    "LFL": WithFeatures,
    "NCM": two_classifiers,
    "NCM, memory": two_classifiers,
    "NCM, oracle": two_classifiers,
}
CHANGE_BETWEEN = {"CWR*", "from scratch", "GDumb"}
"""Those that give the network other weights when an experience begins."""

EVERY = [*PLUGINS, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)]

pytestmark = pytest.mark.filterwarnings(
    "ignore:No benchmark provided",
    "ignore:Metric Top1_Acc_Stream used by the EarlyStopping",
    "ignore:Detected call of `lr_scheduler.step",
    "ignore:__array_wrap__ must accept context",
    "ignore:Call to deprecated function",
)


class Recorded(SFRPlugin):
    """With the penalties of all steps."""

    def penalty(self, model: nn.Module) -> Tensor:
        found = super().penalty(model)
        self.found = [*getattr(self, "found", []), found.item()]
        return found


def made(name: str) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = MODELS.get(name, single_head)()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    return model, optimizer, (PLUGINS | OTHERS)[name](model, optimizer)


@pytest.mark.parametrize("name", EVERY)
def test_beside_the_plugin(name: str) -> None:
    """The penalty is zero at the first step, unless the other changes the network before it."""
    model, optimizer, other = made(name)
    recorded = Recorded(num_inducing=10, verbose=False)
    strategy = Naive(
        model=model,
        optimizer=optimizer,
        criterion=nn.CrossEntropyLoss(),
        plugins=[other, recorded],
        train_mb_size=10,
        evaluator=silent(accuracy_metrics(stream=True)),
    )
    benchmark = class_benchmark()
    for experience in benchmark.train_stream[:2]:
        strategy.train(experience)
    strategy.eval(benchmark.test_stream[:2])
    assert [sorted(held.classes) for held in recorded.tasks] == [[0, 1], [2, 3]]
    assert [held.num_data for held in recorded.tasks] == [40, 40]
    if name in CHANGE_BETWEEN:
        assert recorded.found[0] > 1e-3
    else:
        assert recorded.found[0] == pytest.approx(0, abs=1e-9)
    assert max(recorded.found[1:]) > 1e-6
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def conditioned(model: nn.Module, *plugins: Any) -> SFRConditioning:
    strategy = SFRConditioning(
        model=model,
        num_inducing=10,
        inducing="noise",
        plugins=[*plugins],
        evaluator=silent(),
        verbose=False,
    )
    strategy._seed = 3
    for experience in class_benchmark().train_stream[:2]:
        strategy.train(experience)
    return strategy


@cache
def alone(build: Callable[[], nn.Module]) -> SFRConditioning:
    return conditioned(build())


@pytest.mark.parametrize("name", EVERY)
def test_beside_conditioning(name: str) -> None:
    """Nothing is trained: the posterior is what it is alone."""
    model, _, other = made(name)
    if name == "SI":
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(ArgumentError, match=r"no gradients.*got SynapticIntelligencePlugin"):
            conditioned(model, other)
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
        return
    strategy = conditioned(model, other)
    assert strategy.posterior.num_data == 80
    if name != "CWR*":  # it gives the head other weights before it has learned anything
        x = task(0, 1, 2, 3).tensors[0]
        expected = alone(MODELS.get(name, single_head)).posterior.predict(x).logits
        torch.testing.assert_close(strategy.posterior.predict(x).logits, expected)
