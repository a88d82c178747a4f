"""What is kept of a task: inducing inputs, the function's values there, and what data says of them.

None of it depends on the weights it was made at (:mod:`sfr_cl.core.transfer`): a task costs M
inputs and M x M numbers for each class it has seen, and no copy of the network.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add

import torch
from torch import Tensor, nn

from sfr_cl.core.penalty import Penalty
from sfr_cl.core.spec import Spec
from sfr_cl.core.state import State
from sfr_cl.core.sums import DualSums, Terms
from sfr_cl.core.transfer import Sites, inducing
from sfr_cl.data.batches import Batches
from sfr_cl.data.inputs import Inputs, leaves, length, take
from sfr_cl.errors import DataError, MismatchError, SFRWarning
from sfr_cl.inducing import Selector, choose, empty_state
from sfr_cl.kernel.network import FrozenNetwork, Parameters

from .experiences import BATCH, Pairs
from .models import Head, TaskView, narrowed
from .progress import shown
from .sample import strata


@dataclass(frozen=True)
class Recipe:
    """How tasks are remembered."""

    model: nn.Module
    """What learns them, at its current weights."""
    likelihood: str
    covariance: str
    """``"sfr"``, or ``"identity"`` for the ablation."""
    predictive: bool
    """Whether to keep what predicting with the posterior needs."""
    verbose: bool
    """Whether to show how far a pass over data is."""
    parameters: Parameters = "all"
    """What the kernels differentiate."""

    @property
    def of_classes(self) -> bool:
        """Whether targets are classes."""
        return self.likelihood == "classification"

    def head(self, label: int | None, x: Inputs) -> Head:
        """The head of a task label, in double precision where it is to predict."""
        dtype = torch.float64 if self.predictive else None
        return Head.of(self.model, label, x, self.parameters, dtype)

    def frozen(self, view: TaskView) -> FrozenNetwork:
        """A copy of the model as a task sees it."""
        return FrozenNetwork(view, TaskView.parameters_of(self.parameters), view.exact)

    def penalty_state(self, network: FrozenNetwork, z: Inputs) -> State:
        """The state whose site parameters are the penalty's, without data.

        Its curvature is that at the network's output. Double precision changes no result, measured.
        """
        spec = Spec.checked(
            self.likelihood,
            output_kernel="per_output",
            linearize_at="network",
            noise_variance=1.0 if self.likelihood == "regression" else "learn",
            dtype=network.dtype,
        )
        return empty_state(spec, z, None, network)

    def predictive_state(self, head: Head, z: Inputs) -> State:
        """The state that predicts, without data: linearised at f = 0, one kernel for all outputs.

        Of classes, it has an output for each unit of the head, whether it is active or not.
        """
        num_outputs = head.size if self.of_classes else None
        spec = Spec.checked(self.likelihood, num_outputs=num_outputs)
        return empty_state(spec, z, None, head.narrowed())

    def predictive_sites(self, head: Head, z: Inputs, data: Pairs, count: int) -> Sites:
        """What data says of f at Z, to predict with."""
        state = self.predictive_state(head, z)

        def sums_of(pairs: Pairs) -> DualSums:
            watched = shown(pairs, "posterior", count, self.verbose)
            return state.sums_of(Batches(watched, state.basis.batch_size))

        return Sites.of(state.add(_over_strata(data, sums_of)))

    def projected(self, head: Head, sites: Sites, z: Inputs) -> Sites:
        """Sites at other inducing inputs, by the kernel of the weights of now."""
        state = self.at_weights(head, sites)
        basis = inducing(state)
        return Sites.of(state.project(basis.over(basis.network.prepare(z))))

    def at_weights(self, head: Head, sites: Sites) -> State:
        """The state that predicts, with what was known of f at other weights."""
        state = self.predictive_state(head, sites.z)
        return sites.to(state.basis.network.device).at(state)


@dataclass(frozen=True)
class Task:
    """One task, or several consolidated."""

    label: int | None
    """Its task label, for a model that takes one."""
    units: Tensor
    """The output units the penalty is over, ``[C]``."""
    classes: frozenset[int]
    """The classes seen; none for a regression."""
    penalty: Penalty
    """Over those units, in the precision of the model."""
    predictive: Sites | None
    num_data: int
    points: int
    """The inducing inputs its penalty was a mean over when its data was seen."""

    @cached_property
    def needed(self) -> int:
        """The units a head must have."""
        return int(self.units.max()) + 1

    @property
    def z(self) -> Inputs:
        """Its inducing inputs."""
        return self.penalty.z

    def view(self, model: nn.Module) -> TaskView:
        """A model as this task sees it."""
        return TaskView(model, self.label, self.units)

    def require_units(self, size: int) -> None:
        """Refuse a head of ``size`` units that lacks some of the task's."""
        if size < self.needed:
            raise MismatchError(
                f"expected a network with at least {self.needed} outputs, which an earlier task "
                f"was learned with, got {size}: heads can grow, not shrink"
            )

    def extended(self, model: nn.Module, active: Tensor) -> Task:
        """With units that became active since, held where they are before they are trained."""
        if torch.equal(active, self.units):
            return self
        new = active[~torch.isin(active, self.units)]
        if not len(new):
            return self
        values = TaskView(model, self.label, new).outputs(self.z)
        targets = torch.cat([self.penalty.targets, values], dim=1)
        units = torch.cat([self.units, new])
        return replace(self, units=units, penalty=replace(self.penalty, targets=targets))


