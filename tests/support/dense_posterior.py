"""A posterior of several tasks from dense kernels, read at any weights: its mean and variance.

Linearised at f = 0, one kernel for all outputs: with S_c = sum of k_zi over y = c, T = sum of k_zi
and G = sum of k_zi k_zi', for C classes seen alpha_c = S_c - T/C and B = G/C; for a regression
alpha = sum of k_zi y_i / s2 and B = G/s2. What was summed at other weights is carried over by sites
at Z: h = K^-1 S there is K' h here, and likewise for B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from support.oracles import jacobian_by_rows


def features(network: nn.Module, x: Tensor, names: list[str]) -> Tensor:
    """phi(x) with phi phi' = kappa, the mean over outputs of J J', ``[B, CP]``."""
    j = jacobian_by_rows(network, x, names)
    return (j / j.shape[1] ** 0.5).flatten(1)


@dataclass(frozen=True)
class DenseSites:
    """What data says of f at Z, whatever the weights."""

    z: Tensor
    targets: Tensor
    """K^-1 S, ``[M, C]``: of classes, or of real targets."""
    total: Tensor
    """K^-1 T, ``[M]``."""
    weight: Tensor
    """K^-1 G K^-1, ``[M, M]``."""

    @staticmethod
    def of(
        network: nn.Module, names: list[str], z: Tensor, x: Tensor, y: Tensor, num_outputs: int
    ) -> DenseSites:
        phi_z, phi_x = features(network, z, names), features(network, x, names)
        inverse, k_zi = torch.linalg.inv(phi_z @ phi_z.mT), phi_z @ phi_x.mT
        real = y.is_floating_point()
        columns = y.reshape(len(y), -1) if real else nn.functional.one_hot(y, num_outputs)
        return DenseSites(
            z,
            inverse @ k_zi @ columns.to(k_zi),
            inverse @ k_zi.sum(1),
            inverse @ k_zi @ k_zi.mT @ inverse,
        )


def moments(
    network: nn.Module,
    names: list[str],
    sites: Sequence[DenseSites],
    x: Tensor,
    *,
    delta: float,
    classes: int | None = None,
    noise: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of f at inputs, ``[B, C]`` and ``[B]``, solved densely.

    Args:
        network: at the weights of now.
        names: the parameters its kernel differentiates.
        sites: of all tasks.
        x: the inputs.
        delta: the prior precision.
        classes: how many were seen; of a regression ``None``, and
        noise: the variance of its noise.
    """
    z = torch.cat([site.z for site in sites])
    phi_z, phi_x = features(network, z, names), features(network, x, names)
    gram, k_xz = phi_z @ phi_z.mT / delta, phi_x @ phi_z.mT / delta
    targets = torch.cat([site.targets for site in sites])
    weight = torch.block_diag(*(site.weight for site in sites))
    if classes is None:
        assert noise is not None
        targets, weight = targets / noise, weight / noise
    else:
        total = torch.cat([site.total for site in sites])
        targets, weight = targets - total[:, None] / classes, weight / classes
    # (K + B)^-1 = (I + W K)^-1 K^-1 with B = K W K, and K^-1 - (K + B)^-1 = (I + W K)^-1 W.
    system = torch.eye(len(gram)).to(gram) + weight @ gram
    mean = k_xz @ torch.linalg.solve(system, targets)
    gain = torch.linalg.solve(system, weight @ k_xz.mT)
    variance = phi_x.square().sum(1) / delta - (k_xz * gain.mT).sum(1)
    return mean, variance
