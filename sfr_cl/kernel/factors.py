"""Per-sample parameter gradients in factored form, and their inner products without forming them.

A batch has B inputs, the layer T positions per input (1 for a plain vector), C outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Stack = tuple["Outer | Last | Direct", ...]
"""The gradients of a whole network: one entry for each layer, or group of parameters."""


@dataclass(frozen=True)
class Direct:
    """Materialised gradients, ``[C, B, D]``: for layers with few parameters, and the fallback."""

    rows: Tensor

    def size(self) -> int:
        """Numbers held."""
        return self.rows.numel()

    def inner(self, other: Direct, shared: bool) -> Tensor:
        """Inner products, ``[K, B, B']``, summed over outputs if they share a kernel."""
        if shared:
            return (_join(self.rows) @ _join(other.rows).mT)[None]
        return self.rows @ other.rows.mT

    def norms(self) -> Tensor:
        """Squared norms, ``[C, B]``."""
        return self.rows.square().sum(2)

    def direction_size(self, shared: bool) -> int | None:
        """Numbers of a direction of :meth:`directions`; ``None`` where there is none."""
        outputs, _, size = self.rows.shape
        return outputs * size if shared else size

    def directions(self, vectors: Tensor, shared: bool) -> Tensor:
        """sum_b v_b J_b for vectors v ``[C, B]``, in their precision; each output's J by itself,
        unless they share a kernel."""
        if shared:
            return vectors @ _join(self.rows).to(vectors)
        return torch.einsum("cb,cbd->cd", vectors, self.rows.to(vectors))

    def along(self, directions: Tensor, shared: bool) -> Tensor:
        """Inner products with directions, ``[B, C]``."""
        directions = directions.to(self.rows)
        if shared:
            return _join(self.rows) @ directions.mT
        return torch.einsum("cbd,cd->bc", self.rows, directions)

    def mixed(self, weights: Tensor) -> Tensor:
        """Squared norm of the sum over outputs and inputs with some weights, ``[C, B]``."""
        return (weights.flatten() @ self.rows.flatten(0, 1)).square().sum()


@dataclass(frozen=True)
class Outer:
    """Gradients sum_t g_ct a_t' of a weight matrix that acts at T positions, and of its bias.

    Their inner product is sum_tt' (a_t . a'_t' + 1) (g_ct . g'_ct'): the gram of the activations is
    the same for all outputs, and neither gradient is ever formed. Materialised instead, it costs
    the product of the two sides' sizes but no pairs of positions; :meth:`use_gram_trick` says which
    is less.
    """

    a: Tensor
    """``[B, T, p]``; or ``[B, T]`` integers that stand for one-hot vectors."""
    g: Tensor
    """``[C, B, T, q]``."""
    width: int
    """p."""
    bias: bool = False
    """Whether there is a bias, whose gradient is sum_t g_ct: the 1 above."""

    def size(self) -> int:
        """Numbers held."""
        return self.a.numel() + self.g.numel()

    def use_gram_trick(self, num_others: int) -> bool:
        """Whether grams of positions cost less than gradients, against M other inputs."""
        positions, outputs, q = self.g.shape[2], self.g.shape[0], self.g.shape[3]
        pairs = num_others * positions**2 * (self.width + outputs * q)
        materialised = outputs * self.width * q * (positions + num_others)
        return pairs <= materialised

    def materialised(self) -> list[Direct]:
        """The gradients themselves, of weight and bias."""
        a = self.a
        if not a.is_floating_point():
            a = torch.nn.functional.one_hot(a, self.width).to(self.g.dtype)
        # All outputs in one product for each input, so that its activations are read once.
        outputs, batch, _, q = self.g.shape
        rows = self.g.permute(1, 0, 3, 2).reshape(batch, outputs * q, -1) @ a
        weight = Direct(rows.reshape(batch, outputs, -1).transpose(0, 1))
        return [weight, Direct(self.g.sum(2))] if self.bias else [weight]

    def inner(self, other: Outer, shared: bool) -> Tensor:
        """As :meth:`Direct.inner`, by pairs of positions."""
        g, h = self.g.flatten(1, 2), other.g.flatten(1, 2)
        products = (_join(g) @ _join(h).mT)[None] if shared else g @ h.mT
        products *= self._activations(other)
        if self.g.shape[2] == other.g.shape[2] == 1:
            return products
        shape = (self.g.shape[1], self.g.shape[2], other.g.shape[1], other.g.shape[2])
        return products.unflatten(2, shape[2:]).unflatten(1, shape[:2]).sum((2, 4))

    def _activations(self, other: Outer) -> Tensor:
        """a . a' + 1 for every pair of positions, ``[B T, B' T']``."""
        a, b = self.a.flatten(0, 1), other.a.flatten(0, 1)
        gram = a @ b.mT if a.is_floating_point() else (a[:, None] == b).to(self.g.dtype)
        return gram.add_(1) if self.bias else gram

    def direction_size(self, shared: bool) -> int | None:
        """None: a direction of every vector would cost more than :meth:`inner`."""
        del shared
        return None

    def norms(self) -> Tensor:
        """As :meth:`Direct.norms`."""
        if self.g.shape[2] == 1 and self.a.is_floating_point():
            return self.g.square().sum((2, 3)) * (self.a.square().sum((1, 2)) + int(self.bias))
        if self.a.is_floating_point():
            gram = self.a @ self.a.mT
        else:
            gram = (self.a[:, :, None] == self.a[:, None]).to(self.g.dtype)
        return (self.g @ self.g.mT * (gram + int(self.bias))).sum((2, 3))

    def mixed(self, weights: Tensor) -> Tensor:
        """As :meth:`Direct.mixed`."""
        g = (weights[:, :, None, None] * self.g).sum(0).flatten(0, 1)
        a = self.a.flatten(0, 1)
        if a.is_floating_point():
            weight = g.mT @ a
        else:
            weight = g.new_zeros(self.width, g.shape[1]).index_add_(0, a, g)
        bias = g.sum(0).square().sum() if self.bias else 0
        return weight.square().sum() + bias


@dataclass(frozen=True)
class Last:
    """The layer whose output is the network's: g_c is the c-th unit vector, for every input."""

    a: Tensor
    """``[B, p]``."""
    num_outputs: int

    def size(self) -> int:
        """Numbers held."""
        return self.a.numel()

    def inner(self, other: Last, shared: bool) -> Tensor:
        """One gram for all outputs; as :meth:`Direct.inner`."""
        gram = (self.a @ other.a.mT)[None]
        return self.num_outputs * gram if shared else gram

    def norms(self) -> Tensor:
        """As :meth:`Direct.norms`."""
        return self.a.square().sum(1).expand(self.num_outputs, -1)

    def direction_size(self, shared: bool) -> int | None:
        """As :meth:`Direct.direction_size`."""
        del shared
        return self.a.shape[1]

    def directions(self, vectors: Tensor, shared: bool) -> Tensor:
        """As :meth:`Direct.directions`."""
        found = vectors @ self.a.to(vectors)
        return self.num_outputs * found if shared else found

    def along(self, directions: Tensor, shared: bool) -> Tensor:
        """As :meth:`Direct.along`."""
        del shared
        return self.a @ directions.to(self.a).mT

    def mixed(self, weights: Tensor) -> Tensor:
        """As :meth:`Direct.mixed`."""
        return (weights @ self.a).square().sum()


def joined(parts: Sequence[Outer | Last | Direct]) -> Outer | Last | Direct:
    """One factor of several batches."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Direct):
        return Direct(torch.cat([part.rows for part in parts if isinstance(part, Direct)], dim=1))
    a = torch.cat([part.a for part in parts if not isinstance(part, Direct)])
    if isinstance(first, Last):
        return Last(a, first.num_outputs)
    g = torch.cat([part.g for part in parts if isinstance(part, Outer)], dim=1)
    return Outer(a, g, first.width, first.bias)


def shapes(stack: Stack) -> Stack:
    """Gradients without their numbers, which are made of inputs."""

    def bare(factor: Outer | Last | Direct) -> Outer | Last | Direct:
        if isinstance(factor, Direct):
            return Direct(factor.rows.to("meta"))
        if isinstance(factor, Last):
            return replace(factor, a=factor.a.to("meta"))
        return replace(factor, a=factor.a.to("meta"), g=factor.g.to("meta"))

    return tuple(bare(factor) for factor in stack)


def _join(rows: Tensor) -> Tensor:
    """``[C, B, D]`` as ``[B, C D]``."""
    return rows.transpose(0, 1).flatten(1)
