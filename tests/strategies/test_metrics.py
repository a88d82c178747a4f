"""NLPD, ECE and Brier against float64 loops, in real Avalanche runs, under Avalanche's names."""

import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dill
import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.distributions import Independent, MultivariateNormal, Normal
from torch.utils.data import TensorDataset

from sfr_cl.errors import ArgumentError, DataError, SFRError
from sfr_cl.strategies.metrics import BINS, brier_metrics, ece_metrics, nlpd_metrics

# isort: split
# Avalanche comes after the package that makes torchvision, which it imports, work.
from avalanche.benchmarks import benchmark_from_datasets, nc_benchmark, with_classes_timeline
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.core import SupervisedPlugin
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.logging import (
    BaseLogger,
    CSVLogger,
    InteractiveLogger,
    TensorboardLogger,
    TextLogger,
)
from avalanche.models import IncrementalClassifier
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin

FEATURES, CLASSES, EXPERIENCES, ROWS = 4, 6, 3, 90
FACTORIES = {"NLPD": nlpd_metrics, "ECE": ece_metrics, "Brier": brier_metrics}

Rows = list[tuple[np.ndarray, int]]
"""Outputs and class of each evaluated input, in order."""


# Oracles: one row at a time ---------------------------------------------------------------------


def probabilities(output: np.ndarray) -> np.ndarray:
    powers = np.exp(output - output.max())
    return powers / powers.sum()


def naive_nlpd(rows: Rows) -> float:
    total = 0.0
    for output, y in rows:
        total -= output[y] - output.max() - math.log(np.exp(output - output.max()).sum())
    return total / len(rows)


def naive_brier(rows: Rows) -> float:
    total = 0.0
    for output, y in rows:
        for c, p in enumerate(probabilities(output)):
            total += (p - (c == y)) ** 2
    return total / len(rows)


def naive_ece(rows: Rows) -> float:
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for output, y in rows:
        p = probabilities(output)
        bins[min(int(p.max() * BINS), BINS - 1)].append((p.max(), int(p.argmax()) == y))
    error = 0.0
    for members in bins:
        if members:
            confidence = sum(c for c, _ in members) / len(members)
            accuracy = sum(hit for _, hit in members) / len(members)
            error += len(members) / len(rows) * abs(accuracy - confidence)
    return error


ORACLES: dict[str, Callable[[Rows], float]] = {
    "NLPD": naive_nlpd,
    "ECE": naive_ece,
    "Brier": naive_brier,
}


# Runs -------------------------------------------------------------------------------------------


