"""The one place where matrices are factored.

Everything is whitened by the inducing inputs: with L L' = kappa(Z, Z) and phi(x) = L^-1 kappa(Z, x)
the sparse posterior is Bayesian linear regression on the features phi, whose precision is
delta I + W with W = sum_i b_i phi_i phi_i'. W is a sum of squares, so it stays positive
semi-definite in finite precision, which sums of unwhitened kernels do not. All of it is in float64,
whatever precision the kernel is evaluated in.
"""

from __future__ import annotations

import copy
import math
import warnings

import torch
from torch import Tensor

from sfr_cl.errors import FactorizationError, SFRWarning

JITTER = {torch.float64: 1e-12, torch.float32: 1e-6}
"""What rounding of a kernel in some precision calls for, relative to :func:`rounding_scale`."""

LARGEST_JITTER = 1e-2
TRIES = 5


def cholesky(
    matrix: Tensor,
    what: str,
    jitter: float,
    *,
    first: float | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """Lower Cholesky factors of ``[K, M, M]``, with bounded jitter.

    Args:
        matrix: the matrices, in float64.
        what: their name, for messages.
        jitter: what the first try adds; each further try adds a hundred times more and says so.
        first: what the first try adds instead.
        scale: sizes that the jitter is relative to, ``[K, M]``, by :func:`rounding_scale`; by
            default the diagonal.
    """
    if scale is None:
        scale = matrix.diagonal(dim1=-2, dim2=-1)
    if not torch.isfinite(scale).all():
        raise FactorizationError(f"expected {what} to be finite, got NaN or infinity")
    jitters = rounding_scale(scale).diag_embed()
    ladder = [jitter * 100**step for step in range(TRIES)]
    ladder = [added for added in ladder if added <= LARGEST_JITTER]
    if first is not None:
        ladder[0] = first
    for attempt, added in enumerate(ladder):
        factor, failed = torch.linalg.cholesky_ex(matrix + added * jitters)
        if not failed.any():
            if attempt:
                warnings.warn(
                    f"{what} is nearly singular: added {added:.0e} of its scale",
                    SFRWarning,
                    stacklevel=2,
                )
            return factor.contiguous()
    raise FactorizationError(
        f"expected {what} to be positive definite, got one that {len(ladder)} tries up to "
        f"{ladder[-1]:.0e} of its scale did not make so: use dtype=torch.float64 or fewer inducing "
        f"inputs"
    )


def rounding_scale(diagonal: Tensor) -> Tensor:
    """What rounding of each row is relative to: its own size, or the typical one if that is more.

    Beside a row that is huge others keep their digits. One that is tiny has digits no finer than
    the derivatives of the network, whose rounding is absolute where units saturate.

    Args:
        diagonal: of matrices with the rows, ``[..., M]``.
    """
    least = torch.finfo(diagonal.dtype).eps * diagonal.mean(-1, keepdim=True)
    middle = (diagonal.shape[-1] - 1) // 2
    median = diagonal.sort(-1).values[..., middle : middle + 1]
    return torch.maximum(diagonal, torch.maximum(median, least))


def extend_cholesky(factor: Tensor, gram: Tensor, what: str, jitter: float) -> Tensor:
    """Factor of a larger ``gram`` whose leading block is, exactly, ``factor``."""
    size = factor.shape[-1]
    lower = whiten(factor, gram[:, size:, :size])
    scale = rounding_scale(gram.diagonal(dim1=-2, dim2=-1))[:, size:]
    corner = cholesky(gram[:, size:, size:] - lower @ lower.mT, what, jitter, scale=scale)
    top = torch.nn.functional.pad(factor, (0, corner.shape[-1]))
    return torch.cat([top, torch.cat([lower, corner], dim=2)], dim=1).contiguous()


def sites(factor: Tensor, weight: Tensor) -> Tensor:
    """L^-T W L^-1, ``[K, M, M]``: the precision of the data's site parameters on u = f(Z)."""
    half = torch.linalg.solve_triangular(factor.mT, weight, upper=True)
    found = torch.linalg.solve_triangular(factor.mT, half.mT, upper=True)
    return (found + found.mT) / 2


def transposed_solve(factor: Tensor, vectors: Tensor) -> Tensor:
    """L^-T v for ``[C, M]``; one factor serves all C if K = 1."""
    if len(factor) == 1:
        return torch.linalg.solve_triangular(factor[0], vectors, upper=False, left=False)
    return torch.linalg.solve_triangular(factor.mT, vectors[..., None], upper=True)[..., 0]


def transposed_product(factor: Tensor, vectors: Tensor) -> Tensor:
    """L' v for ``[C, M]``; one factor serves all C if K = 1."""
    if len(factor) == 1:
        return vectors @ factor[0]
    return torch.einsum("cm,cmn->cn", vectors, factor)


def is_semidefinite(matrix: Tensor, scale: Tensor, jitter: float) -> bool:
    """Whether ``[K, M, M]`` is positive semi-definite, up to rounding at size ``scale``."""
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    shift = 100 * jitter * scale.clamp_min(torch.finfo(matrix.dtype).tiny)
    return not bool(torch.linalg.cholesky_ex(matrix + shift * eye)[1].any())


def whiten(factor: Tensor, rows: Tensor) -> Tensor:
    """Rows r of ``[K, B, M]`` as L^-1 r."""
    return torch.linalg.solve_triangular(factor.mT, rows, upper=True, left=False)


class Precision:
    """delta I + W + V'V, ``[K, M, M]``: factored but for the low-rank part.

    With R R' = delta I + W, rows V of low rank turn the precision into R (I + U'U) R' with
    U = V R^-T, whose inverse is that of R R' less R^-T U' (I + U U')^-1 U R^-1: while there are
    few rows, that is cheaper than another R.
    """

    def __init__(self, weight: Tensor, prior_precision: float) -> None:
        eye = torch.eye(weight.shape[-1], dtype=weight.dtype, device=weight.device)
        self.prior_precision = prior_precision
        self.factor = cholesky(
            weight + prior_precision * eye, "the posterior precision", 1e-12, first=0.0
        )
        self._rows = self.factor[:, :0]
        """U, ``[K, r, M]``."""
        self._inner = self.factor[:, :0, :0]
        """The factor of I + U U', ``[K, r, r]``."""
        self.is_updated = False
        """Whether there are rows of low rank."""

    def with_rows(self, rows: Tensor) -> Precision:
        """With more rows, whitened: U ``[K, B, M]``."""
        every = torch.cat([self._rows, rows], dim=1)
        gram = every @ rows.mT
        at = self._rows.shape[1]
        below = whiten(self._inner, gram[:, :at].mT)
        eye = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
        corner = cholesky(
            gram[:, at:] + eye - below @ below.mT, "the precision of new rows", 1e-12, first=0.0
        )
        top = torch.nn.functional.pad(self._inner, (0, rows.shape[1]))
        updated = copy.copy(self)
        updated._rows, updated.is_updated = every, True
        updated._inner = torch.cat([top, torch.cat([below, corner], dim=2)], dim=1)
        return updated

    def whiten(self, features: Tensor) -> Tensor:
        """R^-1 phi for rows of ``[K, B, M]``."""
        return whiten(self.factor, features)

    def products(self, phi: Tensor, white_vectors: Tensor) -> Tensor:
        """phi' (delta I + W + V'V)^-1 v, ``[B, C]``, of R^-1 v."""
        columns = white_vectors[None] if len(self.factor) == 1 else white_vectors[:, None]
        white = self.whiten(phi)
        left, right = (whiten(self._inner, each @ self._rows.mT) for each in (white, columns))
        found = white @ columns.mT - left @ right.mT
        return found[0] if len(found) == 1 else found[:, :, 0].mT

    def whiten_vectors(self, vectors: Tensor) -> Tensor:
        """R^-1 v for ``[C, M]``; one matrix serves all C if K = 1."""
        if len(self.factor) == 1:
            return whiten(self.factor, vectors[None])[0]
        return whiten(self.factor, vectors[:, None])[:, 0]

    def solve_whitened(self, white: Tensor) -> Tensor:
        """(delta I + W)^-1 v for ``[C, M]``, of R^-1 v."""
        return transposed_solve(self.factor, white)

    def quadratic(self, phi: Tensor) -> Tensor:
        """phi' (delta I + W + V'V)^-1 phi, ``[K, B]``."""
        white = self.whiten(phi)
        found = white.square().sum(2)
        if self.is_updated:
            explained = whiten(self._inner, white @ self._rows.mT)
            found = (found - explained.square().sum(2)).clamp_min(0)
        return found

    def covariance(self, phi: Tensor) -> Tensor:
        """phi' (delta I + W + V'V)^-1 phi', ``[K, B, B]``."""
        white = self.whiten(phi)
        explained = whiten(self._inner, white @ self._rows.mT)
        return white @ white.mT - explained @ explained.mT

    def log_determinant(self) -> Tensor:
        """log |I + W / delta|, ``[K]``."""
        size = self.factor.shape[-1]
        logs = self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return 2 * logs - size * math.log(self.prior_precision)


class Spectrum:
    """W = U diag(lambda) U', so that any delta and any scale of W cost only products.

    Attributes:
        values: eigenvalues, ``[K, M]``, not negative.
        vectors: U, ``[K, M, M]``.
    """

    def __init__(self, weight: Tensor) -> None:
        values, self.vectors = torch.linalg.eigh(weight)
        self.values = values.clamp_min(0)

    def rotate_vectors(self, vectors: Tensor) -> Tensor:
        """U' v for ``[C, M]``."""
        return transposed_product(self.vectors, vectors)
