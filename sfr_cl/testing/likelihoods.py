"""A likelihood's derivatives, targets, predictive distribution and settings fit together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from sfr_cl.errors import SFRError
from sfr_cl.likelihoods import LINKS, Likelihood
from sfr_cl.testing.expectations import expect, expect_close, expect_same


def check_likelihood(
    likelihood: Likelihood,
    targets: Tensor,
    *,
    num_outputs: int = 1,
    forms: Sequence[Tensor] = (),
    refused: Sequence[Any] = (),
    exact_curvature: bool = True,
) -> None:
    """Check that a likelihood can be used by a posterior.

    Args:
        likelihood: what to check.
        targets: some targets as a user gives them, batch first.
        num_outputs: C.
        forms: other forms of the same targets, which must be read alike.
        refused: targets that :meth:`~Likelihood.targets` must refuse.
        exact_curvature: whether the curvature is that of log p, not an approximation of it.

    Raises:
        AssertionError: something does not fit.

    >>> import torch
    >>> from sfr_cl.likelihoods import BernoulliLikelihood
    >>> y = torch.tensor([0, 1, 1])
    >>> refused = [torch.tensor([0, 2]), torch.zeros(2, 2)]
    >>> check_likelihood(BernoulliLikelihood(), y, forms=[y[:, None].float()], refused=refused)
    """
    name = likelihood.name
    expect(isinstance(name, str) and bool(name), "a name, for files", name)
    y = _check_targets(likelihood, targets, num_outputs, forms, refused)
    generator = torch.Generator().manual_seed(0)
    f = torch.randn(len(y), num_outputs, generator=generator, dtype=torch.float64)
    _check_derivatives(likelihood, f, y, exact_curvature)
    _check_prior(likelihood, y, num_outputs)
    _check_predictive(likelihood, f, y)
    _check_settings(likelihood)


def _check_targets(
    likelihood: Likelihood,
    targets: Tensor,
    num_outputs: int,
    forms: Sequence[Tensor],
    refused: Sequence[Any],
) -> Tensor:
    y = likelihood.targets(targets, num_outputs)
    expect(len(y) == len(targets), f"{len(targets)} checked targets", len(y))
    expect_same(likelihood.targets(targets, num_outputs), y, "targets read again")
    for form in forms:
        expect_same(likelihood.targets(form, num_outputs), y, f"targets given as {form.shape}")
    for bad in refused:
        try:
            found = likelihood.targets(bad, num_outputs)
        except SFRError:
            continue
        raise AssertionError(f"expected targets {bad!r:.80} to be refused, got {found!r:.80}")
    return y


def _check_derivatives(likelihood: Likelihood, f: Tensor, y: Tensor, exact: bool) -> None:
    """The gradient and curvature against those of autograd."""
    at = f.clone().requires_grad_(True)
    log_prob = likelihood.log_prob(at, y)
    expect(log_prob.shape == (len(y),), f"log p of shape [{len(y)}]", list(log_prob.shape))
    expect(bool(log_prob.isfinite().all()), "finite log p", log_prob)
    by_output = likelihood.log_prob_by_output(f, y)
    expect(by_output.shape == f.shape, f"log p by output {list(f.shape)}", list(by_output.shape))
    expect_close(by_output.sum(1), log_prob.detach(), "log p by output, summed")
    (slope,) = torch.autograd.grad(log_prob.sum(), at, create_graph=True)
    expect_close(likelihood.gradient(f, y), slope.detach(), "the gradient of log p")
    curvature = likelihood.curvature(f, y)
    if likelihood.linearize_at != "posterior":
        expect(bool((curvature >= 0).all()), "curvature that is not negative", curvature)
    product = likelihood.curvature_product(f, y, f)
    expect(product.shape == f.shape, f"a curvature product {list(f.shape)}", list(product.shape))
    expect(bool(((f * product).sum(1) > -1e-9).all()), "a product that is not negative", product)
    if not exact:
        expect(curvature.shape == f.shape, f"curvature {list(f.shape)}", list(curvature.shape))
        return
    columns = []
    for output in range(f.shape[1]):
        second = None
        if slope.requires_grad:
            (second,) = torch.autograd.grad(
                slope[:, output].sum(), at, retain_graph=True, allow_unused=True
            )
        columns.append(torch.zeros_like(f[:, 0]) if second is None else -second[:, output])
    expect_close(curvature, torch.stack(columns, dim=1), "the curvature of log p")


def _check_prior(likelihood: Likelihood, y: Tensor, num_outputs: int) -> None:
    shape = (len(y), num_outputs)
    seen = likelihood.seen(y, num_outputs)
    expect(seen.shape == shape, f"seen of shape {list(shape)}", list(seen.shape))
    expect(bool(((seen == 0) | (seen == 1)).all()), "seen of zeros and ones", seen)
    gradient, curvature, log_prob = likelihood.prior_statistics(y, num_outputs)
    shapes = [tuple(part.shape) for part in (gradient, curvature, log_prob)]
    expect(shapes == [shape] * 3, f"statistics of shape {list(shape)}", shapes)
    scale = likelihood.prior_reading(num_outputs).scale
    expect(scale > 0, "a positive scale of the weights at the prior", scale)


def _check_predictive(likelihood: Likelihood, f: Tensor, y: Tensor) -> None:
    """Every link gives a distribution of targets; without variance it is that of the likelihood."""
    for link in LINKS:
        for variance in (torch.zeros_like(f), torch.full_like(f, 0.5)):
            found = likelihood.predictive(f, variance, link)
            expect(isinstance(found, Distribution), f"a Distribution for link={link!r}", found)
            scored = found.log_prob(y)
            each = f"log densities of shape {list(found.batch_shape)}"
            expect(scored.shape == found.batch_shape, each, list(scored.shape))
            expect(bool(scored.isfinite().all()), f"finite log densities, link={link!r}", scored)
            if likelihood.noise_scale is None and not variance.any():
                expected = likelihood.log_prob(f, y)
                total = scored.reshape(len(y), -1).sum(1)
                expect_close(total, expected, f"log p without variance, link={link!r}", 1e-6)


def _check_settings(likelihood: Likelihood) -> None:
    settings = likelihood.settings()
    again = likelihood.with_settings(json.loads(json.dumps(settings)))
    expect(type(again) is type(likelihood), f"a {type(likelihood).__name__} from settings", again)
    expect_same(again.settings(), settings, "settings after a round trip")
