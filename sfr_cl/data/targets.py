"""Targets as people give them, checked, in the form that likelihoods take."""

from __future__ import annotations

import torch
from torch import Tensor

from sfr_cl.errors import DataError, DataTypeError

ONE_LOGIT_EACH = (
    "use 'regression' on all of them, or for each label a 'binary' posterior of a network that "
    "gives its logit alone"
)


def labels(y: Tensor, num_outputs: int) -> Tensor:
    """Classes 0..C-1, ``[B]``."""
    if num_outputs < 2:
        raise DataError(
            f"expected a network with two or more outputs for classification, got {num_outputs}: "
            f"use 'binary' for one logit"
        )
    if y.is_complex():
        raise DataTypeError(f"expected integer class labels, got {y.dtype}")
    if y.ndim == 2 and y.shape[1] > 1:
        _refuse_matrix(y, "[B]")
    if y.is_floating_point() or y.dtype == torch.bool:
        whole = y.dtype == torch.bool or bool((y == y.round()).all())
        remedy = "use y.long()" if whole else "use 'regression' for real targets"
        raise DataTypeError(f"expected integer class labels, got {y.dtype}: {remedy}")
    if y.ndim != 1:
        raise DataError(f"expected labels of shape [B], got {list(y.shape)}: use y.reshape(-1)")
    y = y.long()
    low, high = int(y.min()), int(y.max())
    if low < 0:
        raise DataError(
            f"expected labels in 0..{num_outputs - 1}, got {low}: drop rows without a label"
        )
    if high >= num_outputs:
        raise DataError(
            f"expected labels in 0..{num_outputs - 1}, got {high}: for a new class grow the "
            f"network's head and call grow_outputs"
        )
    return y


def flags(y: Tensor, num_outputs: int) -> Tensor:
    """Zeros and ones, ``[B, 1]``."""
    require_one_output(num_outputs)
    if y.is_complex():
        raise DataTypeError(f"expected targets 0 and 1, got {y.dtype}")
    if y.ndim == 2 and y.shape[1] > 1:
        _refuse_matrix(y, "[B] or [B, 1]")
    if y.ndim > 2:
        raise DataError(f"expected targets of shape [B] or [B, 1], got {list(y.shape)}")
    if not ((y == 0) | (y == 1)).all():
        found, remedy = "other values", "use 'classification' for more classes"
        if ((y >= 0) & (y <= 1)).all():
            found = "probabilities (soft labels), which are not supported"
            remedy = "use y > 0.5, or draw from them with y.bernoulli()"
        elif (y.abs() == 1).all():
            found, remedy = "-1 and 1", "use y > 0"
        raise DataError(f"expected targets 0 and 1, got {found}: {remedy}")
    return y.reshape(-1, 1).double()


def numbers(y: Tensor, num_outputs: int) -> Tensor:
    """Real numbers, ``[B, C]``."""
    if y.is_complex():
        raise DataTypeError(f"expected real targets, got {y.dtype}")
    if y.ndim == 1 and num_outputs == 1:
        y = y[:, None]
    if y.ndim != 2 or y.shape[1] != num_outputs:
        raise DataError(
            f"expected targets of shape [B, {num_outputs}], one for each output of the "
            f"network, got {list(y.shape)}"
        )
    y = y.double()
    if not torch.isfinite(y).all():
        raise DataError("expected finite targets, got NaN or infinity: drop such rows")
    return y


def require_one_output(num_outputs: int) -> None:
    """Refuse outputs that ``"binary"`` has no targets for."""
    if num_outputs != 1:
        raise DataError(
            f"expected one output (a logit) for 'binary', got {num_outputs}: use 'classification' "
            f"for one of several classes; for several labels at once, {ONE_LOGIT_EACH}"
        )


def _refuse_matrix(y: Tensor, wanted: str) -> None:
    """Several columns, where there is one target for each input: say what they seem to be."""
    found, remedy = f"{list(y.shape)}", "give one target for each input"
    total = y.double().sum(1)
    if bool(((y == 0) | (y == 1)).all()):
        if bool((total == 1).all()):
            found, remedy = f"{found}, one-hot rows", "use 'classification' with y.argmax(1)"
        else:
            found = f"{found}, several labels of one input, which are not supported"
            remedy = ONE_LOGIT_EACH
    elif bool((y >= 0).all()) and bool(((total - 1).abs() < 1e-2).all()):
        found = f"{found}, class probabilities (soft labels), which are not supported"
        remedy = (
            "use 'classification' with the likeliest class, y.argmax(1), or one drawn from them, "
            "y.multinomial(1)[:, 0]"
        )
    raise DataError(f"expected targets of shape {wanted}, got {found}: {remedy}")
