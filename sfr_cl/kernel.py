"""The neural tangent kernel, behind one small interface.

kappa_c(x, x') = J_c(x) J_c(x')' with J_c(x) the derivative of output c with respect to the
parameters at w*. There are K kernels: one per output (``"per_output"``, K = C), or one for all
outputs, their mean (``"shared"``, K = 1). The prior precision is not part of it: k = kappa / delta.

Everything downstream sees only :class:`Kernel` and :class:`InducingKernel`, so that a faster rule
can take the place of :class:`JacobianKernel`, which is right for any module.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from sfr_cl import memory
from sfr_cl.inputs import Inputs, length, take
from sfr_cl.network import FrozenNetwork, plain_attention

CACHE_BYTES = 2**30
"""The Jacobian of the inducing inputs is kept between batches up to this size."""


class KernelValues(NamedTuple):
    """A batch seen from the inducing inputs."""

    outputs: Tensor
    """f(x; w*), ``[B, C]``."""
    cross: Tensor
    """kappa(x, Z), ``[K, B, M]``."""
    diagonal: Tensor | None
    """kappa(x, x), ``[K, B]``, when asked for."""


class InducingKernel(Protocol):
    """The kernel with one side fixed at the inducing inputs Z."""

    gram: Tensor
    """kappa(Z, Z), ``[K, M, M]``."""

    def __call__(self, x: Inputs, *, diagonal: bool = False) -> KernelValues:
        """Evaluate a batch against Z."""
        ...


class Kernel(Protocol):
    """K kernels over inputs."""

    num_kernels: int

    def bytes_per_input(self, num_inducing: int) -> int:
        """Working memory of one row of a batch evaluated against M inducing inputs."""
        ...

    def gram(self, x: Inputs) -> Tensor:
        """kappa(x, x), ``[K, B, B]``."""
        ...

    def inducing(self, z: Inputs, batch_size: int) -> InducingKernel:
        """Fix one side at Z. Rows of Z are worked through ``batch_size`` at a time."""
        ...


class JacobianKernel:
    """The generic rule: per-sample Jacobians by ``torch.func``, contracted.

    Args:
        network: the frozen network.
        num_outputs: C, the outputs the kernel covers. A shared kernel keeps this number, and so
            its values, when a head grows.
        shared: one kernel for all outputs, their mean, instead of one for each.
    """

    def __init__(self, network: FrozenNetwork, num_outputs: int, shared: bool) -> None:
        self.network = network
        self.num_outputs = num_outputs
        self.shared = shared
        self.num_kernels = 1 if shared else num_outputs
        self.num_parameters = sum(p.numel() for p in network.parameters.values())

    def bytes_per_input(self, num_inducing: int) -> int:
        # Twice the Jacobian: its parts by parameter, and the parts joined.
        numbers = 2 * self.num_outputs * self.num_parameters + 3 * self.num_kernels * num_inducing
        return numbers * self.network.dtype.itemsize

    @torch.no_grad()
    def features(self, x: Inputs) -> Tensor:
        """Phi with kappa(x, x') = Phi(x) Phi(x)', ``[K, B, D]``."""

        def outputs(parameters: dict[str, Tensor], row: Inputs) -> Tensor:
            return self.network.single(parameters, row)[: self.num_outputs]

        with plain_attention():
            rows = vmap(jacrev(outputs), in_dims=(None, 0))(self.network.parameters, x)
        jacobian = torch.cat([part.flatten(2) for part in rows.values()], dim=2)
        if self.shared:
            return jacobian.flatten(1)[None] / self.num_outputs**0.5
        return jacobian.transpose(0, 1)

    def gram(self, x: Inputs) -> Tensor:
        needed = length(x) * self.bytes_per_input(length(x))
        memory.require(
            needed, f"the kernel of {length(x)} inputs", "use fewer", self.network.device
        )
        phi = self.features(x)
        return phi @ phi.mT

    def inducing(self, z: Inputs, batch_size: int) -> InducingKernel:
        return _JacobianAtInducing(self, z, batch_size)


def tangent_kernel(network: FrozenNetwork, num_outputs: int, shared: bool) -> Kernel:
    """The kernel of a network's first ``num_outputs`` outputs, by the fastest rule that is exact."""
    return JacobianKernel(network, num_outputs, shared)


class _JacobianAtInducing:
    def __init__(self, kernel: JacobianKernel, z: Inputs, batch_size: int) -> None:
        self._kernel = kernel
        self._chunks = [
            take(z, slice(start, start + batch_size)) for start in range(0, length(z), batch_size)
        ]
        size = (
            length(z) * kernel.num_outputs * kernel.num_parameters * kernel.network.dtype.itemsize
        )
        self._features = [kernel.features(z)] if size <= CACHE_BYTES else None
        self.gram = torch.cat([self._against(kernel.features(c)) for c in self._chunks], dim=1)

    def _against(self, phi: Tensor) -> Tensor:
        chunks = self._features or (self._kernel.features(chunk) for chunk in self._chunks)
        return torch.cat([phi @ chunk.mT for chunk in chunks], dim=2)

    def __call__(self, x: Inputs, *, diagonal: bool = False) -> KernelValues:
        outputs = self._kernel.network(x)
        phi = self._kernel.features(x)
        return KernelValues(outputs, self._against(phi), phi.square().sum(2) if diagonal else None)
