"""SFR as a plug-in: the posterior of earlier tasks as a regulariser, and as a predictor."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from avalanche.benchmarks import OnlineCLExperience
from avalanche.core import SupervisedPlugin
from avalanche.models.utils import is_multi_task_module
from torch import Tensor, nn

from sfr_cl.data.arguments import choice, positive, whole
from sfr_cl.errors import ArgumentError, DataError, SFRWarning
from sfr_cl.kernel.network import Parameters, named, require_float64

from .arguments import (
    LIKELIHOODS,
    SelectorMaker,
    likelihood_of,
    parameters_of,
    require_mean,
    selector,
)
from .experiences import by_label, require_samples
from .models import require_graph, unwrapped
from .predictive import Predictive, carried_over
from .store import TaskStore
from .tasks import Recipe, Task

COVARIANCES = ("sfr", "identity")
PREDICTORS = ("network", "posterior")


class SFRPlugin(SupervisedPlugin):  # type: ignore[misc] # Avalanche ships no types
    """Keeps a sparse posterior of every task, and holds the network to it while it learns the next.

    After an experience its data is absorbed by one pass of conditioning into sums over
    ``num_inducing`` of its inputs. While later experiences are trained, the loss has the term

        tau / (2M) sum_t sum_c d_tc' P_tc d_tc,   d_tc = f_c(Z_t; w) - f_c(Z_t; w_t)

    with P = K^-1 B_u K^-1 for the classes task t has seen, and the identity for the others. Batch
    norm normalises Z_t by its own statistics there, so that running ones may drift. It composes
    with any strategy and with other plug-ins. In a custom training loop, :meth:`penalty` goes into
    the loss, and :meth:`end_task` follows the training of a task::

        loss = criterion(model(x), y) + plugin.penalty(model)
        ...
        plugin.end_task(model, dataset)

    Of a model in ``DataParallel`` or ``DistributedDataParallel``, the module it wraps is held; of
    one with another classifier in eval mode, the one that is trained. A network no task could be
    remembered of is refused before its first step. Plug-ins that change the network when an
    experience ends (CWR*) come before this one.

    Of a stream that comes in parts (``split_online_stream``), up to ten samples for each inducing
    input wait for the end of the experience, drawn evenly from its classes; then the task is made
    of them, each with the weight of those it stands for, and of the network as it is by then. Where
    the stream does not say where an experience ends (``access_task_boundaries=False``), parts join
    what is held as soon as there are ``num_inducing`` samples, with the values the network has at
    that moment: the penalty is over all that came before, at no point zero, and P of a class that
    has come is the identity no more where it had not.

    Args:
        num_inducing: inducing inputs M, for each task; with ``consolidated``, for all tasks.
        tau: weight of the penalty, for a loss that is a mean over the mini-batch.
        inducing: how inducing inputs are chosen from a task's data: ``"class_balanced"``,
            ``"random"``, ``"greedy"``, ``"noise"``, ``"smooth_noise"``, or a function that makes
            a selector of a count. By default the first, and ``"random"`` where there are no
            classes to balance (``"regression"``, ``"binary"``).
        covariance: ``"sfr"``, or ``"identity"`` for P = I, the ablation.
        points_per_step: inducing inputs a step forwards. Tasks take turns, as many as fit, weighted
            so that the penalty's expectation is that of all; ``None`` for all tasks in every step,
            whose cost grows with their number.
        consolidated: one posterior of ``num_inducing`` inputs for all tasks instead.
        predict_with: ``"network"``, or ``"posterior"``: at evaluation ``strategy.mb_output`` holds
            log predictive probabilities of the posterior at the current weights, and
            ``strategy.mb_predictive`` the predictive distribution. Before the first experience,
            and while one is trained, which is in no posterior yet, the network predicts.
        likelihood: ``"classification"``, ``"regression"`` or ``"binary"``; by default what the
            strategy's criterion stands for.
        parameters: what the kernels differentiate: ``"all"`` (but those with
            ``requires_grad=False``), ``"last_layer"`` or names (of the module that is wrapped, if
            it is).
        verbose: show a bar while data is absorbed, if it takes long.

    Raises:
        ArgumentError: an option has a value that can't be used.

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> _ = torch.manual_seed(0)
    >>> x, y = torch.randn(20, 2), torch.arange(20) % 2
    >>> model = torch.nn.Linear(2, 2)
    >>> plugin = SFRPlugin(num_inducing=5, likelihood="classification")
    >>> plugin.end_task(model, TensorDataset(x, y))
    >>> plugin.penalty(model).item()  # the weights are those the task ended with
    0.0
    """

    _parameters: Parameters = "all"
    """In checkpoints of before, that was it."""

    def __init__(
        self,
        num_inducing: int = 200,
        tau: float = 0.5,
        *,
        inducing: str | SelectorMaker | None = None,
        covariance: str = "sfr",
        points_per_step: int | None = 800,
        consolidated: bool = False,
        predict_with: str = "network",
        likelihood: str | None = None,
        parameters: Parameters = "all",
        verbose: bool = True,
    ) -> None:
        super().__init__()
        self.covariance = choice("covariance", covariance, COVARIANCES)
        self.predict_with = choice("predict_with", predict_with, PREDICTORS)
        if inducing is not None:
            selector(inducing, 1)  # refuses a name that is none
        if likelihood is not None:
            choice("likelihood", likelihood, LIKELIHOODS)
        self._parameters = parameters_of(parameters)
        self.tau = positive("tau", tau)
        self.verbose = verbose
        self._likelihood = likelihood
        self._store = TaskStore(
            whole("num_inducing", num_inducing),
            inducing,
            None if points_per_step is None else whole("points_per_step", points_per_step),
            consolidated,
        )
        self._heads_known = True
        self._training = False
        self._predictive: Predictive | None = None

    @property
    def tasks(self) -> list[Task]:
        """The tasks learned so far, in the order of their training."""
        return list(self._store.tasks)

    # For a custom training loop ------------------------------------------------------------------

    def penalty(self, model: nn.Module) -> Tensor:
        """tau times the regulariser, for this step; zero before the first task has ended."""
        if not self._heads_known:
            self._store.update_heads(model)
            self._heads_known = True
        return self.tau * self._store.penalty(model)

    def end_task(self, model: nn.Module, dataset: Any) -> None:
        """Keep the posterior of a task the model has just learned.

        Args:
            model: the model, at the weights it has learned.
            dataset: the task's data: items ``(x, y)``, or ``(x, y, task label)``.
        """
        self._store.end_task(self._recipe(model), by_label(model, dataset))
        self._heads_known = self._training = False

    def absorb(self, model: nn.Module, dataset: Any, task: int | None = None) -> None:
        """Absorb more data of a known task, without training.

        Args:
            model: the model, at its current weights.
            dataset: the data.
            task: which one, in the order of training; by default the one with these classes (and
                this task label).
        """
        self._store.absorb(self._recipe(model), by_label(model, dataset), task)
        self._training = False

    def forget(self, model: nn.Module, dataset: Any, task: int | None = None) -> None:
        """Drop all that is kept of a task: its inducing inputs, f there, and what it said of f.

        The network is no longer held to it, and a posterior that predicts knows nothing of it. What
        its weights have learned they still remember, which a warning says: to forget that too,
        train again without the data. A part of a task can't be dropped: what it added was made at
        weights that are gone.

        Args:
            model: the model.
            dataset: all data of a task, as it was learned.
            task: which one, in the order of training; by default the only one with these classes
                and as much data (and this task label).

        Raises:
            ArgumentError: with ``consolidated``, or where several tasks may be meant.
            DataError: data that is not all of a task, or comes while a task's parts arrive.
        """
        self._store.forget(self._recipe(model), by_label(model, dataset), task)
        warnings.warn(
            "the weights of the network still remember what they learned of the data that was "
            "dropped: train it again without, if they must not",
            SFRWarning,
            stacklevel=2,
        )

    def predictive(self, model: nn.Module) -> Predictive:
        """The posterior at the model's current weights; needs ``predict_with="posterior"``."""
        if self.predict_with != "posterior":
            raise ArgumentError(
                "expected predict_with='posterior', got 'network': what predicting needs was not "
                "kept"
            )
        recipe = self._recipe(model)
        tasks = self._store.with_unfinished(recipe)
        if not tasks:
            raise DataError("expected a task that has ended, got none: call end_task first")
        return carried_over(recipe, tasks)

    def training_is_over(self) -> None:
        """After training that was interrupted: evaluation may use the posterior again."""
        self._training = False

    # Avalanche's hooks ---------------------------------------------------------------------------

    def before_training(self, strategy: Any, **kwargs: Any) -> None:
        """Refuse what would fail only once an experience is learned."""
        require_float64(torch.device(strategy.device))
        require_mean(strategy._criterion)
        require_graph(strategy.model)
        named(unwrapped(strategy.model), self._parameters)
        self._likelihood = likelihood_of(strategy._criterion, self._likelihood)

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Close a task whose stream has ended; hold units of a head that has grown."""
        experience, recipe = strategy.experience, self._recipe(strategy.model)
        require_samples(experience.dataset)
        self._store.require_usable(recipe, experience.dataset)
        if recipe.of_classes:
            self._store.require_inducing(strategy.model, experience.dataset)
        if not isinstance(experience, OnlineCLExperience) or (
            experience.access_task_boundaries and experience.is_first_subexp
        ):
            self._store.close(recipe)
        self._store.update_heads(strategy.model)
        self._heads_known = self._training = True

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        """Add the penalty to the loss."""
        if self._store.penalised:
            strategy.loss += self.penalty(strategy.model)

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Absorb the experience."""
        experience, model = strategy.experience, strategy.model
        self._training = False
        if not isinstance(experience, OnlineCLExperience):
            self.end_task(model, experience.dataset)
            return
        recipe = self._recipe(model)
        data, ends = by_label(model, experience.dataset), experience.access_task_boundaries
        self._store.receive(recipe, data, ends=ends)
        if ends and experience.is_last_subexp:
            self._store.close(recipe)
        self._heads_known = False

    def before_eval(self, strategy: Any, **kwargs: Any) -> None:
        """Build the posterior at the current weights, if it is to predict."""
        self._predictive = None
        if self.predict_with == "posterior" and not self._training and self._store.has_data:
            self._predictive = self.predictive(strategy.model)

    def after_eval_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Put the posterior's predictions in the place of the network's."""
        if self.predict_with == "posterior":
            strategy.mb_predictive = None
        if self._predictive is None:
            return
        labels = strategy.mb_task_id if is_multi_task_module(strategy.model) else None
        found = self._predictive.predict(strategy.mb_x, labels, strategy.mb_output)
        strategy.mb_output, strategy.mb_predictive = found

    def after_eval(self, strategy: Any, **kwargs: Any) -> None:
        """Free the posterior."""
        self._predictive = None

    # Private -------------------------------------------------------------------------------------

    def _recipe(self, model: nn.Module) -> Recipe:
        if self._likelihood is None:
            raise ArgumentError(
                "expected to know the likelihood, got none: without a strategy, whose criterion "
                "tells, say SFRPlugin(..., likelihood='classification')"
            )
        keep = self.predict_with == "posterior"
        return Recipe(
            model, self._likelihood, self.covariance, keep, self.verbose, self._parameters
        )
