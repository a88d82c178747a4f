"""Regression tables in two halves: the one trained on, and the one that comes late."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sfr_cl.data.arguments import choice
from sfr_cl.errors import DataError

from ..harness.datasets import find

FEATURES = {"airfoil": 5, "boston": 13, "protein": 9}
"""The data sets, and the columns before the target."""
TRAIN_SHARE, VALID_SHARE = 0.7, 0.15


class Pairs(NamedTuple):
    """Inputs [N, D] and targets [N, 1]."""

    x: Tensor
    y: Tensor

    def __add__(self, other: "Pairs") -> "Pairs":  # type: ignore[override] # pairs of rows add up
        """The rows of both."""
        return Pairs(torch.cat([self.x, other.x]), torch.cat([self.y, other.y]))


@dataclass(frozen=True)
class Table:
    """A data set as its file has it."""

    name: str
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Part:
    """Rows for training, for early stopping and choices, and for the test."""

    train: Pairs
    valid: Pairs
    test: Pairs

    def __add__(self, other: "Part") -> "Part":
        return Part(self.train + other.train, self.valid + other.valid, self.test + other.test)


@dataclass(frozen=True)
class Halves:
    """D1 has the smaller values of the first feature, D2 the larger ones."""

    first: Part
    second: Part

    @property
    def both(self) -> Part:
        """D1 and D2."""
        return self.first + self.second


def load(name: str, data_root: Path | None = None) -> Table:
    """The table `regression/NAME.csv` of the first data root that has it."""
    choice("data", name, FEATURES)
    content = f"{FEATURES[name]} features, then the target, separated by commas, no header"
    path = find(f"regression/{name}.csv", data_root, content)
    try:
        rows = np.loadtxt(path, delimiter=",", ndmin=2)
    except ValueError as error:
        raise DataError(f"expected numbers separated by commas in {path}, got {error}") from error
    wanted = FEATURES[name] + 1
    if rows.shape[1] != wanted:
        raise DataError(
            f"expected {wanted} columns in {path}, {FEATURES[name]} features and the target, got "
            f"{rows.shape[1]}: replace the file"
        )
    if not np.isfinite(rows).all():
        raise DataError(f"expected finite numbers in {path}, got others: drop such rows")
    values = torch.from_numpy(rows)
    return Table(name, values[:, :-1], values[:, -1:])


def halves(table: Table, seed: int) -> Halves:
    """Each half in random parts; all standardised by the training rows of both."""
    generator = torch.Generator().manual_seed(seed)
    order = table.x[:, 0].argsort(stable=True)
    middle = len(order) // 2
    parts = [_shuffled_parts(half, generator) for half in (order[:middle], order[middle:])]
    known = torch.cat([train for train, _, _ in parts])
    x, y = (_standardised(values, known) for values in (table.x, table.y))
    first, second = (Part(*(Pairs(x[rows], y[rows]) for rows in part)) for part in parts)
    return Halves(first, second)


def _shuffled_parts(rows: Tensor, generator: torch.Generator) -> list[Tensor]:
    mixed = rows[torch.randperm(len(rows), generator=generator)]
    train, valid = (round(share * len(rows)) for share in (TRAIN_SHARE, VALID_SHARE))
    return list(mixed.split([train, valid, len(rows) - train - valid]))


def _standardised(values: Tensor, known: Tensor) -> Tensor:
    mean, deviation = values[known].mean(0), values[known].std(0)
    return (values - mean) / deviation.clamp_min(torch.finfo(values.dtype).tiny)
