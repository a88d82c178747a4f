"""Resident memory of this process, on Linux."""

import ctypes
from collections.abc import Callable
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


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
