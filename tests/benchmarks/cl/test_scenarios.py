"""The scenarios: which samples, labels and task labels each experience has."""

import pytest
import torch
from torch import Tensor

from sfr_cl.benchmarks.cl import data, names, networks, scenarios
from sfr_cl.benchmarks.cl.scenarios import Scenario
from sfr_cl.benchmarks.harness.images import Data
from sfr_cl.errors import ArgumentError, DataError

DIGITS = data.load("digits")


def stream(scenario: Scenario, name: str) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Inputs, labels and task labels of each experience."""
    experiences = getattr(scenario.benchmark, f"{name}_stream")
    return [tuple(scenarios.collate(list(experience.dataset))) for experience in experiences]


def small(num_classes: int = 10, name: str = "own") -> Data:
    """Ten samples of each class, whose pixels hold their number."""
    y = torch.arange(num_classes).repeat_interleave(10)
    x = torch.arange(len(y)).float()[:, None, None, None].expand(-1, 1, 2, 3) / len(y)
    return Data(name, x, y, x, y)


def test_class_scenario_keeps_the_labels() -> None:
    parts = stream(scenarios.make(DIGITS, "class", 0), "train")
    assert [sorted(set(y.tolist())) for _, y, _ in parts] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
        [8, 9],
    ]
    assert sum(len(y) for _, y, _ in parts) == len(DIGITS.y_train)
    assert all(set(task.tolist()) == {0} for _, _, task in parts)


@pytest.mark.parametrize(("name", "labels"), [("domain", [0] * 5), ("task", [0, 1, 2, 3, 4])])
def test_other_scenarios_count_classes_within_the_task(name: str, labels: list[int]) -> None:
    scenario = scenarios.make(DIGITS, name, 0)
    parts = stream(scenario, "test")
    assert scenario.num_outputs == 2
    assert all(set(y.tolist()) == {0, 1} for _, y, _ in parts)
    assert [task[0].item() for _, _, task in parts] == labels
    x, y, _ = parts[2]  # classes 4 and 5
    inside = (DIGITS.y_test == 4) | (DIGITS.y_test == 5)
    assert torch.equal(x, DIGITS.x_test[inside])
    assert torch.equal(y, DIGITS.y_test[inside] % 2)


def test_permutations_move_pixels_and_nothing_else() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(10).repeat(2)
    x = torch.rand(20, 1, 4, 4, generator=generator)
    permuted = Data("pmnist", x, y, x, y)
    scenario = scenarios.make(permuted, "domain", seed=0)
    train, test = stream(scenario, "train"), stream(scenario, "test")
    assert len(train) == scenarios.NUM_PERMUTATIONS
    for (moved, labels, _), (same, _, _) in zip(train, test, strict=True):
        assert torch.equal(labels, y)
        assert torch.equal(moved, same)  # one permutation for training and test
        assert torch.equal(moved.flatten(1).sort(1).values, x.flatten(1).sort(1).values)
    assert not torch.equal(train[0][0], train[1][0])
    again = stream(scenarios.make(permuted, "domain", seed=0), "train")
    other = stream(scenarios.make(permuted, "domain", seed=1), "train")
    assert torch.equal(train[3][0], again[3][0])
    assert not torch.equal(train[3][0], other[3][0])


def test_impossible_combinations_are_refused() -> None:
    with pytest.raises(ArgumentError, match="--scenario domain"):
        names.check_scenario("pmnist", "task")
    with pytest.raises(ArgumentError, match="class, domain, task"):
        names.check_scenario("digits", "online")
    with pytest.raises(DataError, match="four classes"):
        scenarios.make(small(num_classes=3), "class", 0)
    gap = small()
    kept = gap.y_train != 4
    with pytest.raises(DataError, match=r"none of \[4\]"):
        scenarios.make(
            Data("own", gap.x_train[kept], gap.y_train[kept], gap.x_test, gap.y_test), "class", 0
        )


@pytest.mark.parametrize("num_classes", [4, 5, 7, 10, 11, 26, 100])
def test_tasks_share_all_classes_among_them(num_classes: int) -> None:
    split = scenarios.groups(num_classes)
    assert [c for group in split for c in group] == list(range(num_classes))
    assert 2 <= len(split) <= 6
    assert min(map(len, split)) >= 2


def test_validation_data_comes_from_the_training_data() -> None:
    held = data.hold_out(DIGITS, seed=0)
    both = torch.cat([held.x_train, held.x_test]).flatten(1)
    assert both.shape == DIGITS.x_train.flatten(1).shape
    as_rows = [sorted(map(tuple, x.tolist())) for x in (both, DIGITS.x_train.flatten(1))]
    assert as_rows[0] == as_rows[1]
    shares = torch.bincount(held.y_test) / torch.bincount(DIGITS.y_train)
    assert shares == pytest.approx(torch.full((10,), 0.1).numpy(), abs=0.01)
    assert not torch.equal(held.y_test, data.hold_out(DIGITS, seed=1).y_test)


@pytest.mark.parametrize("kind", networks.KINDS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_networks_take_images(kind: str, shape: tuple[int, ...]) -> None:
    scenario = Scenario(None, "class", shape, 10, (1,))
    network = networks.make(kind, [16, 12], scenario)
    assert network(torch.rand(5, *shape)).shape == (5, 10)


def test_ntk_network_keeps_the_scale_of_its_inputs() -> None:
    torch.manual_seed(0)
    scenario = Scenario(None, "class", (1, 28, 28), 500, (1,))
    x = torch.rand(50, 1, 28, 28)
    outputs = networks.make("ntk-mlp", [1024, 1024], scenario)(x)
    expected = x.flatten(1).square().mean(1).sqrt()
    assert outputs.std(1).detach() == pytest.approx(expected.numpy(), rel=0.15)


def test_multi_head_network_answers_from_the_task_s_head() -> None:
    scenario = scenarios.make(DIGITS, "task", 0)
    network = networks.make("mlp", [16], scenario)
    for experience in scenario.benchmark.train_stream:
        network.classifier.adaptation(experience)
    x = DIGITS.x_test[:4]
    tasks = torch.tensor([0, 1, 1, 4])
    outputs = network(x, tasks)
    assert outputs.shape == (4, 2)
    heads = network.classifier.classifiers
    features = network.features(x)
    for row, task in enumerate(tasks.tolist()):
        assert torch.allclose(outputs[row], heads[str(task)].classifier(features[row]))
