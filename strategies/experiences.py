"""An experience's samples as a posterior takes them: by task label, every sample once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from avalanche.models.utils import is_multi_task_module
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sfr_cl.errors import DataError, DataTypeError

Pairs = Iterable[tuple[Tensor, Tensor]]

PairsByLabel = Mapping[int | None, Pairs]
"""Pairs (x, y) by task label; one entry, ``None``, for a model without labels."""

BATCH = 512
KEPT_BYTES = 2**30
"""An experience is read once and kept while a posterior is built, up to this size."""


class ExperienceData:
    """A dataset's pairs (x, y), with evaluation transforms; may be walked through again.

    Args:
        dataset: gives ``(x, y)`` or ``(x, y, ..., task label)``.
        label: only samples of this task, or ``None`` for all.
    """

    def __init__(self, dataset: Any, label: int | None = None) -> None:
        self._dataset, self._label = evaluated(dataset), label

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y, *rest in in_order(self._dataset, BATCH):
            if self._label is None:
                yield x, y
            elif bool((own := rest[-1] == self._label).any()):
                yield x[own], y[own]


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


def _kept(data: ExperienceData) -> Pairs:
    """The pairs in memory, unless they are too many: going through transforms takes time."""
    first = next(iter(data), None)
    if first is None or len(data) * first[0][0].nbytes > KEPT_BYTES:
        return data
    return list(data)