def remember(recipe: Recipe, label: int | None, data: Pairs, select: Selector) -> Task:
    """A task, from the model that has just learned it and its data: one pass of conditioning."""
    head = recipe.head(label, next(iter(data))[0])
    view = TaskView(recipe.model, label, head.units)
    z, _ = choose(Spec.checked(recipe.likelihood), select, Batches(data, BATCH), head.network)
    z = _distinct(z)
    classes, count = survey(recipe, data, z)
    targets = view.outputs(z)
    count_z = len(targets)
    observed = torch.zeros(0, dtype=torch.long, device=targets.device)
    penalty = Penalty(z, targets, observed, targets.new_zeros(0, count_z, count_z))
    if recipe.covariance == "sfr":
        found = _precision(recipe, view, head.active, z, data, classes, count)
        penalty = _added(penalty, *found, start=0.0)
    predictive = recipe.predictive_sites(head, z, data, count) if recipe.predictive else None
    return Task(label, head.active, classes, penalty.like(view), predictive, count, count_z)


def absorb(recipe: Recipe, task: Task, data: Pairs) -> Task:
    """More data of a known task, at the current weights; nothing is trained."""
    classes, count = survey(recipe, data, None)
    known = task.classes | classes
    penalty, predictive = task.penalty, task.predictive
    with without_warnings():  # of inputs that came twice: told when they were chosen
        if recipe.covariance == "sfr":
            view = task.view(recipe.model)
            observed, precision = _precision(recipe, view, task.units, task.z, data, known, count)
            # Consolidation changes the inputs of the mean, and not what a sample counts for.
            precision = length(task.z) / task.points * precision
            penalty = _added(penalty, observed, precision, start=penalty.pin).like(view)
        if predictive is not None:
            head = recipe.head(task.label, next(iter(data))[0])
            sites = recipe.predictive_sites(head, task.z, data, count)
            predictive = predictive.with_outputs(sites.num_outputs) + sites
    return replace(
        task,
        penalty=penalty,
        predictive=predictive,
        classes=known,
        num_data=task.num_data + count,
    )


def grouped(tasks: Iterable[Task]) -> dict[int | None, list[Task]]:
    """Tasks by their label."""
    groups: dict[int | None, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.label, []).append(task)
    return groups


