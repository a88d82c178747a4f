"""The generic rule: per-sample Jacobians by ``torch.func``, contracted. Right for any module."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from sfr_cl import memory
from sfr_cl.errors import ArgumentError
from sfr_cl.inputs import Inputs, length, take
from sfr_cl.kernel.interface import InducingKernel, KernelValues
from sfr_cl.network import FrozenNetwork, plain_attention

CACHE_BYTES = 2**30
"""The Jacobian of the inducing inputs is kept between batches up to this size."""


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

    def features(self, x: Inputs) -> Tensor:
        """Phi with kappa(x, x') = Phi(x) Phi(x')', ``[K, B, D]``."""
        jacobian = self.jacobian(x)
        if self.shared:
            return jacobian.flatten(1)[None] / self.num_outputs**0.5
        return jacobian.transpose(0, 1)

    @torch.no_grad()
    def jacobian(self, x: Inputs) -> Tensor:
        """J(x), ``[B, C, P]``."""

        def outputs(parameters: dict[str, Tensor], row: Inputs) -> Tensor:
            return self.network.single(parameters, row)[: self.num_outputs]

        try:
            with plain_attention():
                rows = vmap(jacrev(outputs), in_dims=(None, 0))(self.network.parameters, x)
        except RuntimeError as error:
            raise ArgumentError(
                f"expected a network that torch.func can differentiate, got {error}"
            ) from error
        return torch.cat([part.flatten(2) for part in rows.values()], dim=2)

    def gram(self, x: Inputs) -> Tensor:
        needed = length(x) * self.bytes_per_input(length(x))
        memory.require(
            needed,
            f"the kernel of {length(x)} inputs",
            "lower inducing or the candidates of greedy, or predict fewer inputs at once",
            self.network.device,
        )
        phi = self.features(x)
        return phi @ phi.mT

    def inducing(self, z: Inputs, batch_size: int) -> InducingKernel:
        return _JacobianAtInducing(self, z, batch_size)


class _JacobianAtInducing:
    def __init__(self, kernel: JacobianKernel, z: Inputs, batch_size: int) -> None:
        self._kernel = kernel
        self._chunks = _split(z, batch_size)
        exact = JacobianKernel(kernel.network.double(), kernel.num_outputs, kernel.shared)
        z = exact.network.prepare(z)
        size = length(z) * kernel.num_outputs * kernel.num_parameters * torch.float64.itemsize
        kept = [exact.features(z)] if size <= CACHE_BYTES else None
        chunks = _split(z, batch_size)
        self.gram = torch.cat([_against(exact, exact.features(c), kept, chunks) for c in chunks], 1)
        self._kept = kept and [kept[0].to(kernel.network.dtype)]

    def __call__(self, x: Inputs, *, diagonal: bool = False) -> KernelValues:
        outputs = self._kernel.network(x)
        phi = self._kernel.features(x)
        return KernelValues(
            outputs,
            _against(self._kernel, phi, self._kept, self._chunks),
            phi.square().sum(2) if diagonal else None,
        )


def _split(x: Inputs, size: int) -> list[Inputs]:
    return [take(x, slice(start, start + size)) for start in range(0, length(x), size)]


def _against(
    kernel: JacobianKernel, phi: Tensor, kept: list[Tensor] | None, chunks: list[Inputs]
) -> Tensor:
    """phi against the features of Z: those kept, or made anew, a chunk at a time."""
    features = kept or (kernel.features(chunk) for chunk in chunks)
    return torch.cat([phi @ part.mT for part in features], dim=2)
