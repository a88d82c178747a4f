"""Slow, plain, float64 re-computations that the package is compared with."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from sfr_cl.data.inputs import Inputs, length, take, tree_map
from sfr_cl.kernel.network import alone


def jacobian(network: nn.Module, x: Inputs, names: list[str] | None = None) -> Tensor:
    """J(x), [B, C, P], by vmap(jacrev) on a copy in eval mode."""
    network = copy.deepcopy(network).eval()
    parameters = {n: p.detach() for n, p in network.named_parameters() if not names or n in names}

    def outputs(parameters: dict[str, Tensor], row: Inputs) -> Tensor:
        batch = tree_map(lambda leaf: leaf[None], row)
        return functional_call(network, parameters, (batch,))[0]

    with alone():
        parts = vmap(jacrev(outputs), in_dims=(None, 0))(parameters, x)
    return torch.cat([part.flatten(2) for part in parts.values()], dim=2)


def jacobian_by_rows(network: nn.Module, x: Inputs, names: str | list[str]) -> Tensor:
    """J(x), [B, C, P], by one call of autograd for each output of each row, in eval mode.

    Complex parameters count as their real and imaginary parts.
    """
    network.eval()
    trained = {n: p for n, p in network.named_parameters() if p.requires_grad or names != "all"}
    chosen = [p for n, p in trained.items() if names == "all" or n in names]
    rows = []
    for row in range(length(x)):
        outputs = network(take(x, slice(row, row + 1)))[0]
        for output in outputs:
            parts = torch.autograd.grad(
                output, chosen, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            flat = [torch.view_as_real(g.resolve_conj()) if g.is_complex() else g for g in parts]
            rows.append(torch.cat([g.reshape(-1) for g in flat]))
    return torch.stack(rows).unflatten(0, (length(x), -1))


def ntk(network: nn.Module, x: Inputs, y: Inputs, *, shared: bool, names=None) -> Tensor:
    """kappa(x, y), [K, B, B']."""
    kernels = torch.einsum("acp,bcp->cab", jacobian(network, x, names), jacobian(network, y, names))
    return kernels.mean(0, keepdim=True) if shared else kernels


def exact_gp(
    k_train: Tensor, k_cross: Tensor, k_diagonal: Tensor, y: Tensor, noise: float
) -> tuple[Tensor, Tensor, float]:
    """Mean [B], variance [B] and log evidence of zero-mean GP regression, by dense inverse."""
    covariance = k_train + noise * torch.eye(len(k_train), dtype=torch.float64)
    inverse = torch.linalg.inv(covariance)
    mean = k_cross @ inverse @ y
    variance = k_diagonal - torch.einsum("bn,nm,bm->b", k_cross, inverse, k_cross)
    evidence = torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)
    return mean, variance, float(evidence)


def sfr_moments(
    kernel_zz: Tensor, k_zi: Tensor, k_xz: Tensor, k_xx: Tensor, a: Tensor, b: Tensor, f: Tensor
) -> tuple[Tensor, Tensor]:
    """Natural mean and variance of one output, from the paper's formulas, not whitened.

    Shapes: K_zz [M, M], k_zi [M, N], k_xz [B, M], k_xx [B]; a, b, f [N].
    """
    dual = k_zi @ torch.diag(b) @ k_zi.T
    eta = k_zi @ (b * f + a)
    posterior = torch.linalg.inv(kernel_zz + dual)
    mean = k_xz @ posterior @ eta
    gap = torch.linalg.inv(kernel_zz) - posterior
    return mean, k_xx - torch.einsum("bm,mn,bn->b", k_xz, gap, k_xz)


def noise_log_prior(noise: Tensor, typical: Tensor) -> Tensor:
    """log N(log noise; log(0.3 typical), 2^2), up to a constant, summed over outputs.

    Args:
        noise: by output, ``[C]``.
        typical: mean square of the targets, less the prior mean, ``[C]``.
    """
    return -(noise.log() - (0.3 * typical).log()).square().sum() / 8