class Labelled(TensorDataset):
    """With the targets where Avalanche looks for them."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__(x, y)
        self.targets = y.tolist()


def classes_data(seed: int) -> Labelled:
    """Classes take turns and can be learned, not perfectly."""
    x = torch.randn(ROWS, FEATURES, generator=torch.Generator().manual_seed(seed))
    y = torch.arange(ROWS) % CLASSES
    x[:, 0] += y
    return Labelled(x, y)


def old_style() -> Any:
    return nc_benchmark(
        classes_data(0), classes_data(1), EXPERIENCES, task_labels=False, shuffle=False
    )


def new_style() -> Any:
    def stream(seed: int) -> list[Any]:
        x, y = classes_data(seed).tensors
        parts = [y // 2 == i for i in range(EXPERIENCES)]
        return [as_classification_dataset(Labelled(x[part], y[part])) for part in parts]

    return with_classes_timeline(benchmark_from_datasets(train=stream(0), test=stream(1)))


class Growing(nn.Module):
    """A head that grows, with the units of classes not trained on masked at -1000."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh())
        self.head = IncrementalClassifier(8, initial_out_features=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def fixed() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


class Recorder(SupervisedPlugin):
    """Keeps what is evaluated, experience by experience, of the last call of ``eval``."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, Rows] = {}
        self.widths: set[int] = set()

    def before_eval(self, strategy: Any, **kwargs: Any) -> None:
        self.seen, self.widths = {}, set()

    def after_eval_iteration(self, strategy: Any, **kwargs: Any) -> None:
        rows = self.seen.setdefault(strategy.experience.current_experience, [])
        output = strategy.mb_output.double().numpy()
        self.widths.add(output.shape[1])
        rows += zip(output, strategy.mb_y.tolist(), strict=True)


def all_metrics(**levels: bool) -> list[Any]:
    return [factory(**levels) for factory in FACTORIES.values()]


def naive(
    network: nn.Module, metrics: Sequence[Any], loggers: Sequence[BaseLogger], **options: Any
) -> Any:
    """A Naive strategy; its metrics come in the evaluator, its plug-ins before them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No loggers specified")
        evaluator = EvaluationPlugin(*metrics, loggers=loggers)
    options.setdefault("criterion", nn.CrossEntropyLoss())
    return Naive(
        model=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        train_mb_size=10,
        eval_mb_size=7,  # the last batch is smaller: rows, not batches, are averaged
        evaluator=evaluator,
        **options,
    )


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# Benchmarks without task labels have none in their metrics' names.
@pytest.mark.parametrize(
    ("benchmark", "where"),
    [
        (old_style, "eval_phase/test_stream/Task000"),
        (new_style, "eval_phase/test_stream"),
    ],
)
@pytest.mark.parametrize("network", [fixed, Growing])
def test_equal_naive_loops_on_a_run(
    benchmark: Callable[[], Any], where: str, network: Callable[[], nn.Module]
) -> None:
    scenario, recorder = benchmark(), Recorder()
    strategy = naive(network(), all_metrics(experience=True, stream=True), [], plugins=[recorder])
    for i, experience in enumerate(scenario.train_stream):
        strategy.train(experience)
        found = strategy.eval(scenario.test_stream)
        assert len(found) == len(FACTORIES) * (EXPERIENCES + 1)
        for name, oracle in ORACLES.items():
            for j, rows in recorder.seen.items():
                key = f"{name}_Exp/{where}/Exp{j:03d}"
                assert isinstance(found[key], float)
                assert found[key] == pytest.approx(oracle(rows), rel=1e-12)
            everything = [row for rows in recorder.seen.values() for row in rows]
            assert len(everything) == ROWS
            stream = found[f"{name}_Stream/{where}"]
            assert stream == pytest.approx(oracle(everything), rel=1e-12)
        if network is Growing and i == 0:
            assert len(recorder.widths) > 1  # the head grew while the stream was evaluated
            assert 500 < found[f"NLPD_Exp/{where}/Exp001"] < 2000


def test_the_levels_are_those_asked_for() -> None:
    for name, factory in FACTORIES.items():
        assert factory() == accuracy_metrics() == []
        assert [str(m) for m in factory(experience=True)] == [f"{name}_Exp"]
        assert [str(m) for m in factory(stream=True)] == [f"{name}_Stream"]


def test_names_are_those_of_accuracy() -> None:
    scenario = old_style()
    levels = {"experience": True, "stream": True}
    strategy = naive(fixed(), [accuracy_metrics(**levels), *all_metrics(**levels)], [])
    found = strategy.eval(scenario.test_stream)
    for name in FACTORIES:
        ours = {key for key in found if key.startswith(name)}
        assert ours == {
            key.replace("Top1_Acc", name) for key in found if key.startswith("Top1_Acc")
        }


class Speaker(SupervisedPlugin):
    """Replaces outputs by log probabilities, as a posterior that speaks for the network does."""

    def after_eval_forward(self, strategy: Any, **kwargs: Any) -> None:
        strategy.mb_output = strategy.mb_output.log_softmax(1)


def test_log_probabilities_serve_as_logits_do() -> None:
    scenario, network = old_style(), fixed()
    found = [
        naive(network, all_metrics(stream=True), [], plugins=plugins).eval(scenario.test_stream)
        for plugins in ([], [Speaker()])
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-6)


# Loggers ----------------------------------------------------------------------------------------


class Kept(BaseLogger):
    """A custom logger."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, Any] = {}

    def log_single_metric(self, name: str, value: Any, x_plot: int) -> None:
        self.values[name] = value


def test_every_logger_gets_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, kept = io.StringIO(), Kept()
    board, table = TensorboardLogger(tmp_path / "board"), CSVLogger(tmp_path / "csv")
    levels = {"experience": True, "stream": True}
    metrics = [accuracy_metrics(**levels), loss_metrics(**levels), *all_metrics(**levels)]
    loggers = [TextLogger(text), InteractiveLogger(), board, table, kept]
    scenario = old_style()
    strategy = naive(fixed(), metrics, loggers)
    strategy.train(scenario.train_stream[0])
    found = strategy.eval(scenario.test_stream)
    table.close()
    board.writer.close()
    events = EventAccumulator(str(tmp_path / "board")).Reload()

    printed = capsys.readouterr().out
    assert sum(key.startswith(tuple(FACTORIES)) for key in found) == 3 * (EXPERIENCES + 1)
    for key, value in found.items():
        assert kept.values[key] == value
        assert events.Scalars(key)[-1].value == pytest.approx(value, rel=1e-6)
        assert f"{key} = {value:.4f}" in text.getvalue()
        assert f"{key} = {value:.4f}" in printed
    # CSVLogger has columns for accuracy, loss and forgetting alone; ours leave them in peace.
    lines = (tmp_path / "csv" / "eval_results.csv").read_text().splitlines()
    assert lines[0] == "eval_exp,training_exp,eval_accuracy,eval_loss,forgetting"
    accuracy = found["Top1_Acc_Exp/eval_phase/test_stream/Task000/Exp000"]
    loss = found["Loss_Exp/eval_phase/test_stream/Task000/Exp000"]
    assert lines[1] == f"0,0,{accuracy:.4f},{loss:.4f},0"
    assert len(lines) == 1 + EXPERIENCES


# One mini-batch ---------------------------------------------------------------------------------


def value_of(name: str, *batches: tuple[Tensor, Tensor], **attributes: Any) -> float:
    """A metric's value after the mini-batches (outputs, targets)."""
    (metric,) = FACTORIES[name](experience=True)
    for output, y in batches:
        metric.update(SimpleNamespace(mb_output=output, mb_y=y, **attributes))
    return metric.result()


def random_batch(rows: int, classes: int, scale: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    output = scale * torch.randn(rows, classes, generator=generator)
    return output, torch.randint(classes, (rows,), generator=generator)


@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_ece_equals_torchmetrics_of_several_classes(scale: float) -> None:
    from torchmetrics.classification import MulticlassCalibrationError

    output, y = random_batch(500, 10, scale)
    theirs = MulticlassCalibrationError(num_classes=10, n_bins=15, norm="l1")(output, y)
    assert value_of("ECE", (output, y)) == pytest.approx(float(theirs), abs=1e-6)


def test_ece_keeps_certain_predictions_in_the_last_bin() -> None:
    """Confidence 1 and confidence 0.95 share a bin, where one's error makes up for the other's."""
    output = torch.tensor([[1000.0, 0.0]] * 10 + [[math.log(19.0), 0.0]] * 10)
    y = torch.tensor([0] * 9 + [1] + [0] * 10)
    rows = list(zip(output.double().numpy(), y.tolist(), strict=True))
    assert value_of("ECE", (output, y)) == pytest.approx(naive_ece(rows), abs=1e-12)
    assert value_of("ECE", (output, y)) == pytest.approx(0.025, abs=1e-6)


@pytest.mark.parametrize("name", FACTORIES)
def test_batches_of_any_width_and_dtype(name: str) -> None:
    batches = [random_batch(rows, c, 2.0, seed=c) for rows, c in ((5, 3), (1, 7), (8, 4))]
    rows = [
        row
        for output, y in batches
        for row in zip(output.double().numpy(), y.tolist(), strict=True)
    ]
    assert value_of(name, *batches) == pytest.approx(ORACLES[name](rows), rel=1e-12)
    narrow = [(output.bfloat16(), y.int()) for output, y in batches]
    assert value_of(name, *narrow) == pytest.approx(ORACLES[name](rows), abs=0.05)


@pytest.mark.parametrize("name", FACTORIES)
def test_many_rows_are_summed_in_float64(name: str) -> None:
    """In float32 a sum of large terms would drop the small ones that follow."""
    masked = torch.tensor([[0.0, -1000.0]]).repeat(1000, 1)
    likely = torch.tensor([[0.0, -9.0]])
    batches = [(masked, torch.ones(1000, dtype=torch.long))]
    batches += [(likely, torch.zeros(1, dtype=torch.long))] * 100
    rows = [
        row
        for output, y in batches
        for row in zip(output.double().numpy(), y.tolist(), strict=True)
    ]
    assert value_of(name, *batches) == pytest.approx(ORACLES[name](rows), rel=1e-13)


@pytest.mark.parametrize("name", FACTORIES)
def test_nan_is_told_and_forgotten_at_reset(name: str) -> None:
    output, y = random_batch(6, 3, 1.0)
    broken = output.clone()
    broken[2, 1] = math.nan
    (metric,) = FACTORIES[name](experience=True)
    assert math.isnan(metric.result())  # nothing was evaluated
    for batch in (broken, output):
        metric.update(SimpleNamespace(mb_output=batch, mb_y=y))
    assert math.isnan(metric.result())
    metric.reset()
    metric.update(SimpleNamespace(mb_output=output, mb_y=y))
    assert metric.result() == value_of(name, (output, y))


@pytest.mark.parametrize("name", FACTORIES)
def test_half_evaluated_metric_survives_pickling(name: str) -> None:
    first, second = random_batch(6, 3, 1.0), random_batch(5, 4, 1.0, seed=1)
    (metric,) = FACTORIES[name](stream=True)
    metric.update(SimpleNamespace(mb_output=first[0], mb_y=first[1]))
    copy = dill.loads(dill.dumps(metric))
    copy.update(SimpleNamespace(mb_output=second[0], mb_y=second[1]))
    assert copy.result() == value_of(name, first, second)
    assert str(copy) == str(metric)


# Regression -------------------------------------------------------------------------------------


def naive_density(mean: Tensor, deviation: Tensor, y: Tensor) -> float:
    total = 0.0
    for m, s, t in zip(mean.tolist(), deviation.tolist(), y.tolist(), strict=True):
        for mean_c, deviation_c, y_c in zip(m, s, t, strict=True):
            total += 0.5 * math.log(2 * math.pi * deviation_c**2)
            total += 0.5 * ((y_c - mean_c) / deviation_c) ** 2
    return total / len(y)


@pytest.mark.parametrize("wrap", ["plain", "independent", "joint"])
def test_nlpd_of_regression_sums_over_outputs(wrap: str) -> None:
    generator = torch.Generator().manual_seed(0)
    mean, y = torch.randn(2, 9, 3, generator=generator, dtype=torch.float64)
    deviation = 0.5 + torch.rand(9, 3, generator=generator, dtype=torch.float64)
    normal = Normal(mean, deviation)
    predictive = {
        "plain": normal,
        "independent": Independent(normal, 1),
        "joint": MultivariateNormal(mean, torch.diag_embed(deviation**2)),
    }[wrap]
    found = value_of("NLPD", (mean, y), mb_predictive=predictive)
    assert found == pytest.approx(naive_density(mean, deviation, y), rel=1e-12)


def test_targets_without_an_output_axis_are_not_broadcast() -> None:
    mean, y = torch.randn(2, 9, 1, dtype=torch.float64)
    deviation = torch.ones_like(mean)
    found = value_of("NLPD", (mean, y[:, 0]), mb_predictive=Normal(mean, deviation))
    assert found == pytest.approx(naive_density(mean, deviation, y), rel=1e-12)


def test_classes_are_scored_by_the_output_alone() -> None:
    output, y = random_batch(6, 3, 1.0)
    with_predictive = value_of("NLPD", (output, y), mb_predictive=Normal(output, 1.0))
    assert with_predictive == value_of("NLPD", (output, y))


class GaussianNoise(SupervisedPlugin):
    """Leaves the predictive distribution a regression strategy leaves."""

    def after_eval_forward(self, strategy: Any, **kwargs: Any) -> None:
        strategy.mb_predictive = Normal(strategy.mb_output, 0.3)


def regression_benchmark() -> Any:
    from avalanche.benchmarks.utils import AvalancheDataset

    def stream(seed: int) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(2):
            x = torch.randn(20, FEATURES, generator=generator)
            yield AvalancheDataset([TensorDataset(x, x.sum(1, keepdim=True).sin())])

    return benchmark_from_datasets(train=list(stream(0)), test=list(stream(1)))


def test_regression_run() -> None:
    scenario, network = regression_benchmark(), nn.Linear(FEATURES, 1)
    metrics = nlpd_metrics(experience=True, stream=True)
    options = {"criterion": nn.MSELoss(), "plugins": [GaussianNoise()]}
    strategy = naive(network, metrics, [], **options)
    strategy.train(scenario.train_stream[0])
    found = strategy.eval(scenario.test_stream)
    values = []
    for i, experience in enumerate(scenario.test_stream):
        rows = [experience.dataset[j] for j in range(20)]
        x, y = (torch.stack([row[k] for row in rows]) for k in (0, 1))
        with torch.no_grad():
            mean = network(x)
        values.append(naive_density(mean, torch.full_like(mean, 0.3), y))
        key = f"NLPD_Exp/eval_phase/test_stream/Exp{i:03d}"
        assert found[key] == pytest.approx(values[-1], rel=1e-5)
    stream = found["NLPD_Stream/eval_phase/test_stream"]
    assert stream == pytest.approx(sum(values) / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("NLPD", "strategy.mb_predictive.*leave nlpd_metrics out"),
        ("ECE", "ECE is for classification"),
        ("Brier", "Brier is for classification"),
    ],
)
def test_regression_without_a_predictive_distribution(name: str, advice: str) -> None:
    strategy = naive(
        nn.Linear(FEATURES, 1), FACTORIES[name](stream=True), [], criterion=nn.MSELoss()
    )
    with pytest.raises(ArgumentError, match=advice):
        strategy.eval(regression_benchmark().test_stream)


@pytest.mark.parametrize("name", ["ECE", "Brier"])
def test_a_predictive_distribution_makes_no_classes(name: str) -> None:
    y = torch.randn(4, 1)
    with pytest.raises(ArgumentError, match=f"{name} is for classification"):
        value_of(name, (y, y), mb_predictive=Normal(y, 1.0))


@pytest.mark.parametrize(
    ("predictive", "y"),
    [
        (Normal(torch.zeros(5, 1), 1.0), torch.zeros(4, 1)),
        (Normal(torch.zeros(4, 2), 1.0), torch.zeros(4, 1)),
        (Normal(0.0, 1.0), torch.zeros(4, 1)),
    ],
)
def test_a_distribution_of_another_batch(predictive: Normal, y: Tensor) -> None:
    with pytest.raises(DataError, match="set it for every mini-batch"):
        value_of("NLPD", (y, y), mb_predictive=predictive)


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize(
    ("output", "y", "message"),
    [
        (torch.zeros(4, 1), torch.tensor([0, 1, 0, 1]), "from 0 to 0 .* got 0 to 1"),
        (torch.zeros(4, 3), torch.tensor([0, 1, 0, -1]), "from 0 to 2 .* got -1 to 1"),
        (torch.zeros(4, 3), torch.zeros(4, 3, dtype=torch.long), "one class"),
        (torch.zeros(4), torch.zeros(4, dtype=torch.long), "one class"),
    ],
)
def test_classes_that_have_no_output(name: str, output: Tensor, y: Tensor, message: str) -> None:
    with pytest.raises(SFRError, match=message):
        value_of(name, (output, y))
