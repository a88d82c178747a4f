"""The eight data sets of the paper's table, all in the package or made here."""

import lzma
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from . import waveform

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Pair = tuple[Tensor, Tensor]

HELD_OUT = 0.3
"""Share of the data that is not trained on: half of it for validation, half for the test."""


@dataclass(frozen=True, eq=False)
class Split:
    """One seed's parts, standardised on the training part; labels are 0 to C - 1."""

    train: Pair
    valid: Pair
    test: Pair
    num_classes: int

    @property
    def num_features(self) -> int:
        return self.train[0].shape[1]


def load(name: str) -> tuple[Array, Labels]:
    """All features [N, D] and labels [N]."""
    x, y = SETS[name](name)
    return np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.int64)


def split(name: str, seed: int) -> Split:
    """70, 15 and 15 % of a set, each with the classes in the proportions of all rows."""
    x, y = load(name)
    indices = np.arange(len(y))
    train, held_out = train_test_split(indices, test_size=HELD_OUT, stratify=y, random_state=seed)
    valid, test = train_test_split(held_out, test_size=0.5, stratify=y[held_out], random_state=seed)
    scale = StandardScaler().fit(x[train])

    def part(rows: Labels) -> Pair:
        features = torch.from_numpy(scale.transform(x[rows])).float()
        return features, torch.from_numpy(y[rows])

    return Split(part(train), part(valid), part(test), num_classes=int(y.max()) + 1)


def _shipped(name: str) -> tuple[Array, Labels]:
    packed = files(__package__).joinpath("tables", f"{name}.csv.xz").read_bytes()
    lines = lzma.decompress(packed).decode("ascii").splitlines()
    table = np.loadtxt(lines, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)


def _digits(name: str) -> tuple[Array, Labels]:
    del name
    x, y = load_digits(return_X_y=True)
    return x, y


def _waveform(name: str) -> tuple[Array, Labels]:
    del name
    return waveform.make()


SETS: dict[str, Callable[[str], tuple[Array, Labels]]] = {
    "australian": _shipped,
    "breast_cancer": _shipped,
    "digits": _digits,
    "glass": _shipped,
    "ionosphere": _shipped,
    "satellite": _shipped,
    "vehicle": _shipped,
    "waveform": _waveform,
}
