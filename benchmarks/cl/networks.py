"""The networks: the MLP all strategies share, and two for conditioning."""

import itertools
import math
from collections.abc import Sequence

from avalanche.models import MultiHeadClassifier, MultiTaskModule
from torch import Tensor, nn

from sfr_cl.errors import ArgumentError

from .scenarios import Scenario

CHANNELS = (16, 64)
KERNEL_SIZE, POOLING = 5, 2


def make(
    kind: str, hidden: Sequence[int], scenario: Scenario, outputs: int | None = None
) -> nn.Module:
    """A freshly initialised network of :data:`KINDS` for a scenario.

    `outputs`, if it is not the scenario's: a kernel shared by all outputs can be that of one.
    """
    shape, outputs = scenario.input_shape, outputs or scenario.num_outputs
    if kind == "cnn":
        features, width, scale = convolutions(shape)
    elif kind == "mlp":
        features, width, scale = mlp(shape, hidden)
    elif kind == "ntk-mlp":
        features, width, scale = ntk_mlp(shape, hidden)
    else:
        raise ArgumentError(f"expected a network of {', '.join(KINDS)}, got {kind!r}")
    if scenario.multi_head:
        return MultiHead(nn.Sequential(*features, *scale), width, outputs)
    if scale:
        head = nn.Linear(width, outputs, bias=False)
        nn.init.normal_(head.weight)
    else:
        head = nn.Linear(width, outputs)
        nn.init.xavier_uniform_(head.weight)
        nn.init.zeros_(head.bias)
    return nn.Sequential(*features, *scale, head)


KINDS = ("mlp", "ntk-mlp", "cnn")

Features = tuple[list[nn.Module], int, list[nn.Module]]
"""Layers, the number of features they end in, and what scales these for the head."""


def mlp(shape: Sequence[int], hidden: Sequence[int]) -> Features:
    """ReLU layers, Xavier weights."""
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in itertools.pairwise((math.prod(shape), *hidden)):
        linear = nn.Linear(fan_in, fan_out)
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return layers, hidden[-1], []


def ntk_mlp(shape: Sequence[int], hidden: Sequence[int]) -> Features:
    """ReLU layers in the NTK parameterisation: unit weights, inputs divided by sqrt(fan-in).

    The factor is a layer of its own, so that the weights stay in an ordinary `nn.Linear`. Without
    biases: theirs would be most of the kernel, and the same for all inputs.
    """
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in itertools.pairwise((math.prod(shape), *hidden)):
        linear = nn.Linear(fan_in, fan_out, bias=False)
        nn.init.normal_(linear.weight)
        layers += [Scale(math.sqrt(2 / fan_in)), linear, nn.ReLU()]
    return layers, hidden[-1], [Scale(math.sqrt(1 / hidden[-1]))]


def convolutions(shape: Sequence[int]) -> Features:
    """Two 5x5 convolutions, ReLU and 2x2 average pooling after each."""
    layers: list[nn.Module] = []
    if len(shape) != 3:
        raise ArgumentError(
            f"expected images [channels, height, width] for a CNN, got inputs {tuple(shape)}: "
            "use the network mlp"
        )
    channels, height, width = shape
    padding = 0 if min(height, width) >= 16 else KERNEL_SIZE // 2
    for fan_out in CHANNELS:
        layers += [
            nn.Conv2d(channels, fan_out, KERNEL_SIZE, padding=padding),
            nn.ReLU(),
            nn.AvgPool2d(POOLING),
        ]
        height, width = (
            (size + 2 * padding - KERNEL_SIZE + 1) // POOLING for size in (height, width)
        )
        channels = fan_out
    return [*layers, nn.Flatten()], channels * height * width, []


class Scale(nn.Module):
    """A constant factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


class MultiHead(MultiTaskModule):  # type: ignore[misc] # Avalanche ships no types
    """Features shared by all tasks, and one head for each."""

    def __init__(self, features: nn.Module, width: int, outputs: int) -> None:
        super().__init__()
        self.features = features
        self.classifier = MultiHeadClassifier(width, initial_out_features=outputs)

    def forward(self, x: Tensor, task_labels: Tensor | None) -> Tensor | dict[int, Tensor]:
        """The outputs of each input's own head; of all heads where there are no labels."""
        outputs: Tensor | dict[int, Tensor] = self.classifier(self.features(x), task_labels)
        return outputs
