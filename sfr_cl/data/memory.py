"""How much memory is free, so that a request that can't fit is refused before it is allocated."""

from __future__ import annotations

from pathlib import Path

import torch

from sfr_cl.errors import MemoryLimitError


def available_bytes(device: torch.device) -> int | None:
    """Free memory of a device, or ``None`` where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    meminfo = Path("/proc/meminfo")
    if device.type != "cpu" or not meminfo.exists():
        return None
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024


def require(needed: int, what: str, remedy: str, device: torch.device) -> None:
    """Refuse ``what`` if it needs more bytes than the device has free."""
    free = available_bytes(device)
    if free is not None and needed > free:
        raise MemoryLimitError(
            f"{what} needs {needed:,} bytes ({needed / 2**30:.1f} GiB), and {device} has "
            f"{free:,} free: {remedy}"
        )
