"""The neural tangent kernel of a frozen network."""

from sfr_cl.kernel.tangent import TangentKernel

__all__ = ["TangentKernel"]
