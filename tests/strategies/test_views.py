"""The function the penalty holds is the one that is trained, whatever the model does around it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from avalanche.models import (
    FeatureExtractorBackbone,
    NCMClassifier,
    SCRModel,
    SimpleSequenceClassifier,
    TrainEvalModel,
)
from avalanche.models.utils import FeatureExtractorModel
from avalanche.training.plugins import CurrentDataNCMUpdate, FeatureDistillationPlugin
from avalanche.training.supervised import Naive
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from sfr_cl.errors import ArgumentError
from sfr_cl.strategies import SFR, SFRConditioning, SFRPlugin
from sfr_cl.testing.streams import (
    HIDDEN,
    Labelled,
    MultiHead,
    body,
    class_benchmark,
    silent,
    single_head,
)
from support.plugins import plugin, task

NOT_YET = "ignore:You are using plugins that are not compatible"
"""Avalanche's, of every plug-in that does not say that it can be distributed."""


def sequences(rows: int = 12) -> Labelled:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 3, 2, generator=generator, dtype=torch.float64)
    return Labelled(x, torch.arange(rows) % 2)


def two_classes() -> Labelled:
    data = task(0, 1, rows=6)
    return Labelled(data.tensors[0].double(), data.tensors[1])


def train_eval() -> nn.Module:
    return TrainEvalModel(body(), nn.Linear(HIDDEN, 3), NCMClassifier(normalize=False))


def contrastive() -> nn.Module:
    return SCRModel(body(), nn.Linear(HIDDEN, 3))


def backbone() -> nn.Module:
    return nn.Sequential(FeatureExtractorBackbone(single_head(8), "1"), nn.Linear(8, 3))


def old_weight_norm() -> nn.Module:
    with pytest.warns(FutureWarning, match="weight_norm"):
        return nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(4, 3)), nn.Tanh())


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.layer(x)[1][-1])
        return found


def as_trained(model: Any) -> Callable[[Tensor], Tensor]:
    """f of the classifier that is trained, without our own code."""
    if isinstance(model, TrainEvalModel):
        return lambda x: model.train_classifier(model.feature_extractor(x))
    if isinstance(model, SCRModel):
        return lambda x: model.train_classifier(nn.functional.normalize(model.feature_extractor(x)))
    wrapped: Callable[[Tensor], Tensor] = getattr(model, "module", model)
    return wrapped


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Labelled]]] = {
    "LSTM": (lambda: SimpleSequenceClassifier(2, 4, 3), sequences),
    "GRU": (Gru, sequences),
    "old weight norm": (old_weight_norm, two_classes),
    "another classifier in eval mode": (train_eval, two_classes),
    "another classifier in eval mode, contrastive": (contrastive, two_classes),
    "a hook that keeps features": (backbone, two_classes),
    "DataParallel": (lambda: DataParallel(single_head(3)), two_classes),
    "DistributedDataParallel": (lambda: DistributedDataParallel(single_head(3)), two_classes),
}


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    """A group of processes with one in it."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def jacobian(f: Callable[[Tensor], Tensor], x: Tensor, model: nn.Module) -> Tensor:
    """``[C, B, P]``, by a backward pass for each number."""
    parameters = list(model.parameters())

    def gradient(value: Tensor) -> Tensor:
        found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
        pairs = zip(found, parameters, strict=True)
        return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])

    outputs = f(x)
    return torch.stack([torch.stack([gradient(value) for value in c]) for c in outputs.T])


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("name", MODELS)
def test_the_penalty_is_about_the_function_that_is_trained(name: str) -> None:
    """1/(2M) sum_c d' P d with P = K^-1 B K^-1, and I for the class not seen."""
    torch.manual_seed(0)
    build, make_data = MODELS[name]
    model, data = build().double(), make_data()
    f, (x, y) = as_trained(model), data.tensors
    model.train()
    sfr = plugin(tau=1.0, num_inducing=4)
    sfr.end_task(model, data)
    assert all(module.training for module in model.modules())
    assert sfr.penalty(model).item() == pytest.approx(0, abs=1e-12)

    z = sfr.tasks[0].z
    before, p, at_z = f(z).detach(), f(x).softmax(1).detach(), jacobian(f, z, model)
    at_x = jacobian(f, x, model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    change = f(z) - before
    expected = change[:, 2].square().sum()
    for c in range(2):
        k = at_z[c] @ at_z[c].T
        cross = at_z[c] @ at_x[c].T
        inverse = torch.linalg.inv(k)
        precision = inverse @ cross @ torch.diag(p[:, c] * (1 - p[:, c])) @ cross.T @ inverse
        expected = expected + change[:, c] @ precision @ change[:, c]
    expected = expected / (2 * len(z))
    assert y.unique().tolist() == [0, 1]

    found = sfr.penalty(model)
    assert found.item() == pytest.approx(expected.item(), rel=1e-4)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(found, parameters, allow_unused=True)
    others = torch.autograd.grad(expected, parameters, allow_unused=True)
    for mine, other in zip(gradients, others, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None and other is not None:
            assert torch.allclose(mine, other, rtol=1e-3, atol=1e-6 * float(other.abs().max()))


# A classifier of class means at evaluation -------------------------------------------------------


@pytest.mark.parametrize("predict_with", ["network", "posterior"])
def test_class_means_predict_beside_the_plugin(predict_with: str) -> None:
    """Two units after the first experience, where the posterior has three already."""
    torch.manual_seed(0)
    model = TrainEvalModel(body(), nn.Linear(HIDDEN, 6), NCMClassifier(normalize=False))
    strategy = SFR(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.05),
        num_inducing=10,
        predict_with=predict_with,
        plugins=[CurrentDataNCMUpdate()],
        train_mb_size=8,
        evaluator=silent(),
        verbose=False,
    )
    benchmark = class_benchmark()
    for experience in benchmark.train_stream:
        strategy.train(experience)
        strategy.eval(benchmark.test_stream[:1])
    assert len(strategy.sfr.tasks) == 3


# What models keep on themselves ------------------------------------------------------------------


def test_the_penalty_leaves_a_model_the_features_of_its_minibatch() -> None:
    """Feature distillation reads them once the penalty was made."""
    torch.manual_seed(0)
    model = FeatureExtractorModel(body(), nn.Linear(HIDDEN, 6))
    sfr, (x, _) = plugin(), task(2, 3).tensors
    sfr.end_task(model, task(0, 1))
    model(x)
    features = model.features
    sfr.penalty(model)
    assert model.features is features


def test_the_order_of_the_plugins_does_not_change_what_is_distilled() -> None:
    weights = []
    for order in (1, -1):
        torch.manual_seed(0)
        model = FeatureExtractorModel(body(), nn.Linear(HIDDEN, 6))
        strategy = Naive(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), 0.05),
            criterion=nn.CrossEntropyLoss(),
            plugins=[plugin(), FeatureDistillationPlugin()][::order],
            train_mb_size=40,
            evaluator=silent(),
        )
        for experience in class_benchmark().train_stream[:2]:
            torch.manual_seed(1)
            strategy.train(experience)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*weights)


