"""The tasks of one label as a step of training needs them: one batch of inputs, one penalty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sfr_cl.core.penalty import Penalties
from sfr_cl.data.inputs import Inputs, concat
from sfr_cl.kernel.passes import batch_norms

from .models import TaskView
from .tasks import Task


@dataclass(frozen=True, eq=False)
class Together:
    """Some tasks of one label."""

    tasks: tuple[Task, ...]
    device: torch.device
    dtype: torch.dtype
    """Of the model."""
    penalties: Penalties
    """There."""

    @staticmethod
    def of(tasks: Sequence[Task], device: torch.device, dtype: torch.dtype) -> Together:
        """Tasks for a model on a device and in a precision."""
        held = [(task.penalty.to(device, dtype), task.units.to(device)) for task in tasks]
        return Together(tuple(tasks), device, dtype, Penalties.of(held))

    @cached_property
    def z(self) -> Inputs:
        """All inducing inputs."""
        return concat(self.penalties.z)

    @property
    def label(self) -> int | None:
        """Their task label."""
        return self.tasks[0].label

    def is_of(self, tasks: Sequence[Task], device: torch.device, dtype: torch.dtype) -> bool:
        """Whether it is of these very tasks: a task that has changed is another."""
        return (self.device, self.dtype, len(self.tasks)) == (device, dtype, len(tasks)) and all(
            mine is other for mine, other in zip(self.tasks, tasks, strict=True)
        )

    def outputs(self, view: TaskView) -> Tensor:
        """f at all inducing inputs, in one pass unless each task's have statistics."""
        if batch_norms(view):
            return torch.cat([view.run(z) for z in self.penalties.z])
        return view.run(self.z)
