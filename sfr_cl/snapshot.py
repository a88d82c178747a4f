"""A state as named tensors and plain values, and back, with every part checked on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sfr_cl.duals import DualSums
from sfr_cl.errors import MismatchError
from sfr_cl.inputs import Inputs, leaves, length
from sfr_cl.likelihoods import GaussianLikelihood, Likelihood
from sfr_cl.network import FrozenNetwork
from sfr_cl.options import Options, positive, whole
from sfr_cl.state import State

T = TypeVar("T")

REMEDY = "give the architecture the posterior was made with"


def take(state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and everything else as values a JSON file can hold."""
    tensors = {f"network.{name}": value for name, value in state.network.weights().items()}
    tensors |= {f"inducing.{i}": leaf for i, (_, leaf) in enumerate(leaves(state.z))}
    tensors |= {f"sums.{field.name}": getattr(state.sums, field.name) for field in fields(DualSums)}
    tensors |= {"factor": state.factor, "reference": state.reference}
    tensors["outputs"] = state.network(state.z)
    values: dict[str, Any] = {
        "options": state.options.plain(),
        "likelihood": state.likelihood.name,
        "settings": state.likelihood.settings(),
        "parameter_names": state.network.names,
        "num_outputs": state.num_outputs,
        "kernel_outputs": state.kernel_outputs,
        "batch_size": state.batch_size,
        "inducing": _structure(state.z),
    }
    return {name: value.detach().clone() for name, value in tensors.items()}, values


def restore(
    tensors: dict[str, Tensor], values: dict[str, Any], network: nn.Module, likelihood: Likelihood
) -> State:
    """The state; ``network`` lends its architecture, the weights come from the tensors."""
    options = read_options(values)
    check_architecture(tensors, network)
    frozen = FrozenNetwork(network, part(values, "parameter_names", list), options.dtype)
    device = frozen.device
    with torch.no_grad():
        for name, weight in frozen.weights().items():
            weight.copy_(tensors[f"network.{name}"])
    if isinstance(likelihood, GaussianLikelihood):
        settings = part(values, "settings", dict)
        noise = positive("noise_variance", part(settings, "noise_variance", float))
        likelihood = GaussianLikelihood(noise, learn=part(settings, "learn", bool))
    z = _rebuild(part(values, "inducing", object), _inducing(tensors, device))
    num_outputs = whole("num_outputs", part(values, "num_outputs", int))
    kernel_outputs = whole("kernel_outputs", part(values, "kernel_outputs", int))
    kernels, size = 1 if options.shared else num_outputs, length(z)
    shapes = {
        "factor": [kernels, size, size],
        "reference": [num_outputs, size],
        "sums.gradient": [num_outputs, size],
        "sums.point": [num_outputs, size],
        "sums.mass": [kernels, size],
        "sums.weight": [kernels, size, size],
        "sums.constant": [],
        "sums.seen": [num_outputs],
        "sums.count": [],
    }
    found = {
        name: _tensor(tensors, name, shape, torch.float64).to(device, copy=True)
        for name, shape in shapes.items()
    }
    state = State(
        network=frozen,
        options=options,
        likelihood=likelihood,
        num_outputs=num_outputs,
        kernel_outputs=kernel_outputs,
        batch_size=whole("batch_size", part(values, "batch_size", int)),
        z=z,
        factor=found["factor"],
        sums=DualSums(*(found[f"sums.{field.name}"] for field in fields(DualSums))),
        reference=found["reference"],
    )
    outputs = frozen(z)
    fits = kernel_outputs <= outputs.shape[1]
    if not options.outputs_are_free:
        fits = outputs.shape[1] == num_outputs == kernel_outputs
    if not fits:
        raise MismatchError(
            f"expected a network with {num_outputs} outputs, got {outputs.shape[1]}: {REMEDY}"
        )
    expected = _tensor(tensors, "outputs", list(outputs.shape), options.dtype).to(device)
    if not torch.allclose(outputs, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())):
        raise MismatchError(
            f"expected a network with the outputs stored for the inducing inputs, got others: "
            f"its layers have the same shapes but compute something else; {REMEDY}"
        )
    return state


