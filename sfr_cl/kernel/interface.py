"""What the posterior knows of a kernel.

kappa_c(x, x') = J_c(x) J_c(x')' with J_c(x) the derivative of output c with respect to the
parameters at w*. There are K kernels: one per output (``"per_output"``, K = C), or one for all
outputs, their mean (``"shared"``, K = 1). The prior precision is not part of it: k = kappa / delta.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from sfr_cl.data.inputs import Inputs


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
    """kappa(Z, Z), ``[K, M, M]``, in float64: everything is whitened by it."""

    def __call__(self, x: Inputs, *, diagonal: bool = False) -> KernelValues:
        """Evaluate a batch against Z."""
        ...


class Kernel(Protocol):
    """K kernels over inputs."""

    num_kernels: int

    def bytes_per_input(self, num_inducing: int) -> int:
        """Working memory of one row of a batch evaluated against M inducing inputs."""
        ...

    def bytes_at_inducing(self, num_inducing: int) -> int:
        """Memory that stays taken by the side of M inducing inputs."""
        ...

    def gram(self, x: Inputs) -> Tensor:
        """kappa(x, x), ``[K, B, B]``."""
        ...

    def inducing(self, z: Inputs, batch_size: int) -> InducingKernel:
        """Fix one side at Z. Rows of Z are worked through ``batch_size`` at a time."""
        ...
