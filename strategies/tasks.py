"""What is kept of a task: inducing inputs, the function's values there, and what data says of them.

None of it depends on the weights it was made at (:mod:`sfr_cl.value_sites`): a task costs M inputs
and M x M numbers for each class it has seen, and no copy of the network.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sfr_cl import SFRPosterior
from sfr_cl.errors import DataError, MismatchError, SFRWarning
from sfr_cl.inducing import Selector, choose
from sfr_cl.inputs import Batches, prepare
from sfr_cl.likelihoods import make
from sfr_cl.network import FrozenNetwork, eval_mode, run
from sfr_cl.penalty import Penalty
from sfr_cl.value_sites import ValueSites

from .curvature import Curvatures, GivenCurvature
from .progress import shown
from .views import BATCH, Pairs, TaskView, live_units, narrowed


@dataclass(frozen=True)
class Recipe:
    """How tasks are remembered."""

    likelihood: str
    covariance: str
    """``"sfr"``, or ``"identity"`` for the ablation."""
    predictive: bool
    """Whether to keep what predicting with the posterior needs."""
    verbose: bool
    """Whether to show how far a pass over data is."""

    def holding(self, view: TaskView, z: Tensor | None = None) -> SFRPosterior:
        """The posterior whose sites are the penalty's: curvature at the network's output.

        Of classes, the view has the units whose curvature comes with the data.
        """
        classes = self.likelihood == "classification"
        return SFRPosterior(
            view,
            GivenCurvature() if classes else self.likelihood,
            inducing=z,
            output_kernel="per_output",
            linearize_at="network",
            noise_variance=1.0 if self.likelihood == "regression" else "learn",
            dtype=next(view.parameters()).dtype,  # double precision changes no result, measured
        )

    def predicting(self, view: TaskView, size: int, z: Tensor | None = None) -> SFRPosterior:
        """The posterior that predicts: data absorbed at f = 0, one kernel for all outputs.

        ``size`` is that of the whole head: of classes, those without a live unit count too.
        """
        num_outputs = size if self.likelihood == "classification" else None
        return SFRPosterior(view, self.likelihood, inducing=z, num_outputs=num_outputs)


@dataclass(frozen=True)
class Task:
    """One task, or several consolidated."""

    label: int | None
    """Its task label, for a model that takes one."""
    units: Tensor
    """The output units that are held or pinned, ``[C]``."""
    classes: frozenset[int]
    """The classes seen; none for a regression."""
    penalty: Penalty
    """Over those units, in the precision of the model."""
    predictive: ValueSites | None
    num_data: int
    points: int
    """The inducing inputs its penalty was a mean over when its data was seen."""

    @property
    def z(self) -> Tensor:
        """Its inducing inputs."""
        found: Tensor = self.penalty.z
        return found

    def view(self, model: nn.Module) -> TaskView:
        """A model as this task sees it."""
        return TaskView(model, self.label, self.units)

    def require_units(self, size: int) -> None:
        """Refuse a head of ``size`` units that lacks some of the task's."""
        needed = int(self.units.max()) + 1
        if size < needed:
            raise MismatchError(
                f"expected a network with at least {needed} outputs, which an earlier task was "
                f"learned with, got {size}: heads can grow, not shrink"
            )

    def extended(self, model: nn.Module, live: Tensor) -> Task:
        """With units that came to life since, pinned where they are before they are trained."""
        new = live[~torch.isin(live, self.units)]
        if not len(new):
            return self
        view = TaskView(model, self.label, new)
        with torch.no_grad(), eval_mode(view):
            values = run(view, self.z)
        targets = torch.cat([self.penalty.targets, values], dim=1)
        units = torch.cat([self.units, new])
        return replace(self, units=units, penalty=replace(self.penalty, targets=targets))


def remember(
    recipe: Recipe, model: nn.Module, label: int | None, data: Pairs, select: Selector
) -> Task:
    """A task, from the model that has just learned it and its data: one pass of conditioning."""
    live, size = live_units(model, label, next(iter(data))[0])
    view = narrowed(model, label, live, size)
    whole = FrozenNetwork(TaskView(model, label), "all", torch.float64)
    likelihood = make(recipe.likelihood, "learn")
    z, _ = choose(select, Batches(data, BATCH), whole, likelihood, num_outputs=None, shared=True)
    z = _distinct(z)
    classes, count = survey(recipe, data, z)
    penalty = _pinned(view, z)
    if recipe.covariance == "sfr":
        penalty = _added(penalty, *_sites(recipe, view, live, z, data, classes, count), start=0.0)
    predictive = None
    if recipe.predictive:
        watched = shown(data, "posterior", count, recipe.verbose)
        predictive = recipe.predicting(view, size, z).fit(watched).sites
    return Task(label, live, classes, penalty.like(view), predictive, count, len(z))


