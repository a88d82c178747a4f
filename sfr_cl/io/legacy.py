"""Pickles of version 0.1.0: the class paths and fields of then, read as the records of now.

Nothing here is used to write. An unpickler asks :func:`find_class` first; what it gives for a class
whose fields were others converts them, and then is an object of the class of now.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from sfr_cl.core.basis import InducingInputs
from sfr_cl.core.penalty import Penalty
from sfr_cl.core.spec import Spec
from sfr_cl.core.state import State
from sfr_cl.core.sums import DualSums, Terms
from sfr_cl.kernel import TangentKernel
from sfr_cl.posterior import SFRPosterior

MOVED = {
    ("sfr_cl.value_sites", "ValueSites"): "sfr_cl.core.transfer.Sites",
    ("sfr_cl.network", "FrozenNetwork"): "sfr_cl.kernel.network.FrozenNetwork",
    ("sfr_cl.strategies.views", "TaskView"): "sfr_cl.strategies.models.TaskView",
}
"""Classes with the fields they had."""


class _OldPenalty(Penalty):
    def __setstate__(self, fields: dict[str, Any]) -> None:
        object.__setattr__(self, "__class__", Penalty)
        vars(self).update(fields, observed=fields["held"])
        del vars(self)["held"]


class _OldPosterior(SFRPosterior):
    """Of any version: the class has kept its path."""

    def __setstate__(self, fields: dict[str, Any]) -> None:
        self.__class__ = SFRPosterior  # type: ignore[assignment] # as pickles are written now
        vars(self).update(_posterior_fields(fields) if "_options" in fields else fields)


class _OldSums(DualSums):
    """With one constant for all outputs."""

    def __setstate__(self, fields: dict[str, Any]) -> None:
        object.__setattr__(self, "__class__", DualSums)
        vars(self).update(vars(DualSums.from_named(fields)))


class _OldTerms(Terms):
    """With one constant for all outputs."""

    def __setstate__(self, fields: dict[str, Any]) -> None:
        object.__setattr__(self, "__class__", Terms)
        constant, seen = fields["constant"], fields["seen"]
        if constant.ndim < seen.ndim:
            constant = (constant[:, None] / seen.shape[1]).expand_as(seen)
        vars(self).update(fields, constant=constant)


CONVERTED: dict[tuple[str, str], type] = {
    ("sfr_cl.duals", "DualSums"): _OldSums,
    ("sfr_cl.core.sums", "DualSums"): _OldSums,
    ("sfr_cl.duals", "Sites"): _OldTerms,
    ("sfr_cl.core.sums", "Terms"): _OldTerms,
    ("sfr_cl.penalty", "Penalty"): _OldPenalty,
    ("sfr_cl.posterior", "SFRPosterior"): _OldPosterior,
    ("sfr_cl.options", "Options"): SimpleNamespace,  # these two are parts of a posterior
    ("sfr_cl.state", "State"): SimpleNamespace,
}


def find_class(module: str, name: str) -> Any:
    """What reads objects stored under a path; ``None`` where that is the path's class itself."""
    if (module, name) in MOVED:
        path, _, attribute = MOVED[module, name].rpartition(".")
        return getattr(importlib.import_module(path), attribute)
    return CONVERTED.get((module, name))


@contextlib.contextmanager
def readable(pickles: Any) -> Iterator[None]:
    """Let the ``Unpickler`` of a module like ``pickle`` or ``dill`` read them."""
    before = pickles.Unpickler

    class Unpickler(before):  # type: ignore[misc, valid-type] # of any such module
        def find_class(self, module: str, name: str) -> Any:
            return find_class(module, name) or super().find_class(module, name)

    pickles.Unpickler = Unpickler
    try:
        yield
    finally:
        pickles.Unpickler = before


def _posterior_fields(old: dict[str, Any]) -> dict[str, Any]:
    spec = Spec(
        likelihood=old["_likelihood"],
        prior_precision=old["_given_precision"],
        num_outputs=old["_num_outputs"],
        batch_size=old["_batch_size"],
        **vars(old["_options"]),
    )
    state = None
    if old["_fitted"] is not None:
        delta, scale = old["_prior_precision"], old["_logit_scale"]
        if delta is None and spec.likelihood.noise_scale is None:
            delta = 1.0  # the default before it was learned
        held = replace(spec, prior_precision=delta, logit_scale=scale)
        state = _state(held, old["_fitted"])
    found = SFRPosterior.of(spec, old["_network"], state, inducing=old["_inducing"])
    return vars(found)


def _state(spec: Spec, old: SimpleNamespace) -> State:
    kernel = TangentKernel(old.network, old.kernel_outputs, spec.shared, old.z)
    basis = InducingInputs.whitened(kernel, old.z, old.factor, old.batch_size)
    return State(replace(spec, likelihood=old.likelihood), basis, old.sums, old.reference)
