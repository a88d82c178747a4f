"""Your own data: a folder of images, or one file of tensors."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torchvision.datasets import ImageFolder
from torchvision.transforms.functional import pil_to_tensor

from sfr_cl.errors import DataError

KEYS = ("x_train", "y_train", "x_test", "y_test")
SUFFIXES = (".pt", ".npz", ".safetensors")

Parts = tuple[Tensor, Tensor, Tensor, Tensor]
"""x_train, y_train, x_test, y_test."""


def from_folder(folder: Path) -> Parts:
    """Images in `train/CLASS/` and `test/CLASS/`, all of one size."""
    for part in ("train", "test"):
        if not (folder / part).is_dir():
            raise DataError(
                f"expected folders train and test in {folder}, got no {part}: lay the images out "
                "as train/CLASS/NAME.png and test/CLASS/NAME.png"
            )
    try:
        train, test = (ImageFolder(str(folder / part)) for part in ("train", "test"))
    except FileNotFoundError as error:
        raise DataError(f"expected a folder of images per class in {folder}, got {error}") from None
    if train.classes != test.classes:
        raise DataError(
            f"expected the same classes in train and test, got {train.classes} and {test.classes}: "
            "give each class a folder in both"
        )
    return (*_images(train), *_images(test))


def _images(folder: ImageFolder) -> tuple[Tensor, Tensor]:
    images, first = [], None
    for path, _ in folder.samples:
        try:
            image = pil_to_tensor(folder.loader(path))
        except (OSError, SyntaxError) as error:
            raise DataError(
                f"expected an image, got one that can't be read: remove or replace {path}"
            ) from error
        first = image.shape if first is None else first
        if image.shape != first:
            raise DataError(
                f"expected images of one size {tuple(first)}, got {tuple(image.shape)}: "
                f"resize {path}"
            )
        images.append(image)
    return torch.stack(images).float() / 255, torch.tensor(folder.targets)


def from_file(path: Path) -> Parts:
    """Tensors x_train, y_train, x_test and y_test in a .pt, .npz or .safetensors file."""
    if path.suffix not in SUFFIXES:
        raise DataError(
            f"expected a file ending in {', '.join(SUFFIXES)}, got {path}: convert it, or name a "
            "folder of images"
        )
    try:
        content = _read(path)
    except Exception as error:  # each format has its own errors, none of them documented
        raise DataError(
            f"expected tensors in {path}, got a file that can't be read ({error}): write it again"
        ) from error
    if missing := [key for key in KEYS if not isinstance(content.get(key), Tensor)]:
        raise DataError(
            f"expected tensors {', '.join(KEYS)} in {path}, got no {', '.join(missing)}: add them"
        )
    x_train, y_train, x_test, y_test = (content[key] for key in KEYS)
    return (*_checked(x_train, y_train, "train", path), *_checked(x_test, y_test, "test", path))


def _read(path: Path) -> dict[str, Any]:
    if path.suffix == ".pt":
        content = torch.load(path, map_location="cpu", weights_only=True)
        return dict(content)
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return {key: torch.from_numpy(arrays[key]) for key in arrays.files}
    return dict(load_file(path))


def _checked(x: Tensor, y: Tensor, part: str, path: Path) -> tuple[Tensor, Tensor]:
    if y.is_floating_point() or y.dim() != 1 or len(y) != len(x) or not len(y) or y.min() < 0:
        raise DataError(
            f"expected one label 0, 1, ... for each input in y_{part} of {path}, got "
            f"{y.dtype} {tuple(y.shape)} for {len(x)} inputs: number the classes from 0"
        )
    x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
    if not (x.min() >= 0 and x.max() <= 1):
        raise DataError(
            f"expected x_{part} of {path} in [0, 1], or bytes, got {x.min():g} to {x.max():g}: "
            "scale it"
        )
    return x[:, None] if x.dim() == 3 else x, y.long()