# Wrapped models ----------------------------------------------------------------------------------


def trained(wrap: Callable[[nn.Module], nn.Module], **options: Any) -> SFR:
    torch.manual_seed(0)
    model = wrap(single_head())
    strategy = SFR(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.05),
        num_inducing=10,
        train_mb_size=8,
        evaluator=silent(),
        verbose=False,
        **options,
    )
    benchmark = class_benchmark()
    for experience in benchmark.train_stream:
        strategy.train(experience)
    strategy.eval(benchmark.test_stream)
    return strategy


@pytest.mark.filterwarnings(NOT_YET)
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("wrap", [DataParallel, DistributedDataParallel])
def test_a_wrapped_model_is_trained_as_it_is_without(wrap: Callable[[Any], Any]) -> None:
    options: dict[str, Any] = {"predict_with": "posterior", "consolidated": True}
    plain, wrapped = trained(lambda model: model, **options), trained(wrap, **options)
    for mine, other in zip(wrapped.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    x = task(0, 1).tensors[0]
    found = [s.sfr.predictive(s.model).predict(x)[0] for s in (plain, wrapped)]
    torch.testing.assert_close(*found)


@pytest.mark.filterwarnings(NOT_YET)
@pytest.mark.usefixtures("one_process")
def test_names_of_parameters_are_those_of_the_model_that_is_wrapped() -> None:
    trained(DistributedDataParallel, parameters=["1.weight"])
    with pytest.raises(ArgumentError, match=r"\(.*1\.weight, 1\.bias\), got \['module"):
        trained(DistributedDataParallel, parameters=["module.1.weight"])


@pytest.mark.usefixtures("one_process")
def test_conditioning_on_a_wrapped_model() -> None:
    found = []
    for wrap in (lambda model: model, DistributedDataParallel):
        torch.manual_seed(0)
        strategy = SFRConditioning(
            model=wrap(single_head()), num_inducing=20, inducing="noise", evaluator=silent()
        )
        for experience in class_benchmark().train_stream:
            strategy.train(experience)
        found.append(strategy.posterior.predict_f(task(0, 1).tensors[0]).mean)
    torch.testing.assert_close(*found)


@pytest.mark.filterwarnings(NOT_YET)
@pytest.mark.usefixtures("one_process")
def test_heads_a_wrapper_can_not_synchronise_are_refused() -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(MultiHead(), find_unused_parameters=True)
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.05),
        criterion=nn.CrossEntropyLoss(),
        plugins=[SFRPlugin(num_inducing=10)],
        evaluator=silent(),
    )
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ArgumentError, match="one head in DistributedDataParallel, got one with"):
        strategy.train(class_benchmark(task_labels=True).train_stream[0])
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
