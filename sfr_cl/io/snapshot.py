"""A state as named tensors and plain values, and back, with every part checked on the way."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sfr_cl.core.basis import InducingInputs
from sfr_cl.core.calibration import NO_SCORES, Forecast, Scores
from sfr_cl.core.spec import GIVEN, OPTIONS, Spec
from sfr_cl.core.state import State
from sfr_cl.core.sums import DualSums
from sfr_cl.core.transfer import inducing
from sfr_cl.data.arguments import positive, whole
from sfr_cl.data.inputs import Inputs, leaves, length
from sfr_cl.errors import ArgumentError, MismatchError
from sfr_cl.kernel import TangentKernel
from sfr_cl.kernel.network import FrozenNetwork
from sfr_cl.likelihoods import Likelihood, is_built_in

T = TypeVar("T")

REMEDY = "give the architecture the posterior was made with"


def take(state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and everything else as values a JSON file can hold."""
    basis, spec = inducing(state), state.spec
    tensors = {f"network.{name}": value for name, value in basis.network.weights().items()}
    tensors |= {f"inducing.{i}": leaf for i, (_, leaf) in enumerate(leaves(basis.z))}
    tensors |= {f"sums.{name}": value for name, value in state.sums.named().items()}
    tensors |= {"factor": basis.factor, "reference": state.reference}
    tensors["outputs"] = basis.network(basis.z)
    values: dict[str, Any] = {
        "options": spec.options(),
        "likelihood": spec.likelihood.name,
        "settings": spec.likelihood.settings(),
        "custom_likelihood": not is_built_in(spec.likelihood),
        "parameter_names": basis.network.names,
        "num_outputs": state.num_outputs,
        "kernel_outputs": basis.kernel_outputs,
        "batch_size": basis.batch_size,
        "inducing": _structure(basis.z),
        "inducing_origin": {"given": basis.given, "dropped": list(basis.dropped)},
        "prior_precision": spec.prior_precision,
        "logit_scale": spec.logit_scale,
        "scores": state.scores.plain(),
        "bound": state.bound.plain(),
        "forecast": None,
        "discriminant": state.discriminant,
    }
    if (forecast := state.forecast) is not None:
        tensors |= {
            "forecast.coefficients": forecast.coefficients,
            "forecast.offset": forecast.offset,
            "forecast.seen": forecast.seen,
        }
        values["forecast"] = {
            "prior_precision": forecast.prior_precision,
            "learned_at": forecast.learned_at,
        }
    return {name: value.detach().clone() for name, value in tensors.items()}, values


def restore(
    tensors: dict[str, Tensor], values: dict[str, Any], network: nn.Module, likelihood: Likelihood
) -> State:
    """The state; ``network`` lends its architecture, the weights come from the tensors."""
    spec = read_spec(values, likelihood)
    check_architecture(tensors, network)
    frozen = FrozenNetwork(network, part(values, "parameter_names", list), spec.dtype)
    device = frozen.device
    with torch.no_grad():
        for name, weight in frozen.weights().items():
            weight.copy_(tensors[f"network.{name}"])
    z = _rebuild(part(values, "inducing", object), _inducing(tensors, device))
    num_outputs = whole("num_outputs", part(values, "num_outputs", int))
    kernel_outputs = whole("kernel_outputs", part(values, "kernel_outputs", int))
    kernels, size = 1 if spec.shared else num_outputs, length(z)
    empty = DualSums.zeros(num_outputs, kernels, size, torch.device("meta")).named()
    shapes = {f"sums.{name}": list(value.shape) for name, value in empty.items()}
    shapes |= {"factor": [kernels, size, size], "reference": [num_outputs, size]}
    if getattr(tensors.get("sums.constant"), "ndim", None) == 0:
        shapes["sums.constant"] = []  # of version 0.1.0
    found = {
        name: _tensor(tensors, name, shape, torch.float64).to(device, copy=True)
        for name, shape in shapes.items()
    }
    frozen.bind(z)
    outputs = frozen(z)
    fits = kernel_outputs <= outputs.shape[1]
    if not spec.any_outputs:
        fits = outputs.shape[1] == num_outputs == kernel_outputs
    if not fits:
        raise MismatchError(
            f"expected a network with {num_outputs} outputs, got {outputs.shape[1]}: {REMEDY}"
        )
    expected = _tensor(tensors, "outputs", list(outputs.shape), spec.dtype).to(device)
    if not torch.allclose(outputs, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())):
        raise MismatchError(
            f"expected a network with the outputs stored for the inducing inputs, got others: "
            f"its layers have the same shapes but compute something else; {REMEDY}"
        )
    batch_size = whole("batch_size", part(values, "batch_size", int))
    kernel = TangentKernel(frozen, kernel_outputs, spec.shared, z)
    basis = replace(
        InducingInputs.whitened(kernel, z, found["factor"], batch_size), **_origin(values, size)
    )
    sums = DualSums.from_named({name: found[f"sums.{name}"] for name in empty})
    scores, bound = (  # version 0.1.0 has none
        Scores.from_plain(part(values, name, dict)) if name in values else NO_SCORES
        for name in ("scores", "bound")
    )
    forecast = None
    if (stored := values.get("forecast")) is not None:
        shapes = {
            "coefficients": [num_outputs, size],
            "offset": [num_outputs],
            "seen": [num_outputs],
        }
        coefficients, offset, seen = (
            _tensor(tensors, f"forecast.{name}", shape, torch.float64).to(device, copy=True)
            for name, shape in shapes.items()
        )
        forecast = Forecast(
            coefficients,
            offset,
            seen,
            positive("prior_precision", part(stored, "prior_precision", float)),
            positive("learned_at", part(stored, "learned_at", float)),
        )
    discriminant = "discriminant" in values and part(values, "discriminant", bool)
    reference = found["reference"]
    return State(spec, basis, sums, reference, scores, bound, forecast, discriminant)


