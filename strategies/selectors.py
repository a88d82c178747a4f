"""Inducing inputs by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sfr_cl.errors import ArgumentError
from sfr_cl.inducing import Selector, class_balanced, greedy, noise, random, smooth_noise

SelectorMaker = Callable[[int], Selector]

SELECTORS: dict[str, SelectorMaker] = {
    "class_balanced": class_balanced,
    "random": random,
    "greedy": greedy,
    "noise": noise,
    "smooth_noise": smooth_noise,
}

NOISE_SCALE = 1.0
"""Deviation of noise inputs that no data may have a say in, for inputs of the order of one."""

WITHOUT_DATA: dict[str, SelectorMaker] = {
    "noise": partial(noise, scale=NOISE_SCALE),
    "smooth_noise": partial(smooth_noise, scale=NOISE_SCALE),
}


def selector(wanted: str | SelectorMaker, count: int, *, without_data: bool = False) -> Selector:
    """A selector of ``count`` inputs, from its name or from what makes one of a count.

    Args:
        wanted: a name, or a callable such as :class:`sfr_cl.greedy`.
        count: M.
        without_data: noise has a deviation of its own, not that of the first batch.
    """
    if callable(wanted):
        try:
            return wanted(count)
        except TypeError as error:
            raise ArgumentError(
                f"expected a function that makes a selector of a count, such as sfr_cl.greedy, got "
                f"{wanted!r:.60}: leave the count to num_inducing ({error})"
            ) from error
    known = SELECTORS | (WITHOUT_DATA if without_data else {})
    if wanted not in known:
        raise ArgumentError(
            f"expected inducing to be one of {', '.join(SELECTORS)}, or a function that makes a "
            f"selector of a count; got {wanted!r}"
        )
    return known[wanted](count)
