"""The neural tangent kernel, behind one small interface."""

from sfr_cl.inputs import Inputs
from sfr_cl.kernel.interface import InducingKernel, Kernel, KernelValues
from sfr_cl.kernel.jacobian import JacobianKernel
from sfr_cl.kernel.structured import StructuredKernel
from sfr_cl.network import FrozenNetwork

__all__ = [
    "InducingKernel",
    "JacobianKernel",
    "Kernel",
    "KernelValues",
    "StructuredKernel",
    "tangent_kernel",
]


def tangent_kernel(network: FrozenNetwork, num_outputs: int, shared: bool, probe: Inputs) -> Kernel:
    """The kernel of a network's first ``num_outputs`` outputs, by the fastest exact rule.

    Args:
        network: the frozen network.
        num_outputs: outputs the kernel covers.
        shared: one kernel for all outputs, their mean, instead of one for each.
        probe: any input; its first row shows how the network runs.
    """
    structured = StructuredKernel(network, num_outputs, shared, probe)
    return structured if structured.layers else JacobianKernel(network, num_outputs, shared)
