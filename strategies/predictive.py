"""The posterior at the current weights, earlier tasks' site parameters carried over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Distribution

from sfr_cl import SFRPosterior
from sfr_cl.core import tune
from sfr_cl.core.sums import SEEN
from sfr_cl.data.inputs import Inputs, leaves, length, take
from sfr_cl.errors import ArgumentError

from .consolidation import joined
from .models import Head, TaskView
from .tasks import Recipe, Task, grouped, without_warnings

LARGEST = 2000
"""Inducing inputs a prediction is made with; beyond, every task is projected onto fewer of its."""

ABSENT = -1000.0
"""The log probability of a class that was never seen, as Avalanche masks its logits."""


class Predictive:
    """Posteriors by task label, in the place of a network's head.

    Args:
        posteriors: by task label; under ``None`` for a model without.
    """

    def __init__(self, posteriors: Mapping[int | None, SFRPosterior]) -> None:
        self._posteriors = posteriors

    def predict(
        self, x: Inputs, labels: Tensor | None = None, outputs: Tensor | None = None
    ) -> tuple[Tensor, Distribution | None]:
        """What a head would give: log predictive probabilities, a logit, or a regression's mean.

        Args:
            x: inputs.
            labels: their task labels, for a model that takes them.
            outputs: the network's, ``[B, C]`` or ``[B]``, whose form the values take; they stay for
                labels no task had.

        Returns:
            values for the units of the head, and the distribution they are of; ``None`` for a
            mini-batch of several labels.
        """
        if (labels is None) != (None in self._posteriors):
            raise ArgumentError(
                "expected task labels for a model that takes them, and none for others, got "
                + ("none" if labels is None else "some")
            )
        if outputs is None:
            device = leaves(x)[0][1].device
            width = max(posterior.num_outputs for posterior in self._posteriors.values())
            shape = (length(x), width)
            outputs = torch.full(shape, ABSENT, dtype=torch.float64, device=device)
        found, predictive = outputs.detach().clone(), None
        for label, rows in rows_by_label(labels):
            if label in self._posteriors:
                posterior = self._posteriors[label]
                predictive = of_seen_classes(posterior, posterior.predict(take(x, rows)))
                found = _widened(found, predictive)
                found[rows] = values_of(predictive, found[rows])
        return found, predictive if labels is None or len(labels.unique()) == 1 else None


def rows_by_label(labels: Tensor | None) -> list[tuple[int | None, slice | Tensor]]:
    """The rows of each task label in a mini-batch; all of them for a model without."""
    if labels is None:
        return [(None, slice(None))]
    return [(label, labels == label) for label in labels.unique().tolist()]


def carried_over(recipe: Recipe, tasks: Sequence[Task]) -> Predictive:
    """What all tasks together predict at the current weights.

    The site parameters of each task at its Z are read with the kernel of those weights:
    B' = K' P K', eta' = K' h. The prior precision is that of greatest evidence.
    """
    groups = grouped(tasks)
    return Predictive({label: _posterior(recipe, groups[label]) for label in groups})


def _posterior(recipe: Recipe, tasks: Sequence[Task]) -> SFRPosterior:
    label = tasks[0].label
    head = recipe.head(label, tasks[0].z)
    with without_warnings():  # of inputs that came twice, which only the stream can help
        if sum(length(task.z) for task in tasks) > LARGEST:
            tasks = [_thinned(recipe, head, task, LARGEST // len(tasks)) for task in tasks]
        state = recipe.at_weights(head, joined(tasks, head.size))
    view = TaskView(recipe.model, label, head.units)
    delta = tune.by_evidence(state, carried=True).prior_precision
    scale = 1.0 if state.spec.has_prior_logits else None  # nothing of it was predicted before
    chosen = state.with_spec(prior_precision=delta, logit_scale=scale)
    return SFRPosterior.of(state.spec, view, replace(chosen, discriminant=False))


def _thinned(recipe: Recipe, head: Head, task: Task, size: int) -> Task:
    """The task over at most ``size`` of its inducing inputs, evenly spaced: they may be sorted."""
    if length(task.z) <= size:
        return task
    rows = torch.linspace(0, length(task.z) - 1, max(1, size)).round().long()
    found = recipe.projected(head, joined([task], head.size), take(task.z, rows))
    return replace(task, predictive=found)


def of_seen_classes(
    posterior: SFRPosterior, predictive: Distribution, announced: Tensor | None = None
) -> Distribution:
    """A prediction over the classes that data has shown, and no other output of the posterior.

    Args:
        posterior: that predicts.
        predictive: what it predicts.
        announced: classes that are about to come.
    """
    if not isinstance(predictive, Categorical):
        return predictive
    known = posterior.state.sums.seen > SEEN
    if announced is not None:
        known = known.index_fill(0, announced.to(known.device), True)
    if bool(known.all()) or not bool(known.any()):
        return predictive
    log_probs = predictive.logits.masked_fill(~known, ABSENT).log_softmax(1)
    return type(predictive)(logits=log_probs.masked_fill(~known, ABSENT))


def _widened(outputs: Tensor, predictive: Distribution) -> Tensor:
    """Outputs of a classifier that has no unit yet for each class the predictive knows."""
    if not isinstance(predictive, Categorical):
        return outputs
    missing = predictive.logits.shape[1] - outputs.shape[1]
    return nn.functional.pad(outputs, (0, max(0, missing)), value=ABSENT)


def values_of(predictive: Distribution, outputs: Tensor) -> Tensor:
    """What stands in the place of a network's ``outputs``, in their form: ``[B]`` or ``[B, C]``."""
    if not isinstance(predictive, Categorical):
        found = predictive.logits if isinstance(predictive, Bernoulli) else predictive.mean
        return found.to(outputs).reshape(outputs.shape)
    known = predictive.logits.to(outputs)
    absent = known.new_full((len(known), outputs.shape[1] - known.shape[1]), ABSENT)
    return torch.cat([known, absent], dim=1)
