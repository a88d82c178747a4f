"""The neural tangent kernel, behind one small interface."""

from sfr_cl.kernel.interface import InducingKernel, Kernel, KernelValues
from sfr_cl.kernel.tangent import TangentKernel

__all__ = ["InducingKernel", "Kernel", "KernelValues", "TangentKernel"]
