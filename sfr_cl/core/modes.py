"""The mode of a batch given all data before it: where ``linearize_at="posterior"`` linearises.

By then f at the batch is Gaussian, m + R t with t ~ N(0, I) for each output, and its mode under the
batch's own targets is that of |t|^2 / 2 - log p(y | m + R t). Any curvature of the sites made there
leaves the mean of the posterior at this mode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sfr_cl.core import evaluate
from sfr_cl.core.linalg import Precision, transposed_product
from sfr_cl.errors import DataError
from sfr_cl.likelihoods import Likelihood

STEPS, HALVINGS = 200, 50

SOLVED = 1e-4
"""Of the squared size of a slope: where outputs are coupled, a step of Newton is solved by as many
conjugate gradients as it takes."""

GRADIENTS = 500

TOLERANCE = 1e-14
"""Nats that may be missing at the mode: its square root is a distance in standard deviations."""

ROUNDING = 1e-12
"""Of a sum of log densities, relative."""

SUFFICIENT = 1e-4
"""Share of the decrease promised that a step must bring."""


@dataclass(frozen=True)
class Conditional:
    """f at a batch given all data before it: m + R t, t ~ N(0, I) for each output."""

    mean: Tensor
    """m, ``[B, C]``."""
    root: Tensor
    """R, ``[K, B, R]``."""
    origin: Tensor
    """t where f = 0, ``[C, R]``."""

    @staticmethod
    def of(precision: Precision, eta: Tensor, phi: Tensor) -> Conditional:
        """Of features ``[K, B, M]``, from sums that are solved for eta ``[C, M]``."""
        root, vectors = precision.whiten(phi), precision.whiten_vectors(eta)
        mean = _products(root, vectors)
        if root.shape[1] < root.shape[2]:  # fewer rows than features
            directions, triangle = torch.linalg.qr(root.mT)
            root, vectors = triangle.mT, transposed_product(directions, vectors)
        return Conditional(mean, root, -vectors)

    @staticmethod
    def of_row(mean: Tensor, variance: Tensor) -> Conditional:
        """Of one row, whose f has some mean ``[1, C]`` and variance ``[K, 1]``."""
        root = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()[:, :, None]
        return Conditional(mean, root, -(mean.mT / root[:, 0]))

    def outputs(self, t: Tensor) -> Tensor:
        """f, ``[B, C]``, of t ``[C, R]``."""
        return self.mean + _products(self.root, t)

    def mode(self, likelihood: Likelihood, y: Tensor) -> Tensor:
        """f of the greatest density given the batch's targets too, ``[B, C]``: damped Newton.

        The curvature is clamped at zero, so that every direction is one of descent.
        """

        def cost(t: Tensor, f: Tensor) -> float:
            return float(t.square().sum() / 2 - evaluate.log_prob(likelihood, f, y).sum())

        eye = torch.eye(self.root.shape[2], dtype=self.root.dtype, device=self.root.device)
        starts = [(t, self.outputs(t)) for t in (torch.zeros_like(self.origin), self.origin)]
        costs = [cost(*start) for start in starts]
        least = costs[1] < costs[0] or costs[0] != costs[0]
        (t, f), now = starts[least], costs[least]
        for _ in range(STEPS):
            b = evaluate.curvature(likelihood, f, y).clamp_min(0)
            slope = t - _pulled(self.root, evaluate.gradient(likelihood, f, y))
            hessian = eye + (self.root * b.mT[:, :, None]).mT @ self.root
            factor, _ = torch.linalg.cholesky_ex(hessian)
            direction = self._solved(-slope, factor, partial(likelihood.curvature_product, f, y))
            promised = -float((slope * direction).sum())
            if promised / 2 <= TOLERANCE:
                return f
            step, slack = 1.0, ROUNDING * max(1.0, abs(now))
            for _ in range(HALVINGS):
                trial = t + step * direction
                reached = self.outputs(trial)
                found = cost(trial, reached)
                if found <= now - SUFFICIENT * step * promised + slack:
                    break
                step /= 2
            else:
                break
            t, f, now = trial, reached, found
        raise DataError(
            f"expected a likelihood whose gradient and curvature lead to a mode, got none from "
            f"{likelihood.name!r}: check that gradient and curvature are the derivatives of "
            f"log_prob in f, and that the targets are possible"
        )

    def _solved(self, right: Tensor, factor: Tensor, product: Callable[[Tensor], Tensor]) -> Tensor:
        """(I + R' H R)^-1 r, ``[C, R]``, by conjugate gradients.

        They are preconditioned by the factored diagonal over outputs: one is enough where that is
        all of H.
        """
        found = torch.zeros_like(right)
        scaled = torch.cholesky_solve(right[:, :, None], factor)[:, :, 0]
        size = first = float((right * scaled).sum())
        way = scaled
        for _ in range(GRADIENTS):
            if size <= SOLVED * first:
                break
            image = way + _pulled(self.root, product(_products(self.root, way)))
            length = size / float((way * image).sum())
            found, right = found + length * way, right - length * image
            scaled = torch.cholesky_solve(right[:, :, None], factor)[:, :, 0]
            size, before = float((right * scaled).sum()), size
            way = scaled + size / before * way
        return found


def _products(root: Tensor, t: Tensor) -> Tensor:
    """R t, ``[B, C]``."""
    return root[0] @ t.mT if len(root) == 1 else torch.einsum("cbr,cr->bc", root, t)


def _pulled(root: Tensor, a: Tensor) -> Tensor:
    """R' a, ``[C, R]``."""
    return a.mT @ root[0] if len(root) == 1 else torch.einsum("cbr,bc->cr", root, a)
