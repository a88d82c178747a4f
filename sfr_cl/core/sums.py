"""The dual parameters: all data seen so far, as sums over the inducing inputs.

With phi_i = L^-1 kappa(Z, x_i) (see :mod:`sfr_cl.core.linalg`), and a_i, b_i the gradient and
curvature of log p(y_i | f) at the datum's linearisation point f^_i (paper, eq. 11, whitened):

    alpha = sum_i phi_i a_i      eta = sum_i phi_i (a_i + b_i f~_i)      W = sum_i b_i phi_i phi_i'

f~ is f^ less the prior mean. No term depends on any other datum, so absorbing is adding, forgetting
subtracting, merging adding, discounting scaling. Neither delta nor a Gaussian noise is in the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from sfr_cl.core import evaluate
from sfr_cl.core.linalg import sites, transposed_product, transposed_solve
from sfr_cl.errors import DataError
from sfr_cl.likelihoods import Likelihood

SEEN = 1e-9
"""A class counts as seen above this weight: discounting and forgetting leave rounding behind."""


@dataclass(frozen=True)
class Terms:
    """Gradient, curvature and linearisation point of a batch: what it adds to the sums."""

    gradient: Tensor
    """a, ``[B, C]``."""
    curvature: Tensor
    """b, ``[B, C]``."""
    point: Tensor
    """f~, ``[B, C]``."""
    constant: Tensor
    """log p - a f~ - b f~^2 / 2, ``[B, C]``: the datum's part of the evidence, by output."""
    seen: Tensor
    """Which outputs each target observes, ``[B, C]``."""

    def take(self, index: slice) -> Terms:
        """Some rows."""
        return Terms(*(getattr(self, field.name)[index] for field in fields(self)))

    @staticmethod
    def join(parts: Sequence[Terms]) -> Terms:
        """One batch of several."""
        names = [field.name for field in fields(Terms)]
        return Terms(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    @staticmethod
    def of(gradient: Tensor, curvature: Tensor) -> Terms:
        """Given terms at f~ = 0, ``[B, C]`` each, of targets that observe every output."""
        zeros = torch.zeros_like(gradient)
        return Terms(gradient, curvature, zeros, zeros, torch.ones_like(gradient))

    @staticmethod
    def at_prior(likelihood: Likelihood, y: Tensor, num_outputs: int, *, shared: bool) -> Terms:
        """Terms at f^ = 0, to be read with :meth:`Likelihood.prior_reading`."""
        names = "gradient", "curvature", "log_prob_by_output"
        statistics = evaluate.call(likelihood, "prior_statistics", y, num_outputs)
        shape = torch.Size((len(y), num_outputs))
        gradient, curvature, log_prob = (
            evaluate.numbers(likelihood, name, found, shape)
            for name, found in zip(names, statistics, strict=True)
        )
        _require_concave(likelihood, curvature, "f = 0")
        curvature = _averaged(curvature) if shared else curvature
        seen = likelihood.seen(y, num_outputs)
        return Terms(gradient, curvature, torch.zeros_like(gradient), log_prob, seen)

    @staticmethod
    def at_outputs(
        likelihood: Likelihood, f: Tensor, point: Tensor, y: Tensor, *, shared: bool
    ) -> Terms:
        """Terms at the network's outputs f^, with f~ = ``point``; a shared kernel shares b."""
        b = evaluate.curvature(likelihood, f, y)
        _require_concave(likelihood, b, "the network's outputs")
        return Terms._at(likelihood, f, _averaged(b) if shared else b, point, y)

    @staticmethod
    def at_mode(likelihood: Likelihood, f: Tensor, y: Tensor, *, shared: bool) -> Terms:
        """Terms at a mode of the data itself, where no curvature counts as a negative one."""
        b = evaluate.curvature(likelihood, f, y).clamp_min(0)
        return Terms._at(likelihood, f, _averaged(b) if shared else b, f, y)

    @staticmethod
    def _at(likelihood: Likelihood, f: Tensor, b: Tensor, point: Tensor, y: Tensor) -> Terms:
        a = evaluate.gradient(likelihood, f, y)
        log_prob = evaluate.log_prob_by_output(likelihood, f, y)
        constant = log_prob - a * point - b * point.square() / 2
        return Terms(a, b, point, constant, likelihood.seen(y, f.shape[1]))


def _averaged(curvature: Tensor) -> Tensor:
    """What outputs with a shared kernel have in common."""
    return curvature.mean(1, keepdim=True).expand_as(curvature)


def _require_concave(likelihood: Likelihood, curvature: Tensor, where: str) -> None:
    if bool((curvature < 0).any()):
        raise DataError(
            f"expected a curvature of log p(y | f) that is not negative at {where}, got "
            f"{float(curvature.amin()):.3g} from {likelihood.name!r}: use "
            f"linearize_at='posterior'"
        )


@dataclass(frozen=True)
class DualSums:
    """The sums. Immutable: every operation returns new ones."""

    gradient: Tensor
    """sum phi a, ``[C, M]``."""
    point: Tensor
    """sum phi b f~, ``[C, M]``."""
    mass: Tensor
    """sum phi, ``[K, M]``: what an offset of a, known only when reading, is multiplied with."""
    weight: Tensor
    """W = sum b phi phi', ``[K, M, M]``."""
    constant: Tensor
    """sum of the data's parts of the evidence, ``[C]``."""
    seen: Tensor
    """Targets that observe each output, ``[C]``."""
    count: Tensor
    """Number of data."""

    @staticmethod
    def zeros(
        num_outputs: int, num_kernels: int, size: int, device: torch.device | None = None
    ) -> DualSums:
        """No data, over ``size`` features."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        vectors = zeros(num_outputs, size)
        return DualSums(
            gradient=vectors,
            point=vectors,
            mass=zeros(num_kernels, size),
            weight=zeros(num_kernels, size, size),
            constant=zeros(num_outputs),
            seen=zeros(num_outputs),
            count=zeros(),
        )

    @staticmethod
    def of(features: Tensor, terms: Terms, sample_weights: Tensor | None = None) -> DualSums:
        """The terms of one batch with features ``[K, B, M]``; each once, or with its weight."""
        a, b, point = (t.double() for t in (terms.gradient, terms.curvature, terms.point))
        constant, seen = terms.constant.double(), terms.seen
        if sample_weights is not None:
            a, b = sample_weights[:, None] * a, sample_weights[:, None] * b
            constant, seen = sample_weights[:, None] * constant, sample_weights[:, None] * seen
        bf = b * point
        weights = b.mT[: len(features), :, None]
        weighted = features if bool((weights == 1).all()) else features * weights
        if len(features) == 1:
            gradient, shift = a.mT @ features[0], bf.mT @ features[0]
        else:
            gradient = torch.einsum("bc,cbm->cm", a, features)
            shift = torch.einsum("bc,cbm->cm", bf, features)
        count = torch.tensor(float(len(a)), dtype=torch.float64, device=a.device)
        return DualSums(
            gradient=gradient,
            point=shift,
            mass=features.sum(1) if sample_weights is None else sample_weights @ features,
            weight=weighted.mT @ features,
            constant=constant.sum(0),
            seen=seen.sum(0),
            count=count if sample_weights is None else sample_weights.sum(),
        )

    def __add__(self, other: DualSums) -> DualSums:
        return DualSums(*(a + b for a, b in zip(self.tensors(), other.tensors(), strict=True)))

    def __sub__(self, other: DualSums) -> DualSums:
        return self + other * -1.0

    def __mul__(self, factor: float) -> DualSums:
        return DualSums(*(value * factor for value in self.tensors()))

    def trace(self) -> float:
        """Of W, over all kernels."""
        return float(self.weight.diagonal(dim1=-2, dim2=-1).sum())

    def require_finite(self) -> None:
        """Refuse sums that have overflowed."""
        if not all(torch.isfinite(value).all() for value in self.tensors()):
            raise DataError(
                "expected data whose sums are finite, got an overflow: the inputs, the targets or "
                "the network's outputs are too large"
            )

    def named(self) -> dict[str, Tensor]:
        """The sums by name, in the order of the fields."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @staticmethod
    def from_named(values: Mapping[str, Tensor]) -> DualSums:
        """The inverse of :meth:`named`; version 0.1.0 had one constant for all outputs."""
        constant, seen = values["constant"], values["seen"]
        if constant.ndim < seen.ndim:
            constant = (constant / len(seen)).expand_as(seen).clone()
        return DualSums(**{**values, "constant": constant})

    def tensors(self) -> list[Tensor]:
        """The sums in the order of the fields."""
        return list(self.named().values())

    def to(self, device: torch.device) -> DualSums:
        """The sums on another device."""
        return DualSums(*(value.to(device) for value in self.tensors()))

    def on_values(self, factor: Tensor) -> DualSums:
        """The sums as site parameters on u = f(Z): vectors h = L^-T v, matrices P = L^-T W L^-1.

        What data says about u does not depend on the weights; phi does, through L.
        """
        return self._mapped(lambda v: transposed_solve(factor, v), sites(factor, self.weight))

    def whitened(self, factor: Tensor) -> DualSums:
        """The inverse of :meth:`on_values`, with the whitening factors of any weights."""
        return self.projected(factor.mT)

    def projected(self, onto: Tensor) -> DualSums:
        """The sums over other features phi' = A phi.

        Args:
            onto: A, ``[K, M', M]``.
        """
        weight = onto @ self.weight @ onto.mT
        return self._mapped(lambda v: transposed_product(onto.mT, v), weight)

    def _mapped(self, vectors: Callable[[Tensor], Tensor], weight: Tensor) -> DualSums:
        return replace(
            self,
            gradient=vectors(self.gradient),
            point=vectors(self.point),
            mass=vectors(self.mass),
            weight=weight,
        )

    @staticmethod
    def join(parts: Sequence[DualSums]) -> DualSums:
        """Site parameters at several sets of inducing inputs, as those at all of them."""

        def joined(name: str) -> Tensor:
            return torch.cat([getattr(part, name) for part in parts], dim=-1)

        def blocks(kernel: int) -> Tensor:
            return torch.block_diag(*(part.weight[kernel] for part in parts))

        return DualSums(
            gradient=joined("gradient"),
            point=joined("point"),
            mass=joined("mass"),
            weight=torch.stack([blocks(kernel) for kernel in range(len(parts[0].weight))]),
            constant=torch.stack([part.constant for part in parts]).sum(0),
            seen=torch.stack([part.seen for part in parts]).sum(0),
            count=torch.stack([part.count for part in parts]).sum(),
        )

    def pad_features(self, extra: int) -> DualSums:
        """With more features, in which old data has no part."""

        def pad(value: Tensor, dims: int) -> Tensor:
            return torch.nn.functional.pad(value, (0, extra) * dims)

        return DualSums(
            gradient=pad(self.gradient, 1),
            point=pad(self.point, 1),
            mass=pad(self.mass, 1),
            weight=pad(self.weight, 2),
            constant=self.constant,
            seen=self.seen,
            count=self.count,
        )

    def pad_outputs(self, factor: Tensor, extra: int, *, carry: bool) -> DualSums:
        """With ``extra`` outputs that no target has observed.

        With one kernel per output, the kernels of the new outputs never met the old data. Where
        that data is evidence against them all the same (``carry``), its site parameters at Z,
        averaged over the old outputs, stand in: P = L^-T W L^-1 becomes L' P L.

        Args:
            factor: whitening factors of all outputs, old and new, ``[K, M, M]``.
            extra: number of new outputs.
            carry: whether old data is evidence against the new outputs.
        """
        mass, weight = self.mass, self.weight
        if len(factor) > len(mass):
            old, new = factor[: len(mass)], factor[len(mass) :]
            new_mass, new_weight = torch.zeros_like(new[:, 0]), torch.zeros_like(new)
            if carry:
                masses = transposed_solve(old, mass).mean(0).expand(len(new), -1)
                new_weight = new.mT @ sites(old, weight).mean(0) @ new
                new_mass = transposed_product(new, masses)
            mass, weight = torch.cat([mass, new_mass]), torch.cat([weight, new_weight])
        return DualSums(
            gradient=torch.nn.functional.pad(self.gradient, (0, 0, 0, extra)),
            point=torch.nn.functional.pad(self.point, (0, 0, 0, extra)),
            mass=mass,
            weight=weight,
            constant=torch.nn.functional.pad(self.constant, (0, extra)),
            seen=torch.nn.functional.pad(self.seen, (0, extra)),
            count=self.count,
        )
