"""How the gradients of a network are made, and the check that they are right.

A rule holds where its layer runs once, on all rows, each row by itself, and its parameters are used
nowhere else. That can depend on the data, so that no probe can tell it for good: of every batch

* the graph shows how often the layer ran and its parameters were used;
* one more direction U of no pattern, ``[B, C]``, in the backward pass gives the derivative of
  sum_bc U_bc f_bc by the layer's output, which must be U's mixture of the gradients g that the rule
  gets, row by row: if an output depended on another row, that row would have the other's weight;
* a few rows have the same outputs in other company.

What a rule makes of g is compared with plain autograd when a plan is made. A layer that fails is
left to per-sample Jacobians. These are made by ``torch.func``, if it can and agrees with plain
autograd, and output by output if not.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn

from sfr_cl.data.inputs import Inputs, take
from sfr_cl.errors import ArgumentError, DataError, SFRError
from sfr_cl.kernel.factors import Direct, Last, Outer, Stack, shapes
from sfr_cl.kernel.frozen import TOLERANCE, Call, flattened, mixture
from sfr_cl.kernel.jacobian import jacobian
from sfr_cl.kernel.layers import Layer, activations, covered_layers, is_last
from sfr_cl.kernel.network import FrozenNetwork
from sfr_cl.kernel.passes import graph_leaves
from sfr_cl.kernel.rules import RULES

Factor = Outer | Last | Direct


class Unfit(Exception):
    """Layers whose rule does not hold on a batch."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        super().__init__()
        self.layers = list(layers)


