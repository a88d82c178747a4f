"""Names that were changed: the old ones work, and warn."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def renamed(function: Callable[P, R], old: str) -> Callable[P, R]:
    """A function or method under the name it had before."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        warn(old, function.__name__)
        return function(*args, **kwargs)

    call.__doc__ = f"The old name of :func:`{function.__name__}`."
    return call


def warn(old: str, new: str) -> None:
    """Say that a name has another one now."""
    warnings.warn(f"{old} is {new} now", FutureWarning, stacklevel=3)
