"""Labelled images by name, as tensors in memory; those that no root has are downloaded."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

from sfr_cl import torchvision_operators
from sfr_cl.errors import DataError

from .datasets import roots

torchvision_operators.declare()  # before the first import of torchvision

from torchvision.datasets import CIFAR10, MNIST, FashionMNIST  # noqa: E402
from torchvision.datasets.utils import check_integrity  # noqa: E402

TEST_SHARE_OF_DIGITS = 0.25
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


def digits(name: str, _data_root: Path | None) -> Data:
    """scikit-learn's 1,797 images of 8 x 8."""
    x, y = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    x = x.float().reshape(-1, 1, 8, 8) / 16
    train, test = train_test_split(
        torch.arange(len(y)).numpy(),
        test_size=TEST_SHARE_OF_DIGITS,
        stratify=y.numpy(),
        random_state=0,
    )
    return Data(name, x[train], y[train], x[test], y[test])


def idx(name: str, data_root: Path | None) -> Data:
    """MNIST or Fashion-MNIST: 70,000 images of 28 x 28."""
    kind = FashionMNIST if name == "fmnist" else MNIST
    files = [Path(kind.__name__, "raw", file) for file in IDX_BYTES]
    root = _find(name, files, data_root, lambda root: kind(str(root), download=True))
    _refuse(name, [str(root / file) for file in files if not _is_complete(root / file)])
    (x_train, y_train), (x_test, y_test) = (
        (part.data[:, None].float() / 255, part.targets) for part in idx_parts(root, kind)
    )
    return Data(name, x_train, y_train, x_test, y_test)


def idx_parts(root: Path, kind: type[MNIST] = MNIST) -> list[MNIST]:
    """Training and test part below a root that has the files, images as bytes."""
    return [kind(str(root), train=train) for train in (True, False)]


def _is_complete(idx_file: Path) -> bool:
    """Whether a file of MNIST has its size, and starts as its kind does: bytes, 1 or 3 axes."""
    if not idx_file.is_file() or idx_file.stat().st_size != IDX_BYTES[idx_file.name]:
        return False
    axes = 3 if "idx3" in idx_file.name else 1
    with idx_file.open("rb") as file:
        return file.read(4) == bytes([0, 0, 8, axes])


def cifar10(name: str, data_root: Path | None) -> Data:
    """60,000 images of 3 x 32 x 32."""
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
