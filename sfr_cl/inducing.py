"""Inducing inputs: selectors that choose Z before any data is absorbed.

A selector is a callable ``select(batches, kernel) -> Z``. ``batches`` may be walked through any
number of times and yields checked pairs ``(x, y)``; ``kernel`` is the network's tangent kernel.
A custom function can be passed wherever a selector is taken. Random choices follow
``torch.manual_seed``. Those that choose rows of the data also have ``indices(batches, kernel)``:
which rows. They stand in every file, until :meth:`~sfr_cl.SFRPosterior.forget` drops them; for
personal data take :class:`noise` or :class:`smooth_noise`, which keep none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sfr_cl.core.basis import InducingInputs
from sfr_cl.core.linalg import JITTER, rounding_scale
from sfr_cl.core.spec import Spec
from sfr_cl.core.state import Checked, State
from sfr_cl.data import memory
from sfr_cl.data.arguments import positive, whole
from sfr_cl.data.batches import Batches
from sfr_cl.data.inputs import Inputs, concat, length, take, tree_map
from sfr_cl.errors import ArgumentError, DataError, DataTypeError
from sfr_cl.kernel import TangentKernel
from sfr_cl.kernel.network import BOUND, FrozenNetwork
from sfr_cl.kernel.precision import without_autocast

Pairs = Iterable[tuple[Inputs, Tensor]]
Selector = Callable[[Pairs, TangentKernel], Inputs]

DEFAULT_COUNT = 512

__all__ = ["Selector", "class_balanced", "greedy", "noise", "random", "smooth_noise"]


class Chosen(NamedTuple):
    """Rows of the data, and which."""

    rows: Inputs
    indices: Tensor
    """``[M]``."""

    def take(self, index: slice | Tensor) -> Chosen:
        """Some of them."""
        own = index.cpu() if isinstance(index, Tensor) else index
        return Chosen(take(self.rows, index), self.indices[own])

    @staticmethod
    def join(parts: Sequence[Chosen]) -> Chosen:
        """One after the other."""
        return Chosen(concat([part.rows for part in parts]), torch.cat([p.indices for p in parts]))


class _Rows(ABC):
    """A selector of rows of the data."""

    def __call__(self, batches: Pairs, kernel: TangentKernel) -> Inputs:
        """Z."""
        return self.choose(batches, kernel).rows

    def indices(self, batches: Pairs, kernel: TangentKernel) -> Tensor:
        """Which rows of the data Z would be, ``[M]``."""
        return self.choose(batches, kernel).indices

    @abstractmethod
    def choose(self, batches: Pairs, kernel: TangentKernel) -> Chosen:
        """Both."""


@dataclass(frozen=True)
class random(_Rows):
    """``count`` inputs drawn from the data without replacement.

    Args:
        count: M.

    Raises:
        DataError: when the data has fewer rows.

    >>> from sfr_cl import SFRPosterior
    >>> x, y = torch.eye(4), torch.arange(4) % 2
    >>> posterior = SFRPosterior(torch.nn.Linear(4, 2), "classification", inducing=random(3))
    >>> len(posterior.fit((x, y)).inducing_inputs)
    3
    """

    count: int

    def choose(self, batches: Pairs, kernel: TangentKernel) -> Chosen:
        del kernel
        return _drawn(batches, whole("number of inducing inputs", self.count), self.count)


@dataclass(frozen=True)
class class_balanced(_Rows):
    """``count`` inputs drawn from the data, as evenly over the classes as the data allows.

    Args:
        count: M.

    Raises:
        DataError: when the data has fewer rows.
        DataTypeError: when targets are no classes.

    >>> from sfr_cl import SFRPosterior
    >>> x, y = torch.eye(6), torch.tensor([0, 0, 0, 0, 0, 1])
    >>> posterior = SFRPosterior(
    ...     torch.nn.Linear(6, 2), "classification", inducing=class_balanced(2)
    ... )
    >>> y[posterior.select((x, y))]
    tensor([0, 1])
    """

    count: int

    def choose(self, batches: Pairs, kernel: TangentKernel) -> Chosen:
        del kernel
        count = whole("number of inducing inputs", self.count)
        classes: dict[int, _Reservoir] = {}
        for chosen, y in _numbered(batches):
            labels = y.reshape(-1).long()
            if len(labels) != len(y) or not (labels == y.reshape(-1)).all():
                raise DataTypeError(
                    "expected class labels for class_balanced, got real-valued targets: use "
                    "random or greedy"
                )
            for label in labels.unique().tolist():
                own = chosen.take((labels == label).nonzero()[:, 0])
                classes.setdefault(label, _Reservoir(count)).add(own)
        found = {label: classes[label].kept for label in sorted(classes)}
        sizes = {label: len(kept.indices) for label, kept in found.items()}
        _require(count, sum(sizes.values()))
        quota = dict.fromkeys(sizes, 0)
        while (left := count - sum(quota.values())) > 0:
            open_classes = [label for label in sizes if quota[label] < sizes[label]]
            for label in open_classes[:left]:
                quota[label] += 1
        return Chosen.join([found[c].take(slice(0, quota[c])) for c in found if quota[c]])


@dataclass(frozen=True)
class greedy(_Rows):
    """``count`` inputs by greatest conditional variance: pivoted Cholesky on a random sample.

    Fewer than ``count`` if the kernel can't tell more apart.

    Args:
        count: M.
        candidates: size of the sample; ``None`` for four times ``count``, or all data if fewer.

    Raises:
        DataError: when the data has fewer than ``count`` rows.

    >>> from sfr_cl import SFRPosterior
    >>> x = torch.tensor([[1.0], [0.0], [0.1], [3.0]])
    >>> posterior = SFRPosterior(torch.nn.Linear(1, 1), "regression", inducing=greedy(2))
    >>> sorted(posterior.select((x, x)).tolist())
    [1, 3]
    """

    count: int
    candidates: int | None = None

    def choose(self, batches: Pairs, kernel: TangentKernel) -> Chosen:
        count = whole("number of inducing inputs", self.count)
        candidates = 4 * count if self.candidates is None else self.candidates
        if whole("number of candidates", candidates) < count:
            raise ArgumentError(f"expected at least {count} candidates, got {candidates}")
        drawn = _drawn(batches, candidates, count)
        chosen = pivots(kernel.gram(drawn.rows).mean(0), count)
        if not len(chosen):
            raise DataError(
                f"expected a network whose outputs depend on its weights, got a kernel of zero at "
                f"all of {len(drawn.indices)} inputs: look for dead units, or name other parameters"
            )
        return drawn.take(chosen)


@dataclass(frozen=True)
class noise:
    """``count`` white-noise inputs: no row of the data is kept, as personal data asks for.

    Args:
        count: M.
        scale: standard deviation around zero; ``None`` for mean and deviation of the first batch.

    Raises:
        DataTypeError: when inputs are no real numbers.

    >>> from sfr_cl import SFRPosterior
    >>> posterior = SFRPosterior(torch.nn.Linear(4, 2), "classification", inducing=noise(3))
    >>> posterior.init((torch.eye(4), torch.arange(4) % 2)).inducing_inputs.shape
    torch.Size([3, 4])
    """

    count: int
    scale: float | None = None

    def __call__(self, batches: Pairs, kernel: TangentKernel) -> Inputs:
        del kernel
        return _like_first(
            batches,
            whole("number of inducing inputs", self.count),
            self.scale,
            lambda field: field,
        )


@dataclass(frozen=True)
class smooth_noise:
    """``count`` images or signals of white noise blurred by a Gaussian.

    No row of the data is kept, as personal data asks for.

    Args:
        count: M.
        scale: standard deviation around zero; ``None`` for mean and deviation of the first batch.
        blur: standard deviation of the Gaussian, in pixels.

    Raises:
        DataError: when inputs are neither images nor signals.

    >>> from sfr_cl import SFRPosterior
    >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    >>> posterior = SFRPosterior(network, "classification", inducing=smooth_noise(3))
    >>> posterior.init((torch.rand(4, 1, 4, 4), torch.arange(4) % 2)).inducing_inputs.shape
    torch.Size([3, 1, 4, 4])
    """

    count: int
    scale: float | None = None
    blur: float = 2.0

    def __call__(self, batches: Pairs, kernel: TangentKernel) -> Inputs:
        del kernel
        return _like_first(
            batches, whole("number of inducing inputs", self.count), self.scale, self._smooth
        )

    @without_autocast()
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
    spec: Spec, wanted: Any, batches: Batches | None, network: FrozenNetwork
) -> tuple[Inputs, TangentKernel]:
    """Z, from a tensor or tree, a selector, a count, or ``None``; and the network's kernel.

    Args:
        spec: what the posterior is asked for.
        wanted: what the user gave.
        batches: the data; ``None`` where Z must be given.
        network: the frozen network.
    """
    if is_given(wanted):
        if not isinstance(wanted, Tensor | np.ndarray | Mapping | list | tuple):
            raise DataTypeError(
                f"expected inducing to be a number of inputs, the inputs themselves, or a selector "
                f"such as sfr_cl.greedy(512) or sfr_cl.random(512), got {wanted!r:.60}"
            )
        z = tree_map(torch.clone, network.prepare(wanted, "inducing inputs"))
        return z, TangentKernel(network, network.bind(z), spec.shared, z)
    if batches is None:
        raise ArgumentError(
            "expected inducing inputs, got a way to choose them from data: give the inputs "
            "themselves, or data"
        )
    select = as_selector(wanted, batches)
    pairs, kernel = checked_pairs(spec, batches, network)
    chosen = select(pairs, kernel)
    z = tree_map(torch.clone, network.prepare(chosen, "inducing inputs"))
    if isinstance(select, noise | smooth_noise):
        _require_takes_noise(network, z)
    return z, kernel


def is_given(wanted: Any) -> bool:
    """Whether inducing inputs are given themselves, and not a way to choose them."""
    return not (wanted is None or callable(wanted) or isinstance(wanted, Integral))


def _require_takes_noise(network: FrozenNetwork, z: Inputs) -> None:
    try:
        for start in range(0, length(z), BOUND):
            network(take(z, slice(start, start + BOUND)))
    except DataError as error:
        raise DataError(
            f"expected a network that takes noise, got one that does not ({error}): some columns "
            f"may be categories; use greedy or random"
        ) from error


def empty_state(spec: Spec, wanted: Any, batches: Batches | None, network: FrozenNetwork) -> State:
    """A posterior's state before any data: inducing inputs chosen, and whitened.

    The arguments are those of :func:`choose`; weights that are not finite are refused.
    """
    network.require_finite()
    z, kernel = choose(spec, wanted, batches, network)
    network.require_alike(z)
    spec.outputs(kernel.num_outputs)  # refuses a number that does not fit
    basis = InducingInputs.of(kernel, z, spec.batch_size)
    return State.empty(spec, replace(basis, given=is_given(wanted)))


def as_selector(wanted: Any, batches: Batches) -> Selector:
    """A selector, from itself, a count, or ``None`` for the default."""
    if isinstance(wanted, type):
        raise ArgumentError(
            f"expected a selector such as {wanted.__name__}(512), got {wanted.__name__} itself"
        )
    if batches.one_shot:
        raise DataTypeError(
            "expected data that can be walked through twice (to choose inducing inputs, then to "
            "absorb), got a one-shot iterator: give a DataLoader, a Dataset, a list of batches, or "
            "inducing as a tensor"
        )
    if callable(wanted):
        select: Selector = wanted
        return select
    count: Any = _at_most(DEFAULT_COUNT, batches) if wanted is None else wanted
    return greedy(whole("number of inducing inputs", count))


def checked_pairs(
    spec: Spec, batches: Batches, network: FrozenNetwork
) -> tuple[Checked, TangentKernel]:
    """Data as a selector takes it, and the network's kernel."""
    x = network.prepare(next(iter(batches))[0])
    kernel = TangentKernel(network, network.bind(take(x, slice(0, BOUND))), spec.shared, x)
    network.require_alike(x)
    outputs = spec.num_outputs or kernel.num_outputs
    return Checked(batches, network.prepare, network.device, spec.likelihood, outputs), kernel


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
    limit = 10 * JITTER[gram.dtype] * rounding_scale(variance) if smallest is None else smallest
    gram, variance = gram.double(), variance.double()
    columns = gram.new_zeros(count, len(gram))
    chosen: list[int] = []
    for step in range(count):
        known = variance <= limit
        pivot = int(torch.where(known, -1.0, variance).argmax())
        if known[pivot]:
            break
        chosen.append(pivot)
        residual = gram[pivot] - columns[:step, pivot] @ columns[:step]
        columns[step] = residual / variance[pivot].sqrt()
        variance = (variance - columns[step].square()).clamp_min(0)
        variance[chosen] = -1.0
    return torch.tensor(chosen, dtype=torch.long, device=gram.device)


class _Reservoir:
    """A uniform sample without replacement: each row gets a random key, the smallest keys stay."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._kept: Chosen | None = None
        self._keys = torch.empty(0)

    @property
    def kept(self) -> Chosen:
        assert self._kept is not None
        return self._kept

    def add(self, rows: Chosen) -> None:
        keys = torch.cat([self._keys, torch.rand(len(rows.indices))])
        every = rows if self._kept is None else Chosen.join([self._kept, rows])
        order = keys.argsort()[: self.size]
        self._keys, self._kept = keys[order], every.take(order)


def _drawn(batches: Pairs, size: int, least: int) -> Chosen:
    """A sample of some size, of at least so many rows."""
    reservoir, seen = _Reservoir(size), 0
    for rows, y in _numbered(batches):
        reservoir.add(rows)
        seen += len(y)
    _require(least, seen)
    return reservoir.kept


def _numbered(batches: Pairs) -> Iterator[tuple[Chosen, Tensor]]:
    """Batches whose rows know their place in the data."""
    start = 0
    for x, y in batches:
        yield Chosen(x, torch.arange(start, start + length(x))), y
        start += length(x)


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