def part(values: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """One entry of the stored values, of the right type."""
    found = values.get(name) if isinstance(values, Mapping) else None
    fits = isinstance(found, kind) or (kind is float and isinstance(found, int))
    if found is None or not fits or (isinstance(found, bool) and kind is not bool):
        raise MismatchError(
            f"expected {name!r} of type {kind.__name__} in the stored posterior, got {found!r:.60}"
        )
    return found


def read_options(values: Mapping[str, Any]) -> Options:
    """The stored options."""
    stored = part(values, "options", dict)
    names = [field.name for field in fields(Options)]
    if sorted(stored) != sorted(names):
        raise MismatchError(f"expected the options {', '.join(names)}, got {sorted(stored)}")
    return Options.from_plain(stored)


def check_architecture(tensors: Mapping[str, Tensor], network: nn.Module) -> None:
    """Refuse a network whose parameters or buffers have other names or shapes than stored."""
    if not isinstance(tensors, Mapping):
        raise MismatchError(f"expected tensors by name, got {type(tensors).__name__}")
    own = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for name, weight in own.items():
        _tensor(tensors, f"network.{name}", list(weight.shape), None, REMEDY)
    for name in tensors:
        if name.startswith("network.") and name.removeprefix("network.") not in own:
            raise MismatchError(
                f"expected a network with {name.removeprefix('network.')!r}, got one without: "
                f"{REMEDY}"
            )


def _tensor(
    tensors: Mapping[str, Tensor],
    name: str,
    shape: list[int],
    dtype: torch.dtype | None,
    remedy: str = "it is not a whole posterior",
) -> Tensor:
    found = tensors.get(name)
    if not isinstance(found, Tensor):
        raise MismatchError(f"expected a tensor {name!r} of shape {shape}, got none: {remedy}")
    if list(found.shape) != shape or (dtype is not None and found.dtype != dtype):
        raise MismatchError(
            f"expected {name!r} of shape {shape}{f' and {dtype}' if dtype else ''}, got "
            f"{list(found.shape)} and {found.dtype}: {remedy}"
        )
    return found


def _inducing(tensors: Mapping[str, Tensor], device: torch.device) -> list[Tensor]:
    """Leaves of Z in their order."""
    count = sum(name.startswith("inducing.") for name in tensors)
    found = [tensors.get(f"inducing.{i}") for i in range(count)]
    if not found or not all(isinstance(leaf, Tensor) and leaf.ndim for leaf in found):
        raise MismatchError("expected inducing inputs in the stored posterior, got none")
    return [leaf.to(device, copy=True) for leaf in found if leaf is not None]


def _structure(x: Inputs) -> Any:
    if isinstance(x, Tensor):
        return "tensor"
    if isinstance(x, dict):
        return {"dict": [[key, _structure(value)] for key, value in x.items()]}
    return {type(x).__name__: [_structure(value) for value in x]}


def rebuilt_like(x: Inputs, found: list[Tensor]) -> Inputs:
    """Leaves in the form of some other inputs."""
    return _rebuild(_structure(x), found)


def _rebuild(structure: Any, found: list[Tensor]) -> Inputs:
    """Put leaves back, in order, where they were."""
    try:
        tree = _grow(structure, iter(found))
    except (StopIteration, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise MismatchError(
            f"expected a stored form of the inducing inputs, got {structure!r:.60}"
        ) from error
    if len(leaves(tree)) != len(found) or len({len(leaf) for leaf in found}) != 1:
        raise MismatchError("expected as many inducing tensors as their form has, got others")
    return tree


def _grow(structure: Any, found: Any) -> Inputs:
    if structure == "tensor":
        return next(found)
    ((kind, parts),) = structure.items()
    if kind == "dict":
        return {key: _grow(value, found) for key, value in parts}
    values = [_grow(value, found) for value in parts]
    return tuple(values) if kind == "tuple" else values
