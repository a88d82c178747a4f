"""Bytes that methods keep; and resident memory of this process, on Linux."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from sfr_cl import SFRPosterior

NETWORK = "network."
"""What names in a posterior's state start with that are the network's weights."""
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def tensor_bytes(kept: Any) -> int:
    """Of all tensors in lists and dictionaries within each other.

    >>> import torch
    >>> tensor_bytes({"a": [torch.zeros(2)], "b": None})
    8
    """
    if isinstance(kept, Tensor):
        return kept.nbytes
    parts = kept.values() if isinstance(kept, dict) else kept
    return sum(map(tensor_bytes, parts)) if isinstance(kept, dict | list | tuple) else 0


def posterior_bytes(posterior: SFRPosterior) -> int:
    """What a posterior keeps beside the network: inducing inputs, sums and factors."""
    tensors = posterior.state_dict()["tensors"]
    return sum(value.nbytes for name, value in tensors.items() if not name.startswith(NETWORK))


def resident_megabytes() -> float:
    """In use now, less what the allocator holds back for later, which is given up first."""
    ctypes.CDLL(None).malloc_trim(0)
    return _megabytes("VmRSS")


def peak_megabytes(work: Callable[[], object]) -> float | None:
    """The rise of resident memory during `work()`; `None` where the system does not tell.

    Linux keeps a high-water mark of a process's memory, and forgets it on request.
    """
    try:
        before = resident_megabytes()
        CLEAR.write_text("5")
        work()
        return max(0.0, _megabytes("VmHWM") - before)
    except (OSError, AttributeError):
        return None


def _megabytes(field: str) -> float:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024
