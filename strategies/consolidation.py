"""Several tasks as one of fixed size: projected onto fewer inducing inputs, and added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from sfr_cl.duals import DualSums
from sfr_cl.penalty import Penalty
from sfr_cl.value_sites import ValueSites

from .tasks import Recipe, Task
from .views import TaskView, live_units, narrowed


def consolidate(recipe: Recipe, model: nn.Module, tasks: Sequence[Task], size: int) -> Task:
    """Tasks of one label as one, over at most ``size`` of their inducing inputs.

    Each keeps a share of its inducing inputs in proportion to its data, with the values they had.
    What is known of f at the others is projected onto those with the kernel of the current weights.
    """
    label = tasks[0].label
    live, head = live_units(model, label, tasks[0].z)
    tasks = [_in_order(task.extended(model, live), live) for task in tasks]
    kept = _shares(tasks, size)
    z = torch.cat([task.z for task in tasks])
    predictive = None
    if recipe.predictive:
        view = narrowed(model, label, live, head)
        posterior = recipe.predicting(view, head).fit_sites(joined(tasks, head))
        predictive = posterior.replace_inducing(z[kept]).sites
    return Task(
        label=label,
        units=live,
        classes=frozenset().union(*(task.classes for task in tasks)),
        penalty=_penalty(recipe, model, tasks, kept),
        predictive=predictive,
        num_data=sum(task.num_data for task in tasks),
    )


def joined(tasks: Sequence[Task], head: int) -> ValueSites:
    """What the data of several tasks says of f at all their inducing inputs."""
    sites = [task.predictive for task in tasks if task.predictive is not None]
    size = max([head, *(part.num_outputs for part in sites)])
    return ValueSites.join([part.with_outputs(size) for part in sites])


def _shares(tasks: Sequence[Task], size: int) -> Tensor:
    """Which of all inducing inputs stay."""
    total = sum(task.num_data for task in tasks)
    kept, start = [], 0
    for task in tasks:
        count = len(task.z)
        share = min(count, max(1, round(size * task.num_data / total)))
        kept.append(start + torch.randperm(count)[:share].sort().values)
        start += count
    chosen = torch.cat(kept)
    return chosen[torch.randperm(len(chosen))[:size].sort().values]


def _in_order(task: Task, live: Tensor) -> Task:
    """The task with its units in the order of ``live``."""
    place = torch.empty(int(live.max()) + 1, dtype=torch.long, device=live.device)
    place[live] = torch.arange(len(live), device=live.device)
    held = place[task.units[task.penalty.held]]
    order = place[task.units].argsort()
    by_unit = held.argsort()
    penalty = replace(
        task.penalty,
        targets=task.penalty.targets[:, order],
        held=held[by_unit],
        precision=task.penalty.precision[by_unit],
    )
    return replace(task, units=live, penalty=penalty)


def _penalty(recipe: Recipe, model: nn.Module, tasks: Sequence[Task], kept: Tensor) -> Penalty:
    parts = [task.penalty for task in tasks]
    z = torch.cat([part.z for part in parts])
    held = torch.cat([part.held for part in parts]).unique()
    penalty = Penalty(
        z=z[kept],
        targets=torch.cat([part.targets for part in parts])[kept],
        held=held,
        precision=z.new_zeros(0, len(kept), len(kept)),
        pin=sum(part.pin for part in parts),
    )
    if not len(held):
        return penalty
    precision = torch.stack(
        [torch.block_diag(*(_block(part, c, len(kept)) for part in parts)) for c in held.tolist()]
    )
    zeros = precision.new_zeros(len(held), len(z))
    sums = DualSums(
        gradient=zeros,
        point=zeros,
        mass=zeros,
        weight=precision,
        constant=precision.new_zeros(()),
        seen=precision.new_ones(len(held)),
        count=precision.new_zeros(()),
    )
    posterior = recipe.holding(TaskView(model, tasks[0].label, tasks[0].units[held]))
    posterior.fit_sites(ValueSites(z, sums, zeros))
    found = posterior.replace_inducing(z[kept]).sites.sums.weight
    return replace(penalty, precision=found.to(z.dtype))


def _block(part: Penalty, output: int, size: int) -> Tensor:
    """One task's sites on one output, for a penalty over ``size`` inducing inputs."""
    scale = size / len(part.targets)
    at = (part.held == output).nonzero()
    if len(at):
        return scale * part.precision[int(at[0, 0])].double()
    return scale * part.pin * torch.eye(len(part.targets), dtype=torch.float64).to(part.held.device)
