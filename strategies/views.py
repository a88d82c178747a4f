"""A model as one task sees it, and an experience's samples as a posterior takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from avalanche.models.utils import is_multi_task_module
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sfr_cl.errors import DataError, DataTypeError
from sfr_cl.inputs import Inputs, prepare
from sfr_cl.network import FrozenNetwork, as_matrix, eval_mode, run

Pairs = Iterable[tuple[Tensor, Tensor]]

BATCH = 512
PROBES = 4
KEPT_BYTES = 2**30
"""An experience is read once and kept while a posterior is built, up to this size."""


class TaskView(nn.Module):
    """A model with its task label fixed, and only some of its output units.

    Args:
        model: the model itself, not a copy.
        label: a task label, for a model that takes one.
        units: the output units left, or ``None`` for all.
    """

    def __init__(self, model: nn.Module, label: int | None, units: Tensor | None = None) -> None:
        super().__init__()
        self.model, self.label, self.units = model, label, units

    def forward(self, x: Inputs) -> Tensor:
        outputs: Tensor = self.model(x) if self.label is None else self.model(x, self.label)
        return outputs if self.units is None else as_matrix(outputs)[:, self.units]


def live_units(model: nn.Module, label: int | None, x: Tensor) -> tuple[Tensor, int]:
    """The units of a head that depend on the weights, and the number of all units.

    Avalanche's growing heads give units that are not in use a constant: no kernel can be built on
    it. A derivative in a random direction is zero for those, and for no others.
    """
    network = FrozenNetwork(TaskView(model, label), "all", torch.float64)
    rows = network.prepare(x[:PROBES])
    generator = torch.Generator().manual_seed(0)

    def draw(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)

    if rows.is_floating_point():  # a blank image says nothing of a network without biases
        rows = torch.cat([rows, rows + draw(rows)])
    size = network.bind(rows[:1])
    direction = {name: draw(p) for name, p in network.parameters.items()}
    return (network.tangent(rows, direction) != 0).any(0).nonzero()[:, 0], size


def head_size(model: nn.Module, label: int | None, x: Tensor) -> int:
    """The number of units of a head."""
    view = TaskView(model, label)
    parameter = next(view.parameters())
    with torch.no_grad(), eval_mode(view):
        return run(view, prepare(x[:1], parameter.device, parameter.dtype)).shape[1]


def narrowed(model: nn.Module, label: int | None, units: Tensor, size: int) -> TaskView:
    """The view of some units; of all of them without a detour, which keeps the kernel's rules."""
    return TaskView(model, label, None if len(units) == size else units)


def task_labels(model: nn.Module, dataset: Any) -> list[int | None]:
    """The task labels in a dataset; ``[None]`` for a model that takes none."""
    if not is_multi_task_module(model):
        return [None]
    if hasattr(dataset, "targets_task_labels"):
        return [*sorted(int(label) for label in dataset.targets_task_labels.uniques)]
    found: set[int] = set()
    for _, _, *rest in in_order(dataset, BATCH):
        if not rest:
            raise DataTypeError(
                "expected items (x, y, task label) for a model with one head per task, got (x, y)"
            )
        found.update(int(label) for label in rest[-1])
    return [*sorted(found)]


def largest_label(dataset: Any) -> int:
    """The largest class in a dataset."""
    return max(classes_of(dataset))


def classes_of(dataset: Any) -> set[int]:
    """The classes in a dataset."""
    if hasattr(dataset, "targets") and hasattr(dataset.targets, "uniques"):
        return {int(label) for label in dataset.targets.uniques}
    return {int(label) for _, y in Samples(dataset) for label in y.unique()}


def evaluated(dataset: Any) -> Any:
    """A dataset with its evaluation transforms, if it has any."""
    return dataset.eval() if hasattr(dataset, "eval") else dataset


def samples_by_label(model: nn.Module, dataset: Any) -> dict[int | None, Pairs]:
    """Pairs (x, y) of a dataset, by task label if the model takes one."""
    if isinstance(dataset, tuple) or not hasattr(dataset, "__getitem__"):
        raise DataTypeError(
            f"expected a dataset of items (x, y), got {type(dataset).__name__}: give the dataset "
            f"of a loader, or TensorDataset(x, y)"
        )
    if not len(dataset):
        raise DataError("expected data, got an empty dataset")
    labels = task_labels(model, dataset)
    return {label: _kept(Samples(evaluated(dataset), label)) for label in labels}


class Samples:
    """A dataset's pairs (x, y), with evaluation transforms; may be walked through again.

    Args:
        dataset: gives ``(x, y)`` or ``(x, y, ..., task label)``.
        label: only samples of this task, or ``None`` for all.
    """

    def __init__(self, dataset: Any, label: int | None = None) -> None:
        self._dataset, self._label = dataset, label

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y, *rest in in_order(self._dataset, BATCH):
            if self._label is None:
                yield x, y
            elif bool((own := rest[-1] == self._label).any()):
                yield x[own], y[own]


def in_order(dataset: Any, batch_size: int) -> DataLoader[Any]:
    """Every sample once. Reading must not draw from the global random generator: it has its own."""
    return DataLoader(
        dataset,
        batch_size=batch_size,
        collate_fn=getattr(dataset, "collate_fn", None),
        generator=torch.Generator(),
    )


def _kept(samples: Samples) -> Pairs:
    """The pairs in memory, unless they are too many: going through transforms takes time."""
    first = next(iter(samples), None)
    if first is None or len(samples) * first[0][0].nbytes > KEPT_BYTES:
        return samples
    return list(samples)
