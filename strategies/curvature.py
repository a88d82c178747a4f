"""The curvature of a softmax over a whole head, at some of its units."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from sfr_cl import Likelihood
from sfr_cl.inputs import prepare
from sfr_cl.network import eval_mode, run

from .views import Pairs, TaskView


class GivenCurvature(Likelihood):
    """Sites whose curvature comes with the data, ``[B, C]``, in the place of targets.

    A task's penalty needs P of the classes it has seen only, each with a kernel of its own, but
    their curvature p (1 - p) depends on all units of the head.
    """

    name = "given curvature"

    def targets(self, y: Tensor, num_outputs: int) -> Tensor:
        return y.double()

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return f.new_zeros(len(f))

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        return torch.zeros_like(f)

    def curvature(self, f: Tensor, y: Tensor) -> Tensor:
        return y.to(f.dtype)

    def predictive(self, mean: Tensor, variance: Tensor, link: str) -> Distribution:
        return Normal(mean, variance.sqrt())


class Curvatures:
    """Pairs (x, b) of pairs (x, y), with b = p (1 - p) of some outputs of a view."""

    def __init__(self, data: Pairs, view: TaskView, outputs: Tensor) -> None:
        self._data, self._view, self._outputs = data, view, outputs

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        parameter = next(self._view.parameters())
        for x, _ in self._data:
            with torch.no_grad(), eval_mode(self._view):
                outputs = run(self._view, prepare(x, parameter.device, parameter.dtype))
            p = outputs.double().softmax(1)[:, self._outputs]
            yield x, p * (1 - p)
