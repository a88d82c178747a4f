"""A bar for the pass over an experience that a posterior is built by."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from tqdm import tqdm

from .experiences import Pairs

DELAY = 0.5
"""Seconds before a bar is shown: short passes leave the screen alone."""


class Shown:
    """Pairs that show how far they have been walked through."""

    def __init__(self, pairs: Pairs, what: str, total: int) -> None:
        self._pairs, self._what, self._total = pairs, what, total

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        # None: not where nobody watches, as in a log file.
        bar = tqdm(total=self._total, desc=self._what, delay=DELAY, leave=False, disable=None)
        with bar:
            for x, y in self._pairs:
                yield x, y
                bar.update(len(y))


def shown(pairs: Pairs, what: str, total: int, verbose: bool) -> Pairs:
    """The pairs, with a bar if ``verbose``."""
    return Shown(pairs, what, total) if verbose else pairs
