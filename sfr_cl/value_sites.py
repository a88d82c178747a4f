"""What data says about the values of f at the inducing inputs, whatever the weights.

A posterior's sums are a Gaussian factor exp(h'u - u'Pu/2) on u = f(Z) for each output, with
h = K^-1 eta and P = K^-1 B K^-1. At other weights, with another kernel K', they read as
B' = K' P K' and eta' = K' h: that is how a posterior outlives the weights it was made at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sfr_cl.duals import DualSums
from sfr_cl.errors import MismatchError
from sfr_cl.inputs import Inputs, concat, leaves, length, tree_map
from sfr_cl.linalg import transposed_product, transposed_solve
from sfr_cl.state import State


@dataclass(frozen=True)
class ValueSites:
    """See the module."""

    z: Inputs
    sums: DualSums
    """In the coordinates of u."""
    reference: Tensor
    """alpha of the data the network was trained on, ``[C, M]``, in the coordinates of u."""

    @staticmethod
    def none(z: Inputs, num_outputs: int, num_kernels: int = 1) -> ValueSites:
        """No data at all, over inducing inputs of one's choice."""
        device = leaves(z)[0][1].device
        size = length(z)
        factor = torch.zeros(num_kernels, size, size, dtype=torch.float64, device=device)
        sums = DualSums.zeros(num_outputs, factor)
        return ValueSites(z, sums, sums.gradient)

    @staticmethod
    def of(state: State) -> ValueSites:
        """The sites of a state."""
        reference = transposed_solve(state.factor, state.reference)
        return ValueSites(state.z, state.sums.on_values(state.factor), reference)

    def at(self, state: State) -> State:
        """The sites added to a state over the same inducing inputs, at any weights."""
        sums = state.sums + self.sums.whitened(state.factor)
        reference = state.reference + transposed_product(state.factor, self.reference)
        return state.with_sums(sums, reference)

    @property
    def num_outputs(self) -> int:
        """C."""
        return len(self.sums.seen)

    def with_outputs(self, num_outputs: int) -> ValueSites:
        """Sites of a shared kernel, with room for outputs that came later."""
        if len(self.sums.weight) > 1 or num_outputs < self.num_outputs:
            raise MismatchError(
                f"expected sites of a shared kernel and at least {self.num_outputs} outputs, got "
                f"{len(self.sums.weight)} kernels and {num_outputs} outputs"
            )
        extra = num_outputs - self.num_outputs
        sums = self.sums.pad_outputs(self.sums.weight, extra, carry=False)
        return replace(
            self, sums=sums, reference=torch.nn.functional.pad(self.reference, (0, 0, 0, extra))
        )

    def __add__(self, other: ValueSites) -> ValueSites:
        """Sites over the same inducing inputs."""
        return replace(
            self, sums=self.sums + other.sums, reference=self.reference + other.reference
        )

    @staticmethod
    def join(parts: Sequence[ValueSites]) -> ValueSites:
        """Sites over all the inducing inputs of several."""
        return ValueSites(
            concat([part.z for part in parts]),
            DualSums.side_by_side([part.sums for part in parts]),
            torch.cat([part.reference for part in parts], dim=1),
        )

    def to(self, device: torch.device) -> ValueSites:
        """The sites on another device."""
        z = tree_map(lambda leaf: leaf.to(device), self.z)
        return ValueSites(z, self.sums.to(device), self.reference.to(device))
