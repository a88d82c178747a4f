"""Peak memory of a piece of work, above what the process had before."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_megabytes(work: Callable[[], Value]) -> float | None:
    """The rise of resident memory during `work()`; `None` where the system does not tell.

    Linux keeps a high-water mark of a process's memory, and forgets it on request. What the
    allocator holds back for later is given up first, so that its reuse counts.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
        CLEAR.write_text("5")
        before = _kilobytes("VmRSS")
        work()
        return max(0.0, (_kilobytes("VmHWM") - before) / 1024)
    except (OSError, AttributeError):
        return None


def _kilobytes(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1])
