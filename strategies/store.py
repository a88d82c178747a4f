"""The tasks learned so far, and the task whose stream has not ended."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from sfr_cl.errors import ArgumentError, DataError, FactorizationError

from .arguments import WITHOUT_DATA, SelectorMaker, selector
from .consolidation import consolidate
from .experiences import Pairs, PairsByLabel, classes_of, first_rows, task_labels
from .models import KnownHead, TaskView, head_size
from .sample import Sample
from .tasks import Recipe, Task, absorb, grouped, remember, survey, without_warnings
from .together import Together

KEPT = 5
"""Samples that are kept of a task whose stream has not ended, for each inducing input."""

BETWEEN = 1
"""Samples that wait where no task ends, for each inducing input, until they are held."""


@dataclass(eq=False)
class TaskStore:
    """Remembers tasks as they end, and parts of a stream as they arrive."""

    num_inducing: int
    """M, for each task; with ``consolidated``, for all of them."""
    inducing: str | SelectorMaker | None
    """How inducing inputs are chosen; by default evenly over the classes, if there are."""
    points_per_step: int | None
    """Inducing inputs a penalty is computed on; ``None`` for all."""
    consolidated: bool
    """Whether all tasks of one label are kept as one."""
    tasks: list[Task] = field(default_factory=list)
    _open: dict[int | None, Task] = field(default_factory=dict)
    _waiting: dict[int | None, Sample] = field(default_factory=dict)
    _without_ends: bool = False
    _turns: list[int] = field(default_factory=list)
    _heads: dict[int | None, KnownHead] = field(default_factory=dict)
    _tried: frozenset[tuple[int | None, Any]] = frozenset()
    """Labels a task could be remembered of, and the parameters the model had."""
    _steps: list[Together] = field(default_factory=list)
    """The tasks of each label, as the last step needed them."""

    def __setstate__(self, fields: dict[str, Any]) -> None:
        """In checkpoints of before, all that waited was kept in lists."""
        size = KEPT * fields["num_inducing"]
        waiting = {
            label: Sample(size, not kept[0][1].is_floating_point()).with_more(kept)
            if isinstance(kept, list)
            else kept
            for label, kept in fields["_waiting"].items()
        }
        defaults: dict[str, Any] = {"_heads": {}, "_tried": frozenset(), "_steps": []}
        for name, value in {**defaults, **fields, "_waiting": waiting}.items():
            setattr(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        """Without what can be made again."""
        return {**vars(self), "_steps": []}

    # Remembering ---------------------------------------------------------------------------------

    def end_task(self, recipe: Recipe, data: PairsByLabel) -> None:
        """A complete task."""
        self._require_heads(recipe.model)
        self._add(recipe, [self._remember(recipe, *item) for item in data.items()])

    def receive(self, recipe: Recipe, data: PairsByLabel, *, ends: bool) -> None:
        """A part of a stream, which waits for the end of its task: its network is still learning.

        Args:
            recipe: how it is remembered.
            data: the part.
            ends: whether the stream will say where a task ends. Where it never does, parts join
                what is held as soon as there are enough, and the penalty is over all of that.
        """
        self._require_heads(recipe.model)
        waiting, opened = dict(self._waiting), dict(self._open)
        for label, pairs in data.items():
            sample = waiting.get(label, self._no_sample(recipe)).with_more(pairs)
            waiting[label] = sample
            if not ends and sample.count >= BETWEEN * self.num_inducing:
                opened[label] = self._joined(recipe, label, waiting.pop(label))
        self._without_ends, self._waiting, self._open = not ends, waiting, opened

    def close(self, recipe: Recipe) -> None:
        """The end of the task whose parts were received, if there were any."""
        opened = dict(self._open)
        for label, sample in self._waiting.items():
            opened[label] = self._joined(recipe, label, sample)
        if opened:
            self._add(recipe, list(opened.values()))
        self._open, self._waiting = {}, {}

    def absorb(self, recipe: Recipe, data: PairsByLabel, task: int | None) -> None:
        """More data of a known task."""
        self._require_heads(recipe.model)
        changed, opened, waiting = list(self.tasks), dict(self._open), dict(self._waiting)
        for label, pairs in data.items():
            classes, _ = survey(recipe, pairs, None)
            if task is None and label in waiting and classes <= waiting[label].classes:
                waiting[label] = waiting[label].with_more(pairs)
                continue
            if task is None and label in opened and classes <= opened[label].classes:
                opened[label] = absorb(recipe, opened[label], pairs)
                continue
            at = self._only_match(label, classes) if task is None else self._index(task, label)
            changed[at] = absorb(recipe, changed[at], pairs)
        self.tasks, self._open, self._waiting = changed, opened, waiting

    def _no_sample(self, recipe: Recipe) -> Sample:
        return Sample(KEPT * self.num_inducing, recipe.of_classes)

    def forget(self, recipe: Recipe, data: PairsByLabel, task: int | None) -> None:
        """Drop the tasks that some data was all of."""
        if self.consolidated:
            raise ArgumentError(
                "expected tasks that are kept one by one, got consolidated=True, where what is "
                "known of all is one: train again without this one"
            )
        if self._open or self._waiting:
            raise DataError(
                "expected a stream whose last task has ended, got parts of one: forget after it"
            )
        dropped = set()
        for label, pairs in data.items():
            classes, count = survey(recipe, pairs, None)
            within = [self._index(task, label)] if task is not None else range(len(self.tasks))
            found = [
                at
                for at in within
                if (self.tasks[at].label, self.tasks[at].classes, self.tasks[at].num_data)
                == (label, classes, count)
            ]
            if not found:
                known = [(sorted(each.classes), each.num_data) for each in self.tasks]
                raise DataError(
                    f"expected all the data of a task, got {count} samples of classes "
                    f"{sorted(classes)} where the tasks have {known}: what some of its samples say "
                    f"can't be told from the rest, made at weights that are gone"
                )
            if len(found) > 1:
                raise ArgumentError(
                    f"expected to know which task is meant, got {len(found)} of these classes and "
                    f"this size: say task= one of {found}"
                )
            dropped.add(found[0])
        self.tasks = [each for at, each in enumerate(self.tasks) if at not in dropped]
        self._turns = []

    def _remember(self, recipe: Recipe, label: int | None, data: Pairs) -> Task:
        count = min(self.num_inducing, sum(len(y) for _, y in data))
        default = "class_balanced" if recipe.of_classes else "random"
        return remember(recipe, label, data, selector(self.inducing or default, count))

    def _joined(self, recipe: Recipe, label: int | None, sample: Sample) -> Task:
        """The open task of a label with what waited."""
        task = self._remember(recipe, label, sample.weighted())
        if label not in self._open:
            return task
        parts = [self._open[label], task]
        return consolidate(recipe, parts, self.num_inducing, parts=True)

    def _add(self, recipe: Recipe, tasks: list[Task]) -> None:
        tasks = [*self.tasks, *tasks]
        if self.consolidated and tasks:
            groups = grouped(tasks)
            size = max(1, self.num_inducing // len(groups))
            tasks = [consolidate(recipe, group, size) for group in groups.values()]
        self.tasks, self._turns = tasks, []

    # Refusing ------------------------------------------------------------------------------------

    def require_usable(self, recipe: Recipe, dataset: Any) -> None:
        """Refuse, before training, a network no task could be remembered of, by doing it."""
        structure = tuple(
            (name, tuple(p.shape), p.requires_grad) for name, p in recipe.model.named_parameters()
        )
        for label in task_labels(recipe.model, dataset):
            if (label, structure) in self._tried:
                continue
            rows = first_rows(dataset, label, of_classes=recipe.of_classes)
            if not len(recipe.head(label, rows[0]).active):
                continue  # a derivative of zero where training starts tells nothing yet
            with torch.random.fork_rng(), without_warnings(), suppress(FactorizationError):
                self._remember(replace(recipe, verbose=False), label, [rows])
            others = {tried for tried in self._tried if tried[0] != label}
            self._tried = frozenset({*others, (label, structure)})

    def require_inducing(self, model: nn.Module, dataset: Any) -> None:
        """Refuse, before training, more classes of a head than it has inducing inputs."""
        if isinstance(self.inducing, str) and self.inducing in WITHOUT_DATA:
            return
        waiting = [sample.classes for sample in self._waiting.values()]
        classes, heads = classes_of(dataset).union(*waiting), 1
        if self.consolidated:  # heads share the inducing inputs evenly
            known: dict[int | None, set[int]] = {}
            for task in self._kept:
                known.setdefault(task.label, set()).update(task.classes)
            for label in task_labels(model, dataset):
                known.setdefault(label, set()).update(classes)
            classes, heads = max(known.values(), key=len), len(known)
        if len(classes) > self.num_inducing // heads:
            raise ArgumentError(
                f"expected an inducing input for every class, got {len(classes)} classes"
                f"{f' in one of {heads} heads' if heads > 1 else ''} and "
                f"num_inducing={self.num_inducing}: raise it"
            )

    def _require_heads(self, model: nn.Module) -> None:
        """Refuse heads that lack units of a task."""
        sizes: dict[int | None, int] = {}
        for task in self._kept:
            if task.label not in sizes:
                known = self._heads.get(task.label)
                if known is not None and known.holds(model, task.label):
                    sizes[task.label] = known.outputs.shape[1]
                else:
                    sizes[task.label] = head_size(model, task.label, task.z)
            task.require_units(sizes[task.label])

    def _index(self, task: int, label: int | None) -> int:
        if not isinstance(task, int) or not 0 <= task < len(self.tasks):
            known = f"0..{len(self.tasks) - 1}" if self.tasks else "those learned, none so far"
            raise ArgumentError(f"expected a task in {known}, got {task!r}")
        if self.tasks[task].label != label:
            raise DataError(
                f"expected data of task label {self.tasks[task].label}, task {task}'s, got {label}"
            )
        return task

    def _only_match(self, label: int | None, classes: frozenset[int]) -> int:
        own = [(i, task.classes) for i, task in enumerate(self.tasks) if task.label == label]
        matches = [i for i, known in own if classes <= known]
        if not matches:
            raise DataError(
                f"expected data of a known task, got classes {sorted(classes)} where those of the "
                f"tasks are {[sorted(known) for _, known in own]}: train on it first"
            )
        if len(matches) > 1:
            raise ArgumentError(
                f"expected to know which task the data belongs to, got {len(matches)} with these "
                f"classes: say task= one of {matches}"
            )
        return matches[0]

    # Reading -------------------------------------------------------------------------------------

    @property
    def has_data(self) -> bool:
        """Whether anything has been received."""
        return bool(self._kept or self._waiting)

    @property
    def _kept(self) -> list[Task]:
        return [*self.tasks, *self._open.values()]

    @property
    def penalised(self) -> list[Task]:
        """The tasks the penalty is over."""
        return self._kept if self._without_ends else list(self.tasks)

    def penalty(self, model: nn.Module) -> Tensor:
        """The regulariser over this step's tasks, weighted to have that of all as expectation."""
        tasks = self.penalised
        total = next(model.parameters()).new_zeros(())
        if not tasks:
            return total
        chosen = self._take_turns(len(tasks))
        for label in dict.fromkeys(tasks[i].label for i in chosen):
            group = [i for i in chosen if tasks[i].label == label]
            view = TaskView(model, label)
            held = self._together([tasks[i] for i in group], view)
            outputs = held.outputs(view)
            known = self._heads.get(label)
            if known is None or outputs.shape[1] != known.outputs.shape[1]:
                self.update_heads(model)
                tasks = self.penalised
                held = self._together([tasks[i] for i in group], view)
            total = total + held.penalties.at(outputs)
        return len(tasks) / len(chosen) * total

    def _together(self, tasks: list[Task], view: TaskView) -> Together:
        """Tasks of one label as a step needs them, made again where one of them is another."""
        device, dtype = next(view.parameters()).device, view.dtype
        for known in self._steps:
            if known.is_of(tasks, device, dtype):
                return known
        made = Together.of(tasks, device, dtype)
        self._steps = [known for known in self._steps if known.label != made.label] + [made]
        return made

    def _take_turns(self, count: int) -> list[int]:
        """Tasks in random order, each as often as any other: less noise than independent draws."""
        some = count
        if self.points_per_step is not None and not self.consolidated:
            some = max(1, self.points_per_step // self.num_inducing)
        if some >= count:
            return list(range(count))
        if len(self._turns) < some:
            self._turns = torch.randperm(count).tolist()
        chosen, self._turns = self._turns[:some], self._turns[some:]
        return chosen

    def update_heads(self, model: nn.Module) -> None:
        """Hold units that became active since, before they are trained."""
        self._require_heads(model)
        heads: dict[int | None, KnownHead] = {}
        for task in self.penalised:
            if task.label not in heads:
                known = self._heads.get(task.label)
                if known is None or not known.holds(model, task.label):
                    known = KnownHead.of(model, task.label, task.z)
                heads[task.label] = known

        def extended(task: Task) -> Task:
            return task.extended(model, heads[task.label].active)

        self.tasks = [extended(task) for task in self.tasks]
        if self._without_ends:
            self._open = {label: extended(task) for label, task in self._open.items()}
        self._heads = heads

    def with_unfinished(self, recipe: Recipe) -> list[Task]:
        """All tasks, with what has arrived of an unfinished one; nothing is changed."""
        self._require_heads(recipe.model)
        waiting = []
        for label, sample in self._waiting.items():
            with torch.random.fork_rng():
                torch.manual_seed(sample.seed)
                waiting.append(self._remember(recipe, label, sample.weighted()))
        return [*self._kept, *waiting]