def _origin(values: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Where Z came from; files of before do not say: nothing in them has to stay."""
    if "inducing_origin" not in values:
        return {}
    stored = part(values, "inducing_origin", dict)
    dropped = part(stored, "dropped", list)
    places = range(size + len(dropped))
    known = all(type(place) is int and place in places for place in dropped)
    if not known or len(set(dropped)) < len(dropped):
        raise MismatchError(f"expected places of inducing inputs, got {dropped!r:.60}")
    return {"given": part(stored, "given", bool), "dropped": tuple(dropped)}


def part(values: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """One entry of the stored values, of the right type."""
    found = values.get(name) if isinstance(values, Mapping) else None
    fits = isinstance(found, kind) or (kind is float and isinstance(found, int))
    if found is None or not fits or (isinstance(found, bool) and kind is not bool):
        raise MismatchError(
            f"expected {name!r} of type {kind.__name__} in the stored posterior, got {found!r:.60}"
        )
    return found


def read_spec(values: Mapping[str, Any], likelihood: Likelihood) -> Spec:
    """The stored options, settings of the likelihood, and delta."""
    stored = part(values, "options", dict)
    if sorted(stored) != sorted(OPTIONS):
        raise MismatchError(f"expected the options {', '.join(OPTIONS)}, got {sorted(stored)}")
    name = part(values, "likelihood", str)
    if name != likelihood.name:
        raise MismatchError(
            f"expected the likelihood the posterior was made with, {name!r}, got "
            f"{likelihood.name!r}"
        )
    custom = not is_built_in(likelihood)
    # Version 0.1.0 did not say.
    if "custom_likelihood" in values and custom != part(values, "custom_likelihood", bool):
        raise MismatchError(
            f"expected {'the built-in' if custom else 'a custom'} likelihood {name!r}, with which "
            f"the posterior was made, got {type(likelihood).__name__}: give the object it was made "
            f"with as load(path, network, likelihood=...), or none if it was built in"
        )
    likelihood = likelihood.with_settings(part(values, "settings", dict))
    delta = values.get("prior_precision", 0.0)
    spec = Spec.from_options(stored, likelihood)
    if delta is not None:
        spec = replace(spec, prior_precision=positive("prior_precision", delta))
    elif "scores" not in values and likelihood.noise_scale is None:
        spec = replace(spec, prior_precision=1.0)  # the default before it was learned
    if values.get("logit_scale", 0.0) is not None:
        scale = positive("logit_scale", part(values, "logit_scale", float))
        spec = replace(spec, logit_scale=scale if likelihood.has_logits else None)
    return spec


def read_given(values: Mapping[str, Any]) -> dict[str, Any]:
    """How the next fit is to start; nothing where version 0.1.0 did not say."""
    if "given" not in values:
        return {}
    stored = part(values, "given", dict)
    if sorted(stored) != sorted(GIVEN):
        raise MismatchError(f"expected {', '.join(GIVEN)} as they were given, got {sorted(stored)}")
    checks: dict[str, Callable[[str, Any], float]] = {
        "prior_precision": positive,
        "logit_scale": positive,
        "num_outputs": whole,
        "batch_size": whole,
    }
    return {
        name: None if stored[name] is None else check(name, stored[name])
        for name, check in checks.items()
    }


def require_settings(values: Mapping[str, Any], likelihood: Likelihood) -> None:
    """Refuse a likelihood of other settings than the stored ones, which would replace its own.

    Where a noise that is learned starts is no setting.
    """
    stored = part(values, "settings", dict)
    own = json.loads(json.dumps(likelihood.settings()))
    if likelihood.learns_noise and likelihood.with_settings(stored).learns_noise:
        stored = likelihood.with_settings(stored).with_noise(1.0).settings()
        own = likelihood.with_noise(1.0).settings()
    known = part(values, "settings", dict)
    other = sorted(name for name in known if own.get(name) != stored[name])
    if other:
        raise MismatchError(
            f"expected the likelihood the posterior was made with, "
            f"{', '.join(f'{name}={stored[name]!r}' for name in other)}, got "
            f"{', '.join(f'{name}={own.get(name)!r}' for name in other)}: give it those settings"
        )


def check_architecture(tensors: Mapping[str, Tensor], network: nn.Module) -> None:
    """Refuse a network whose parameters or buffers have other names or shapes than stored."""
    if not isinstance(tensors, Mapping):
        raise MismatchError(f"expected tensors by name, got {type(tensors).__name__}")
    if not isinstance(network, nn.Module):
        raise ArgumentError(
            f"expected a torch.nn.Module of the architecture that was saved, got "
            f"{type(network).__name__}: files hold weights only"
        )
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
    remedy: str = "it is not a complete posterior",
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
