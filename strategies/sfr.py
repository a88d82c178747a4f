"""SFR as a strategy: training regularised by the posterior of earlier tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from avalanche.training.plugins.evaluation import default_evaluator
from avalanche.training.templates import SupervisedTemplate
from torch import nn

from sfr_cl.kernel.network import Parameters, named

from .arguments import SelectorMaker, likelihood_of
from .experiences import on_device
from .models import unwrapped
from .plugin import SFRPlugin


class SFR(SupervisedTemplate):  # type: ignore[misc] # Avalanche ships no types
    """Trains each experience with the penalty of the earlier ones; see :class:`SFRPlugin`.

    Args:
        model: a network that maps a batch of inputs to ``[B, C]``, or a multi-task module.
        optimizer: of the model's parameters.
        criterion: a mean loss over the mini-batch.
        num_inducing, tau, inducing, covariance, points_per_step, consolidated, predict_with,
            likelihood, parameters, verbose: as of :class:`SFRPlugin`.
        train_mb_size, train_epochs, eval_mb_size, device, plugins, evaluator, eval_every: as of
            every Avalanche strategy.

    Raises:
        ArgumentError: an option has a value that can't be used, or a criterion of no known
            likelihood.

    >>> from sfr_cl.testing.streams import class_benchmark, silent, single_head
    >>> model = single_head()
    >>> optimizer = torch.optim.Adam(model.parameters(), 0.03)
    >>> strategy = SFR(model=model, optimizer=optimizer, num_inducing=8, evaluator=silent())
    >>> for experience in class_benchmark().train_stream:
    ...     _ = strategy.train(experience)
    >>> [sorted(task.classes) for task in strategy.sfr.tasks]
    [[0, 1], [2, 3], [4, 5]]
    """

    mbatch: Any

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        criterion: Any = None,
        num_inducing: int = 200,
        tau: float = 0.5,
        inducing: str | SelectorMaker | None = None,
        covariance: str = "sfr",
        points_per_step: int | None = 800,
        consolidated: bool = False,
        predict_with: str = "network",
        likelihood: str | None = None,
        parameters: Parameters = "all",
        verbose: bool = True,
        train_mb_size: int = 32,
        train_epochs: int = 1,
        eval_mb_size: int | None = 512,
        device: str | torch.device = "cpu",
        plugins: Sequence[Any] | None = None,
        evaluator: Any | Callable[[], Any] = default_evaluator,
        eval_every: int = -1,
        **base_kwargs: Any,
    ) -> None:
        criterion = nn.CrossEntropyLoss() if criterion is None else criterion
        self.sfr = SFRPlugin(
            num_inducing,
            tau,
            inducing=inducing,
            covariance=covariance,
            points_per_step=points_per_step,
            consolidated=consolidated,
            predict_with=predict_with,
            likelihood=likelihood_of(criterion, likelihood),
            parameters=parameters,
            verbose=verbose,
        )
        named(unwrapped(model), parameters)  # refuses names of no parameters
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=criterion,
            train_mb_size=train_mb_size,
            train_epochs=train_epochs,
            eval_mb_size=eval_mb_size,
            device=device,
            plugins=[*(plugins or ()), self.sfr],
            evaluator=evaluator,
            eval_every=eval_every,
            **base_kwargs,
        )

    def train(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Train on experiences; however it ends, evaluation sees the posterior again.

        Returns:
            The last values of the metrics, as of every strategy.
        """
        try:
            found: dict[str, Any] = super().train(*args, **kwargs)
            return found
        finally:
            self.sfr.training_is_over()

    def absorb(self, experience: Any, task: int | None = None) -> None:
        """Absorb more data of a known task into its posterior, without training.

        Args:
            experience: with a ``dataset``; an experience that comes back, or a late part of one.
            task: which one, in the order of training; by default the one with these classes (and
                this task label).
        """
        self.sfr.absorb(self.model, experience.dataset, task)

    def forget(self, experience: Any, task: int | None = None) -> None:
        """Drop all that is kept of an experience; the weights of the network remember it.

        Args:
            experience: with a ``dataset``: all the data of a task, as it was learned.
            task: which one, in the order of training; see :meth:`SFRPlugin.forget`.
        """
        self.sfr.forget(self.model, experience.dataset, task)

    def _unpack_minibatch(self) -> None:
        """Move the mini-batch, whose inputs may be a dict or tuple of tensors, to the device."""
        self.mbatch = on_device(self.mbatch, self.device)