def absorb(recipe: Recipe, model: nn.Module, task: Task, data: Pairs) -> Task:
    """More data of a known task, at the current weights; nothing is trained."""
    live, size = live_units(model, task.label, next(iter(data))[0])
    classes, count = survey(recipe, data, None)
    penalty, predictive = task.penalty, task.predictive
    if recipe.covariance == "sfr":
        view = task.view(model)
        known = task.classes | classes
        with without_warnings():  # of inputs that came twice: told when they were chosen
            held, precision = _sites(recipe, view, task.units, task.z, data, known, count)
        # Consolidation changes how many inputs the mean is over, and not what a datum counts for.
        precision = len(task.z) / task.points * precision
        penalty = _added(penalty, held, precision, start=penalty.pin).like(view)
    if predictive is not None:
        view = narrowed(model, task.label, live, size)
        watched = shown(data, "posterior", count, recipe.verbose)
        with without_warnings():
            sites = recipe.predicting(view, size, task.z).fit(watched).sites
        predictive = predictive.with_outputs(sites.num_outputs) + sites
    return replace(
        task,
        penalty=penalty,
        predictive=predictive,
        classes=task.classes | classes,
        num_data=task.num_data + count,
    )


@contextmanager
def without_warnings() -> Iterator[None]:
    """Silence what the library warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SFRWarning)
        yield


def survey(recipe: Recipe, data: Pairs, z: Tensor | None) -> tuple[frozenset[int], int]:
    """The classes of some data, and its size. Inducing inputs drawn from it must show them all."""
    rows = set() if z is None else {_bytes(row) for row in z}
    classes: set[int] = set()
    drawn: set[int] = set()
    count = 0
    for x, y in data:
        count += len(y)
        if recipe.likelihood == "classification":
            classes.update(y.unique().tolist())
            if len(drawn) < len(classes) and z is not None:
                pairs = zip(x.to(z), y.tolist(), strict=True)
                drawn.update(c for row, c in pairs if c not in drawn and _bytes(row) in rows)
    if drawn and drawn != classes:
        raise DataError(
            f"expected an inducing input of every class, got none of {sorted(classes - drawn)}: "
            f"raise num_inducing, or use inducing='class_balanced'"
        )
    return frozenset(classes), count


def _distinct(z: Tensor) -> Tensor:
    """Every row once: a stream may repeat its samples."""
    first: dict[bytes, int] = {}
    for i, row in enumerate(z):
        first.setdefault(_bytes(row), i)
    return z if len(first) == len(z) else z[[*first.values()]]


def _bytes(row: Tensor) -> bytes:
    return row.contiguous().cpu().numpy().tobytes()


def _pinned(view: TaskView, z: Tensor) -> Penalty:
    """Every output held by the identity."""
    nothing = torch.zeros(0, dtype=torch.long, device=z.device)
    parameter = next(view.parameters())
    with torch.no_grad(), eval_mode(view):
        targets = run(view, prepare(z, parameter.device, parameter.dtype))
    return Penalty(z, targets, nothing, targets.new_zeros(0, len(z), len(z)))


def _sites(
    recipe: Recipe,
    view: TaskView,
    units: Tensor,
    z: Tensor,
    data: Pairs,
    classes: frozenset[int],
    count: int,
) -> tuple[Tensor, Tensor]:
    """Which outputs of a view the data has spoken of, and its sites there, ``[H, M, M]``."""
    held = torch.arange(len(units), device=units.device)
    if recipe.likelihood == "classification":
        known = torch.tensor(sorted(classes)).to(units)
        held = torch.isin(units, known).nonzero()[:, 0]
        if len(held) < len(known):
            raise DataError(
                f"expected classes the network has units for, {units.tolist()}, got "
                f"{sorted(classes)}: train on them first"
            )
        data = Curvatures(data, view, held)
        view = TaskView(view.model, view.label, units[held])
    watched = shown(data, "conditioning", count, recipe.verbose)
    return held, recipe.holding(view, z).fit(watched).sites.sums.weight


def _added(penalty: Penalty, held: Tensor, precision: Tensor, *, start: float) -> Penalty:
    """The penalty with more sites, towards the same values.

    Outputs that no datum had spoken of start with ``start`` times the identity.
    """
    every = torch.cat([penalty.held, held]).unique()
    total = start * torch.eye(len(penalty.targets)).to(penalty.precision)
    total = total.repeat(len(every), 1, 1)
    total[torch.searchsorted(every, penalty.held)] = penalty.precision
    total[torch.searchsorted(every, held)] += precision.to(total)
    return replace(penalty, held=every, precision=total)
