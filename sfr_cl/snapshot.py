"""A state as named tensors and plain values, and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from sfr_cl.duals import DualSums
from sfr_cl.errors import MismatchError
from sfr_cl.inputs import Inputs, leaves
from sfr_cl.likelihoods import GaussianLikelihood, Likelihood
from sfr_cl.network import FrozenNetwork
from sfr_cl.options import Options
from sfr_cl.state import State


def take(state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and everything else as values a JSON file can hold."""
    tensors = {f"network.{name}": value for name, value in state.network.weights().items()}
    tensors |= {f"inducing.{name}": leaf for name, leaf in leaves(state.z)}
    tensors |= {f"sums.{field.name}": getattr(state.sums, field.name) for field in fields(DualSums)}
    tensors |= {"factor": state.factor, "reference": state.reference}
    values: dict[str, Any] = {
        "options": state.options.plain(),
        "likelihood": state.likelihood.name,
        "parameter_names": state.network.names,
        "num_outputs": state.num_outputs,
        "kernel_outputs": state.kernel_outputs,
        "batch_size": state.batch_size,
        "inducing": _structure(state.z),
    }
    if isinstance(state.likelihood, GaussianLikelihood):
        values["noise_variance"] = state.likelihood.noise_variance
        values["learn_noise"] = state.likelihood.learn
    return tensors, values


def restore(
    tensors: dict[str, Tensor], values: dict[str, Any], network: nn.Module, likelihood: Likelihood
) -> State:
    """The state; ``network`` lends its architecture, the weights come from the tensors."""
    options = Options.from_plain(values["options"])
    frozen = FrozenNetwork(network, values["parameter_names"], options.dtype)
    own = frozen.weights()
    for name, value in own.items():
        stored = tensors.get(f"network.{name}")
        if stored is None or stored.shape != value.shape:
            got = "none" if stored is None else str(list(stored.shape))
            raise MismatchError(
                f"expected weights for the network's {name!r} of shape {list(value.shape)}, got "
                f"{got} in the stored posterior: give the architecture it was made with"
            )
    extra = {name for name in tensors if name.startswith("network.")} - {
        f"network.{name}" for name in own
    }
    if extra:
        raise MismatchError(
            f"expected a network with {sorted(extra)[0].removeprefix('network.')!r}, which the "
            f"stored posterior has: give the architecture it was made with"
        )
    device = frozen.device
    for name, value in own.items():
        value.copy_(tensors[f"network.{name}"])
    if isinstance(likelihood, GaussianLikelihood):
        likelihood = GaussianLikelihood(values["noise_variance"], learn=values["learn_noise"])
    stored_sums = (tensors[f"sums.{field.name}"] for field in fields(DualSums))
    return State(
        network=frozen,
        options=options,
        likelihood=likelihood,
        num_outputs=values["num_outputs"],
        kernel_outputs=values["kernel_outputs"],
        batch_size=values["batch_size"],
        z=_rebuild(values["inducing"], tensors, "inducing", device),
        factor=tensors["factor"].to(device),
        sums=DualSums(*(value.to(device) for value in stored_sums)),
        reference=tensors["reference"].to(device),
    )


def _structure(x: Inputs) -> Any:
    if isinstance(x, Tensor):
        return "tensor"
    if isinstance(x, dict):
        return {"dict": {key: _structure(value) for key, value in x.items()}}
    return {type(x).__name__: [_structure(value) for value in x]}


def _rebuild(structure: Any, tensors: dict[str, Tensor], name: str, device: torch.device) -> Inputs:
    if structure == "tensor":
        return tensors[name if name != "inducing" else "inducing."].to(device)
    ((kind, parts),) = structure.items()
    if kind == "dict":
        return {
            key: _rebuild(part, tensors, f"{name}.{key}", device) for key, part in parts.items()
        }
    values = [_rebuild(part, tensors, f"{name}.{i}", device) for i, part in enumerate(parts)]
    return tuple(values) if kind == "tuple" else values
