"""Data: found, checked, or refused with the file's name."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from sfr_cl.benchmarks import data_roots
from sfr_cl.benchmarks.cl import data
from sfr_cl.errors import ArgumentError, DataError


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder without data, no other root, and downloads that fail at once."""
    monkeypatch.delenv("SFR_CL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(data_roots, "user_cache_path", lambda name: tmp_path / "cache" / name)
    closed = "http://127.0.0.1:9/"
    monkeypatch.setattr(data.MNIST, "mirrors", [closed])
    monkeypatch.setattr(data.FashionMNIST, "mirrors", [closed])
    monkeypatch.setattr(data.CIFAR10, "url", closed)
    return tmp_path


def tensors(x_dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    x = torch.linspace(0, 1, 8 * 9).reshape(8, 3, 3)
    x = (x * 255).to(x_dtype) if x_dtype == torch.uint8 else x.to(x_dtype)
    y = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
    return {"x_train": x, "y_train": y, "x_test": x[:4].clone(), "y_test": y[:4].clone()}


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
    assert data_roots.roots(nowhere / "option") == [
        nowhere / "option",
        nowhere / "environment",
        nowhere / "cache" / "sfr-cl",
    ]


def test_partial_files_are_named(nowhere: Path) -> None:
    folder = nowhere / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name, size in data.IDX_BYTES.items():
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
    for name, size in data.IDX_BYTES.items():
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
    monkeypatch.setattr(data.CIFAR10, "train_list", train)
    monkeypatch.setattr(data.CIFAR10, "test_list", [batch("test_batch")])
    name, checksum = put("batches.meta", {"label_names": list("abcdefghij")})
    meta = {"filename": name, "key": "label_names", "md5": checksum}
    monkeypatch.setattr(data.CIFAR10, "meta", meta)
    loaded = data.load("cifar10", nowhere)
    assert loaded.x_train.shape == (10, 3, 32, 32)
    assert loaded.x_test[1].mean((1, 2)).tolist() == [1, 0, 0]
    assert loaded.y_train.tolist() == [4, 7] * 5
    (folder / "data_batch_3").write_bytes(b"altered")
    with pytest.raises(DataError, match="data_batch_3"):
        data.load("cifar10", nowhere)


@pytest.mark.parametrize("suffix", [".pt", ".npz", ".safetensors"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8])
def test_files_of_tensors_are_read(suffix: str, dtype: torch.dtype, tmp_path: Path) -> None:
    path, content = tmp_path / f"mine{suffix}", tensors(dtype)
    if suffix == ".pt":
        torch.save(content, path)
    elif suffix == ".npz":
        np.savez(path, **{key: value.numpy() for key, value in content.items()})
    else:
        save_file(content, path)
    loaded = data.load(str(path))
    assert loaded.name == "mine"
    assert loaded.x_train.shape == (8, 1, 3, 3)
    assert loaded.x_train.dtype == torch.float32
    assert (loaded.x_train.min(), loaded.x_train.max()) == (0, 1)
    assert torch.equal(loaded.y_test, content["y_test"])


def test_a_file_can_t_take_the_name_of_a_data_set(tmp_path: Path) -> None:
    path = tmp_path / "pmnist.pt"
    torch.save(tensors(), path)
    assert data.load(str(path)).name == "own pmnist"


class Code:
    """Would run when unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("ran"),))


def test_a_torch_file_can_t_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({**tensors(), "more": Code()}, tmp_path / "mine.pt")
    with pytest.raises(DataError, match=r"mine\.pt"):
        data.load(str(tmp_path / "mine.pt"))
    assert not (tmp_path / "ran").exists()


def test_broken_files_are_named(tmp_path: Path) -> None:
    for suffix in (".pt", ".npz", ".safetensors"):
        path = tmp_path / f"broken{suffix}"
        path.write_bytes(b"not a tensor")
        with pytest.raises(DataError, match=path.name):
            data.load(str(path))
    (tmp_path / "table.csv").write_text("1,2")
    with pytest.raises(DataError, match=r"\.pt, \.npz, \.safetensors"):
        data.load(str(tmp_path / "table.csv"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "got no y_test"),
        ({"x_train": torch.full((8, 3, 3), 2.0)}, r"\[0, 1\]"),
        ({"y_train": torch.rand(8)}, "one label"),
        ({"y_train": torch.zeros(7, dtype=torch.long)}, "one label"),
        ({"y_train": torch.full((8,), -1)}, "one label"),
    ],
)
def test_unusable_tensors_are_refused(
    changes: dict[str, Tensor | None], message: str, tmp_path: Path
) -> None:
    content = {k: v for k, v in {**tensors(), **changes}.items() if v is not None}
    torch.save(content, tmp_path / "mine.pt")
    with pytest.raises(DataError, match=message):
        data.load(str(tmp_path / "mine.pt"))


def make_folder(folder: Path, sizes: dict[str, tuple[int, int]]) -> None:
    for name, size in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (255, 0, 51)).save(path)


def test_folders_of_images_are_read(tmp_path: Path) -> None:
    names = [f"{part}/{c}/{i}.png" for part in ("train", "test") for c in "abcd" for i in range(2)]
    make_folder(tmp_path, dict.fromkeys(names, (6, 5)))
    loaded = data.load(str(tmp_path))
    assert loaded.x_train.shape == (8, 3, 5, 6)
    assert loaded.x_train[0, :, 0, 0].tolist() == pytest.approx([1, 0, 0.2])
    assert loaded.y_test.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_unusable_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no train"):
        data.load(str(tmp_path))
    make_folder(tmp_path, {"train/a/1.png": (4, 4), "test/b/1.png": (4, 4)})
    with pytest.raises(DataError, match="same classes"):
        data.load(str(tmp_path))
    make_folder(tmp_path, {"train/b/1.png": (5, 4), "test/a/1.png": (4, 4)})
    with pytest.raises(DataError, match=r"one size.*1\.png"):
        data.load(str(tmp_path))
    (tmp_path / "train" / "b" / "1.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"b.1\.png"):
        data.load(str(tmp_path))
