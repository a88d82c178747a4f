"""Per-sample Jacobians by ``torch.func``: right for any module, and as large as they are."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from sfr_cl.data.inputs import Inputs
from sfr_cl.errors import ArgumentError
from sfr_cl.kernel.network import FrozenNetwork, plain_attention


@torch.no_grad()
def jacobian(network: FrozenNetwork, num_outputs: int, x: Inputs) -> Tensor:
    """J(x) of the first outputs with respect to the network's parameters, ``[C, B, P]``."""

    def outputs(parameters: dict[str, Tensor], row: Inputs) -> Tensor:
        return network.single(parameters, row)[:num_outputs]

    try:
        with plain_attention():
            parts = vmap(jacrev(outputs), in_dims=(None, 0))(network.parameters, x)
    except RuntimeError as error:
        raise ArgumentError(
            f"expected a network that torch.func can differentiate, got {error}"
        ) from error
    return torch.cat([part.flatten(2) for part in parts.values()], dim=2).transpose(0, 1)
