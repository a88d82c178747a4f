"""Taking data out of a state again."""

from __future__ import annotations

from torch import Tensor

from sfr_cl.duals import DualSums
from sfr_cl.errors import DataError
from sfr_cl.evidence import SEEN
from sfr_cl.likelihoods import GaussianLikelihood
from sfr_cl.linalg import JITTER, is_semidefinite
from sfr_cl.state import State


def removed(state: State, sums: DualSums) -> State:
    """The state without some sums, or an error where they can't have been in it.

    Sums can't tell whether these very samples were absorbed. What can be told is refused: more
    samples, of all or of a class, than were seen, and a posterior left indefinite.
    """
    left = state.sums - sums
    tolerance = SEEN * max(1.0, float(state.sums.count))
    if float(left.count) < -tolerance or bool((left.seen < -tolerance).any()):
        raise DataError(
            f"expected to forget at most what was seen, {float(state.sums.count):g} samples "
            f"({_listing(state.sums.seen)} by output), got more: check what was absorbed, and "
            f"the weight if it was discounted"
        )
    squares, before = -float(left.constant), -float(state.sums.constant)
    if isinstance(state.likelihood, GaussianLikelihood) and squares < -tolerance * before:
        raise DataError(
            "expected targets that were absorbed, got some whose squares add up to more than "
            "those seen: check that they are the ones absorbed"
        )
    scale = state.sums.weight.diagonal(dim1=-2, dim2=-1).amax()
    if not is_semidefinite(left.weight, scale, JITTER[state.options.dtype]):
        raise DataError(
            "expected samples that were absorbed, got some that leave the posterior indefinite:"
            " they were never seen, were discounted, or came before add_inducing"
        )
    return state.with_sums(left)


def _listing(values: Tensor) -> str:
    return ", ".join(f"{value:g}" for value in values.tolist())
