"""Predictive distributions of a batch: torch's, that take targets as ``fit`` does.

Torch broadcasts a value against a distribution, so that ``[B]`` against ``[B, 1]`` would be the
densities of every target under every prediction. Here a target meets its own prediction only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor, distributions
from torch.distributions import Distribution

from sfr_cl.data import targets
from sfr_cl.data.inputs import as_tensor
from sfr_cl.errors import DataError, SFRError, first_line


class _OfTargets(Distribution):
    """Values are targets as ``fit`` takes them, or samples, with further dimensions in front."""

    _read: ClassVar[staticmethod[[Tensor, int], Tensor]]
    """Targets of some number of outputs, checked."""
    _parameter: ClassVar[str]
    """Of shape ``[B, C]``."""

    def log_prob(self, value: Any) -> Tensor:
        """Of the shape of ``value``."""
        y, shape = self._own(value)
        found: Tensor = super().log_prob(y)
        return found.reshape(shape)

    def _own(self, value: Any) -> tuple[Tensor, torch.Size]:
        """Targets in the form of the predictions, and the shape they were given in."""
        parameter, batch = getattr(self, self._parameter), self.batch_shape
        given = as_tensor(value).to(parameter.device)
        columns = batch[parameter.ndim - 1 :]
        if given.shape[-len(batch) :] == batch:
            rows = given.reshape(-1, *columns)
            return self._read(rows, parameter.shape[-1]).reshape(given.shape), given.shape
        found = self._read(given, parameter.shape[-1])
        if found.shape != batch:
            raise DataError(
                f"expected one target for each of {batch[0]} predictions, got shape "
                f"{list(given.shape)}"
            )
        return found, given.shape


class Categorical(_OfTargets, distributions.Categorical):
    """Of classes, ``[B]``."""

    _read = staticmethod(targets.labels)
    _parameter = "logits"


class Bernoulli(_OfTargets, distributions.Bernoulli):
    """Of zeros and ones, ``[B, 1]``."""

    _read = staticmethod(targets.flags)
    _parameter = "logits"


class Normal(_OfTargets, distributions.Normal):
    """Of real numbers, ``[B, C]``."""

    _read = staticmethod(targets.numbers)
    _parameter = "loc"

    def cdf(self, value: Any) -> Tensor:
        """Of the shape of ``value``."""
        y, shape = self._own(value)
        found: Tensor = super().cdf(y)  # type: ignore[no-untyped-call]
        return found.reshape(shape)


class _OfLikelihood(_OfTargets):
    """Of a custom likelihood, beside torch's distribution: its ``targets`` read the values."""

    _base: ClassVar[type[Distribution]]
    _reader: Callable[[Tensor], Tensor]
    _dims: int
    """Of one value for each prediction; samples have more."""
    _device: torch.device

    def cdf(self, value: Any) -> Tensor:
        """Of the shape of ``value``."""
        y, shape = self._own(value)
        found: Tensor = super().cdf(y)
        return found.reshape(shape)

    def entropy(self) -> Tensor:
        """Torch's, which may ask for densities of values of other shapes."""
        plain: Any = _with(object.__new__(self._base), vars(self))
        found: Tensor = plain.entropy()
        return found

    def expand(self, batch_shape: Any, _instance: Any = None) -> Distribution:
        """As torch does."""
        found: Distribution = super().expand(batch_shape, _instance)
        return _with(found, {name: vars(self)[name] for name in ("_reader", "_dims", "_device")})

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_likelihood, (self._base, vars(self))

    def _own(self, value: Any) -> tuple[Tensor, torch.Size]:
        batch, event = self.batch_shape, self.event_shape
        expected = batch + event
        given = as_tensor(value).to(self._device)
        y = given
        if given.ndim <= self._dims or given.shape[-len(expected) :] != expected:
            y = self._reader(given)
            if y.shape != expected:
                raise DataError(
                    f"expected one target for each of {batch[0]} predictions, "
                    f"{list(expected)}, got {list(y.shape)} from shape {list(given.shape)}: let "
                    f"targets and predictive of the likelihood agree in shape"
                )
        alike = not event and y.numel() == given.numel()
        return y, given.shape if alike else y.shape[: y.ndim - len(event)]


def of_likelihood(
    predictive: Distribution, reader: Callable[[Tensor], Tensor], device: torch.device
) -> Distribution:
    """The same, with values read as targets; ours read theirs already.

    Args:
        predictive: of B inputs.
        reader: what brings targets to the form of the predictions.
        device: of the predictions.
    """
    if isinstance(predictive, _OfTargets):
        return predictive
    dims = len(predictive.batch_shape + predictive.event_shape)
    own = {"_reader": reader, "_dims": dims, "_device": device}
    return _of_likelihood(type(predictive), {**vars(predictive), **own})


def _of_likelihood(base: type[Distribution], values: dict[str, Any]) -> Distribution:
    kind: Any = base
    return _with(object.__new__(_subclass(kind)), values)


def _with(found: Distribution, values: dict[str, Any]) -> Distribution:
    for name, value in values.items():
        setattr(found, name, value)
    return found


@lru_cache(maxsize=64)
def _subclass(base: Any) -> type[Distribution]:
    """Of torch's class, under its name, which torch's own functions tell it by."""
    return type(base.__name__, (_OfLikelihood, base), {"_base": base, "__doc__": base.__doc__})


def log_density(predictive: Distribution, y: Tensor) -> Tensor:
    """log p(y | x) of checked targets, summed over outputs, ``[B]`` in float64."""
    log_prob = predictive.log_prob
    if isinstance(predictive, _OfTargets):  # checked already
        log_prob = super(_OfTargets, predictive).log_prob
    try:
        found: Tensor = log_prob(y)
    except SFRError:
        raise
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(
            f"expected targets that have a density, got others ({first_line(error)}): check them"
        ) from error
    if found.shape != predictive.batch_shape:
        raise DataError(
            f"expected a log density for each prediction, {list(predictive.batch_shape)}, got "
            f"{list(found.shape)}: let targets and predictive of the likelihood agree in shape"
        )
    return found.double().reshape(len(y), -1).sum(1)
