"""Images by name: found, checked, or refused with the file's name."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from sfr_cl.benchmarks.cl import data
from sfr_cl.benchmarks.harness import datasets, images
from sfr_cl.errors import ArgumentError, DataError


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder without data, no other root, and downloads that fail at once."""
    monkeypatch.delenv("SFR_CL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "user_cache_path", lambda name: tmp_path / "cache" / name)
    closed = "http://127.0.0.1:9/"
    monkeypatch.setattr(images.MNIST, "mirrors", [closed])
    monkeypatch.setattr(images.FashionMNIST, "mirrors", [closed])
    monkeypatch.setattr(images.CIFAR10, "url", closed)
    return tmp_path


def test_digits_are_images_in_the_unit_interval() -> None:
    digits = data.load("digits")
    assert digits.x_train.shape[1:] == (1, 8, 8)
    assert len(digits.y_train) + len(digits.y_test) == 1797
    assert (digits.x_train.min(), digits.x_train.max()) == (0, 1)
    assert digits.num_classes == 10
    assert torch.equal(digits.x_train, data.load("digits").x_train)


@pytest.mark.parametrize("name", ["mnist", "fmnist", "pmnist"])
def test_idx_files_are_read(name: str, data_root: Path) -> None:
    loaded = data.load(name, data_root)
    assert loaded.x_train.shape == (60_000, 1, 28, 28)
    assert loaded.x_test.shape == (10_000, 1, 28, 28)
    assert (loaded.x_train.min(), loaded.x_train.max()) == (0, 1)
    assert torch.bincount(loaded.y_train).min() > 5000


def test_unknown_names_get_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match=r"digits, mnist, fmnist, pmnist, cifar10.*'imagenet'"):
        data.load("imagenet")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mnist", "MNIST/raw/train-images-idx3-ubyte"),
        ("fmnist", "FashionMNIST/raw/t10k-labels-idx1-ubyte"),
        ("cifar10", "cifar-10-batches-py/test_batch"),
    ],
)
def test_missing_data_is_explained_with_the_layout(name: str, file: str, nowhere: Path) -> None:
    with pytest.raises(DataError) as caught:
        data.load(name)
    message = str(caught.value)
    assert f"DATA_ROOT/{file}" in message
    assert "--data-root" in message
    assert "SFR_CL_DATA" in message
    assert str(nowhere / "cache") in message


def test_roots_are_searched_in_order(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SFR_CL_DATA", str(nowhere / "environment"))
    assert datasets.roots(nowhere / "option") == [
        nowhere / "option",
        nowhere / "environment",
        nowhere / "cache" / "sfr-cl",
    ]


def test_partial_files_are_named(nowhere: Path) -> None:
    folder = nowhere / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name, size in images.IDX_BYTES.items():
        with (folder / name).open("wb") as file:
            file.write(bytes([0, 0, 8, 3 if "idx3" in name else 1]))
            file.truncate(size)
    (folder / "train-labels-idx1-ubyte").write_bytes(b"\0" * 100)
    (folder / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(DataError) as caught:
        data.load("mnist", nowhere)
    message = str(caught.value)
    assert str(folder / "train-labels-idx1-ubyte") in message
    assert str(folder / "t10k-images-idx3-ubyte") in message
    assert "train-images" not in message


def test_files_of_the_right_size_that_hold_something_else_are_named(nowhere: Path) -> None:
    folder = nowhere / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name, size in images.IDX_BYTES.items():
        with (folder / name).open("wb") as file:
            file.truncate(size)
    with pytest.raises(DataError, match="train-images-idx3-ubyte"):
        data.load("mnist", nowhere)


def test_altered_cifar_files_are_named(nowhere: Path) -> None:
    folder = nowhere / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(b"not a batch")
    with pytest.raises(DataError, match="data_batch_1"):
        data.load("cifar10", nowhere)


def test_cifar_files_are_read(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of two images each, in the format of the real ones."""
    from torchvision.datasets.utils import calculate_md5

    folder = nowhere / "cifar-10-batches-py"
    folder.mkdir()

    def put(name: str, content: object) -> list[str]:
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, calculate_md5(str(folder / name))]

    def batch(name: str) -> list[str]:
        pixels = np.zeros((2, 3072), np.uint8)
        pixels[1, :1024] = 255  # a red image
        return put(name, {"data": pixels, "labels": [4, 7]})

    train = [batch(f"data_batch_{index}") for index in range(1, 6)]
    monkeypatch.setattr(images.CIFAR10, "train_list", train)
    monkeypatch.setattr(images.CIFAR10, "test_list", [batch("test_batch")])
    name, checksum = put("batches.meta", {"label_names": list("abcdefghij")})
    meta = {"filename": name, "key": "label_names", "md5": checksum}
    monkeypatch.setattr(images.CIFAR10, "meta", meta)
    loaded = data.load("cifar10", nowhere)
    assert loaded.x_train.shape == (10, 3, 32, 32)
    assert loaded.x_test[1].mean((1, 2)).tolist() == [1, 0, 0]
    assert loaded.y_train.tolist() == [4, 7] * 5
    (folder / "data_batch_3").write_bytes(b"altered")
    with pytest.raises(DataError, match="data_batch_3"):
        data.load("cifar10", nowhere)
