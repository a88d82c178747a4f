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

MASKED = -1000.0
"""What Avalanche's heads give for a unit that is not in use."""


class Labelled(nn.Module):
    """A copy of a model, its task label fixed, in eval mode."""

    def __init__(self, model: nn.Module, label: int | None) -> None:
        super().__init__()
        self.model, self.label = copy.deepcopy(model).eval(), label

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.model(x) if self.label is None else self.model(x, self.label)
        return found

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
        parameters: str | list[str],
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
        if identity:
            observed = []
        j_z, j_x = jacobians(network, z, parameters), jacobians(network, x, parameters)
        for c in observed:
            k_zi = j_z[:, c] @ j_x[:, c].mT
            inverse = torch.linalg.inv(j_z[:, c] @ j_z[:, c].mT)
            precision[c] = inverse @ (k_zi * curvature[:, c]) @ k_zi.mT @ inverse
        return DensePenalty(label, z, network.values(z), precision)

    def held(self, model: nn.Module) -> None:
        """Units that came into use are held where they are before they are trained."""
        now = Labelled(model, self.label).values(self.z)
        known = now.clone()
        known[:, : self.targets.shape[1]] = self.targets
        self.targets = torch.where(known == MASKED, now, known)

    def __call__(self, model: nn.Module) -> float:
        change = Labelled(model, self.label).values(self.z) - self.targets
        total = 0.0
        for c in range(change.shape[1]):
            d = change[:, c]
            total += (
                float(d @ self.precision[c] @ d) if c in self.precision else self.pin * float(d @ d)
            )
        return total / (2 * len(self.z))


def jacobians(network: Labelled, x: Tensor, parameters: str | list[str]) -> Tensor:
    names = parameters if isinstance(parameters, str) else [f"model.{name}" for name in parameters]
    return jacobian_by_rows(network, x, names)


def consolidated(
    tasks: Sequence[DensePenalty], model: nn.Module, z: Tensor, parameters: str | list[str]
) -> DensePenalty:
    """Tasks of one label as one, over some of their inducing inputs.

    Where f at all of them follows from f at those kept, f = E f_kept with E = K K_kept^-1, the sum
    of their terms is one with E' P E.
    """
    first = tasks[0]
    every = torch.cat([task.z for task in tasks])
    targets = torch.cat([task.targets for task in tasks])
    kept = [int((every == row).flatten(1).all(1).nonzero()[0, 0]) for row in z]
    j = jacobians(Labelled(model, first.label), every, parameters)
    precision = {}
    for c in sorted(set().union(*(task.precision for task in tasks))):
        blocks = []
        for task in tasks:
            own = task.precision.get(c, task.pin * torch.eye(len(task.z)))
            blocks.append(len(z) / len(task.z) * own)
        gram = j[:, c] @ j[:, c].mT
        extend = gram[:, kept] @ torch.linalg.inv(gram[kept][:, kept])
        precision[c] = extend.mT @ torch.block_diag(*blocks) @ extend
    pin = sum(task.pin for task in tasks)
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


@dataclass
class DenseHistory:
    """What holds a model, from all it has learned, task by task."""

    parameters: str | list[str] = "all"
    identity: bool = False
    consolidated: bool = False
    num_inducing: int = 10
    tasks: list[DensePenalty] = field(default_factory=list)

    def end_task(
        self,
        model: nn.Module,
        dataset: Any,
        inducing: list[Tensor],
        kept: list[tuple[int | None, Tensor]],
    ) -> None:
        """A task was learned.

        Args:
            model: at the weights it has learned.
            dataset: its data.
            inducing: its inducing inputs, by task label if the model takes one.
            kept: label and inducing inputs of the tasks there are now.
        """
        rows = [dataset[i] for i in range(len(dataset))]
        takes_labels = is_multi_task_module(model)
        labels = sorted({int(row[-1]) for row in rows}) if takes_labels else [None]
        for label, z in zip(labels, inducing, strict=True):
            own = [row for row in rows if label is None or int(row[-1]) == label]
            pairs = (
                torch.stack([row[0] for row in own]),
                torch.stack([torch.as_tensor(row[1]) for row in own]),
            )
            new = DensePenalty.of(model, label, z, pairs, self.parameters, identity=self.identity)
            self.tasks.append(new)
        if self.consolidated:
            self.tasks = [self._as_one(model, label, z) for label, z in kept]

    def _as_one(self, model: nn.Module, label: int | None, z: Tensor) -> DensePenalty:
        own = [task for task in self.tasks if task.label == label]
        if len(own) == 1 and len(own[0].z) == len(z):
            return own[0]
        return consolidated(own, model, z, self.parameters)

    def held(self, model: nn.Module) -> None:
        """Before the first step of an experience."""
        for task in self.tasks:
            task.held(model)

    def __call__(self, model: nn.Module) -> float:
        return sum(task(model) for task in self.tasks)


@dataclass(frozen=True)
class Step:
    """What one training step added to the loss."""

    experience: int
    """The how-manieth that was trained on."""
    added: float
    expected: float


@dataclass(eq=False)
class Scales:
    """Weighs the loss before and after one plug-in, at every step of training."""

    history: DenseHistory
    steps: list[Step] = field(default_factory=list)
    started: Callable[[Any], None] = lambda strategy: None
    """Called before the first step of an experience, its heads grown."""
    _experience: int = -1
    _before: float = 0.0

    def around(self, strategy: Any, plugin: Any) -> None:
        """Put plug-ins before and after one."""
        at = strategy.plugins.index(plugin)
        strategy.plugins[at : at + 1] = [_Before(self), plugin, _After(self)]

    def start(self, strategy: Any) -> None:
        self._experience += 1
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
