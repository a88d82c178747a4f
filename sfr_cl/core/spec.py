"""What the user asked for, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from sfr_cl import likelihoods
from sfr_cl.data.arguments import choice, positive, whole
from sfr_cl.errors import ArgumentError
from sfr_cl.likelihoods import Likelihood

OPTIONS = ("output_kernel", "parameters", "mean", "linearize_at", "dtype")
"""Fields that fix what the sums mean: stored in files, and equal in posteriors that are added."""

GIVEN = ("prior_precision", "logit_scale", "num_outputs", "batch_size")
"""Fields that say how the next fit starts: stored in files, and free to differ in what is added."""

CHOICES = {
    "output_kernel": ("shared", "per_output"),
    "mean": ("natural", "dual", "network"),
    "linearize_at": ("prior", "posterior", "network"),
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Spec:
    """The keywords of :class:`~sfr_cl.SFRPosterior`. They never change after construction."""

    likelihood: Likelihood
    output_kernel: str
    parameters: str | tuple[str, ...]
    mean: str
    linearize_at: str
    dtype: torch.dtype
    prior_precision: float | None = None
    """delta; ``None``: the default, which is learned of regression and of classes at the prior."""
    logit_scale: float | None = None
    """What logits are multiplied with; ``None``: the default, which is learned at the prior."""
    num_outputs: int | None = None
    """C; ``None``: the network's."""
    batch_size: int | None = None
    """``None``: as many rows as modest memory allows."""

    @staticmethod
    def checked(
        likelihood: str | Likelihood,
        *,
        noise_variance: float | Sequence[float] | str = "learn",
        output_kernel: str = "shared",
        parameters: str | Sequence[str] = "all",
        mean: str = "natural",
        linearize_at: str | None = None,
        dtype: torch.dtype = torch.float64,
        prior_precision: float | None = None,
        logit_scale: float | None = None,
        num_outputs: int | None = None,
        batch_size: int | None = None,
    ) -> Spec:
        """A spec from keywords, or an :class:`~sfr_cl.errors.ArgumentError`."""
        made = likelihoods.make(likelihood, noise_variance)
        choice("mean", mean, CHOICES["mean"])
        if linearize_at is None:
            linearize_at = "network" if mean != "natural" else made.linearize_at
        choice("output_kernel", output_kernel, CHOICES["output_kernel"])
        choice("linearize_at", linearize_at, CHOICES["linearize_at"])
        if mean != "natural" and linearize_at != "network":
            raise ArgumentError(
                f"expected linearize_at='network' for mean={mean!r}, which is about the network's "
                f"outputs, got {linearize_at!r}: leave linearize_at out, or use mean='natural'"
            )
        if linearize_at == "posterior" and made.noise_scale is not None:
            raise ArgumentError(
                f"expected linearize_at='prior' for {made.name!r}, which is exact there, got "
                f"'posterior': leave linearize_at out"
            )
        if logit_scale is not None and not made.has_logits:
            raise ArgumentError(
                f"expected logit_scale with 'classification' or 'binary' only, got {logit_scale!r} "
                f"with {made.name!r}"
            )
        if dtype not in DTYPES.values():
            raise ArgumentError(f"expected dtype torch.float64 or torch.float32, got {dtype}")
        if not isinstance(parameters, Sequence):
            raise ArgumentError(
                f"expected parameters to be 'all', 'last_layer' or a list of names, got "
                f"{parameters!r}"
            )
        return Spec(
            likelihood=made,
            output_kernel=output_kernel,
            parameters=parameters if isinstance(parameters, str) else tuple(parameters),
            mean=mean,
            linearize_at=linearize_at,
            dtype=dtype,
            prior_precision=None
            if prior_precision is None
            else positive("prior_precision", prior_precision),
            logit_scale=None if logit_scale is None else positive("logit_scale", logit_scale),
            num_outputs=None if num_outputs is None else whole("num_outputs", num_outputs),
            batch_size=None if batch_size is None else whole("batch_size", batch_size),
        )

    @cached_property
    def shared(self) -> bool:
        """One kernel for all outputs."""
        return self.output_kernel == "shared"

    @cached_property
    def at_prior(self) -> bool:
        """Data is linearised at f = 0."""
        return self.linearize_at == "prior"

    @cached_property
    def at_posterior(self) -> bool:
        """Each batch is linearised at its mode given all before: the order of data matters."""
        return self.linearize_at == "posterior"

    @cached_property
    def any_outputs(self) -> bool:
        """The network gives its kernel only, so that there may be more or fewer outputs."""
        return self.shared and self.linearize_at != "network"

    def require_order_free(self, what: str) -> None:
        """Refuse what needs terms that do not depend on the data before them."""
        if self.at_posterior:
            raise ArgumentError(
                f"expected linearize_at='prior' or 'network' {what}, got 'posterior', where each "
                f"batch is linearised given all before it: build the posterior with one of them, "
                f"or fit it again to the data that is to count"
            )

    @cached_property
    def link(self) -> str:
        """The default link: logits at the prior are moderate already."""
        return "map" if self.at_prior else "probit"

    @property
    def learns_precision(self) -> bool:
        """Whether delta is that of greatest evidence whenever the sums are solved."""
        knows = self.likelihood.noise_scale is not None or self.has_prior_logits
        return self.prior_precision is None and knows

    @cached_property
    def has_prior_logits(self) -> bool:
        """Whether f is a logit whose size says little: data is linearised far from it."""
        return self.at_prior and self.likelihood.has_logits

    def outputs(self, kernel_outputs: int) -> int:
        """C for a network with some number of outputs, or an error where they must agree."""
        wanted = self.num_outputs or kernel_outputs
        if wanted != kernel_outputs and not self.any_outputs:
            raise ArgumentError(
                f"expected num_outputs to be the network's, {kernel_outputs}, got {wanted}: only a "
                f"shared kernel, not linearised at the network, takes other numbers of outputs"
            )
        self.likelihood.require_outputs(wanted)
        return wanted

    def given(self) -> dict[str, Any]:
        """The :data:`GIVEN`, as they were given."""
        return {name: getattr(self, name) for name in GIVEN}

    def options(self) -> dict[str, Any]:
        """The :data:`OPTIONS` as values a JSON file can hold."""
        values = {name: getattr(self, name) for name in OPTIONS}
        return {**values, "dtype": str(self.dtype).removeprefix("torch.")}

    @staticmethod
    def from_options(values: dict[str, Any], likelihood: Likelihood) -> Spec:
        """The inverse of :meth:`options`."""
        dtype = DTYPES.get(str(values["dtype"]))
        if dtype is None:
            raise ArgumentError(
                f"expected dtype {' or '.join(DTYPES)}, got {values['dtype']!r:.60}"
            )
        return Spec.checked(likelihood, **{**values, "dtype": dtype})
