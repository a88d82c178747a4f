"""The loss term of SFR over a stream, from dense Jacobians: what every step should have added.

Written from the paper's formulas, for small networks in float64. All it takes from the code under
test are the inducing inputs, which are a choice.

    R(w) = 1/2 sum_t 1/M_t sum_c d_tc' P_tc d_tc,   d_tc = f_c(Z_t; w) - f_c(Z_t; w_t)
    P = K_zz^-1 B K_zz^-1,   B = sum_i k_zi b_i k_zi'

with the identity for P of classes not yet seen.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
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
            total += float(d @ self.precision[c] @ d) if c in self.precision else self.pin * float(d @ d)
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
class DenseHistory:
    """All tasks a plug-in has learned, and the data of the one that is being learned."""

    parameters: str | list[str] = "all"
    identity: bool = False
    consolidated: bool = False
    tasks: list[DensePenalty] = field(default_factory=list)
    _pending: list[tuple[Tensor, ...]] = field(default_factory=list)
    _model: nn.Module | None = None

    def learned(self, model: nn.Module, dataset: Any) -> None:
        """An experience, or a part of one, was trained on; its task may go on."""
        rows = [dataset[i] for i in range(len(dataset))]
        self._pending += [tuple(torch.as_tensor(part) for part in row) for row in rows]
        self._model = copy.deepcopy(model)

    def boundary(self, labelled: bool, inducing: Iterable[tuple[int | None, Tensor]]) -> None:
        """The task has ended.

        Args:
            labelled: whether the model takes task labels.
            inducing: label and inducing inputs of every task there is now.
        """
        if self._model is None:
            return
        labels = sorted({int(row[-1]) for row in self._pending}) if labelled else [None]
        inducing = list(inducing)
        for label in labels:
            own = [row for row in self._pending if label is None or row[-1] == label]
            pairs = torch.stack([row[0] for row in own]), torch.stack([row[1] for row in own])
            before = [task for task in self.tasks if task.label == label]
            z = next(z for found, z in reversed(inducing) if found == label)
            if self.consolidated and before:
                raise NotConsolidatedError
            new = DensePenalty.of(
                self._model, label, z, pairs, self.parameters, identity=self.identity
            )
            self.tasks.append(new)
        self._pending, self._model = [], None

    def held(self, model: nn.Module) -> None:
        """Before the first step of an experience."""
        for task in self.tasks:
            task.held(model)

    def penalty(self, model: nn.Module) -> float:
        return sum(task(model) for task in self.tasks)