@contextmanager
def without_warnings() -> Iterator[None]:
    """Silence what the library warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SFRWarning)
        yield


def survey(recipe: Recipe, data: Pairs, z: Inputs | None) -> tuple[frozenset[int], int]:
    """The classes of some data, and its size. Inducing inputs drawn from it must show them all."""
    rows = set() if z is None else {*_rows(z)}
    classes: set[int] = set()
    drawn: set[int] = set()
    count = 0.0
    for x, y, weight in ((*pair, weight) for pairs, weight in strata(data) for pair in pairs):
        count += weight * len(y)
        if recipe.of_classes:
            classes.update(y.unique().tolist())
            if len(drawn) < len(classes) and z is not None:
                pairs = zip(_rows(x, like=z), y.tolist(), strict=True)
                drawn.update(c for row, c in pairs if c not in drawn and row in rows)
    if drawn and drawn != classes:
        raise DataError(
            f"expected an inducing input of every class, got none of {sorted(classes - drawn)}: "
            f"raise num_inducing, or use inducing='class_balanced'"
        )
    return frozenset(classes), round(count)


def _distinct(z: Inputs) -> Inputs:
    """Every row once: a stream may repeat its samples."""
    first: dict[tuple[bytes, ...], int] = {}
    for i, row in enumerate(_rows(z)):
        first.setdefault(row, i)
    return z if len(first) == length(z) else take(z, torch.tensor([*first.values()]))


def _rows(x: Inputs, like: Inputs | None = None) -> Iterator[tuple[bytes, ...]]:
    """Every row as bytes, of the values it has in the precision of others."""
    known = leaves(x if like is None else like)
    columns = [
        leaf.to(other.dtype).contiguous().cpu().numpy()
        for (_, leaf), (_, other) in zip(leaves(x), known, strict=True)
    ]
    for row in zip(*columns, strict=True):
        yield tuple(part.tobytes() for part in row)


def _precision(
    recipe: Recipe,
    view: TaskView,
    units: Tensor,
    z: Inputs,
    data: Pairs,
    classes: frozenset[int],
    count: int,
) -> tuple[Tensor, Tensor]:
    """Which of a view's outputs the data has observed, and P of these, ``[H, M, M]``."""
    network = recipe.frozen(view)
    if not recipe.of_classes:
        state = recipe.penalty_state(network, z)
        observed = torch.arange(len(units), device=units.device)
    else:
        known = torch.tensor(sorted(classes)).to(units)
        observed = torch.isin(units, known).nonzero()[:, 0]
        if len(observed) < len(known):
            raise DataError(
                f"expected classes the network has units for, {units.tolist()}, got "
                f"{sorted(classes)}: train on them first"
            )
        state = recipe.penalty_state(narrowed(network, units[observed]), z)

    def sums_of(pairs: Pairs) -> DualSums:
        watched = shown(pairs, "conditioning", count, recipe.verbose)
        batches = Batches(watched, state.basis.batch_size)
        if not recipe.of_classes:
            return state.sums_of(batches)
        return state.sums_of_terms(_softmax_terms(network, batches, observed))

    sums = _over_strata(data, sums_of)
    return observed, sums.on_values(inducing(state).factor).weight


def _over_strata(data: Pairs, sums_of: Callable[[Pairs], DualSums]) -> DualSums:
    """The sums of some data, each sample as often as it counts."""
    return reduce(add, (sums_of(pairs) * weight for pairs, weight in strata(data)))


def _softmax_terms(
    network: FrozenNetwork, batches: Batches, observed: Tensor
) -> Iterator[tuple[Inputs, Terms]]:
    """Inputs with the curvature p (1 - p) of some outputs, whose p depend on all."""
    for x, _ in batches:
        outputs = network(network.prepare(x))
        p = outputs.double().softmax(1)[:, observed]
        curvature = (p * (1 - p)).to(outputs)
        yield x, Terms.of(torch.zeros_like(curvature), curvature)


def _added(penalty: Penalty, observed: Tensor, precision: Tensor, *, start: float) -> Penalty:
    """The penalty with more precision, towards the same values.

    Outputs that were not observed before start with ``start`` times the identity.
    """
    every = torch.cat([penalty.observed, observed]).unique()
    total = start * torch.eye(len(penalty.targets)).to(penalty.precision)
    total = total.repeat(len(every), 1, 1)
    total[torch.searchsorted(every, penalty.observed)] = penalty.precision
    total[torch.searchsorted(every, observed)] += precision.to(total)
    return replace(penalty, observed=every, precision=total)
