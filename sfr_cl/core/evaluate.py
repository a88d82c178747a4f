"""A likelihood's methods, and what is said where one of a custom likelihood does not fit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sfr_cl.errors import DataError, SFRError, first_line
from sfr_cl.likelihoods import Likelihood, require_shape


def call(likelihood: Likelihood, method: str, *arguments: Any) -> Any:
    """What a method gives; its errors are about the targets, which it checks."""
    try:
        return getattr(likelihood, method)(*arguments)
    except (SFRError, torch.OutOfMemoryError):
        raise
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        raise DataError(
            f"expected targets that {likelihood.name!r} takes, got an error in its {method} "
            f"({first_line(error)}): check the targets, and the likelihood with "
            f"sfr_cl.testing.check_likelihood"
        ) from error


def targets(likelihood: Likelihood, num_outputs: int, y: Tensor) -> Tensor:
    """Targets, checked, in the form the other methods take."""
    found: Tensor = call(likelihood, "targets", y, num_outputs)
    return found


def gradient(likelihood: Likelihood, f: Tensor, y: Tensor) -> Tensor:
    """a, ``[B, C]``."""
    return numbers(likelihood, "gradient", call(likelihood, "gradient", f, y), f.shape)


def curvature(likelihood: Likelihood, f: Tensor, y: Tensor) -> Tensor:
    """b, ``[B, C]``."""
    return numbers(likelihood, "curvature", call(likelihood, "curvature", f, y), f.shape)


def log_prob(likelihood: Likelihood, f: Tensor, y: Tensor) -> Tensor:
    """log p(y | f), ``[B]``, which may be NaN where a step is tried."""
    found = call(likelihood, "log_prob", f, y)
    return require_shape(likelihood, "log_prob", found, f.shape[:1])


def log_prob_by_output(likelihood: Likelihood, f: Tensor, y: Tensor) -> Tensor:
    """log p(y | f) by output, ``[B, C]``."""
    return numbers(
        likelihood, "log_prob_by_output", call(likelihood, "log_prob_by_output", f, y), f.shape
    )


def numbers(likelihood: Likelihood, method: str, found: Any, shape: torch.Size) -> Tensor:
    """What a method gave, which must be numbers of some shape."""
    found = require_shape(likelihood, method, found, shape)
    if bool(found.isnan().any()):
        raise DataError(
            f"expected numbers from {method} of {likelihood.name!r}, got NaN: check the targets, "
            f"and the likelihood with sfr_cl.testing.check_likelihood"
        )
    return found
