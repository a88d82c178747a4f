"""What other packages do for the same job, written as their users would write it."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, TensorDataset

from sfr_cl import torchvision_operators
from sfr_cl.data.inputs import Inputs, length, take, tree_map
from sfr_cl.kernel.network import alone

CHUNK = 100
"""Samples a baseline works on at a time: the Jacobians of more do not fit in memory."""


def contraction(
    network: nn.Module, z: Inputs, x: Inputs, num_outputs: int
) -> Callable[[], tuple[Tensor, Tensor]]:
    """Class by class, per-sample gradients by `vmap(grad)`, contracted: kappa(Z, x) and its sums.

    Kinder than the usual code, which makes the inducing side again for every batch.
    """
    parameters = {name: p.detach() for name, p in network.named_parameters()}

    def gradients(rows: Inputs, c: int) -> Tensor:
        def output(values: dict[str, Tensor], row: Inputs) -> Tensor:
            batch = tree_map(lambda leaf: leaf[None], row)
            found: Tensor = functional_call(network, values, (batch,))[0, c]
            return found

        parts = vmap(grad(output), in_dims=(None, 0))(parameters, rows)
        return torch.cat([part.flatten(1) for part in parts.values()], dim=1)

    def work() -> tuple[Tensor, Tensor]:
        firsts, seconds = [], []
        with alone():
            for c in range(num_outputs):
                at_z = torch.cat([gradients(part, c) for part in chunks(z)])
                first = torch.zeros(len(at_z), dtype=at_z.dtype)
                second = torch.zeros(len(at_z), len(at_z), dtype=at_z.dtype)
                for part in chunks(x):
                    cross = at_z @ gradients(part, c).mT
                    first += cross.sum(1)
                    second += cross @ cross.mT
                firsts.append(first)
                seconds.append(second)
        return torch.stack(firsts), torch.stack(seconds)

    return work


def chunks(x: Inputs) -> Iterator[Inputs]:
    for start in range(0, length(x), CHUNK):
        yield take(x, slice(start, start + CHUNK))


def laplace(name: str, network: nn.Module, **options: Any) -> Any:
    """A class of laplace-torch, at prior precision 1."""
    with quiet():
        kind = getattr(laplace_package(), name)
        return kind(network, "classification", prior_precision=1.0, **options)


def laplace_package() -> Any:
    """laplace-torch, imported when a baseline is first asked for."""
    torchvision_operators.declare()
    import laplace
    import laplace.curvature

    return laplace


def loader(x: Tensor, y: Tensor, batch_size: int = CHUNK) -> DataLoader[Any]:
    return DataLoader(TensorDataset(x, y), batch_size=batch_size)


@contextmanager
def quiet() -> Iterator[None]:
    """Other packages' warnings are not this command's business."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
