"""A bar for the pass over an experience that a posterior is built by."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from tqdm import tqdm

from sfr_cl.data.inputs import Inputs

from .experiences import Pairs

DELAY = 0.5
"""Seconds before a bar is shown: short passes leave the screen alone."""


def shown(pairs: Pairs, what: str, total: int, verbose: bool) -> Iterator[tuple[Inputs, Tensor]]:
    """The pairs, once, with a bar if ``verbose`` that shows how many are through."""
    # None: not where nobody watches, as in a log file.
    disable = None if verbose else True
    with tqdm(total=total, desc=what, delay=DELAY, leave=False, disable=disable) as bar:
        for x, y in pairs:
            yield x, y
            bar.update(len(y))
