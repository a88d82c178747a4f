"""Posterior files: tensors and plain values in safetensors form. Opening one can't run code."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sfr_cl.errors import FileError, MissingFileError

FORMAT = "sfr-cl posterior 1"
TOKEN = 4
"""Random bytes in the names of files not yet in their place."""


def write(
    path: str | os.PathLike[str],
    tensors: dict[str, Tensor],
    values: dict[str, Any],
    *,
    form: str = FORMAT,
) -> None:
    """Write atomically: a reader finds the old file or the new one, whole."""
    path = Path(path)
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    text = json.dumps(values, sort_keys=True, allow_nan=False)
    metadata = {"format": form, "values": text, "sha256": _digest(tensors, text)}
    names = [name for name, value in tensors.items() if value.is_complex()]
    if names:
        metadata["complex"] = json.dumps(names)
    stored = {name: torch.view_as_real(tensors[name]) for name in names}
    content = safetensors.torch.save({**tensors, **stored}, metadata)
    with replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of ``path`` when all went well, and else vanishes."""
    require_folder(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(TOKEN)}")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def require_folder(path: Path) -> None:
    """Refuse a path in a folder that is not there."""
    if not path.parent.is_dir():
        raise MissingFileError(
            f"expected a folder to write {path.name} in, got {path.parent}, which is not there: "
            f"make it first"
        )


def remove_leftovers(path: Path) -> None:
    """Remove what writers of ``path`` left behind when they were killed; none may be at work."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 2 * TOKEN}"):
        leftover.unlink(missing_ok=True)


def read(
    path: str | os.PathLike[str], *, form: str = FORMAT
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and values of a file, after checking that it is ours and as it was written."""
    path = Path(path)
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no file there"
        kind = FileError if path.is_dir() else MissingFileError
        raise kind(
            f"expected {path} to be a posterior written by save, got {found}: check the path"
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        for name in json.loads(metadata.get("complex", "[]")):
            tensors[name] = torch.view_as_complex(tensors[name])
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise FileError(
            f"expected {path} to be a posterior written by save, got a file that is truncated or "
            f"of another kind ({error}): restore it from a copy"
        ) from error
    if metadata.get("format") != form:
        raise FileError(
            f"expected {path} to hold {form!r}, got {metadata.get('format', 'no format')!r}: it "
            f"was not written by this version's save"
        )
    if metadata.get("sha256") != _digest(tensors, metadata.get("values", "")):
        raise FileError(
            f"expected {path} as it was written, got other contents: it was altered or damaged; "
            f"restore it from a copy"
        )
    try:
        values = json.loads(metadata["values"])
    except (ValueError, KeyError, RecursionError) as error:
        raise FileError(f"expected {path} to hold settings, got none that can be read") from error
    if not isinstance(values, dict) or not values:
        raise FileError(f"expected {path} to hold settings by name, got {values!r:.60}")
    return tensors, values


def _digest(tensors: dict[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where folders can be synced."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
