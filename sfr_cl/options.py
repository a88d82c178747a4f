"""What a posterior is: its options, checked once, and stored beside its tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

import torch

from sfr_cl.errors import ArgumentError

CHOICES = {
    "output_kernel": ("shared", "per_output"),
    "mean": ("natural", "dual", "network"),
    "linearize_at": ("prior", "network"),
}


@dataclass(frozen=True)
class Options:
    """Options that fix what the sums mean. They never change after construction."""

    output_kernel: str
    parameters: str | tuple[str, ...]
    mean: str
    linearize_at: str
    dtype: torch.dtype

    @staticmethod
    def checked(
        *,
        output_kernel: str,
        parameters: str | Sequence[str],
        mean: str,
        linearize_at: str | None,
        dtype: torch.dtype,
    ) -> Options:
        """Options from the keywords of :class:`SFRPosterior`, or an :class:`ArgumentError`."""
        if linearize_at is None:
            linearize_at = "prior" if mean == "natural" else "network"
        given = {"output_kernel": output_kernel, "mean": mean, "linearize_at": linearize_at}
        for name, value in given.items():
            if value not in CHOICES[name]:
                raise ArgumentError(
                    f"expected {name} to be one of {', '.join(CHOICES[name])}; got {value!r}"
                )
        if mean != "natural" and linearize_at == "prior":
            raise ArgumentError(
                f"expected linearize_at='network' for mean={mean!r}, which speaks of the network's "
                f"outputs, got 'prior': leave linearize_at out, or use mean='natural'"
            )
        if dtype not in (torch.float32, torch.float64):
            raise ArgumentError(f"expected dtype torch.float64 or torch.float32, got {dtype}")
        if not isinstance(parameters, Sequence):
            raise ArgumentError(
                f"expected parameters to be 'all', 'last_layer' or a list of names, got "
                f"{parameters!r}"
            )
        names = parameters if isinstance(parameters, str) else tuple(parameters)
        return Options(output_kernel, names, mean, linearize_at, dtype)

    @property
    def shared(self) -> bool:
        """One kernel for all outputs."""
        return self.output_kernel == "shared"

    @property
    def at_prior(self) -> bool:
        """Data is linearised at f = 0."""
        return self.linearize_at == "prior"

    @property
    def outputs_are_free(self) -> bool:
        """The network lends its kernel only, so that there may be more or fewer outputs."""
        return self.shared and self.at_prior

    def plain(self) -> dict[str, Any]:
        """As values a JSON file can hold."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "dtype": str(self.dtype).removeprefix("torch.")}

    @staticmethod
    def from_plain(values: dict[str, Any]) -> Options:
        """The inverse of :meth:`plain`."""
        known = {"float32": torch.float32, "float64": torch.float64}
        dtype = known.get(str(values["dtype"]))
        if dtype is None:
            raise ArgumentError(f"expected dtype {' or '.join(known)}, got {values['dtype']!r:.60}")
        names = ("output_kernel", "parameters", "mean", "linearize_at")
        return Options.checked(**{name: values[name] for name in names}, dtype=dtype)


def positive(name: str, value: float) -> float:
    """A positive finite number, or an :class:`ArgumentError`."""
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ArgumentError(f"expected a positive {name}, got {value!r}")
    return float(value)


def whole(name: str, value: int) -> int:
    """A positive integer, or an :class:`ArgumentError`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ArgumentError(f"expected a positive {name}, got {value!r}: a whole number")
    return int(value)
