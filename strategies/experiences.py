"""An experience's samples as a posterior takes them: by task label, every sample once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from avalanche.models.utils import is_multi_task_module
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, default_collate

from sfr_cl.data.inputs import Inputs, leaves, take, tree_map
from sfr_cl.errors import DataError, DataTypeError

from .models import unwrapped

Pairs = Iterable[tuple[Inputs, Tensor]]

PairsByLabel = Mapping[int | None, Pairs]
"""Pairs (x, y) by task label; one entry, ``None``, for a model without labels."""

BATCH = 512
ROWS, FEW = 4, 32
"""Samples a network is tried on before it is trained, found among so many."""
KEPT_BYTES = 2**30
"""An experience is read once and kept while a posterior is built, up to this size."""


class ExperienceData:
    """A dataset's pairs (x, y), with evaluation transforms; may be walked through again.

    Args:
        dataset: gives ``(x, y)`` or ``(x, y, ..., task label)``.
        label: only samples of this task, or ``None`` for all.
        size: samples read at once.
    """

    def __init__(self, dataset: Any, label: int | None = None, size: int = BATCH) -> None:
        self._dataset, self._label, self._size = evaluated(dataset), label, size

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        for batch in batches(self._dataset, self._size):
            x, y, *rest = parts_of(batch)
            if self._label is None:
                yield x, y
            elif bool((own := rest[-1] == self._label).any()):
                yield take(x, own), y[own]


def parts_of(batch: Any) -> list[Any]:
    """A mini-batch as (x, y, ...); of another form, it is refused."""
    if not isinstance(batch, list | tuple) or len(batch) < 2:
        names = f" of {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else ""
        raise DataTypeError(
            f"expected mini-batches (x, y) or (x, y, task label), got a "
            f"{type(batch).__name__}{names}: let the dataset give items (x, y), where x may be a "
            f"dict of tensors that the network takes as one argument"
        )
    return [*batch]


def on_device(batch: Any, device: torch.device) -> list[Any]:
    """A mini-batch moved to a device, whose inputs may be a dict or tuple of tensors."""

    def move(leaf: Tensor) -> Tensor:
        return leaf.to(device, non_blocking=True)

    return [tree_map(move, part) for part in parts_of(batch)]


def first_rows(dataset: Any, label: int | None, *, of_classes: bool) -> tuple[Inputs, Tensor]:
    """A few samples of a task, of one class only where there are classes."""
    x, y = next(iter(ExperienceData(dataset, label, FEW if label is None else BATCH)))
    own = y == y[0] if of_classes else torch.ones(len(y), dtype=torch.bool)
    rows = own.nonzero()[:ROWS, 0]
    return take(x, rows), y[rows]


def by_label(model: nn.Module, dataset: Any) -> dict[int | None, Pairs]:
    """Pairs (x, y) of a dataset, by task label if the model takes one."""
    if isinstance(dataset, tuple) or not hasattr(dataset, "__getitem__"):
        raise DataTypeError(
            f"expected a dataset of items (x, y), got {type(dataset).__name__}: give the dataset "
            f"of a loader, or TensorDataset(x, y)"
        )
    require_samples(dataset)
    return {label: _kept(ExperienceData(dataset, label)) for label in task_labels(model, dataset)}


def require_samples(dataset: Any) -> None:
    """Refuse an empty dataset."""
    if not len(dataset):
        raise DataError("expected data, got an empty dataset")


def task_labels(model: nn.Module, dataset: Any) -> list[int | None]:
    """The task labels in a dataset; ``[None]`` for a model that takes none."""
    if not is_multi_task_module(unwrapped(model)):
        return [None]
    if hasattr(dataset, "targets_task_labels"):
        return [*sorted(int(label) for label in dataset.targets_task_labels.uniques)]
    found: set[int] = set()
    for batch in batches(dataset, BATCH):
        _, _, *rest = parts_of(batch)
        if not rest:
            raise DataTypeError(
                "expected items (x, y, task label) for a model with one head per task, got (x, y)"
            )
        found.update(int(label) for label in rest[-1])
    return [*sorted(found)]


def classes_of(dataset: Any) -> set[int]:
    """The classes in a dataset."""
    if hasattr(dataset, "targets") and hasattr(dataset.targets, "uniques"):
        return {int(label) for label in dataset.targets.uniques}
    return classes_in(ExperienceData(dataset))


def classes_in(pairs: Pairs) -> set[int]:
    """The classes in pairs (x, y)."""
    return {int(label) for _, y in pairs for label in y.unique()}


def evaluated(dataset: Any) -> Any:
    """A dataset with its evaluation transforms, if it has any."""
    return dataset.eval() if hasattr(dataset, "eval") else dataset


def in_order(dataset: Any, batch_size: int) -> DataLoader[Any]:
    """Every sample once. Reading must not draw from the global random generator: it has its own."""
    return DataLoader(
        dataset,
        batch_size=batch_size,
        collate_fn=getattr(dataset, "collate_fn", None),
        generator=torch.Generator(),
    )


def batches(dataset: Any, size: int) -> Iterator[Any]:
    """Every sample once, as :func:`in_order`: parts of a stream are too small for a loader."""
    if isinstance(dataset, IterableDataset):
        yield from in_order(dataset, size)
        return
    collate = getattr(dataset, "collate_fn", None) or default_collate
    several = getattr(dataset, "__getitems__", None)
    for start in range(0, len(dataset), size):
        rows = [*range(start, min(start + size, len(dataset)))]
        yield collate(several(rows) if several else [dataset[row] for row in rows])


def _kept(data: ExperienceData) -> Pairs:
    """The pairs in memory, unless they are too many: going through transforms takes time."""
    pairs: list[tuple[Inputs, Tensor]] = []
    for x, y in data:
        if not pairs and len(data) * sum(leaf[0].nbytes for _, leaf in leaves(x)) > KEPT_BYTES:
            return data
        pairs.append((x, y))
    return pairs
