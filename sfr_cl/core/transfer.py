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

from sfr_cl.core.basis import InducingInputs
from sfr_cl.core.linalg import sites, transposed_product, transposed_solve
from sfr_cl.core.state import State
from sfr_cl.core.sums import DualSums
from sfr_cl.data.inputs import Inputs, concat, leaves, length, same, tree_map
from sfr_cl.errors import MismatchError


@dataclass(frozen=True)
class Sites:
    """Site parameters at Z; see the module."""

    z: Inputs
    sums: DualSums
    """In the coordinates of u."""
    reference: Tensor
    """alpha of the data the network was trained on, ``[C, M]``, in the coordinates of u."""
    kind: tuple[str, str] | None = None
    """The likelihood, and where it was linearised, if that is known: how the sums are read."""
    given: bool = False
    """Whether Z was given, and not chosen from data."""

    @staticmethod
    def none(z: Inputs, num_outputs: int, num_kernels: int = 1) -> Sites:
        """No data at all, over some inducing inputs."""
        sums = DualSums.zeros(num_outputs, num_kernels, length(z), leaves(z)[0][1].device)
        return Sites(z, sums, sums.gradient)

    @staticmethod
    def of(state: State) -> Sites:
        """The sites of a state over inducing inputs."""
        basis = inducing(state)
        reference = transposed_solve(basis.factor, state.reference)
        sums, spec = state.sums.on_values(basis.factor), state.spec
        kind = spec.likelihood.name, spec.linearize_at
        return Sites(basis.z, sums, reference, kind, basis.given)

    def at(self, state: State) -> State:
        """The sites added to a state over the same inducing inputs, at any weights."""
        factor = state.basis.factor
        sums = state.sums + self.sums.whitened(factor)
        return state.with_sums(sums, state.reference + transposed_product(factor, self.reference))

    @property
    def num_outputs(self) -> int:
        """C."""
        return len(self.sums.seen)

    def with_outputs(self, num_outputs: int) -> Sites:
        """Sites of a shared kernel, with more outputs that no target has observed."""
        if len(self.sums.weight) > 1 or num_outputs < self.num_outputs:
            raise MismatchError(
                f"expected sites of a shared kernel and at least {self.num_outputs} outputs, got "
                f"{len(self.sums.weight)} kernels and {num_outputs} outputs"
            )
        extra = num_outputs - self.num_outputs
        return replace(
            self,
            sums=self.sums.pad_outputs(self.sums.weight, extra, carry=False),
            reference=torch.nn.functional.pad(self.reference, (0, 0, 0, extra)),
        )

    def __add__(self, other: Sites) -> Sites:
        """Sites over the same inducing inputs."""
        return replace(
            self,
            sums=self.sums + other.sums,
            reference=self.reference + other.reference,
            kind=_kind([self, other]),
        )

    @staticmethod
    def join(parts: Sequence[Sites]) -> Sites:
        """Sites over all the inducing inputs of several."""
        return Sites(
            concat([part.z for part in parts]),
            DualSums.join([part.sums for part in parts]),
            torch.cat([part.reference for part in parts], dim=1),
            _kind(parts),
            all(part.given for part in parts),
        )

    def to(self, device: torch.device) -> Sites:
        """The sites on another device."""
        z = tree_map(lambda leaf: leaf.to(device), self.z)
        return replace(self, z=z, sums=self.sums.to(device), reference=self.reference.to(device))


def _kind(parts: Sequence[Sites]) -> tuple[str, str] | None:
    """What several sites have in common, as far as it is known."""
    kinds = {part.kind for part in parts if part.kind is not None}
    if len(kinds) > 1:
        named = ", ".join(sorted(f"{name!r} at the {where}" for name, where in kinds))
        raise MismatchError(
            f"expected sites of one likelihood, linearised alike, got {named}: build both alike"
        )
    return kinds.pop() if kinds else None


def project_precision(precision: Tensor, old: InducingInputs, new: InducingInputs) -> Tensor:
    """A precision on u = f(Z) as one on u' = f(Z'), ``[K, M, M]`` to ``[K, M', M']``.

    With C = K(Z', Z) K^-1, the mean of u' given u, B' = C (K P K) C' and P' = K'^-1 B' K'^-1.
    """
    onto = old.onto(new)
    weight = old.factor.mT @ precision @ old.factor
    return sites(new.factor, onto @ weight @ onto.mT)


def inducing(state: State) -> InducingInputs:
    """The inducing inputs of a state, or an error where its features have none."""
    if not isinstance(state.basis, InducingInputs):
        raise MismatchError(
            "expected a posterior over inducing inputs, got one over features without any: build "
            "it with inducing=..."
        )
    return state.basis


def aligned(mine: State, theirs: State) -> tuple[State, State] | None:
    """Two states over the inducing inputs that neither has dropped; ``None`` if others differ."""
    left, right = inducing(mine), inducing(theirs)
    if same(left.z, right.z):
        return mine, theirs
    if left.size + len(left.dropped) != right.size + len(right.dropped):
        return None
    common = set(left.places) & set(right.places)
    found = [_only(state, common) for state in (mine, theirs)] if common else []
    if not found or not same(*(inducing(state).z for state in found)):
        return None
    return found[0], found[1]


def _only(state: State, places: set[int]) -> State:
    """Over the inducing inputs at some places of all there were."""
    device = state.basis.factor.device
    gone = torch.tensor([place not in places for place in inducing(state).places], device=device)
    return state.restricted(gone) if bool(gone.any()) else state
