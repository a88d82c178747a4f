"""The network as the posterior sees it: a frozen copy at the weights w*.

The user's network is only ever copied. The copy is in eval mode, in the posterior's dtype, and
carries the weights the kernel is built at, whatever happens to the original afterwards.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from threading import RLock
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy

from sfr_cl.data.inputs import Inputs, leaves, length, prepare, take, tree_map
from sfr_cl.errors import ArgumentError, DataError, MismatchError, SFRError
from sfr_cl.kernel.last_layer import last_layer
from sfr_cl.kernel.precision import without_autocast

Parameters = str | Sequence[str]

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
"""How far two ways to compute the same may be apart, relative to its size."""

ALIKE = 1e-2
"""How far outputs in two precisions may be apart, relative to their size: rounding is far below."""

ALONE = 4
"""Rows of a batch whose outputs are compared with those in other company."""

LOCK = RLock()
"""Of passes through networks, of all threads."""

BOUND = 32
"""Rows whose outputs are compared with those alone when a network is bound."""


@dataclass
class Call:
    """What one module saw in one forward pass."""

    input: Tensor
    output: Tensor
    passed: Tensor
    """The copy that flowed on: an operation in place on it leaves the recorded output alone."""
    version: int
    """Of the input: an operation in place after the call would change what the layer saw."""

    def is_plain(self, batch: int) -> bool:
        """Real, batch first on both sides, its input still what it was."""
        leading = self.input.ndim > 0 and len(self.input) == batch == len(self.output)
        real = self.output.is_floating_point() and not self.input.is_complex()
        return leading and real and self.input._version == self.version


class FrozenNetwork:
    """f(x; w*) with the parameters the kernel differentiates by name.

    Args:
        network: any module that maps a batch of inputs to ``[B, C]`` (or ``[B]`` for one output).
        parameters: ``"all"`` (but those with ``requires_grad=False``), ``"last_layer"`` (see
            :mod:`sfr_cl.kernel.last_layer`), or names as in ``network.named_parameters()``.
        dtype: precision of the copy.
    """

    _changing: Sequence[str] = ()
    """Parameters and buffers that a forward pass changes."""
    _asks_default = True
    """Whether torch's default precision matters to what is made on the way."""

    def __init__(self, network: nn.Module, parameters: Parameters, dtype: torch.dtype) -> None:
        self._requested = parameters
        self._names = named(network, parameters)
        self._given_dtype = dtype_of(network)
        try:
            with torch.inference_mode(False):
                self.module = _frozen(network, dtype)
        except Exception as error:
            raise ArgumentError(
                f"expected a network that copy.deepcopy can copy, got {error}: delete tensors with "
                f"a history that the module keeps"
            ) from error
        self.dtype = dtype
        self.device = next(self.module.parameters()).device

    def require_finite(self) -> None:
        """Refuse weights that no kernel can be built at."""
        bad = [name for name, value in self.weights().items() if not torch.isfinite(value).all()]
        if bad:
            raise DataError(
                f"expected finite weights, got NaN or infinity in {bad[0]!r}: train the network "
                f"again"
            )

    def bind(self, x: Inputs) -> int:
        """Run some inputs, learn which layer is last if that matters, and return C.

        Outputs that are random, or depend on the rest of the batch, are refused.
        """
        x = tree_map(torch.clone, x)
        versions = [leaf._version for _, leaf in leaves(x)]
        few = take(x, slice(0, ALONE))
        self._watch(few)
        self._require_graph(few)
        outputs = self(x)
        if versions != [leaf._version for _, leaf in leaves(x)]:
            raise ArgumentError(
                "expected a network that leaves its input as it is, got one that changes it in "
                "place: copy the input first thing in forward"
            )
        self.require_independent(x, outputs)
        self.require_alone(take(x, slice(0, BOUND)), outputs[:BOUND])
        if self._requested == "last_layer":
            with self.passing():
                self._names = last_layer(self.module, lambda: self.run(x))
        return outputs.shape[1]

    def require_alike(self, x: Inputs) -> None:
        """Refuse a network that computes something else in the precision it was given in.

        Where it compares or rounds its inputs, 0.7 in float32 is not the same number in float64.
        """
        given = self._given_dtype
        if given == self.dtype or given not in TOLERANCE:
            return
        for start in range(0, length(x), BOUND):
            rows = take(x, slice(start, start + BOUND))
            try:
                expected = self._as_given(rows)
            except DataError:  # parts of it have another precision
                return
            outputs = self(rows)
            apart = (outputs - expected).abs().nan_to_num().max()
            size = outputs.abs().nan_to_num().max()
            if apart > ALIKE * size:
                raise ArgumentError(
                    f"expected a network that computes alike in {self.dtype} and in its own "
                    f"{given}, got outputs that differ by {float(apart / size):.2g} of their size, "
                    f"since it compares or rounds its inputs: give dtype={given}"
                )

    def _as_given(self, x: Inputs) -> Tensor:
        """f(x; w*) in the network's own precision, ``[B, C]``."""
        given = copy.copy(self)
        given.dtype = self._given_dtype
        every = self.weights()
        numbers = {n: t for n, t in every.items() if t.is_floating_point() or t.is_complex()}
        values = {n: t.to(cast_dtype(t, given.dtype)) for n, t in numbers.items()}
        x = given.prepare(x)
        try:
            with torch.no_grad(), given.passing():
                return run(lambda x: given._forward(x, values), x)
        except DataError:  # compiled by torch.jit, it takes no other weights
            return self._cast_to(given.dtype)(x)

    def _cast_to(self, dtype: torch.dtype) -> FrozenNetwork:
        """A copy in another precision."""
        other = copy.copy(self)
        other.module, other.dtype = _cast(_copied(self.module), dtype), dtype
        return other

    def _watch(self, x: Inputs) -> None:
        """Learn which weights a forward pass changes: each pass gets copies of its own.

        And whether torch's default precision matters: if not, other threads keep theirs.
        """
        self._asks_default = True
        before = {name: value.clone() for name, value in self.weights().items()}
        try:
            outputs = self(x)
        except DataError as error:
            raise self._explained(x, error) from error
        after = self.weights()
        self._changing = [n for n, value in before.items() if not torch.equal(value, after[n])]
        with torch.no_grad():
            for name in self._changing:
                after[name].copy_(before[name])
        if self.dtype != torch.get_default_dtype():
            self._asks_default = not self._is_same_by_default(x, outputs)

    def _is_same_by_default(self, x: Inputs, outputs: Tensor) -> bool:
        """Whether outputs are the same to the bit in torch's default precision as it is."""
        as_it_is = copy.copy(self)
        as_it_is._asks_default = False
        try:
            found = as_it_is(x)
        except DataError:
            return False
        return found.dtype == outputs.dtype and torch.equal(found, outputs)

    def _require_graph(self, x: Inputs) -> None:
        """Refuse outputs that depend on none of the parameters, or on those of something else."""
        every = dict(self.module.named_parameters())
        known = [p for p in every.values() if p.is_floating_point() or p.is_complex()]
        chosen = known if self._names is None else [every[name] for name in self._names]
        with self.differentiable(known):
            try:
                found = {id(leaf): leaf for leaf in graph_leaves(asking(self.run, x))}
            except RuntimeError:  # a checkpoint hides what it depends on
                return
        if not any(id(parameter) in found for parameter in chosen):
            raise ArgumentError(
                "expected a network whose outputs depend on its parameters, got one that detaches "
                "them: no torch.no_grad, torch.inference_mode or .detach() on the way"
            )
        own = {id(parameter) for parameter in known}
        if any(isinstance(leaf, nn.Parameter) and key not in own for key, leaf in found.items()):
            raise ArgumentError(
                "expected a network that uses its own parameters only, got others: register "
                "layers kept in a list (nn.ModuleList), and let hooks and lambdas take the module "
                "from their arguments, not from outside"
            )

    def _explained(self, x: Inputs, error: DataError) -> SFRError:
        """What went wrong, with the other precision tried: some networks choose their own."""
        other = torch.float32 if self.dtype == torch.float64 else torch.float64
        cast_to = self._cast_to(other)
        x = cast_to.prepare(x)
        try:
            cast_to._require_graph(x)
            cast_to.require_alone(x, cast_to(x))
        except DataError:
            return self._explained_by_half(x, error)
        except ArgumentError as other_error:
            return other_error
        return ArgumentError(
            f"expected a network that computes in {self.dtype}, got one that can in {other} only, "
            f"by a cast in its forward or tensors that are neither parameters nor buffers: give "
            f"dtype={other}"
        )

    def _explained_by_half(self, x: Inputs, error: DataError) -> SFRError:
        """What went wrong, with all in half precision tried."""
        for half in (torch.float16, torch.bfloat16):
            try:
                self._cast_to(half)(prepare(x, self.device, half))
            except DataError:
                continue
            return ArgumentError(
                f"expected a network that computes in {self.dtype}, got one with parts in half "
                f"precision, by a cast to {half} in its forward: give a copy whose forward casts "
                f"nothing to it"
            )
        return error

    def require_independent(self, x: Inputs, outputs: Tensor) -> None:
        """Refuse outputs that are others for a few of the rows in other company."""
        count = max(1, min(ALONE, len(outputs) // 2))
        last = len(outputs) - 1
        rows = torch.tensor([last - last * i // max(1, count - 1) for i in range(count)])
        self.require_same(x, outputs, lambda: self(take(x, rows)), rows)

    def require_alone(self, x: Inputs, outputs: Tensor) -> None:
        """Refuse outputs that are others for any row alone."""
        each = [take(x, slice(row, row + 1)) for row in range(len(outputs))]
        self.require_same(x, outputs, lambda: torch.cat([self(row) for row in each]))

    def require_same(
        self,
        x: Inputs,
        outputs: Tensor,
        again: Callable[[], Tensor],
        rows: Tensor | slice = slice(None),
    ) -> None:
        """Refuse outputs of a batch of which some rows are others when made again in some way."""
        try:
            if self._close(again(), outputs[rows]):
                return
        except DataError:  # a part of the batch has no outputs at all
            pass
        if not self._close(self(x), outputs):
            raise ArgumentError(
                "expected a network that gives the same outputs for the same inputs, got random "
                "ones: use nn.Dropout, which eval mode turns off, or draw no random numbers in "
                "forward"
            )
        module = _copied(self.module)
        with torch.no_grad(), self.passing():
            first = run(module, x)
            with suppress(DataError):
                run(module, take(x, slice(0, 1)))
            second = run(module, x)
        if not self._close(second, first):
            raise ArgumentError(
                "expected a network that gives the same outputs each time, got one that keeps "
                "something between calls in eval mode: let forward start anew, or update only "
                "in train mode"
            )
        raise ArgumentError(
            "expected a network that treats every input by itself, got outputs that depend on the "
            "rest of the batch: normalise with running statistics, not those of the batch"
        )

    def _close(self, found: Tensor, expected: Tensor) -> bool:
        """Whether outputs are the same but for rounding."""
        tolerance = TOLERANCE[self.dtype]
        scale = float(expected.detach().abs().nan_to_num().max())
        return torch.allclose(
            found, expected.detach(), rtol=tolerance, atol=tolerance * scale, equal_nan=True
        )

    @property
    def names(self) -> list[str]:
        """Names of the differentiated parameters."""
        return cast("list[str]", self._names)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The differentiated parameters by name."""
        known = dict(self.module.named_parameters())
        return {name: known[name] for name in self.names}

    def weights(self) -> dict[str, Tensor]:
        """Every parameter and buffer by name."""
        return {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}

    def prepare(self, x: Inputs, what: str = "inputs") -> Inputs:
        """Inputs, checked, on the copy's device and in its dtype."""
        return prepare(x, self.device, self.dtype, what)

    @torch.no_grad()
    def __call__(self, x: Inputs) -> Tensor:
        """f(x; w*), ``[B, C]``."""
        with self.passing():
            return self.run(x).detach()

    def run(self, x: Inputs) -> Tensor:
        """f(x; w*), ``[B, C]``, checked, with whatever of its graph is recorded."""
        return run(self._forward, x)

    def _forward(self, x: Inputs, values: dict[str, Tensor] | None = None) -> Tensor:
        """A forward pass that leaves the module as it was.

        Args:
            x: inputs.
            values: parameters and buffers by name, instead of the module's.
        """
        kept = [(vars(part), dict(vars(part))) for part in self.module.modules()]
        try:
            if not values and not self._changing:
                return cast(Tensor, self.module(x))
            every = self._everywhere(values or {})
            return cast(Tensor, functional_call(self.module, every, (x,), tie_weights=False))
        finally:
            for attributes, old in kept:
                for name in attributes.keys() - old.keys():
                    del attributes[name]
                attributes.update(old)

    def _everywhere(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Values by every name that tied tensors have, but one for each module.

        With copies of the other weights that a forward pass changes.
        """
        weights = self.weights()
        values = {name: weights[name].clone() for name in self._changing} | values
        by_id = {id(weights[name]): value for name, value in values.items()}
        every = dict(values)
        for prefix, part in self.module.named_modules():
            own = [*part.named_parameters(prefix, recurse=False, remove_duplicate=False)]
            own += part.named_buffers(prefix, recurse=False, remove_duplicate=False)
            every |= {name: by_id[id(value)] for name, value in own if id(value) in by_id}
        return every

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Forward and backward passes, :func:`alone`.

        Tensors made on the way, and again in a checkpoint, have the precision of the weights.
        """
        with alone():
            before = torch.get_default_dtype()
            if self._asks_default:
                torch.set_default_dtype(self.dtype)
            try:
                yield
            finally:
                torch.set_default_dtype(before)

    @contextmanager
    def differentiable(
        self, parameters: Sequence[Tensor] | None = None
    ) -> Iterator[Sequence[Tensor]]:
        """The differentiated parameters, or some, part of the graph of what is run inside."""
        if parameters is None:
            parameters = list(self.parameters.values())
        with torch.inference_mode(False), torch.enable_grad(), self.passing():
            try:
                for parameter in parameters:
                    parameter.requires_grad_(True)
                yield parameters
            finally:
                for parameter in parameters:
                    parameter.requires_grad_(False)
                    parameter.grad = None

    def recorded(
        self, modules: Sequence[nn.Module], x: Inputs
    ) -> tuple[Tensor, dict[nn.Module, Call]]:
        """f(x; w*), and these modules' inputs and outputs, the outputs as places to differentiate.

        Only those that run once, on all rows.
        """
        calls: dict[nn.Module, Call] = {}
        times: Counter[nn.Module] = Counter()

        def record(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            times[module] += 1
            if not inputs:
                return output
            if not output.requires_grad:
                output.requires_grad_(True)
            calls[module] = Call(inputs[0], output, output.clone(), inputs[0]._version)
            return calls[module].passed

        handles = [module.register_forward_hook(record) for module in modules]
        try:
            with self.passing(), torch.enable_grad():
                outputs = self.run(x)
        finally:
            for handle in handles:
                handle.remove()
        return outputs, {
            module: call
            for module, call in calls.items()
            if times[module] == 1 and call.is_plain(len(outputs))
        }

    def single(self, parameters: dict[str, Tensor], x: Inputs) -> Tensor:
        """f(x; parameters) of one input without a batch dimension, ``[C]``, for ``torch.func``."""
        batch = tree_map(lambda leaf: leaf[None], x)
        return as_matrix(self._forward(batch, parameters))[0]

    def tangent(self, x: Inputs, direction: dict[str, Tensor] | None = None) -> Tensor:
        """J(x) v, ``[B, C]``, for a direction v by parameter; by default w* itself.

        Reverse mode twice (J' u is linear in u, and its transpose is J), since more operations
        have a reverse derivative than a forward one; row by row where they don't have it twice.
        """
        vectors = [(direction or self.parameters)[name].detach() for name in self.names]
        try:
            return self._pushed(x, vectors)
        except RuntimeError:
            flat = torch.cat([as_real(vector).flatten() for vector in vectors])
            return (self.rows(x)[0] @ flat).T

    def _pushed(self, x: Inputs, vectors: list[Tensor]) -> Tensor:
        """J(x) v, refused unless u' (J v) = (J' u)' v."""
        with self.differentiable() as parameters:
            outputs = self.run(x)
            weights = mixture(outputs).requires_grad_(True)
            pulled = torch.autograd.grad(
                outputs, parameters, weights, create_graph=True, allow_unused=True
            )
            (pushed,) = torch.autograd.grad(_inner(pulled, vectors), weights)
        expected = _inner(list(self.gradient(x, weights.detach()).values()), vectors)
        parts = pushed * weights.detach()
        if (parts.sum() - expected).abs() > TOLERANCE[self.dtype] * parts.norm():
            raise RuntimeError("expected a derivative that is linear, got another")
        return pushed.detach()

    def gradient(self, x: Inputs, weights: Tensor) -> dict[str, Tensor]:
        """J(x)' u by parameter, for one weight u for each input and output, ``[B, C]``."""
        with self.differentiable() as parameters, no_lost_gradients():
            outputs = asking(self.run, x)
            total = (outputs * weights.to(outputs)).sum()
            return dict(zip(self.names, _backward(total, parameters), strict=True))

    def rows(self, x: Inputs, num_outputs: int | None = None) -> tuple[Tensor, Tensor]:
        """J(x) of the first outputs by plain autograd, output by output, ``[C, B, P]``; and f."""
        values, made = [], []
        for row in range(length(x)):
            with self.differentiable() as parameters, no_lost_gradients():
                (outputs,) = asking(self.run, take(x, slice(row, row + 1)))
                found = [flattened(_backward(f, parameters)) for f in outputs[:num_outputs]]
            values.append(outputs.detach())
            made.append(torch.stack(found))
        return torch.stack(made, dim=1), torch.stack(values)

    def restricted(self, names: Sequence[str]) -> FrozenNetwork:
        """The same, differentiated by fewer parameters."""
        part = copy.copy(self)
        part._names = list(names)
        return part

    def through(self, module: nn.Module) -> FrozenNetwork:
        """The same weights, read through another module that holds them under the same names."""
        other = copy.copy(self)
        other.module = module.eval()
        return other

    def double(self) -> FrozenNetwork:
        """The same in float64."""
        return self if self.dtype == torch.float64 else self._cast_to(torch.float64)

    def to(self, device: torch.device) -> FrozenNetwork:
        """The same on another device."""
        moved = copy.copy(self)
        moved.module = _copied(self.module).to(device)
        moved.device = device
        return moved

    def agrees_with(self, other: FrozenNetwork) -> bool:
        """Whether the kernels of two networks are the same: names, parameters and buffers."""
        mine, theirs = self.weights(), other.weights()
        return (
            self.names == other.names
            and mine.keys() == theirs.keys()
            and all(
                torch.equal(value, theirs[name].to(self.device)) for name, value in mine.items()
            )
        )

    def check_grown_from(self, old: FrozenNetwork) -> None:
        """Refuse a network that is not ``old`` with more rows in some parameters."""
        before, after = old.weights(), self.weights()
        if before.keys() != after.keys():
            raise MismatchError(
                f"expected a network with the same parameters and buffers, got other names: "
                f"{sorted(before.keys() ^ after.keys())}"
            )
        for name, value in before.items():
            grown = after[name]
            fits = grown.shape[1:] == value.shape[1:] and grown.ndim == value.ndim
            if not fits or (value.ndim and len(grown) < len(value)):
                raise MismatchError(
                    f"expected {name!r} of shape {list(value.shape)} with rows added, "
                    f"got {list(grown.shape)}"
                )
            if not torch.equal(grown[: len(value)] if value.ndim else grown, value):
                raise MismatchError(
                    f"expected the weights the posterior was fitted at, got other values in "
                    f"{name!r}: call fit again for a retrained network"
                )


def named(network: nn.Module, parameters: Parameters) -> list[str] | None:
    """Names of the differentiated parameters; ``None`` for ``"last_layer"``, which a run tells.

    Networks and names that can't be used are refused.
    """
    if not isinstance(network, nn.Module):
        raise ArgumentError(f"expected a torch.nn.Module, got {type(network).__name__}")
    if any(is_lazy(tensor) for tensor in [*network.parameters(), *network.buffers()]):
        raise ArgumentError(
            "expected initialised weights, got lazy ones: run the network on a batch first"
        )
    known = [
        name for name, p in network.named_parameters() if p.is_floating_point() or p.is_complex()
    ]
    if not known:
        raise ArgumentError(
            "expected a network with parameters that have a derivative, got one without any: a "
            "quantized or frozen (torch.jit.freeze) network keeps none; give the original"
        )
    require_float64(next(network.parameters()).device)
    if parameters == "last_layer":
        return None
    if parameters == "all":
        # A network that is frozen as a whole tells nothing of which part is meant.
        trained = {name for name, p in network.named_parameters() if p.requires_grad}
        return [name for name in known if name in trained] or known
    if isinstance(parameters, str) or not isinstance(parameters, Sequence):
        raise ArgumentError(
            f"expected parameters to be 'all', 'last_layer' or a list of names, got {parameters!r}"
        )
    unknown = [name for name in parameters if name not in known]
    if unknown or not parameters:
        raise ArgumentError(
            f"expected names of the network's parameters ({', '.join(known)}), got "
            f"{unknown or 'none'}"
        )
    return [name for name in known if name in set(parameters)]


def require_float64(device: torch.device) -> None:
    """Refuse a device without float64, which the sums are in whatever dtype the network has."""
    torch.zeros((), dtype=torch.float32, device=device)  # a device that is not there says so
    try:
        torch.zeros((), dtype=torch.float64, device=device) + 1
    except (TypeError, RuntimeError) as error:
        raise ArgumentError(
            f"expected a device with float64, which a posterior needs whatever its dtype, got "
            f"{device}: use the CPU, with network.cpu(), or a CUDA device"
        ) from error


def as_matrix(outputs: Tensor) -> Tensor:
    """Outputs as ``[B, C]``."""
    return outputs[:, None] if outputs.ndim == 1 else outputs


def as_real(values: Tensor) -> Tensor:
    """Complex numbers as pairs of real ones, which is what a kernel's inner products are of."""
    return torch.view_as_real(values) if values.is_complex() else values


def flattened(gradients: Sequence[Tensor]) -> Tensor:
    """Gradients by parameter as one vector, ``[P]``."""
    return torch.cat([as_real(part).flatten() for part in gradients])


@lru_cache(maxsize=64)
def _pattern(batch: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(batch)
    rows = 1 + torch.rand(batch, generator=generator, dtype=torch.float64)
    signs = torch.randint(2, (batch,), generator=generator) * 2 - 1
    return (rows * signs)[:, None] * torch.linspace(1, 2, count, dtype=torch.float64)


def mixture(outputs: Tensor, num_outputs: int | None = None) -> Tensor:
    """Weights of no pattern for every output of every row, ``[B, C]``, zero beyond the first C."""
    with torch.inference_mode(False):
        weights = _pattern(*outputs.shape).to(outputs, copy=True)
    weights[:, num_outputs:] = 0
    return weights


def _backward(value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The derivative of a number, by ``backward``: a reentrant checkpoint knows no other way."""
    if value.requires_grad:
        value.backward(retain_graph=True)
    found = [
        torch.zeros_like(p) if p.grad is None else p.grad.detach().to_dense() for p in parameters
    ]
    for parameter in parameters:
        parameter.grad = None
    return found


def _inner(gradients: Sequence[Tensor | None], vectors: Sequence[Tensor]) -> Tensor:
    """The inner product of gradients, of which some may be none, and vectors."""
    pairs = zip(gradients, vectors, strict=True)
    parts = [(as_real(g) * as_real(v)).sum() for g, v in pairs if g is not None]
    return torch.stack(parts).sum()


def run(network: Callable[[Inputs], Any], x: Inputs) -> Tensor:
    """A network's outputs as ``[B, C]``, checked, whatever autocast region the caller is in."""
    try:
        with without_autocast():
            outputs = network(x)
    except Exception as error:
        advice = ""
        if isinstance(error, TypeError) or not isinstance(x, Tensor):
            advice = (
                "; inputs are given as one argument: where forward takes several, give a small "
                "module that unpacks a dict or tuple of them, such as self.network(**x)"
            )
        raise DataError(
            f"expected inputs the network can take, got shape {_shapes(x)}: {error}{advice}"
        ) from error
    fits = isinstance(outputs, Tensor) and outputs.ndim in (1, 2) and outputs.is_floating_point()
    if not fits or len(outputs) != length(x) or not outputs.numel():
        got = type(outputs).__name__
        if isinstance(outputs, Tensor):
            got = f"{list(outputs.shape)} of {outputs.dtype}"
        raise DataError(
            f"expected a network whose outputs are floats [B, C], got {got} for inputs of "
            f"shape {_shapes(x)}"
        )
    return as_matrix(outputs)


def _shapes(x: Inputs) -> str:
    return ", ".join(f"{list(leaf.shape)}" for _, leaf in leaves(x))


def graph_leaves(outputs: Tensor) -> Iterator[Tensor]:
    """The leaves of a graph, each as often as it enters.

    Raises:
        RuntimeError: a reentrant checkpoint hides a part of the graph.
    """
    seen, pending = set(), [outputs.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "CheckpointFunctionBackward":
            raise RuntimeError("expected a graph that is shown, got a reentrant checkpoint")
        for following, _ in node.next_functions:
            variable = getattr(following, "variable", None)
            if variable is not None:
                yield variable
            else:
                pending.append(following)


def asking(run: Callable[[Inputs], Tensor], x: Inputs) -> Tensor:
    """Outputs for inputs that ask for a gradient, unless the network can't take such.

    A reentrant checkpoint gives none to its parameters where no input asks for one.
    """

    def ask(leaf: Tensor) -> Tensor:
        leaf = leaf.detach()
        return leaf.requires_grad_(True) if leaf.is_floating_point() or leaf.is_complex() else leaf

    try:
        return run(tree_map(ask, x))
    except DataError:
        return run(x)


def _frozen(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy in eval mode, without gradients, and without hooks that change derivatives."""
    with torch.no_grad():
        module = _cast(_copied(network), dtype).eval()
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    for part in module.modules():
        part._backward_hooks.clear()
        part._backward_pre_hooks.clear()
    return module


def _cast(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """All numbers in one precision, complex ones too, in place."""
    return module._apply(
        lambda t: t.to(cast_dtype(t, dtype)) if t.is_floating_point() or t.is_complex() else t
    )


def dtype_of(network: nn.Module) -> torch.dtype:
    """The precision of a network's parameters, as one for real values."""
    numbers = [p.dtype for p in network.parameters() if p.is_floating_point() or p.is_complex()]
    return numbers[0].to_real()


def cast_dtype(values: Tensor, dtype: torch.dtype) -> torch.dtype:
    """A precision for real values as one for these, which may be complex."""
    return dtype.to_complex() if values.is_complex() else dtype


def _copied(module: nn.Module) -> nn.Module:
    """A copy, without the history of activations that some networks keep on themselves."""
    kept = [value for part in module.modules() for value in vars(part).values()]
    known = {
        id(value): value.detach().clone()
        for value in kept
        if isinstance(value, Tensor) and value.grad_fn is not None
    }
    with LOCK:  # a pass leaves hooks and flags on it until it ends
        copied = copy.deepcopy(module, memo=known)
    for part in copied.modules():
        if type(part).__name__ == "OptimizedModule":  # run as it was before torch.compile
            part.forward = cast(nn.Module, part._orig_mod).__call__
    return copied


@contextmanager
def no_lost_gradients() -> Iterator[None]:
    """Let a reentrant checkpoint fail where it would find no gradient: no input asks for one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="None of the inputs have requires_grad")
        yield


@contextmanager
def eval_mode(network: nn.Module) -> Iterator[None]:
    """Evaluate in eval mode and give every module its own mode back."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def alone() -> Iterator[None]:
    """One thread at a time, since a pass changes modules, and switches that all threads share.

    Attention is by plain products: the fused kernels have no derivatives or batching rules. And no
    autocast: these are products of the network's own precision.
    """
    with LOCK:
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            with sdpa_kernel(SDPBackend.MATH), without_autocast():
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(before)
