"""The loss term of SFR over a stream, from dense Jacobians: what every step should have added.

Written from the paper's formulas, for small networks in float64. All it takes from the code under
test are the inducing inputs, which are a choice.

    R(w) = 1/2 sum_t 1/M_t sum_c d_tc' P_tc d_tc,   d_tc = f_c(Z_t; w) - f_c(Z_t; w_t)
    P = K_zz^-1 B K_zz^-1,   B = sum_i k_zi b_i k_zi'

with the identity for P of classes not yet seen.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.models.utils import is_multi_task_module
from torch import Tensor, nn

from support.oracles import jacobian_by_rows

Names = Callable[[str], bool]
"""Which parameters of a model count, by their names."""

MASKED = -1000.0
"""What Avalanche's heads give for a unit that is not in use."""


class Labelled(nn.Module):
    """A copy of a model in eval mode, its task label fixed, and some of its outputs."""

    def __init__(self, model: nn.Module, label: int | None, units: list[int] | None = None) -> None:
        super().__init__()
        self.model, self.label, self.units = copy.deepcopy(model).eval(), label, units

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.model(x) if self.label is None else self.model(x, self.label)
        return found if self.units is None else found[:, self.units]

    @torch.no_grad()
    def values(self, x: Tensor) -> Tensor:
        return self(x)


@dataclass
class DensePenalty:
    """One task's term."""

    label: int | None
    z: Tensor
    targets: Tensor
    """f(Z; w_t), ``[M, C]``."""
    precision: dict[int, Tensor]
    """P of the classes seen."""
    pin: float = 1.0
    """P of all others, times the identity."""

    @staticmethod
    def of(
        model: nn.Module,
        label: int | None,
        z: Tensor,
        pairs: tuple[Tensor, Tensor],
        names: Names,
        *,
        identity: bool,
    ) -> DensePenalty:
        network, (x, y) = Labelled(model, label), pairs
        precision: dict[int, Tensor] = {}
        outputs = network.values(x)
        if y.is_floating_point():
            curvature, observed = torch.ones_like(outputs), range(outputs.shape[1])
        else:
            p = outputs.softmax(1)
            curvature, observed = p * (1 - p), sorted(set(y.tolist()))
        if not identity:
            units = list(observed)
            j_z, j_x = (jacobians(model, label, units, points, names) for points in (z, x))
            for i, c in enumerate(units):
                k_zi = j_z[:, i] @ j_x[:, i].mT
                inverse = torch.linalg.inv(j_z[:, i] @ j_z[:, i].mT)
                precision[c] = inverse @ (k_zi * curvature[:, c]) @ k_zi.mT @ inverse
        return DensePenalty(label, z, network.values(z), precision)

    def held(self, model: nn.Module) -> None:
        """Units that came into use are held where they are before they are trained."""
        now = Labelled(model, self.label).values(self.z)
        known = now.clone()
        known[:, : self.targets.shape[1]] = self.targets
        self.targets = torch.where(known == MASKED, now, known)

    def of_values(self, values: Tensor) -> float:
        change, total = values - self.targets, 0.0
        for c in range(change.shape[1]):
            d = change[:, c]
            total += (
                float(d @ self.precision[c] @ d) if c in self.precision else self.pin * float(d @ d)
            )
        return total / (2 * len(self.z))


def jacobians(
    model: nn.Module, label: int | None, units: list[int], x: Tensor, names: Names | None
) -> Tensor:
    network = Labelled(model, label, units)
    own = [
        name
        for name, _ in network.named_parameters()
        if names is None or names(name.removeprefix("model."))
    ]
    return jacobian_by_rows(network, x, own)


def consolidated(
    tasks: Sequence[DensePenalty],
    model: nn.Module,
    z: Tensor,
    names: Names | None,
    *,
    parts: bool,
) -> DensePenalty:
    """Tasks of one label as one, over some of their inducing inputs.

    Where f at all of them follows from f at those kept, f = E f_kept with E = K K_kept^-1, the sum
    of their terms is one with E' P E.

    Args:
        tasks: what becomes one.
        model: at the weights of now.
        z: the inducing inputs kept.
        names: parameters that count.
        parts: they are parts of one task. Its terms are a mean over its inducing inputs once, and
            no part holds a class it lacks.
    """
    first = tasks[0]
    every = torch.cat([task.z for task in tasks])
    targets = torch.cat([task.targets for task in tasks])
    kept = [int((every == row).flatten(1).all(1).nonzero()[0, 0]) for row in z]
    units = sorted(set().union(*(task.precision for task in tasks)))
    pin = 1.0 if parts else sum(task.pin for task in tasks)
    if not units:
        return DensePenalty(first.label, z, targets[kept], {}, pin)
    j = jacobians(model, first.label, units, every, names)
    precision = {}
    for i, c in enumerate(units):
        blocks = []
        for task in tasks:
            held = (0.0 if parts else task.pin) * torch.eye(len(task.z))
            blocks.append((1 if parts else len(z) / len(task.z)) * task.precision.get(c, held))
        gram = j[:, i] @ j[:, i].mT
        extend = gram[:, kept] @ torch.linalg.inv(gram[kept][:, kept])
        precision[c] = extend.mT @ torch.block_diag(*blocks) @ extend
    return DensePenalty(first.label, z, targets[kept], precision, pin)


