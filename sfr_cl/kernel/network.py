"""The network as the posterior sees it: a frozen copy at the weights w*.

The user's network is only ever copied. The copy is in eval mode, in the posterior's dtype, and
carries the weights the kernel is built at, whatever happens to the original afterwards.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy

from sfr_cl.data.inputs import Inputs, leaves, length, prepare, tree_map
from sfr_cl.errors import ArgumentError, DataError, MismatchError
from sfr_cl.kernel.last_layer import last_layer
from sfr_cl.kernel.precision import without_autocast

Parameters = str | Sequence[str]


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
        """Batch first on both sides, its input still what it was."""
        leading = self.input.ndim > 0 and len(self.input) == batch == len(self.output)
        return leading and self.input._version == self.version


class FrozenNetwork:
    """f(x; w*) with the parameters the kernel differentiates by name.

    Args:
        network: any module that maps a batch of inputs to ``[B, C]`` (or ``[B]`` for one output).
        parameters: ``"all"`` (but those with ``requires_grad=False``), ``"last_layer"`` (see
            :mod:`sfr_cl.kernel.last_layer`), or names as in ``network.named_parameters()``.
        dtype: precision of the copy.
    """

    def __init__(self, network: nn.Module, parameters: Parameters, dtype: torch.dtype) -> None:
        self._requested = parameters
        self._names = named(network, parameters)
        try:
            with torch.inference_mode(False):
                self.module = copy.deepcopy(network).to(dtype).eval().requires_grad_(False)
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
        """Run once, learn which layer is last if that matters, and return C."""
        x = tree_map(torch.clone, x)
        versions = [leaf._version for _, leaf in leaves(x)]
        outputs = self(x)
        if versions != [leaf._version for _, leaf in leaves(x)]:
            raise ArgumentError(
                "expected a network that leaves its input as it is, got one that changes it in "
                "place: copy the input first thing in forward"
            )
        if self._requested == "last_layer":
            with plain_attention():
                self._names = last_layer(self.module, lambda: run(self.module, x))
        return outputs.shape[1]

    @property
    def names(self) -> list[str]:
        """Names of the differentiated parameters."""
        return cast("list[str]", self._names)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The differentiated parameters by name."""
        chosen = set(self.names)
        return {name: p for name, p in self.module.named_parameters() if name in chosen}

    def weights(self) -> dict[str, Tensor]:
        """Every parameter and buffer by name."""
        return {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}

    def prepare(self, x: Inputs, what: str = "inputs") -> Inputs:
        """Inputs, checked, on the copy's device and in its dtype."""
        return prepare(x, self.device, self.dtype, what)

    @torch.no_grad()
    def __call__(self, x: Inputs) -> Tensor:
        """f(x; w*), ``[B, C]``."""
        with plain_attention():
            return run(self.module, x)

    def recorded(
        self, modules: Sequence[nn.Module], x: Inputs
    ) -> tuple[Tensor, dict[nn.Module, Call]]:
        """f(x; w*), and these modules' inputs and outputs, the outputs as places to differentiate.

        A module that runs otherwise than once on all rows is an error, never a wrong number.
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
            with plain_attention(), torch.enable_grad():
                outputs = run(self.module, x)
        finally:
            for handle in handles:
                handle.remove()
        for module in modules:
            call = calls.get(module)
            if times[module] != 1 or call is None or not call.is_plain(len(outputs)):
                raise ArgumentError(
                    f"expected a network that runs alike on all inputs, got one that calls a "
                    f"{type(module).__name__} {times[module]} times, or on some rows only, "
                    f"depending on the input: give the names of the other parameters as parameters"
                )
        return outputs, calls

    def single(self, parameters: dict[str, Tensor], x: Inputs) -> Tensor:
        """f(x; parameters) of one input without a batch dimension, ``[C]``, for ``torch.func``."""
        batch = tree_map(lambda leaf: leaf[None], x)
        return as_matrix(functional_call(self.module, parameters, (batch,)))[0]

    def tangent(self, x: Inputs, direction: dict[str, Tensor] | None = None) -> Tensor:
        """J(x) v, ``[B, C]``, for a direction v by parameter; by default w* itself.

        Reverse mode twice (J' u is linear in u, and its transpose is J), since more operations
        have a reverse derivative than a forward one.
        """
        with plain_attention():
            f, pull_back = self._vjp(x)
            _, push_forward = _vjp(lambda u: pull_back(u)[0], torch.zeros_like(f))
            tangent: Tensor = push_forward(direction or self.parameters)[0]
            return tangent.detach()

    def gradient(self, x: Inputs, weights: Tensor) -> dict[str, Tensor]:
        """J(x)' u by parameter, for one weight u for each input and output, ``[B, C]``."""
        with plain_attention():
            _, pull_back = self._vjp(x)
            found: dict[str, Tensor] = pull_back(weights)[0]
            return {name: value.detach() for name, value in found.items()}

    def _vjp(self, x: Inputs) -> tuple[Any, Callable[[Any], Any]]:
        return _vjp(lambda p: as_matrix(functional_call(self.module, p, (x,))), self.parameters)

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
        if self.dtype == torch.float64:
            return self
        exact = copy.copy(self)
        exact.module = _copied(self.module).double()
        exact.dtype = torch.float64
        return exact

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
    known = [name for name, _ in network.named_parameters()]
    if not known:
        raise ArgumentError("expected a network with parameters, got one without any")
    require_float64(next(network.parameters()).device)
    if parameters == "last_layer":
        return None
    if parameters == "all":
        # A network that is frozen as a whole tells nothing of which part is meant.
        return [name for name, p in network.named_parameters() if p.requires_grad] or known
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


def run(network: nn.Module, x: Inputs) -> Tensor:
    """A network's outputs as ``[B, C]``, checked, whatever autocast region the caller is in."""
    try:
        with without_autocast():
            outputs = network(x)
    except Exception as error:
        raise DataError(
            f"expected inputs the network can take, got shape {_shapes(x)}: {error}"
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


def _copied(module: nn.Module) -> nn.Module:
    """A copy of a frozen module, without the activations some networks keep on themselves."""
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                setattr(part, name, value.detach())
    return copy.deepcopy(module)


def _vjp(function: Callable[[Any], Any], at: Any) -> tuple[Any, Callable[[Any], Any]]:
    """``torch.func.vjp`` without auxiliary outputs, whose type its annotation mixes in."""
    value, pull_back, *_ = vjp(function, at)
    return value, pull_back


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
def plain_attention() -> Iterator[None]:
    """Attention by plain products: the fused kernels have no derivatives or batching rules.

    And no autocast: these are products of the network's own precision.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), without_autocast():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
