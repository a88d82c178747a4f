"""The data sets by name, or from a folder or file of one's own, as tensors in memory."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from torchvision.datasets import CIFAR10, MNIST, FashionMNIST
from torchvision.datasets.utils import check_integrity

from sfr_cl.errors import ArgumentError, DataError

from ..data_roots import roots
from .own_data import from_file, from_folder

TEST_SHARE_OF_DIGITS = 0.25
VALIDATION_SHARE = 0.1
IDX_BYTES = {
    "train-images-idx3-ubyte": 47_040_016,
    "train-labels-idx1-ubyte": 60_008,
    "t10k-images-idx3-ubyte": 7_840_016,
    "t10k-labels-idx1-ubyte": 10_008,
}


@dataclass(frozen=True)
class Data:
    """Inputs in [0, 1], images [N, channels, height, width]; labels 0 to C - 1."""

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor

    @property
    def num_classes(self) -> int:
        return int(self.y_train.max()) + 1


def load(name: str, data_root: Path | None = None) -> Data:
    """A data set of :data:`NAMES`, or the folder or file `name`."""
    if name in NAMES:
        return NAMES[name](name, data_root)
    path = Path(name).expanduser()
    if path.is_dir():
        return Data(_own_name(path), *from_folder(path))
    if path.is_file():
        return Data(_own_name(path), *from_file(path))
    known = ", ".join(NAMES)
    raise ArgumentError(
        f"expected data to be one of {known}, or a folder or file, got {name!r}: check the name"
    )


def _own_name(path: Path) -> str:
    """Never that of a known data set."""
    return path.stem if path.stem not in NAMES else f"own {path.stem}"


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


def _digits(name: str, _data_root: Path | None) -> Data:
    x, y = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    x = x.float().reshape(-1, 1, 8, 8) / 16
    train, test = train_test_split(
        torch.arange(len(y)).numpy(),
        test_size=TEST_SHARE_OF_DIGITS,
        stratify=y.numpy(),
        random_state=0,
    )
    return Data(name, x[train], y[train], x[test], y[test])


def _idx(name: str, data_root: Path | None) -> Data:
    kind = FashionMNIST if name == "fmnist" else MNIST
    files = [Path(kind.__name__, "raw", file) for file in IDX_BYTES]
    root = _find(name, files, data_root, lambda root: kind(str(root), download=True))
    _refuse(name, [str(root / file) for file in files if not _is_complete(root / file)])
    sets = [kind(str(root), train=train) for train in (True, False)]
    (x_train, y_train), (x_test, y_test) = (
        (part.data[:, None].float() / 255, part.targets) for part in sets
    )
    return Data(name, x_train, y_train, x_test, y_test)


def _is_complete(idx_file: Path) -> bool:
    """Whether a file of MNIST has its size, and starts as its kind does: bytes, 1 or 3 axes."""
    if not idx_file.is_file() or idx_file.stat().st_size != IDX_BYTES[idx_file.name]:
        return False
    axes = 3 if "idx3" in idx_file.name else 1
    with idx_file.open("rb") as file:
        return file.read(4) == bytes([0, 0, 8, axes])


def _cifar10(name: str, data_root: Path | None) -> Data:
    meta = CIFAR10.meta["filename"], CIFAR10.meta["md5"]
    lists = [*CIFAR10.train_list, *CIFAR10.test_list, meta]
    files = [Path(CIFAR10.base_folder, file) for file, _ in lists]
    root = _find(name, files, data_root, lambda root: CIFAR10(str(root), download=True))
    wrong = [
        str(root / CIFAR10.base_folder / file)
        for file, checksum in lists
        if not check_integrity(str(root / CIFAR10.base_folder / file), checksum)
    ]
    _refuse(name, wrong)
    sets = [CIFAR10(str(root), train=train) for train in (True, False)]
    (x_train, y_train), (x_test, y_test) = (
        (
            torch.from_numpy(part.data).permute(0, 3, 1, 2).float() / 255,
            torch.tensor(part.targets),
        )
        for part in sets
    )
    return Data(name, x_train, y_train, x_test, y_test)


def _find(
    name: str, files: list[Path], data_root: Path | None, download: Callable[[Path], object]
) -> Path:
    """The first root with any of the files; where there is none, they are downloaded."""
    candidates = roots(data_root)
    for root in candidates:
        if any((root / file).exists() for file in files):
            return root
    target = data_root.expanduser() if data_root else candidates[-1]
    try:
        download(target)
    except (OSError, RuntimeError) as error:
        layout = "\n".join(f"  DATA_ROOT/{file.as_posix()}" for file in files)
        places = ", ".join(str(root) for root in candidates)
        raise DataError(
            f"expected {name} under one of {places}, got none, and the download failed "
            f"({error}): put these files into a folder and name it with --data-root DATA_ROOT "
            f"or SFR_CL_DATA\n{layout}"
        ) from error
    return target


def _refuse(name: str, wrong: list[str]) -> None:
    if wrong:
        raise DataError(
            f"expected the complete files of {name}, got missing, partial or altered ones: "
            f"remove or replace {', '.join(wrong)}"
        )


NAMES: dict[str, Callable[[str, Path | None], Data]] = {
    "digits": _digits,
    "mnist": _idx,
    "fmnist": _idx,
    "pmnist": _idx,
    "cifar10": _cifar10,
}
