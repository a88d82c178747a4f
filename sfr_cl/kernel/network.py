"""The network as the posterior sees it: a frozen copy at the weights w*, and which it takes.

The user's network is only ever copied. The copy is in eval mode, in the posterior's dtype, and
carries the weights the kernel is built at, whatever happens to the original afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sfr_cl.data.inputs import Inputs, leaves, length, prepare, take, tree_map
from sfr_cl.errors import ArgumentError, DataError, MismatchError, SFRError
from sfr_cl.kernel.copies import copied, dtype_of, frozen
from sfr_cl.kernel.frozen import TOLERANCE, Frozen
from sfr_cl.kernel.last_layer import last_layer
from sfr_cl.kernel.passes import alone, as_matrix, asking, eval_mode, graph_leaves, run

__all__ = [
    "ALIKE",
    "ALONE",
    "BOUND",
    "FrozenNetwork",
    "Parameters",
    "alone",
    "as_matrix",
    "asking",
    "dtype_of",
    "eval_mode",
    "named",
    "require_float64",
    "run",
]

Parameters = str | Sequence[str]

ALIKE = 1e-2
"""How far outputs in two precisions may be apart, relative to their size: rounding is far below."""

ALONE = 4
"""Rows of a batch whose outputs are compared with those in other company."""

BOUND = 32
"""Rows whose outputs are compared with those alone when a network is bound."""

AT_ONCE = 2**18
"""Numbers of inputs that one pass takes where two precisions are compared; at least BOUND rows."""


class FrozenNetwork(Frozen):
    """f(x; w*) with the parameters the kernel differentiates by name.

    Args:
        network: any module that maps a batch of inputs to ``[B, C]`` (or ``[B]`` for one output).
        parameters: ``"all"`` (but those with ``requires_grad=False``), ``"last_layer"`` (see
            :mod:`sfr_cl.kernel.last_layer`), or names as in ``network.named_parameters()``.
        dtype: precision of the copy.
    """

    def __init__(self, network: nn.Module, parameters: Parameters, dtype: torch.dtype) -> None:
        self._requested = parameters
        names = named(network, parameters)  # refuses what is no network
        self._given_dtype = dtype_of(network)
        try:
            with torch.inference_mode(False):
                module = frozen(network, dtype)
        except Exception as error:
            raise ArgumentError(
                f"expected a network that copy.deepcopy can copy, got {error}: delete tensors with "
                f"a history that the module keeps"
            ) from error
        super().__init__(module, names, dtype)

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
        try:
            self.watch(few)
        except DataError as error:
            raise self._explained(few, error) from error
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
                self.choose(last_layer(self.module, lambda: self.run(x)))
        return outputs.shape[1]

    def require_alike(self, x: Inputs) -> None:
        """Refuse a network that computes something else in the precision it was given in.

        Where it compares or rounds its inputs, 0.7 in float32 is not the same number in float64.
        """
        given = self._given_dtype
        if given == self.dtype or given not in TOLERANCE:
            return
        numbers = sum(leaf.numel() for _, leaf in leaves(x))
        count = max(BOUND, AT_ONCE * length(x) // max(1, numbers))
        for start in range(0, length(x), count):
            rows = take(x, slice(start, start + count))
            try:
                expected = self.computed_in(given, rows)
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

    def _require_graph(self, x: Inputs) -> None:
        """Refuse outputs that depend on none of the parameters, or on those of something else."""
        every = dict(self.module.named_parameters())
        known = [p for p in every.values() if p.is_floating_point() or p.is_complex()]
        chosen = [every[name] for name in self.names or ()] or known
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
        cast_to = self.cast_to(other)
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
                self.cast_to(half)(prepare(x, self.device, half))
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

        def again() -> Tensor:
            with torch.no_grad(), self.passing():
                return torch.cat([self.run(row) for row in each])

        self.require_same(x, outputs, again)

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
        module = copied(self.module)
        with torch.no_grad(), self.passing():
            first = run(module, x)
            with suppress(DataError):
                run(module, take(x, slice(0, 1)))
            second = run(module, x)
        if not self._close(second, first):
            raise ArgumentError(
                "expected a network that gives the same outputs each time, got one that keeps "
                "something between calls in eval mode: let forward keep nothing, or update only in "
                "train mode"
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