@dataclass
class Chosen:
    """Selectors of a count, and all they chose."""

    make: Callable[[int], Any]
    inputs: list[Tensor] = field(default_factory=list)

    def __call__(self, count: int) -> Callable[[Any, Any], Tensor]:
        def select(batches: Any, kernel: Any) -> Tensor:
            found: Tensor = self.make(count)(batches, kernel)
            self.inputs.append(found)
            return found

        return select

    def take(self) -> list[Tensor]:
        """What was chosen since the last call."""
        found, self.inputs = self.inputs, []
        return found


def _shared(some: Tensor, others: Tensor) -> bool:
    """Whether two batches have a row in common."""
    return any(bool((others == row).flatten(1).all(1).any()) for row in some)


@dataclass
class DenseHistory:
    """What holds a model, from all it has learned, task by task."""

    num_inducing: int
    names: Names | None = None
    """The parameters the kernels differentiate; by default all."""
    identity: bool = False
    consolidated: bool = False
    endless: bool = False
    """Whether the stream never says where a task ends."""
    tasks: list[DensePenalty] = field(default_factory=list)

    def end_task(
        self,
        model: nn.Module,
        rows: Sequence[Sequence[Any]],
        inducing: Sequence[Tensor],
        kept: Sequence[tuple[int | None, Tensor]],
    ) -> None:
        """A task was learned, or where no task ends a part of the stream.

        Args:
            model: at the weights it has learned.
            rows: its data.
            inducing: its inducing inputs, by task label if the model takes one. Others may be among
                them, chosen to see whether a task could be remembered: none of these is kept.
            kept: label and inducing inputs of all that holds the model now.
        """
        takes_labels = is_multi_task_module(model)
        labels = sorted({int(row[-1]) for row in rows}) if takes_labels else [None]
        every = torch.cat([z for _, z in kept])
        inducing = [
            z for z in inducing if len(z) == min(self.num_inducing, len(rows)) and _shared(z, every)
        ]
        assert len(labels) == len(inducing), "a task's inducing inputs are chosen once"
        for label, z in zip(labels, inducing, strict=True):
            own = [row for row in rows if label is None or int(row[-1]) == label]
            x, y = (torch.stack([torch.as_tensor(row[i]) for row in own]) for i in (0, 1))
            new = DensePenalty.of(model, label, z, (x, y), self.names, identity=self.identity)
            self.tasks.append(new)
        if self.consolidated or self.endless:
            self.tasks = [self._as_one(model, label, z) for label, z in kept]

    def _as_one(self, model: nn.Module, label: int | None, z: Tensor) -> DensePenalty:
        own = [task for task in self.tasks if task.label == label]
        if len(own) == 1 and len(own[0].z) == len(z):
            return own[0]
        return consolidated(own, model, z, self.names, parts=self.endless)

    def held(self, model: nn.Module) -> None:
        """Before the first step of an experience."""
        for task in self.tasks:
            task.held(model)

    def __call__(self, model: nn.Module) -> float:
        total = 0.0
        for label in {task.label for task in self.tasks}:
            own = [task for task in self.tasks if task.label == label]
            values = Labelled(model, label).values(torch.cat([task.z for task in own]))
            parts = values.split([len(task.z) for task in own])
            total += sum(task.of_values(part) for task, part in zip(own, parts, strict=True))
        return total


@dataclass(frozen=True)
class Step:
    """What one training step added to the loss."""

    experience: int
    """Its place among those trained on."""
    added: float
    expected: float


@dataclass(eq=False)
class Scales:
    """Weighs the loss before and after one plug-in, at every step of training."""

    history: DenseHistory
    steps: list[Step] = field(default_factory=list)
    started: Callable[[Any], None] | None = None
    """Called before the first step of an experience, its heads grown."""
    _experience: int = -1
    _before: float = 0.0

    def around(self, strategy: Any, plugin: Any) -> None:
        """Put plug-ins before and after one."""
        at = strategy.plugins.index(plugin)
        strategy.plugins[at : at + 1] = [_Before(self), plugin, _After(self)]

    def start(self, strategy: Any) -> None:
        self._experience += 1
        if self.started is not None:
            self.started(strategy)
        self.history.held(strategy.model)

    def before(self, strategy: Any) -> None:
        self._before = float(strategy.loss.detach())

    def after(self, strategy: Any) -> None:
        added = float(strategy.loss.detach()) - self._before
        self.steps.append(Step(self._experience, added, self.history(strategy.model)))


class _Before(SupervisedPlugin):  # type: ignore[misc] # Avalanche ships no types
    def __init__(self, scales: Scales) -> None:
        super().__init__()
        self.scales = scales

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        self.scales.before(strategy)


class _After(SupervisedPlugin):  # type: ignore[misc]
    def __init__(self, scales: Scales) -> None:
        super().__init__()
        self.scales = scales

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        if strategy.clock.train_exp_epochs == 0:
            self.scales.start(strategy)

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        self.scales.after(strategy)
