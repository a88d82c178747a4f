"""Which likelihood a strategy's loss stands for."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import functional as F

from sfr_cl.errors import ArgumentError

LOSSES: dict[Any, str] = {
    nn.CrossEntropyLoss: "classification",
    nn.NLLLoss: "classification",
    F.cross_entropy: "classification",
    nn.MSELoss: "regression",
    F.mse_loss: "regression",
    nn.BCEWithLogitsLoss: "binary",
    F.binary_cross_entropy_with_logits: "binary",
}
NAMES = sorted(set(LOSSES.values()))


def require(likelihood: str) -> None:
    """Refuse a name that is none."""
    if likelihood not in NAMES:
        raise ArgumentError(
            f"expected likelihood to be one of {', '.join(NAMES)}; got {likelihood!r}"
        )


def of_criterion(criterion: Any, given: str | None) -> str:
    """The likelihood of a loss, which must be the one given, if one is."""
    kinds = [criterion, *type(criterion).__mro__]
    found = next((LOSSES[kind] for kind in kinds if _known(kind)), None)
    if given is not None:
        require(given)
    if given is None and found is None:
        raise ArgumentError(
            f"expected a criterion whose likelihood is known (CrossEntropyLoss, MSELoss, "
            f"BCEWithLogitsLoss), got {_name(criterion)}: say likelihood= one of "
            f"{', '.join(NAMES)}"
        )
    if given is not None and found is not None and given != found:
        raise ArgumentError(
            f"expected a criterion that fits likelihood={given!r}, got {_name(criterion)}, which "
            f"stands for {found!r}: change one of the two"
        )
    return given or str(found)


def require_mean(criterion: Any) -> None:
    """Refuse a loss that is no mean over the mini-batch, which a penalty could be added to."""
    reduction = getattr(criterion, "reduction", "mean")
    if reduction != "mean":
        raise ArgumentError(
            f"expected a criterion that is a mean over the mini-batch, got reduction="
            f"{reduction!r}: the weight tau of the penalty is relative to a mean"
        )


def _known(kind: Any) -> bool:
    try:
        return kind in LOSSES
    except TypeError:  # a criterion that can't be hashed is none of ours
        return False


def _name(criterion: Any) -> str:
    return getattr(criterion, "__name__", type(criterion).__name__)
