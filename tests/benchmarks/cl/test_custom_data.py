"""Your own data: read, checked, or refused with the file's name."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from sfr_cl.benchmarks.cl import data
from sfr_cl.errors import DataError


def tensors(x_dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    x = torch.linspace(0, 1, 8 * 9).reshape(8, 3, 3)
    x = (x * 255).to(x_dtype) if x_dtype == torch.uint8 else x.to(x_dtype)
    y = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
    return {"x_train": x, "y_train": y, "x_test": x[:4].clone(), "y_test": y[:4].clone()}


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
