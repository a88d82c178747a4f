"""Arguments of the strategies: the likelihood a criterion stands for, and selectors by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.nn import functional as F

from sfr_cl.data.arguments import choice
from sfr_cl.errors import ArgumentError
from sfr_cl.inducing import Selector, class_balanced, greedy, noise, random, smooth_noise
from sfr_cl.kernel.network import Parameters

LOSSES: dict[Any, str] = {
    nn.CrossEntropyLoss: "classification",
    nn.NLLLoss: "classification",
    F.cross_entropy: "classification",
    nn.MSELoss: "regression",
    F.mse_loss: "regression",
    nn.BCEWithLogitsLoss: "binary",
    F.binary_cross_entropy_with_logits: "binary",
}
LIKELIHOODS = sorted(set(LOSSES.values()))

SelectorMaker = Callable[[int], Selector]

SELECTORS: dict[str, SelectorMaker] = {
    "class_balanced": class_balanced,
    "random": random,
    "greedy": greedy,
    "noise": noise,
    "smooth_noise": smooth_noise,
}

NOISE_SCALE = 1.0
"""Deviation of noise inputs that must not depend on data, for inputs of the order of one."""

WITHOUT_DATA: dict[str, SelectorMaker] = {
    "noise": partial(noise, scale=NOISE_SCALE),
    "smooth_noise": partial(smooth_noise, scale=NOISE_SCALE),
}


def likelihood_of(criterion: Any, given: str | None) -> str:
    """The likelihood of a loss, which must be the one given, if one is."""
    kinds = [criterion, *type(criterion).__mro__]
    found = next((LOSSES[kind] for kind in kinds if _is_known(kind)), None)
    name = getattr(criterion, "__name__", type(criterion).__name__)
    if given is not None:
        choice("likelihood", given, LIKELIHOODS)
        if found not in (None, given):
            raise ArgumentError(
                f"expected a criterion that fits likelihood={given!r}, got {name}, which stands "
                f"for {found!r}: change one of the two"
            )
        return given
    if found is None:
        raise ArgumentError(
            f"expected a criterion whose likelihood is known (CrossEntropyLoss, MSELoss, "
            f"BCEWithLogitsLoss), got {name}: say likelihood= one of {', '.join(LIKELIHOODS)}"
        )
    return found


def require_mean(criterion: Any) -> None:
    """Refuse a loss that is no mean over the mini-batch, which a penalty could be added to."""
    reduction = getattr(criterion, "reduction", "mean")
    if reduction != "mean":
        raise ArgumentError(
            f"expected a criterion that is a mean over the mini-batch, got reduction="
            f"{reduction!r}: the weight tau of the penalty is relative to a mean"
        )


def parameters_of(wanted: Parameters) -> Parameters:
    """What a kernel differentiates: all, the last layer, or names, which the model must know."""
    if isinstance(wanted, str):
        return choice("parameters", wanted, ("all", "last_layer"))
    if not isinstance(wanted, Sequence) or not all(isinstance(name, str) for name in wanted):
        raise ArgumentError(
            f"expected parameters to be 'all', 'last_layer' or a list of names, got {wanted!r}"
        )
    return list(wanted)


def selector(wanted: str | SelectorMaker, count: int, *, without_data: bool = False) -> Selector:
    """A selector of ``count`` inputs, from its name or from what makes one of a count.

    Args:
        wanted: a name, or a callable such as :class:`sfr_cl.greedy`.
        count: M.
        without_data: noise has a fixed deviation, not that of the first batch.
    """
    if callable(wanted):
        try:
            return wanted(count)
        except TypeError as error:
            raise ArgumentError(
                f"expected a function that makes a selector of a count, such as sfr_cl.greedy, got "
                f"{wanted!r:.60}: leave the count to num_inducing ({error})"
            ) from error
    known = SELECTORS | (WITHOUT_DATA if without_data else {})
    if wanted not in known:
        raise ArgumentError(
            f"expected inducing to be one of {', '.join(SELECTORS)}, or a function that makes a "
            f"selector of a count; got {wanted!r}"
        )
    return known[wanted](count)


def _is_known(kind: Any) -> bool:
    try:
        return kind in LOSSES
    except TypeError:  # a criterion that can't be hashed is none of these
        return False
