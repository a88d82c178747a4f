"""Per-sample Jacobians by ``torch.func``: as large as they are, of any module it can carry."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from sfr_cl.data.inputs import Inputs
from sfr_cl.kernel.frozen import Frozen, as_real


@torch.no_grad()
def jacobian(network: Frozen, num_outputs: int, x: Inputs) -> tuple[Tensor, Tensor]:
    """J(x) of the first outputs by the network's parameters, ``[C, B, P]``, and f ``[B, C]``."""

    def outputs(parameters: dict[str, Tensor], row: Inputs) -> tuple[Tensor, Tensor]:
        found = network.single(parameters, row)
        return found[:num_outputs], found

    with network.passing(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        derivative = vmap(jacrev(outputs, has_aux=True), in_dims=(None, 0))
        parts, values = derivative(network.parameters, x)
    columns = [as_real(part)[..., None].flatten(2) for part in parts.values()]
    return torch.cat(columns, dim=2).transpose(0, 1), values
