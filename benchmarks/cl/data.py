"""Data sets by name, or from a folder or file of your own."""

from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.model_selection import train_test_split

from sfr_cl.errors import ArgumentError

from ..harness import images
from ..harness.images import Data
from .custom_data import from_file, from_folder

VALIDATION_SHARE = 0.1

LOADERS: dict[str, Callable[[str, Path | None], Data]] = {
    "digits": images.digits,
    "mnist": images.idx,
    "fmnist": images.idx,
    "pmnist": images.idx,
    "cifar10": images.cifar10,
}


def load(name: str, data_root: Path | None = None) -> Data:
    """A data set of :data:`LOADERS`, or the folder or file `name`."""
    if name in LOADERS:
        return LOADERS[name](name, data_root)
    path = Path(name).expanduser()
    if path.is_dir():
        return Data(_custom_name(path), *from_folder(path))
    if path.is_file():
        return Data(_custom_name(path), *from_file(path))
    known = ", ".join(LOADERS)
    raise ArgumentError(
        f"expected data to be one of {known}, or a folder or file, got {name!r}: check the name"
    )


def _custom_name(path: Path) -> str:
    """Never that of a known data set."""
    return path.stem if path.stem not in LOADERS else f"own {path.stem}"


def hold_out(data: Data, seed: int) -> Data:
    """The training data alone, a stratified tenth of it in the place of the test data."""
    kept, held = train_test_split(
        torch.arange(len(data.y_train)).numpy(),
        test_size=VALIDATION_SHARE,
        stratify=data.y_train.numpy(),
        random_state=seed,
    )
    x, y = data.x_train, data.y_train
    return Data(data.name, x[kept], y[kept], x[held], y[held])
