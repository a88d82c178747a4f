"""A model as one task sees it: its task label fixed, and the active units of its head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfr_cl.data.inputs import Inputs, prepare
from sfr_cl.kernel.network import (
    BOUND,
    FrozenNetwork,
    Parameters,
    as_matrix,
    dtype_of,
    eval_mode,
    run,
)


class TaskView(nn.Module):
    """A model with its task label fixed, and only some of its output units.

    Args:
        model: the model itself, not a copy.
        label: a task label, for a model that takes one.
        units: the output units left, or ``None`` for all.
    """

    def __init__(self, model: nn.Module, label: int | None, units: Tensor | None = None) -> None:
        super().__init__()
        self.model, self.label, self.units = model, label, units

    def forward(self, x: Inputs) -> Tensor:
        outputs: Tensor = self.model(x) if self.label is None else self.model(x, self.label)
        return outputs if self.units is None else as_matrix(outputs)[:, self.units]

    @staticmethod
    def parameters_of(parameters: Parameters) -> Parameters:
        """What a model calls its parameters, as a view of it does."""
        if isinstance(parameters, str):
            return parameters
        return [f"model.{name}" for name in parameters]

    @property
    def dtype(self) -> torch.dtype:
        """Of its parameters."""
        return dtype_of(self)

    @torch.no_grad()
    def outputs(self, x: Inputs) -> Tensor:
        """Its values at inputs in eval mode, ``[B, C]``."""
        with eval_mode(self):
            return run(self, prepare(x, next(self.parameters()).device, self.dtype))


@dataclass(frozen=True)
class Head:
    """A head of a model at its current weights, and which of its units are active."""

    network: FrozenNetwork
    """A copy of the model with all units of the head, in float64."""
    active: Tensor
    """The units that depend on the weights, ``[C]``."""
    size: int
    """The number of all units."""

    @staticmethod
    def of(model: nn.Module, label: int | None, x: Tensor, parameters: Parameters = "all") -> Head:
        """The head of a task label.

        Avalanche's growing heads give units that are not in use a constant: no kernel can be built
        on it. A derivative in a random direction is zero for those, and for no others.

        Args:
            model: the model.
            label: a task label, for a model that takes one.
            x: some inputs.
            parameters: those the copy is differentiated by, as the model names them.
        """
        own = TaskView.parameters_of(parameters)
        network = FrozenNetwork(TaskView(model, label), own, torch.float64)
        rows = network.prepare(x[:BOUND])
        generator = torch.Generator().manual_seed(0)

        def draw(like: Tensor) -> Tensor:
            return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)

        size = network.bind(rows)
        direction = {name: draw(p) for name, p in network.parameters.items()}
        active = (network.tangent(rows, direction) != 0).any(0).nonzero()[:, 0]
        return Head(network, active, size)

    @property
    def units(self) -> Tensor | None:
        """The active units; ``None`` for all, without an indexing that has no kernel rule."""
        return None if len(self.active) == self.size else self.active

    def narrowed(self) -> FrozenNetwork:
        """The copy with its active units only."""
        return self.network if self.units is None else narrowed(self.network, self.units)


def narrowed(network: FrozenNetwork, units: Tensor) -> FrozenNetwork:
    """A frozen view with some units only, by their place in the head."""
    view = network.module
    assert isinstance(view, TaskView)
    return network.through(TaskView(view.model, view.label, units))


def head_size(model: nn.Module, label: int | None, x: Tensor) -> int:
    """The number of units of a head."""
    return TaskView(model, label).outputs(x[:1]).shape[1]
