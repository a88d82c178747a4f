"""Several tasks as one of fixed size: projected onto fewer inducing inputs, and added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sfr_cl.core.penalty import Penalty
from sfr_cl.core.transfer import Sites, inducing, project_precision
from sfr_cl.data.inputs import Inputs, concat, length, take
from sfr_cl.kernel.passes import batch_norms

from .models import TaskView
from .tasks import Recipe, Task, without_warnings


def consolidate(recipe: Recipe, tasks: Sequence[Task], size: int, *, parts: bool = False) -> Task:
    """Tasks of one label as one, over at most ``size`` of their inducing inputs.

    One that is small enough stays as it is. Of several, each keeps a share of its inducing inputs
    in proportion to its data, with the values they had.
    What is known of f at the others is projected onto those with the kernel of the current weights.
    Units that no task has observed are held at all that are kept, with the weight of all tasks.

    Args:
        recipe: how they are remembered.
        tasks: of one task label.
        size: the most inducing inputs to keep.
        parts: whether they are parts of one task. Penalties of tasks add up, each a mean over its
            own inducing inputs; parts add up to the sums of the task before that mean is taken.
    """
    if len(tasks) == 1 and length(tasks[0].z) <= size:
        return tasks[0]
    label = tasks[0].label
    head = recipe.head(label, tasks[0].z)
    tasks = [_ordered(task.extended(recipe.model, head.active), head.active) for task in tasks]
    kept = _shares(tasks, size)
    predictive = None
    if recipe.predictive:
        z = take(concat([task.z for task in tasks]), kept)
        with without_warnings():
            predictive = recipe.projected(head, joined(tasks, head.size), z)
    return Task(
        label=label,
        units=head.active,
        classes=frozenset().union(*(task.classes for task in tasks)),
        penalty=_penalty(recipe, tasks, kept, parts=parts),
        predictive=predictive,
        num_data=sum(task.num_data for task in tasks),
        points=len(kept) if parts else max(task.points for task in tasks),
    )


def joined(tasks: Sequence[Task], num_outputs: int) -> Sites:
    """What the data of several tasks says of f at all their inducing inputs."""
    sites = [task.predictive for task in tasks if task.predictive is not None]
    size = max([num_outputs, *(part.num_outputs for part in sites)])
    return Sites.join([part.with_outputs(size) for part in sites])


def _shares(tasks: Sequence[Task], size: int) -> Tensor:
    """Which of all inducing inputs stay: of each task in proportion to its data."""
    total = sum(task.num_data for task in tasks)
    sizes = [length(task.z) for task in tasks]
    order = [torch.randperm(count) for count in sizes]
    starts = [sum(sizes[:i]) for i in range(len(tasks))]
    # The k-th input of a task waits until the task has earned k inputs: the first to wait stay.
    waits = [
        (torch.arange(count) + 0.5) * total / max(1, task.num_data)
        for task, count in zip(tasks, sizes, strict=True)
    ]
    for wait in waits:
        wait[0] = 0.0  # no task is left out, unless there are too many
    first = torch.cat(waits).argsort(stable=True)[:size]
    everything = torch.cat([start + one for start, one in zip(starts, order, strict=True)])
    return everything[first].sort().values


def _ordered(task: Task, active: Tensor) -> Task:
    """The task with its units in the order of the active ones."""
    place = torch.full((int(active.max()) + 1,), -1, device=active.device)
    place[active] = torch.arange(len(active), device=active.device)
    observed = place[task.units[task.penalty.observed]]
    by_unit = observed.argsort()
    penalty = replace(
        task.penalty,
        targets=task.penalty.targets[:, place[task.units].argsort()],
        observed=observed[by_unit],
        precision=task.penalty.precision[by_unit],
    )
    return replace(task, units=active, penalty=penalty)


def _penalty(recipe: Recipe, tasks: Sequence[Task], kept: Tensor, *, parts: bool) -> Penalty:
    penalties = [task.penalty for task in tasks]
    z = concat([penalty.z for penalty in penalties])
    chosen = take(z, kept)
    observed = torch.cat([penalty.observed for penalty in penalties]).unique()
    pins = [penalty.pin for penalty in penalties]
    penalty = Penalty(
        z=chosen,
        targets=_targets(recipe, tasks, chosen, kept),
        observed=observed,
        precision=penalties[0].targets.new_zeros(0, len(kept), len(kept)),
        pin=max(pins) if parts else sum(pins),
    )
    if not len(observed):
        return penalty
    size = None if parts else len(kept)
    blocks = [[_block(each, c, size) for each in penalties] for c in observed.tolist()]
    precision = torch.stack([torch.block_diag(*row) for row in blocks])
    view = TaskView(recipe.model, tasks[0].label, tasks[0].units[observed])
    network = recipe.frozen(view)
    with without_warnings():  # of inputs that came twice, which only the stream can help
        every = inducing(recipe.penalty_state(network, z))
        found = project_precision(precision, every, every.over(network.prepare(chosen)))
    return replace(penalty, precision=found.to(penalty.targets))


def _targets(recipe: Recipe, tasks: Sequence[Task], z: Inputs, kept: Tensor) -> Tensor:
    """The values the tasks had at the inputs that are kept.

    Inputs that batch norm sees among others have other values: how far these are from where they
    are held stays the same.
    """
    targets = torch.cat([task.penalty.targets for task in tasks])[kept]
    if not batch_norms(recipe.model):
        return targets
    view = tasks[0].view(recipe.model)
    values = torch.cat([view.outputs(task.z) for task in tasks])[kept]
    return targets + (view.outputs(z) - values).to(targets)


def _block(penalty: Penalty, output: int, size: int | None) -> Tensor:
    """One task's precision on one output, for a mean over ``size`` inducing inputs.

    Of a part of a task (``None``), its precision as it is: none of a class it lacks.
    """
    count = len(penalty.targets)
    scale = 1.0 if size is None else size / count
    at = (penalty.observed == output).nonzero()
    if len(at):
        return scale * penalty.precision[int(at[0, 0])].double()
    pin = 0.0 if size is None else scale * penalty.pin
    return pin * torch.eye(count, dtype=torch.float64).to(penalty.observed.device)
