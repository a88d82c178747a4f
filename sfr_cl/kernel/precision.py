"""Arithmetic in the precision that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

DEVICES = ("cpu", "cuda", "xpu")
"""What has float64, and so can hold a posterior."""


@contextmanager
def without_autocast() -> Iterator[None]:
    """Float32 stays float32 where a caller trains in mixed precision; float64 always does."""
    with ExitStack() as regions:
        for device in DEVICES:
            if torch.is_autocast_enabled(device):
                regions.enter_context(torch.autocast(device, enabled=False))
        yield
