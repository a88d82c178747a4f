"""What all checks are made of: a condition, and a message that says what came instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def expect(condition: bool, what: str, got: object) -> None:
    """An ``AssertionError``, unless the condition holds."""
    if not condition:
        raise AssertionError(f"expected {what}, got {got!r:.200}")


def expect_close(found: Tensor, expected: Tensor, what: str, tolerance: float = 1e-8) -> None:
    """Two tensors of one shape whose values agree."""
    expect(
        found.shape == expected.shape, f"{what} of shape {list(expected.shape)}", list(found.shape)
    )
    gap = float((found.double() - expected.double()).abs().max()) if found.numel() else 0.0
    scale = 1 + float(expected.double().abs().max()) if found.numel() else 1.0
    expect(gap <= tolerance * scale, f"{what} within {tolerance:g} of {scale:g}", gap)


def expect_same(found: Any, expected: Any, what: str) -> None:
    """Two trees of tensors and plain values that are equal, tensors bit for bit."""
    expect(type(found) is type(expected), f"{what} to be a {type(expected).__name__}", found)
    if isinstance(expected, Tensor):
        form = (expected.dtype, list(expected.shape))
        expect(
            (found.dtype, list(found.shape)) == form,
            f"{what} of {form}",
            (found.dtype, found.shape),
        )
        same = torch.equal(found.nan_to_num(), expected.nan_to_num())
        expect(
            same and torch.equal(found.isnan(), expected.isnan()), f"{what} to be {expected}", found
        )
    elif isinstance(expected, Mapping):
        expect(found.keys() == expected.keys(), f"{what} with {sorted(expected)}", sorted(found))
        for key, value in expected.items():
            expect_same(found[key], value, f"{what}[{key!r}]")
    elif isinstance(expected, list | tuple):
        expect(len(found) == len(expected), f"{what} of {len(expected)}", len(found))
        for index, value in enumerate(expected):
            expect_same(found[index], value, f"{what}[{index}]")
    else:
        expect(bool(found == expected), f"{what} to be {expected!r:.200}", found)