@dataclass
class Plan:
    """See the module."""

    network: FrozenNetwork
    num_outputs: int
    layers: list[Layer]
    """Layers that rules are used for."""
    fallback: FrozenNetwork | None
    """The network, differentiated by the other parameters."""
    shown: Stack = ()
    """The gradients at one input: their shapes."""
    activations: int = 0
    """Numbers a forward pass of one input makes on the way."""
    one_pass: bool | None = None
    """Whether one backward pass can serve all outputs; ``None`` before the first."""
    by_rows: bool | None = None
    """Whether ``torch.func`` can't carry the network; ``None`` before it was tried."""

    @staticmethod
    def found(
        network: FrozenNetwork, num_outputs: int, x: Inputs, layers: Sequence[Layer] | None
    ) -> Plan:
        """Rules for the layers they hold for, or for some of these; Jacobians for the rest."""
        if layers is None:
            try:
                layers = covered_layers(network, x)
            except torch.cuda.OutOfMemoryError:
                raise
            except (RuntimeError, DataError):  # a checkpoint hides the graph, or loses gradients
                layers = []
        return Plan._holding(network, num_outputs, x, layers)

    @staticmethod
    def _holding(
        network: FrozenNetwork, num_outputs: int, x: Inputs, layers: Sequence[Layer]
    ) -> Plan:
        covered = {id(p) for layer in layers for p in layer.parameters}
        rest = [name for name, p in network.parameters.items() if id(p) not in covered]
        plan = Plan(network, num_outputs, list(layers), network.restricted(rest) if rest else None)
        try:
            outputs, by_layer, _ = plan._parts(x)
            plan._require_right_rules(x, outputs, by_layer)
        except Unfit as unfit:
            return plan.without(unfit.layers, x)
        row = take(x, slice(0, 1))
        plan.shown = shapes(plan.made(row)[1])
        plan.activations = activations(network, row)
        return plan

    def without(self, layers: Sequence[Layer], x: Inputs) -> Plan:
        """Jacobians for the parameters of some layers too."""
        left = [layer for layer in self.layers if layer not in layers]
        return Plan.found(self.network, self.num_outputs, x, left)

    def made(self, x: Inputs) -> tuple[Tensor, Stack]:
        """f ``[B, C]``, and the gradients of its parameters.

        Raises:
            Unfit: a rule does not hold on this batch.
            ArgumentError: outputs are random, or depend on the rest of the batch.
            DataError: derivatives are not finite.
        """
        outputs, by_layer, rest = self._parts(x)
        return outputs, (*chain(*by_layer), *rest)

    def _parts(self, x: Inputs) -> tuple[Tensor, list[list[Factor]], list[Factor]]:
        """As :meth:`made`, but the factors of each layer, and of the parameters of none."""
        try:
            outputs, by_layer = self._by_rules(x)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:  # a graph that is not shown, or not differentiable so
            if not self.layers:
                raise
            raise Unfit(self.layers) from error
        _require_finite([float(outputs.sum())])
        if self.fallback is None:
            if len(outputs) > 1:
                self.network.require_independent(x, outputs)
            return outputs, by_layer, []
        rows, alone = self._jacobian(self.fallback, x)
        _require_finite([float(rows.sum())])
        self.network.require_same(x, outputs, lambda: alone)
        return outputs, by_layer, [Direct(rows)]

    def _by_rules(self, x: Inputs) -> tuple[Tensor, list[list[Factor]]]:
        """f, and the factors of every layer that a rule is used for."""
        if not self.layers:
            return self.network(x), []
        inner = [layer for layer in self.layers if not layer.is_last]
        parameters = list(chain(*(layer.parameters for layer in self.layers)))
        with self.network.differentiable(parameters):
            outputs, calls = self.network.recorded([layer.module for layer in self.layers], x)
            self._require_fit(outputs, calls)
            places = [calls[layer.module].output for layer in inner]
            weights = mixture(outputs, self.num_outputs)
            found = iter(self._gradients(outputs, places, weights))
        factors: list[list[Factor]] = []
        distances = []
        with torch.no_grad():
            for layer in self.layers:
                a = calls[layer.module].input.detach()
                if layer.is_last:
                    factors.append([Last(_with_bias(layer, a), self.num_outputs)])
                    continue
                g = next(found)
                if len(g) > self.num_outputs:
                    g, mixed = g[:-1], g[-1]
                    expected = _mixed(weights[:, : self.num_outputs].T, g)
                    distances += [(mixed - expected).norm(), expected.norm()]
                made = RULES[type(layer.module)](layer.module, layer.names, a, g)
                if made is None:
                    raise Unfit([layer])
                factors.append([*made])
        if distances:
            self._require_near(inner, torch.stack(distances))
        return outputs.detach(), factors

    def _require_fit(self, outputs: Tensor, calls: dict[nn.Module, Call]) -> None:
        """Refuse layers that ran otherwise than once on all rows, or are used elsewhere too."""
        uses = Counter(id(leaf) for leaf in graph_leaves(outputs))
        unfit = [
            layer
            for layer in self.layers
            if layer.module not in calls
            or any(uses[id(parameter)] > 1 for parameter in layer.parameters)
            or layer.is_last > is_last(calls[layer.module], outputs)
        ]
        if unfit:
            raise Unfit(unfit)

    def _require_near(self, layers: Sequence[Layer], numbers: Tensor) -> None:
        """Refuse layers whose first number is not small beside the second."""
        values = numbers.double().reshape(-1, 2).tolist()
        _require_finite(chain(*values))
        tolerance = TOLERANCE[self.network.dtype]
        unfit = [
            layer
            for layer, (distance, size) in zip(layers, values, strict=True)
            if distance > tolerance * size
        ]
        if unfit:
            raise Unfit(unfit)

    def _require_right_rules(
        self, x: Inputs, outputs: Tensor, by_layer: list[list[Factor]]
    ) -> None:
        """Refuse layers whose rule makes gradients of another norm than autograd."""
        if not self.layers:
            return
        weights = mixture(outputs, self.num_outputs)
        share = weights[:, : self.num_outputs].T
        expected = self.network.gradient(x, weights)
        of = {id(p): expected[name] for name, p in self.network.parameters.items()}
        numbers = []
        for layer, factors in zip(self.layers, by_layer, strict=True):
            found = torch.stack([factor.mixed(share) for factor in factors]).sum()
            square = torch.stack([of[id(p)].square().sum() for p in layer.parameters]).sum()
            numbers += [(found - square).abs(), square]
        self._require_near(self.layers, torch.stack(numbers))

    def _gradients(self, outputs: Tensor, places: list[Tensor], weights: Tensor) -> list[Tensor]:
        """Of every output with respect to every layer's, ``[C, B, ...]``.

        One backward pass for all outputs at once, or one for each where an operation can't. With
        more than one row, the last direction is the weights.
        """
        if not places:
            return []
        eye = torch.eye(outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
        directions = eye[: self.num_outputs, None].expand(-1, len(outputs), -1)
        if len(outputs) > 1:
            directions = torch.cat([directions, weights[None]])
        if self.one_pass is None:
            self.one_pass = _batches(outputs, places, directions)
        found: Sequence[Tensor | None]
        if self.one_pass:
            found = torch.autograd.grad(
                outputs, places, directions, is_grads_batched=True, allow_unused=True
            )
        else:
            rows = [
                torch.autograd.grad(outputs, places, row, retain_graph=True, allow_unused=True)
                for row in directions
            ]
            found = [
                None if column[0] is None else torch.stack(column)
                for column in zip(*rows, strict=True)
            ]
        return [
            place.new_zeros(len(directions), *place.shape) if g is None else g
            for g, place in zip(found, places, strict=True)
        ]

    def _jacobian(self, fallback: FrozenNetwork, x: Inputs) -> tuple[Tensor, Tensor]:
        """By ``torch.func`` if it can, and agrees with plain autograd where it was first tried."""
        if not self.by_rows:
            try:
                made = jacobian(fallback, self.num_outputs, x)
                if self.by_rows is None:
                    self.by_rows = not self._agrees(fallback, x, made[0])
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception:  # whatever a transformation says of an operation it does not know
                self.by_rows = True
        if not self.by_rows:
            return made
        try:
            return fallback.rows(x, self.num_outputs)
        except (RuntimeError, SFRError) as error:
            raise ArgumentError(
                f"expected a network that torch can differentiate, got {error}: use operations "
                f"with a derivative, and checkpoints with use_reentrant=False"
            ) from error

    def _agrees(self, fallback: FrozenNetwork, x: Inputs, rows: Tensor) -> bool:
        outputs = fallback(x)
        weights = mixture(outputs, self.num_outputs)
        expected = flattened(list(fallback.gradient(x, weights).values()))
        found = weights[:, : self.num_outputs].T.flatten() @ rows.flatten(0, 1)
        _require_finite([float(expected.sum())])
        gap = float((found - expected).norm())
        return gap <= TOLERANCE[self.network.dtype] * float(expected.norm())


def _batches(outputs: Tensor, places: list[Tensor], directions: Tensor) -> bool:
    """Whether the backward pass of every operation can be batched, without a detour, and rightly.

    That of ``torch.cdist`` is wrong.
    """
    derivative = partial(torch.autograd.grad, outputs, places, retain_graph=True, allow_unused=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            batched = derivative(directions, is_grads_batched=True)
        except (RuntimeError, Warning):
            return False
    for index, direction in enumerate(directions):
        for g, expected in zip(batched, derivative(direction), strict=True):
            if expected is not None:
                distance = (g[index] - expected).norm()
                if distance > TOLERANCE[outputs.dtype] * expected.norm():
                    return False
    return True


def _mixed(weights: Tensor, g: Tensor) -> Tensor:
    """sum_c U_bc g_cb, ``[B, ...]``, for weights ``[C, B]``: one pass over g, and no copy of it."""
    weights = weights.reshape(*weights.shape, *[1] * (g.ndim - 2))
    total = weights[0] * g[0]
    for weight, part in zip(weights[1:], g[1:], strict=True):
        total.addcmul_(weight, part)
    return total


def _require_finite(numbers: Iterable[float]) -> None:
    if not all(map(math.isfinite, numbers)):
        raise DataError(
            "expected inputs at which the network has finite outputs and finite derivatives, got "
            "NaN or infinity (of the root or logarithm of zero, or by overflow): scale the "
            "inputs, or keep the network away from such places"
        )


def _with_bias(layer: Layer, a: Tensor) -> Tensor:
    """The last layer's input, with a one for its bias."""
    parts = {"weight": a, "bias": torch.ones_like(a[:, :1])}
    return torch.cat([parts[name] for name in layer.names], dim=1)
