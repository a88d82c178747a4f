"""What f is represented by: features phi(x) of the frozen network.

f(x) = phi(x)' w + the part of the kernel that the features miss, with w ~ N(0, I / delta).
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sfr_cl.core.linalg import JITTER, cholesky, extend_cholesky, transposed_solve
from sfr_cl.data import memory
from sfr_cl.data.inputs import (
    Inputs,
    as_like,
    concat,
    length,
    matching,
    prepare,
    take,
    tree_map,
)
from sfr_cl.errors import ArgumentError, MismatchError, SFRWarning
from sfr_cl.kernel import TangentKernel
from sfr_cl.kernel.network import FrozenNetwork
from sfr_cl.kernel.tangent import AtInducing

WORKING_BYTES = 2**28
"""The default batch size keeps a batch's working memory below this."""

LARGEST_BATCH = 1024

GRAM = "the kernel matrix of the inducing inputs"


@dataclass(frozen=True)
class Features:
    """A batch as the posterior sees it."""

    outputs: Tensor
    """f(x; w*), ``[B, C]``."""
    phi: Tensor
    """Features, ``[K, B, M]``, in float64."""
    diagonal: Tensor | None
    """kappa(x, x), ``[K, B]``, in float64, when asked for."""

    @cached_property
    def unexplained(self) -> Tensor:
        """kappa(x, x) - phi' phi, the prior variance that the features miss, ``[K, B]``."""
        assert self.diagonal is not None
        return (self.diagonal - self.phi.square().sum(2)).clamp_min(0)

    def rotated(self, vectors: Tensor) -> Features:
        """In other orthonormal coordinates U ``[K, M, M]``: phi becomes U' phi."""
        return replace(self, phi=self.phi @ vectors)

    def take(self, index: slice) -> Features:
        """Some rows."""
        diagonal = None if self.diagonal is None else self.diagonal[:, index]
        return Features(self.outputs[index], self.phi[:, index], diagonal)

    @staticmethod
    def join(parts: Sequence[Features]) -> Features:
        """One batch of several."""
        if len(parts) == 1:
            return parts[0]
        diagonals = [part.diagonal for part in parts if part.diagonal is not None]
        return Features(
            torch.cat([part.outputs for part in parts]),
            torch.cat([part.phi for part in parts], dim=1),
            torch.cat(diagonals, dim=1) if diagonals else None,
        )


@dataclass(frozen=True)
class Basis(ABC):
    """A frozen network and its features."""

    network: FrozenNetwork
    kernel_outputs: int
    """Outputs of the network that the kernel covers."""
    batch_size: int
    """Rows worked on at a time."""
    factor: Tensor
    """L, ``[K, M, M]``: u = L phi are the values that site parameters are about."""

    given = False
    """Whether features are of inputs that were given, which stay when these are forgotten."""

    @property
    def num_kernels(self) -> int:
        """K."""
        return len(self.factor)

    @property
    def size(self) -> int:
        """M, the number of features."""
        return self.factor.shape[-1]

    @property
    @abstractmethod
    def scale(self) -> float:
        """A typical kappa(x, x)."""

    @abstractmethod
    def prepare(self, x: Inputs, what: str = "inputs") -> Inputs:
        """Inputs, checked, on the network's device and in its dtype."""

    @abstractmethod
    def like(self, x: Inputs) -> Inputs:
        """Prepared inputs in one shape and dtype, so that they can wait beside others."""

    @abstractmethod
    def features(self, x: Inputs, *, diagonal: bool = False) -> Features:
        """phi of prepared inputs."""

    @abstractmethod
    def along(self, vectors: Tensor) -> Callable[[Inputs], tuple[Tensor, Tensor]]:
        """What gives f, and phi(x)' ``vectors`` ``[B, C]``, of prepared inputs without phi."""

    @abstractmethod
    def gram(self, x: Inputs) -> Tensor:
        """kappa(x, x) of prepared inputs, ``[K, B, B]``."""

    @abstractmethod
    def direction(self, vectors: Tensor) -> dict[str, Tensor]:
        """The weights v with J(x) v = phi(x)' ``vectors``, by parameter, for one output."""

    @abstractmethod
    def onto(self, other: Any) -> Tensor:
        """A with phi_other = A phi for what the features of this one hold, ``[K, M', M]``."""

    def drawn_from(self, x: Inputs) -> Tensor:
        """Which features are of a row of some prepared inputs, ``[M]``."""
        del x
        return torch.zeros(self.size, dtype=torch.bool, device=self.factor.device)

    def without(self, dropped: Tensor) -> tuple[Basis, Tensor]:
        """Without some features, ``[M]``, and A with phi' = A phi."""
        raise MismatchError(
            f"expected inducing inputs to drop {int(dropped.sum())} of, got features without any"
        )

    @abstractmethod
    def grown(self, network: FrozenNetwork, num_outputs: int, *, shared: bool) -> Basis:
        """The same features of a network whose head has grown to some number of outputs."""

    @abstractmethod
    def to(self, device: torch.device) -> Basis:
        """The same on another device."""


