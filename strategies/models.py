"""A model as one task sees it: its task label fixed, and the active units of its head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from avalanche.models.utils import is_multi_task_module
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from sfr_cl.data.inputs import Inputs, length, prepare, take, tree_map
from sfr_cl.errors import ArgumentError
from sfr_cl.kernel.network import (
    BOUND,
    FrozenNetwork,
    Parameters,
    as_matrix,
    dtype_of,
    run,
)
from sfr_cl.kernel.passes import own_statistics, untouched


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, where it is wrapped to be trained on several devices."""
    while isinstance(model, DataParallel | DistributedDataParallel):
        model = model.module
    return model


def require_graph(model: nn.Module) -> None:
    """Refuse a wrapped model with heads that are left out of the pass of its mini-batch."""
    if isinstance(model, DistributedDataParallel) and is_multi_task_module(model):
        raise ArgumentError(
            "expected a model with one head in DistributedDataParallel, got one with a head for "
            "each task: the penalty needs heads that the mini-batch leaves out, which it can't "
            "synchronise; train the model without the wrapper"
        )


class TaskView(nn.Module):
    """A model with its task label fixed, and only some of its output units.

    In eval mode too, it has the classifier that is trained: Avalanche's models with a
    ``train_classifier`` and an ``eval_classifier`` choose between the two by their own mode.

    Args:
        model: the model itself, not a copy; what is wrapped, if it is.
        label: a task label, for a model that takes one.
        units: the output units left, or ``None`` for all.
    """

    def __init__(self, model: nn.Module, label: int | None, units: Tensor | None = None) -> None:
        super().__init__()
        self.model, self.label, self.units = unwrapped(model), label, units

    def train(self, mode: bool = True) -> TaskView:
        """Set the mode of all modules but those that choose their classifier by it."""
        super().train(mode)
        for part in self.modules():
            if hasattr(part, "train_classifier") and hasattr(part, "eval_classifier"):
                part.training = True
        return self

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

    @property
    def exact(self) -> torch.dtype:
        """What its kernel is in: of less than single precision, P would have too great a range."""
        return torch.promote_types(self.dtype, torch.float32)

    @torch.no_grad()
    def outputs(self, x: Inputs) -> Tensor:
        """Its values at inputs, as a penalty compares them, ``[B, C]``."""
        return self.run(prepare(x, next(self.parameters()).device, self.dtype))

    def run(self, x: Inputs) -> Tensor:
        """Its values at prepared inputs, as a penalty compares them, with their graph.

        The model is left as it was.
        """
        with untouched(self), own_statistics(self, length(x)):
            return run(self, x)


@dataclass(frozen=True)
class Head:
    """A head of a model at its current weights, and which of its units are active."""

    network: FrozenNetwork
    """A copy of the model with all units of the head."""
    active: Tensor
    """The units that depend on the weights, ``[C]``."""
    size: int
    """The number of all units."""

    @staticmethod
    def of(
        model: nn.Module,
        label: int | None,
        x: Inputs,
        parameters: Parameters = "all",
        dtype: torch.dtype | None = None,
    ) -> Head:
        """The head of a task label.

        Avalanche's growing heads give units that are not in use a constant: no kernel can be built
        on it. A derivative in a random direction is zero for those, and for no others.

        Args:
            model: the model.
            label: a task label, for a model that takes one.
            x: some inputs.
            parameters: those the copy is differentiated by, as the model names them.
            dtype: precision of the copy; ``None`` for :attr:`TaskView.exact`.
        """
        own = TaskView.parameters_of(parameters)
        view = TaskView(model, label)
        network = FrozenNetwork(view, own, view.exact if dtype is None else dtype)
        rows = network.prepare(take(x, slice(0, BOUND)))
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


@dataclass(frozen=True)
class KnownHead:
    """Which units of a head are active, and what tells that it has grown since."""

    x: Inputs
    """One input."""
    outputs: Tensor
    """Of all units there, ``[1, C]``: of those that are not active, they are constants."""
    active: Tensor
    """The units that depend on the weights, ``[C]``."""
    shapes: tuple[torch.Size, ...]
    """Of the model's parameters."""

    @staticmethod
    def of(model: nn.Module, label: int | None, z: Inputs) -> KnownHead:
        """The head of a task label."""
        x = tree_map(torch.clone, take(z, slice(0, 1)))
        outputs = TaskView(model, label).outputs(x)
        return KnownHead(x, outputs, Head.of(model, label, z).active, _shapes(model))

    def holds(self, model: nn.Module, label: int | None) -> bool:
        """Whether a model's head has not grown."""
        same = self.shapes == _shapes(model)
        if same and len(self.active) == self.outputs.shape[1]:
            return True
        outputs = TaskView(model, label).outputs(self.x)
        if outputs.shape != self.outputs.shape:
            return False
        change = outputs != self.outputs.to(outputs)
        change[:, self.active.to(change.device)] = False
        return not bool(change.any())


def _shapes(model: nn.Module) -> tuple[torch.Size, ...]:
    return tuple(parameter.shape for parameter in model.parameters())


def head_size(model: nn.Module, label: int | None, x: Inputs) -> int:
    """The number of units of a head."""
    return TaskView(model, label).outputs(take(x, slice(0, 1))).shape[1]


def narrowed(network: FrozenNetwork, units: Tensor) -> FrozenNetwork:
    """A frozen view with some units only, by their place in the head."""
    view = network.module
    assert isinstance(view, TaskView)
    return network.through(TaskView(view.model, view.label, units))
