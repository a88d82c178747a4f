"""Samples as the sums take them, evaluated when they come, so that errors come with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from sfr_cl.duals import DualSums, Sites
from sfr_cl.errors import DataError
from sfr_cl.inputs import Inputs, concat, leaves, length, take, tree_map
from sfr_cl.state import State

LARGEST = 1e75
"""Numbers beyond this overflow once they are squared twice."""

LARGEST_SCALE = 1e8
"""kappa(x, x) beyond this times that of the inducing inputs leaves others too few digits."""


@dataclass(frozen=True)
class Samples:
    """Inputs and targets, checked, with the time each was learned at."""

    x: Inputs
    y: Tensor
    times: Tensor
    """On the stream's clock, ``[B]``."""
    scale: Tensor
    """What :meth:`StreamingPosterior.discount` has left of each, ``[B]``."""

    def __len__(self) -> int:
        return len(self.times)

    def take(self, index: slice | Tensor) -> Samples:
        """Some of them."""
        return Samples(take(self.x, index), self.y[index], self.times[index], self.scale[index])

    def scaled(self, gamma: float) -> Samples:
        """With another share of their weight."""
        return Samples(self.x, self.y, self.times, self.scale * gamma)

    def copied(self) -> Samples:
        """In memory of their own, whatever becomes of the caller's."""
        x = tree_map(torch.clone, self.x)
        return Samples(x, self.y.clone(), self.times.clone(), self.scale.clone())

    @staticmethod
    def join(parts: Sequence[Samples]) -> Samples:
        """One after the other."""
        if len(parts) == 1:
            return parts[0]
        return Samples(
            concat([part.x for part in parts]),
            torch.cat([part.y for part in parts]),
            torch.cat([part.times for part in parts]),
            torch.cat([part.scale for part in parts]),
        )


@dataclass(frozen=True)
class Rows:
    """Samples seen through the inducing inputs."""

    samples: Samples
    outputs: Tensor
    """f(x; w*), ``[B, C]``."""
    features: Tensor
    """phi, ``[K, B, M]``."""
    diagonal: Tensor
    """kappa(x, x), ``[K, B]``."""
    sites: Sites

    @staticmethod
    def of(state: State, samples: Samples) -> Rows:
        """Evaluate checked samples."""
        parts = []
        for start in range(0, len(samples), state.batch_size):
            x = take(samples.x, slice(start, start + state.batch_size))
            parts.append(state.features(x, diagonal=True))
        outputs = torch.cat([part[0] for part in parts])
        features = torch.cat([part[1] for part in parts], dim=1)
        diagonal = torch.cat([part[2].double() for part in parts if part[2] is not None], dim=1)
        sites = state.sites(samples.x, outputs, samples.y)
        return Rows(samples, outputs, features, diagonal, sites)

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, index: slice) -> Rows:
        """Some of them."""
        sites = Sites(*(getattr(self.sites, field.name)[index] for field in fields(Sites)))
        return Rows(
            self.samples.take(index),
            self.outputs[index],
            self.features[:, index],
            self.diagonal[:, index],
            sites,
        )

    @staticmethod
    def join(parts: Sequence[Rows]) -> Rows:
        """One after the other."""
        if len(parts) == 1:
            return parts[0]
        names = [field.name for field in fields(Sites)]
        sites = [torch.cat([getattr(part.sites, name) for part in parts]) for name in names]
        return Rows(
            Samples.join([part.samples for part in parts]),
            torch.cat([part.outputs for part in parts]),
            torch.cat([part.features for part in parts], dim=1),
            torch.cat([part.diagonal for part in parts], dim=1),
            Sites(*sites),
        )

    def sums(self, weights: Tensor | None) -> DualSums:
        """Their terms; each once, or with its weight."""
        return DualSums.of(self.features, self.sites, weights)

    def require_moderate(self, state: State) -> None:
        """Refuse numbers that no sum can hold beside others."""
        sites = self.sites
        values = (self.features, self.diagonal, sites.gradient, sites.curvature, sites.constant)
        largest = max(float(value.abs().amax()) for value in values)
        if not all(bool(torch.isfinite(value).all()) for value in values) or largest > LARGEST:
            raise DataError(
                f"expected inputs and targets of moderate size, got some whose kernel or "
                f"likelihood reaches {largest:.0e}: scale them"
            )
        typical = float(state.at_inducing.gram.diagonal(dim1=-2, dim2=-1).mean())
        if float(self.diagonal.amax()) > LARGEST_SCALE * typical:
            raise DataError(
                f"expected inputs of the size of the inducing inputs, got some with a kernel of "
                f"{float(self.diagonal.amax()):.0e} beside {typical:.0e}: scale them"
            )

    @property
    def unexplained(self) -> Tensor:
        """kappa(x, x) - phi' phi, the variance that the inducing inputs leave, ``[K, B]``."""
        return (self.diagonal - self.features.square().sum(2)).clamp_min(0)

    @property
    def curvature(self) -> Tensor:
        """b of each kernel, ``[K, B]``."""
        return self.sites.curvature.double().mT[: len(self.features)]


def checked(state: State, x: Inputs, y: Tensor) -> tuple[Inputs, Tensor]:
    """One batch of inputs and targets in the form of the stream's, or an error."""
    if y.ndim and not len(y):
        raise DataError("expected at least one sample, got none")
    ((inputs, targets),) = state.checked([(x, y)])
    if length(inputs) != len(targets):
        raise DataError(
            f"expected one target for each input, got {length(inputs)} inputs and {len(targets)} "
            f"targets"
        )
    return alike(state, inputs), targets


def alike(state: State, x: Inputs) -> Inputs:
    """Inputs of the shape of Z and in its dtype, so that they can wait beside others."""
    state.require_form(x)
    dtypes = []
    for (_, leaf), (_, known) in zip(leaves(x), leaves(state.z), strict=True):
        dtypes.append(known.dtype)
        if leaf.shape[1:] != known.shape[1:]:
            raise DataError(
                f"expected inputs of shape {list(known.shape[1:])} like those before, got "
                f"{list(leaf.shape[1:])}"
            )
    remaining = iter(dtypes)
    return tree_map(lambda leaf: leaf.to(next(remaining)), x)