@dataclass(frozen=True)
class InducingInputs(Basis):
    """phi(x) = L^-1 kappa(Z, x) with L L' = kappa(Z, Z): the paper's sparse representation."""

    kernel: TangentKernel
    z: Inputs
    at_z: AtInducing
    """kappa with one side fixed at Z."""
    given: bool = False
    """Whether Z was given, and not chosen from data: then it stays, whatever is forgotten."""
    dropped: tuple[int, ...] = ()
    """Places, among all inducing inputs there were, of those that have been dropped since."""

    @staticmethod
    def of(kernel: TangentKernel, z: Inputs, batch_size: int | None = None) -> InducingInputs:
        """Z, prepared, whitened; ``None`` chooses a batch size."""
        kernel = kernel.probing(z)  # no row of the data is kept but those
        size = choose_batch_size(kernel, length(z), batch_size)
        at_z = kernel.inducing(z, size)
        _require_derivatives(at_z.gram)
        _warn_of_duplicates(at_z.gram)
        factor = cholesky(at_z.gram, GRAM, JITTER[kernel.network.dtype])
        return InducingInputs.whitened(kernel, z, factor, size, at_z)

    @staticmethod
    def whitened(
        kernel: TangentKernel,
        z: Inputs,
        factor: Tensor,
        batch_size: int,
        at_z: AtInducing | None = None,
    ) -> InducingInputs:
        """With factors that were computed before."""
        at_z = at_z or kernel.inducing(z, batch_size)
        outputs = kernel.num_outputs
        return InducingInputs(kernel.network, outputs, batch_size, factor, kernel, z, at_z)

    @cached_property
    def scale(self) -> float:
        return float(self.at_z.gram.diagonal(dim1=-2, dim2=-1).mean())

    def prepare(self, x: Inputs, what: str = "inputs") -> Inputs:
        """Inputs, checked, of the form of Z."""
        return prepare(x, self.network.device, self.network.dtype, what, like=self.z)

    def like(self, x: Inputs) -> Inputs:
        """Prepared inputs of the shape of Z and in its dtype."""
        return as_like(x, self.z)

    def features(self, x: Inputs, *, diagonal: bool = False) -> Features:
        values = self.at_z(x, diagonal=diagonal)
        # phi = L^-1 kappa(Z, x), by rows.
        phi = torch.linalg.solve_triangular(
            self.factor.mT, values.cross.double(), upper=True, left=False
        )
        found = None if values.diagonal is None else values.diagonal.double()
        return Features(values.outputs, phi, found)

    def along(self, vectors: Tensor) -> Callable[[Inputs], tuple[Tensor, Tensor]]:
        return self.at_z.along(transposed_solve(self.factor, vectors))

    def gram(self, x: Inputs) -> Tensor:
        return self.kernel.gram(x)

    def direction(self, vectors: Tensor) -> dict[str, Tensor]:
        weights = torch.linalg.solve_triangular(self.factor[0].mT, vectors.mT, upper=True)
        total: dict[str, Tensor] = {}
        for start in range(0, len(weights), self.batch_size):
            rows = slice(start, start + self.batch_size)
            part = weights[rows].to(self.network.dtype)
            for name, value in self.network.gradient(take(self.z, rows), part).items():
                total[name] = total[name] + value if name in total else value
        return total

    def onto(self, other: InducingInputs) -> Tensor:
        return torch.linalg.solve_triangular(other.factor, self.features(other.z).phi, upper=False)

    def drawn_from(self, x: Inputs) -> Tensor:
        """Which inducing inputs are rows of some prepared inputs, bit for bit."""
        return matching(self.z, x)

    @property
    def places(self) -> list[int]:
        """Where Z was among all inducing inputs there were."""
        gone = set(self.dropped)
        return [place for place in range(self.size + len(gone)) if place not in gone]

    def without(self, dropped: Tensor) -> tuple[InducingInputs, Tensor]:
        """Exactly: rows of L are dropped, and L_kept = L' Q with L' lower triangular, Q Q' = I."""
        kept = (~dropped).nonzero()[:, 0]
        q, r = torch.linalg.qr(self.factor[:, kept].mT)
        signs = r.diagonal(dim1=-2, dim2=-1).sign()
        factor = (signs[:, :, None] * r).mT.contiguous()
        z, places = take(self.z, kept), self.places
        kernel = self.kernel.probing(z)
        basis = InducingInputs.whitened(kernel, z, factor, self.batch_size)
        gone = [places[at] for at in dropped.nonzero()[:, 0].tolist()]
        basis = replace(basis, given=self.given, dropped=tuple(sorted([*self.dropped, *gone])))
        return basis, (q * signs[:, None, :]).mT

    def like_origin(self, other: InducingInputs) -> InducingInputs:
        """As inducing inputs that were given, or dropped, as others."""
        return replace(self, given=other.given, dropped=other.dropped)

    def over(self, z: Inputs, batch_size: int | None = None) -> InducingInputs:
        """The same network over other inducing inputs; ``None`` chooses a batch size."""
        return InducingInputs.of(self.kernel, z, batch_size)

    def extended(self, z: Inputs) -> InducingInputs:
        """With more inducing inputs: the features there are stay as they are."""
        joint = concat([self.z, z])
        size = min(self.batch_size, choose_batch_size(self.kernel, length(joint), None))
        at_z = self.kernel.inducing(joint, size)
        _require_derivatives(at_z.gram)
        _warn_of_duplicates(at_z.gram)
        factor = extend_cholesky(self.factor, at_z.gram, GRAM, JITTER[self.network.dtype])
        extended = InducingInputs.whitened(self.kernel, joint, factor, size, at_z)
        return extended.like_origin(self)

    def grown(self, network: FrozenNetwork, num_outputs: int, *, shared: bool) -> InducingInputs:
        """A shared kernel stays that of the first outputs."""
        covered = self.kernel_outputs if shared else num_outputs
        kernel = TangentKernel(network, covered, shared, self.z)
        choose_batch_size(kernel, self.size, self.batch_size)
        at_z = kernel.inducing(self.z, self.batch_size)
        factor = self.factor
        if not shared:
            new = cholesky(at_z.gram[len(factor) :], GRAM, JITTER[network.dtype])
            factor = torch.cat([factor, new])
        grown = InducingInputs.whitened(kernel, self.z, factor, self.batch_size, at_z)
        return grown.like_origin(self)

    def to(self, device: torch.device) -> InducingInputs:
        z = tree_map(lambda leaf: leaf.to(device), self.z)
        kernel = self.kernel.at(self.network.to(device), z)
        moved = InducingInputs.whitened(kernel, z, self.factor.to(device), self.batch_size)
        return moved.like_origin(self)


