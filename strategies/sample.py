"""What is kept of a task whose stream has not ended: a sample, and how many it stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sfr_cl.data.inputs import Inputs, concat, take

from .experiences import Pairs

Part = tuple[Inputs, Tensor, Tensor]


@dataclass(frozen=True)
class Weighted:
    """Pairs (x, y) of which each stands for several."""

    strata: list[tuple[list[tuple[Inputs, Tensor]], float]]
    """Pairs, and the weight of every row of them."""

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        for pairs, _ in self.strata:
            yield from pairs


def strata(data: Pairs) -> Sequence[tuple[Pairs, float]]:
    """Some data by weight: one, unless it is a sample."""
    return data.strata if isinstance(data, Weighted) else [(data, 1.0)]


@dataclass(frozen=True)
class Sample:
    """Samples that arrive in parts: all of them up to a size, beyond it evenly over the classes.

    Of each class, those kept are drawn without replacement from all that arrived, and stand for
    them with the same weight: the sums over a task are estimated without bias, and are exact as
    long as nothing was dropped.
    """

    size: int
    """The most that are kept; up to as many more wait to be drawn from."""
    of_classes: bool
    """Whether targets are classes; if not, all samples are alike."""
    parts: tuple[Part, ...] = ()
    """Inputs, targets, and a random number for each: the smallest of a class are kept."""
    arrived: tuple[tuple[int, int], ...] = ()
    """How many arrived of each class."""

    @property
    def count(self) -> int:
        """How many arrived."""
        return sum(count for _, count in self.arrived)

    @property
    def classes(self) -> frozenset[int]:
        """The classes that arrived; none where targets are no classes."""
        return frozenset(label for label, _ in self.arrived) if self.of_classes else frozenset()

    @property
    def seed(self) -> int:
        """Of what is drawn at random to look at it before its end, twice the same."""
        _, _, keys = self.parts[0]
        return int(2**31 * float(keys[0]))

    def with_more(self, pairs: Pairs) -> Sample:
        """With more that arrived."""
        arrived, parts = dict(self.arrived), list(self.parts)
        for x, y in pairs:
            labels, counts = self._strata(y).unique(return_counts=True)
            for label, count in zip(labels.tolist(), counts.tolist(), strict=True):
                arrived[label] = arrived.get(label, 0) + count
            parts.append((x, y, torch.rand(len(y))))
            if sum(len(keys) for _, _, keys in parts) > 2 * self.size:
                parts = [_drawn(parts, self._strata, self.size)]
        return Sample(self.size, self.of_classes, tuple(parts), tuple(sorted(arrived.items())))

    def weighted(self) -> Weighted:
        """The samples kept, and how many each stands for."""
        if sum(len(keys) for _, _, keys in self.parts) == self.count:
            x, y, _ = _together(self.parts)
            return Weighted([([(x, y)], 1.0)])
        x, y, _ = _drawn(self.parts, self._strata, self.size)
        strata, found = self._strata(y), []
        for label, count in self.arrived:
            rows = strata == label
            found.append(([(take(x, rows), y[rows])], count / int(rows.sum())))
        return Weighted(found)

    def _strata(self, y: Tensor) -> Tensor:
        return y.cpu() if self.of_classes else torch.zeros(len(y), dtype=torch.long)


def _together(parts: Sequence[Part]) -> Part:
    x, y, keys = zip(*parts, strict=True)
    return concat(x), torch.cat(y), torch.cat(keys)


def _drawn(parts: Sequence[Part], strata_of: Callable[[Tensor], Tensor], size: int) -> Part:
    """Those with the smallest numbers, as many of each class as fit, in the order they came."""
    x, y, keys = _together(parts)
    order = keys.argsort()
    _, place, counts = strata_of(y)[order].unique(return_inverse=True, return_counts=True)
    grouped = place.argsort(stable=True)
    rank = torch.empty_like(grouped)
    rank[grouped] = torch.arange(len(y)) - (counts.cumsum(0) - counts)[place[grouped]]
    first = rank.argsort(stable=True)[: max(size, len(counts))]
    rows = order[first].sort().values
    return take(x, rows), y[rows], keys[rows]
