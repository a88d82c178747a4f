"""Inducing inputs: selectors that choose Z before any data is absorbed.

A selector is a callable ``select(batches, kernel) -> Z``. ``batches`` may be walked through any
number of times and yields checked pairs ``(x, y)``; ``kernel`` is the network's tangent kernel.
One's own function can be passed wherever a selector is taken. Random choices follow
``torch.manual_seed``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from sfr_cl import memory
from sfr_cl.errors import ArgumentError, DataError, DataTypeError
from sfr_cl.inputs import Batches, Inputs, concat, length, take, tree_map
from sfr_cl.kernel import Kernel, TangentKernel
from sfr_cl.likelihoods import Likelihood
from sfr_cl.linalg import JITTER
from sfr_cl.network import FrozenNetwork
from sfr_cl.options import positive, whole
from sfr_cl.state import Checked

Pairs = Iterable[tuple[Inputs, Tensor]]
Selector = Callable[[Pairs, Kernel], Inputs]

DEFAULT_COUNT = 512

__all__ = ["Selector", "class_balanced", "greedy", "noise", "random", "smooth_noise"]


@dataclass(frozen=True)
class random:
    """``count`` inputs drawn from the data without replacement."""

    count: int

    def __call__(self, batches: Pairs, kernel: Kernel) -> Inputs:
        del kernel
        reservoir = _Reservoir(whole("number of inducing inputs", self.count))
        for x, _ in batches:
            reservoir.add(x)
        reservoir.require(self.count)
        return reservoir.rows


@dataclass(frozen=True)
class class_balanced:
    """``count`` inputs drawn from the data, as evenly over the classes as the data allows."""

    count: int

    def __call__(self, batches: Pairs, kernel: Kernel) -> Inputs:
        del kernel
        classes: dict[int, _Reservoir] = {}
        for x, y in batches:
            labels = y.reshape(-1).long()
            if len(labels) != len(y) or not (labels == y.reshape(-1)).all():
                raise DataTypeError(
                    "expected class labels for class_balanced, got real-valued targets: use "
                    "random or greedy"
                )
            for label in labels.unique().tolist():
                reservoir = classes.setdefault(
                    label, _Reservoir(whole("number of inducing inputs", self.count))
                )
                reservoir.add(take(x, labels == label))
        sizes = {label: length(reservoir.rows) for label, reservoir in classes.items()}
        _require(self.count, sum(sizes.values()))
        quota = dict.fromkeys(sizes, 0)
        while (left := self.count - sum(quota.values())) > 0:
            open_classes = [label for label in sorted(sizes) if quota[label] < sizes[label]]
            for label in open_classes[:left]:
                quota[label] += 1
        parts = [take(classes[label].rows, slice(0, quota[label])) for label in sorted(sizes)]
        return concat([part for part in parts if length(part)])


@dataclass(frozen=True)
class greedy:
    """``count`` inputs by greatest conditional variance: pivoted Cholesky on a random sample.

    Fewer than ``count`` if the kernel can't tell more apart.

    Args:
        count: M.
        candidates: size of the sample; ``None`` for four times ``count``, or all data if fewer.
    """

    count: int
    candidates: int | None = None

    def __call__(self, batches: Pairs, kernel: Kernel) -> Inputs:
        count = whole("number of inducing inputs", self.count)
        candidates = 4 * count if self.candidates is None else self.candidates
        if whole("number of candidates", candidates) < count:
            raise ArgumentError(f"expected at least {count} candidates, got {candidates}")
        reservoir = _Reservoir(candidates)
        for x, _ in batches:
            reservoir.add(x)
        reservoir.require(self.count)
        return take(reservoir.rows, pivots(kernel.gram(reservoir.rows).mean(0), self.count))


@dataclass(frozen=True)
class noise:
    """``count`` white-noise inputs: no data is kept.

    Args:
        count: M.
        scale: standard deviation around zero; ``None`` for mean and deviation of the first batch.
    """

    count: int
    scale: float | None = None

    def __call__(self, batches: Pairs, kernel: Kernel) -> Inputs:
        del kernel
        return _like_first(
            batches,
            whole("number of inducing inputs", self.count),
            self.scale,
            lambda field: field,
        )


@dataclass(frozen=True)
class smooth_noise:
    """``count`` images or signals of white noise blurred by a Gaussian: no data is kept.

    Args:
        count: M.
        scale: standard deviation around zero; ``None`` for mean and deviation of the first batch.
        blur: standard deviation of the Gaussian, in pixels.
    """

    count: int
    scale: float | None = None
    blur: float = 2.0

    def __call__(self, batches: Pairs, kernel: Kernel) -> Inputs:
        del kernel
        return _like_first(
            batches, whole("number of inducing inputs", self.count), self.scale, self._smooth
        )

    def _smooth(self, field: Tensor) -> Tensor:
        if field.ndim < 3:
            raise DataError(
                f"expected images [B, channels, height, width] or signals [B, channels, length] "
                f"for smooth_noise, got inputs of shape {list(field.shape)}: give the network "
                f"images (nn.Flatten inside it), or use noise"
            )
        positive("blur", self.blur)
        for axis in range(2, field.ndim):
            distance = torch.arange(field.shape[axis], dtype=field.dtype, device=field.device)
            weights = (-((distance[:, None] - distance) ** 2) / (2 * self.blur**2)).exp()
            weights = weights / weights.norm(dim=0)
            field = (field.transpose(axis, -1) @ weights).transpose(axis, -1)
        return field


def choose(
    wanted: Any,
    batches: Batches,
    network: FrozenNetwork,
    likelihood: Likelihood,
    *,
    num_outputs: int | None,
    shared: bool,
) -> tuple[Inputs, int]:
    """Z, from a tensor or tree, a selector, a count, or ``None``; and the network's outputs.

    ``num_outputs`` is C, if it is not the network's.
    """
    if isinstance(wanted, type):
        raise ArgumentError(
            f"expected a selector such as {wanted.__name__}(512), got {wanted.__name__} itself"
        )
    if not (wanted is None or callable(wanted) or isinstance(wanted, Integral)):
        z = tree_map(torch.clone, network.prepare(wanted, "inducing inputs"))
        return z, network.bind(z)
    if batches.one_shot:
        raise DataTypeError(
            "expected data that can be walked through twice (to choose inducing inputs, then to "
            "absorb), got a one-shot iterator: give a DataLoader, a Dataset, a list of batches, or "
            "inducing as a tensor"
        )
    x = network.prepare(next(iter(batches))[0])
    kernel_outputs = network.bind(take(x, slice(0, 1)))
    select = wanted
    if not callable(select):
        count: Any = _at_most(DEFAULT_COUNT, batches) if wanted is None else wanted
        select = greedy(whole("number of inducing inputs", count))
    kernel = TangentKernel(network, kernel_outputs, shared, x)
    pairs = Checked(batches, network, likelihood, num_outputs or kernel_outputs)
    chosen = select(pairs, kernel)
    return tree_map(torch.clone, network.prepare(chosen, "inducing inputs")), kernel_outputs


def _at_most(count: int, batches: Batches) -> int:
    """``count``, or the number of data if there are fewer."""
    available = 0
    for _, y in batches:
        available += len(y)
        if available >= count:
            return count
    return available


def pivots(gram: Tensor, count: int, smallest: float | None = None) -> Tensor:
    """Indices of the first pivots of the pivoted Cholesky factorisation of ``[N, N]``.

    At most ``count``; fewer where every further conditional variance is at most ``smallest``, by
    default rounding.
    """
    variance = gram.diagonal().clone()
    if smallest is None:
        smallest = 10 * JITTER[gram.dtype] * float(variance.mean())
    columns = gram.new_zeros(count, len(gram))
    chosen: list[int] = []
    for step in range(count):
        pivot = int(variance.argmax())
        if variance[pivot] <= smallest:
            break
        chosen.append(pivot)
        residual = gram[pivot] - columns[:step, pivot] @ columns[:step]
        columns[step] = residual / variance[pivot].sqrt()
        variance = (variance - columns[step].square()).clamp_min(0)
        variance[chosen] = -1.0
    return torch.tensor(chosen, device=gram.device)


class _Reservoir:
    """A uniform sample without replacement: each row gets a random key, the smallest keys stay."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rows: Inputs = None
        self._keys = torch.empty(0)
        self._seen = 0

    def add(self, x: Inputs) -> None:
        self._seen += length(x)
        keys = torch.cat([self._keys, torch.rand(length(x))])
        rows = x if self.rows is None else concat([self.rows, x])
        order = keys.argsort()[: self.size]
        self._keys, self.rows = keys[order], take(rows, order)

    def require(self, count: int) -> None:
        _require(count, self._seen)


def _require(count: int, available: int) -> None:
    if available < count:
        raise DataError(
            f"expected at least {count} data to draw {count} inducing inputs from, got "
            f"{available}: lower inducing, or use noise inputs"
        )


def _like_first(
    batches: Pairs, count: int, scale: float | None, shape: Callable[[Tensor], Tensor]
) -> Inputs:
    """Noise with the first batch's shapes; with its mean and deviation if no scale is given."""
    if scale is not None:
        positive("scale", scale)

    def draw(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            raise DataTypeError(
                f"expected floating-point inputs to imitate with noise, got {leaf.dtype}: "
                f"use random, class_balanced or greedy"
            )
        memory.require(
            3 * count * leaf[0].numel() * leaf.itemsize,
            f"noise for {count} inducing inputs",
            "lower the number of inducing inputs",
            leaf.device,
        )
        field = shape(torch.randn(count, *leaf.shape[1:], dtype=leaf.dtype).to(leaf.device))
        if scale is not None:
            return scale * field
        return leaf.mean() + leaf.std() * field

    return tree_map(draw, next(iter(batches))[0])