def choose_batch_size(kernel: TangentKernel, num_inducing: int, requested: int | None) -> int:
    """The requested batch size, or one whose working memory is modest; refused if it can't fit."""
    device = kernel.network.device
    per_input = kernel.bytes_per_input(num_inducing)
    # The kernel matrix, its factor, W, W's factor, and one sum in the making; and Z's side.
    matrices = 5 * kernel.num_kernels * num_inducing**2 * torch.float64.itemsize
    matrices += kernel.bytes_at_inducing(num_inducing)
    memory.require(
        matrices + per_input,
        f"a posterior over {num_inducing} inducing inputs and {kernel.num_kernels} kernel(s)",
        "lower inducing, use output_kernel='shared', or parameters='last_layer'",
        device,
    )
    if requested is None:
        return max(1, min(LARGEST_BATCH, WORKING_BYTES // per_input))
    memory.require(
        matrices + requested * per_input,
        f"a batch of {requested} inputs",
        f"lower batch_size (the default would be {WORKING_BYTES // per_input or 1})",
        device,
    )
    return requested


def _require_derivatives(gram: Tensor) -> None:
    """Refuse a kernel that is zero everywhere."""
    if not gram.diagonal(dim1=-2, dim2=-1).any(-1).all():
        raise ArgumentError(
            "expected outputs that depend on the parameters, got derivatives that are zero at all "
            "inducing inputs: train the network again if it is dead, or give other inputs"
        )


def _warn_of_duplicates(gram: Tensor) -> None:
    """Inducing inputs the kernel can't tell apart waste memory and cost precision."""
    scale = gram.diagonal(dim1=-2, dim2=-1).clamp_min(torch.finfo(gram.dtype).tiny).rsqrt()
    correlation = (scale[:, :, None] * gram * scale[:, None]).mean(0).triu(1)
    copies = int((correlation > 1 - 1e-10).any(0).sum())
    if copies:
        warnings.warn(
            f"{copies} of {gram.shape[-1]} inducing inputs are duplicates or nearly so: they add "
            f"nothing; remove them, or use a selector",
            SFRWarning,
            stacklevel=4,
        )
