"""Conditioning alone: no training, every experience absorbed into one posterior."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from avalanche.models.utils import is_multi_task_module
from avalanche.training.plugins import SynapticIntelligencePlugin
from avalanche.training.plugins.evaluation import default_evaluator
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn
from torch.distributions import Distribution

from sfr_cl import SFRPosterior
from sfr_cl.core.absorb import Absorption
from sfr_cl.core.spec import Spec
from sfr_cl.data.arguments import whole
from sfr_cl.data.batches import Batches
from sfr_cl.data.inputs import Inputs, length, take
from sfr_cl.errors import ArgumentError, DataError, FactorizationError
from sfr_cl.inducing import Selector, empty_state
from sfr_cl.kernel.network import FrozenNetwork, Parameters, as_matrix, named, require_float64

from .arguments import SelectorMaker, likelihood_of, parameters_of, selector
from .experiences import (
    BATCH,
    ExperienceData,
    Pairs,
    classes_of,
    evaluated,
    first_rows,
    in_order,
    on_device,
    require_samples,
    task_labels,
)
from .models import Head, TaskView, unwrapped
from .predictive import ABSENT, Predictive, of_seen_classes, rows_by_label, values_of
from .progress import shown
from .tasks import without_warnings

Posteriors = dict[int | None, SFRPosterior]
"""By task label; under ``None`` for a model without."""


class SFRConditioning(SupervisedTemplate):  # type: ignore[misc] # Avalanche ships no types
    """Trains nothing: each experience is absorbed by conditioning, and the posterior predicts.

    The network gives its neural tangent kernel at the weights it has when the first experience
    arrives. Classes need no announcement, and no unit of the network. With inducing inputs that
    are noise, and a network that neither grows nor is trained first, f does not depend on the order
    of experiences (the learned scale of its logits does), and nothing is stored but the sums. Such
    a network has not learned from anybody, so that ``posterior.forget`` takes a person out of all
    there is.

    Predictions are over the classes seen: ``mb_output`` is as wide as the head, and holds -1000, as
    Avalanche masks, for every other. The posterior has outputs up to the last class seen. While
    data is absorbed, ``mb_output`` is what the posterior predicted before the experience, of its
    classes too: those that are new share what probability is left.

    Args:
        model: a network: random, pretrained, or trained on the first experience.
        num_inducing: M.
        inducing: ``"smooth_noise"`` for images and signals, ``"noise"``, a tensor, or a selector on
            the first experience (``"random"``, ``"class_balanced"``, ``"greedy"``, or a function
            that makes one of a count).
        parameters: what the kernel differentiates: ``"all"`` (but those with
            ``requires_grad=False``), ``"last_layer"`` or names.
        prior_precision: delta; by default that of greatest evidence.
        logit_scale: what logits are multiplied with; by default learned from what was predicted of
            data before it was absorbed.
        train_first: train the model on the first experience (of a stream in parts, on its first
            part), then freeze it.
        optimizer: only for ``train_first``, along with ``train_epochs``.
        criterion: a loss, which tells the likelihood; and the training loss of ``train_first``.
        likelihood: ``"classification"``, ``"regression"`` or ``"binary"``, if the criterion does
            not tell.
        dtype, batch_size, noise_variance, output_kernel, linearize_at: as of
            :class:`~sfr_cl.SFRPosterior`. What is not its default there has the head's units for
            classes, where it can't take any number.
        verbose: show a bar in :meth:`absorb`; :meth:`train` shows in Avalanche's loggers.
        train_mb_size, train_epochs, eval_mb_size, device, plugins, evaluator, eval_every: as of
            every Avalanche strategy.

    Raises:
        ArgumentError: an option has a value that can't be used, or does not fit another.

    >>> from sfr_cl.testing.streams import class_benchmark, silent, single_head
    >>> strategy = SFRConditioning(
    ...     model=single_head(), num_inducing=40, inducing="noise", evaluator=silent()
    ... )
    >>> for experience in class_benchmark().train_stream:
    ...     _ = strategy.train(experience)
    >>> strategy.posterior.num_data, strategy.posterior.num_outputs
    (120, 6)
    """

    _options: Mapping[str, Any] = {}
    """In checkpoints of before, those of a posterior by default."""

    def __init__(
        self,
        *,
        model: nn.Module,
        num_inducing: int = 1000,
        inducing: str | Tensor | SelectorMaker = "smooth_noise",
        parameters: Parameters = "all",
        prior_precision: float | None = None,
        logit_scale: float | None = None,
        train_first: bool = False,
        optimizer: torch.optim.Optimizer | None = None,
        criterion: Any = None,
        likelihood: str | None = None,
        dtype: torch.dtype = torch.float64,
        batch_size: int | None = None,
        noise_variance: float | Sequence[float] | str = "learn",
        output_kernel: str = "shared",
        linearize_at: str | None = None,
        verbose: bool = True,
        train_mb_size: int = 512,
        train_epochs: int = 1,
        eval_mb_size: int | None = 512,
        device: str | torch.device = "cpu",
        plugins: Sequence[Any] | None = None,
        evaluator: Any | Callable[[], Any] = default_evaluator,
        eval_every: int = -1,
        **base_kwargs: Any,
    ) -> None:
        if train_first and optimizer is None:
            raise ArgumentError("expected an optimizer for train_first=True, got none")
        if optimizer is not None and not train_first:
            raise ArgumentError(
                "expected no optimizer, since nothing is trained, got one: leave it out, or say "
                "train_first=True to train on the first experience"
            )
        criterion = nn.CrossEntropyLoss() if criterion is None else criterion
        self._likelihood = likelihood_of(criterion, likelihood)
        self._num_inducing = whole("num_inducing", num_inducing)
        self._prior_precision = prior_precision
        self._options: dict[str, Any] = {
            "dtype": dtype,
            "batch_size": batch_size,
            "noise_variance": noise_variance,
            "logit_scale": logit_scale,
            "output_kernel": output_kernel,
            "linearize_at": linearize_at,
        }
        self._verbose = verbose
        if not isinstance(inducing, Tensor):
            selector(inducing, 1)  # refuses a name that is none
        self._inducing = inducing
        self._parameters = parameters_of(parameters)
        self._spec()  # refuses what a posterior can't use
        named(unwrapped(model), parameters)  # refuses names of no parameters
        require_float64(torch.device(device))
        self._train_first, self._trained = train_first, False
        self._posteriors: Posteriors = {}
        # Noise is drawn when the first batch shows its shape, as if it were drawn here.
        self._seed = int(torch.randint(2**31, ()))
        self.mb_predictive: Distribution | None = None
        super().__init__(
            model=model,
            # Avalanche's plug-ins expect an optimizer; this one can't change anything.
            optimizer=optimizer or torch.optim.SGD(model.parameters(), lr=0.0),
            criterion=criterion,
            train_mb_size=train_mb_size,
            train_epochs=train_epochs,
            eval_mb_size=eval_mb_size,
            device=device,
            plugins=plugins,
            evaluator=evaluator,
            eval_every=eval_every,
            **base_kwargs,
        )

    @property
    def posterior(self) -> SFRPosterior:
        """The posterior; of a multi-task model, see :attr:`posteriors`."""
        if list(self._posteriors) != [None]:
            raise ArgumentError(
                f"expected one posterior, got {len(self._posteriors)}: absorb an experience first, "
                f"and use posteriors[label] for a multi-task model"
            )
        return self._posteriors[None]

    @property
    def posteriors(self) -> Posteriors:
        """The posteriors by task label; under ``None`` for a model without."""
        return dict(self._posteriors)

    def absorb(self, experience: Any) -> None:
        """Absorb an experience, without the hooks and the predictions of :meth:`train`."""
        if self._train_first and not self._trained:
            raise ArgumentError(
                "expected train() before absorb(), since train_first=True, got absorb(): the "
                "first experience is trained on"
            )
        require_samples(experience.dataset)
        posteriors = self._with_outputs(experience.dataset)
        for label in task_labels(self.model, experience.dataset):
            data = ExperienceData(experience.dataset, label)
            posteriors[label].update(shown(data, "absorbing", len(data), self._verbose))
        self._posteriors = posteriors

    def forget(self, data: Any, y: Tensor | None = None, *, task_label: int | None = None) -> None:
        """Take data out again: f is exactly what it would be had it never been absorbed.

        What :meth:`SFRPosterior.forget <sfr_cl.SFRPosterior.forget>` leaves, and refuses, is said
        there. The posterior keeps its outputs, and the weights of a network that was trained on the
        data (``train_first``) still remember it: train it again without.

        Args:
            data: an experience that was absorbed, with the transforms it had; or inputs x.
            y: the targets of inputs x.
            task_label: of inputs x, for a model that takes labels.

        Raises:
            ArgumentError: neither an experience nor a pair of inputs and targets, or a task label
                too many or too few.
            DataError: samples that can't have been absorbed. All posteriors stay as they were.
        """
        posteriors = dict(self._posteriors)
        for label, pairs in self._to_forget(data, y, task_label).items():
            if label not in posteriors:
                raise DataError(
                    "expected data that was absorbed, got "
                    + (
                        "some before any was"
                        if label is None
                        else f"task label {label}'s: none was"
                    )
                )
            posteriors[label] = copy.copy(posteriors[label]).forget(pairs)
        self._posteriors = posteriors

    def _to_forget(self, data: Any, y: Tensor | None, task_label: int | None) -> dict[Any, Any]:
        """Data by task label."""
        if y is None:
            if not hasattr(data, "dataset") or task_label is not None:
                raise ArgumentError(
                    "expected forget(experience), forget(x, y) or, for a model with task labels, "
                    f"forget(x, y, task_label=...), got {type(data).__name__} without targets"
                )
            require_samples(data.dataset)
            labels = task_labels(self.model, data.dataset)
            return {label: ExperienceData(data.dataset, label) for label in labels}
        if (task_label is not None) != is_multi_task_module(unwrapped(self.model)):
            raise ArgumentError(
                "expected a task label for a model that takes them, and none for others, got "
                + ("none" if task_label is None else repr(task_label))
            )
        return {task_label: (data, y)}

    def forward(self) -> Tensor:
        """Log predictive probabilities of the posterior (a regression's mean), once there is one.

        ``mb_predictive`` holds the predictive distribution. Until ``train_first`` is over, the
        network predicts.
        """
        self.mb_predictive = None
        being_trained = self._train_first and not self._trained
        if self.is_training or being_trained or not (self._posteriors or self._of_classes):
            outputs: Tensor = super().forward()
            return outputs
        blank = self._blank_outputs(self._posteriors)
        if not self._posteriors:  # all classes are alike
            width = max(blank.shape[1], as_matrix(super().forward()).shape[1])
            return blank.new_zeros(len(blank), width)
        found, self.mb_predictive = Predictive(self._posteriors).predict(
            self.mb_x, self._labels, blank
        )
        return found

    # The conditioning pass -----------------------------------------------------------------------

    def _train_exp(self, experience: Any, eval_streams: Any = None, **kwargs: Any) -> None:
        self._require_plugins()
        trained_on = self._train_first and not self._trained
        if trained_on:
            self._require_usable(experience.dataset)
            super()._train_exp(experience, eval_streams, **kwargs)
            self._trained = True
        # Not the loader of training, which may oversample or replay: every sample counts once.
        self.dataloader = in_order(evaluated(experience.dataset), self.train_mb_size)
        self._before_training_epoch(**kwargs)  # early stopping brings the best weights back here
        posteriors = self._with_outputs(experience.dataset)
        self._condition(posteriors, trained_on, **kwargs)
        self._posteriors = posteriors
        self._after_training_epoch(**kwargs)

    def _condition(self, posteriors: Posteriors, trained_on: bool, **kwargs: Any) -> None:
        # Not without gradients: there are plug-ins with backward passes of their own.
        passes: dict[int | None, Absorption] = {}
        classes = self._classes(self.experience.dataset)
        for mbatch in self.dataloader:
            self.mbatch = mbatch
            self._unpack_minibatch()
            own = [*self.mbatch]
            self._before_training_iteration(**kwargs)
            self._before_forward(**kwargs)
            self.mbatch = own  # what plug-ins have added was absorbed when it came, or is generated
            self.mb_output, self.mb_predictive = self._step(posteriors, passes, classes, trained_on)
            self._after_forward(**kwargs)
            self.loss = self.criterion()
            self._after_training_iteration(**kwargs)
        for absorption in passes.values():
            absorption.finish()

    @torch.no_grad()
    def _step(
        self,
        posteriors: Posteriors,
        passes: dict[int | None, Absorption],
        classes: Tensor | None,
        trained_on: bool,
    ) -> tuple[Tensor, Distribution | None]:
        """Predict a mini-batch, and add it to the sums of its task labels."""
        outputs, parts = self._blank_outputs(posteriors), rows_by_label(self._labels)
        predictive = None
        for label, rows in parts:
            if label not in passes:
                passes[label] = posteriors[label].absorption(trained_on=trained_on)
            predictive = passes[label].step(take(self.mb_x, rows), self.mb_y[rows])
            predictive = of_seen_classes(posteriors[label], predictive, classes)
            outputs[rows] = values_of(predictive, outputs[rows])
        return outputs, predictive if len(parts) == 1 else None

    @property
    def _labels(self) -> Tensor | None:
        of_tasks = is_multi_task_module(unwrapped(self.model))
        labels: Tensor | None = self.mb_task_id if of_tasks else None
        return labels

    @property
    def _targets(self) -> Tensor | None:
        """The targets of the mini-batch, if it has any: one to predict may lack them."""
        targets: Tensor | None = self.mb_y if len(self.mbatch) > 1 else None
        return targets

    def _blank_outputs(self, posteriors: Posteriors) -> Tensor:
        """A place for the outputs of a mini-batch, and for classes that were never seen.

        Other likelihoods compare outputs with targets, ``[B]`` or ``[B, C]``, one by one.
        """
        count, targets = length(self.mb_x), self._targets
        if not self._of_classes:
            width = max((posterior.num_outputs for posterior in posteriors.values()), default=1)
            shape = (count, width) if targets is None else targets.shape
            return torch.zeros(shape, device=self.device)
        widths = [(p.num_outputs, p.state.basis.kernel_outputs) for p in posteriors.values()]
        width = max([2, *(max(pair) for pair in widths)])
        if targets is not None:
            width = max(width, int(targets.max()) + 1)
        return torch.full((count, width), ABSENT, device=self.device)

    def _unpack_minibatch(self) -> None:
        """Move the mini-batch, whose inputs may be a dict or tuple of tensors, to the device."""
        self.mbatch = on_device(self.mbatch, self.device)

    # The first experience of a task label --------------------------------------------------------

    @property
    def _of_classes(self) -> bool:
        return self._likelihood == "classification"

    def _classes(self, dataset: Any) -> Tensor | None:
        """Those in a dataset; ``None`` for other likelihoods."""
        return torch.tensor(sorted(classes_of(dataset))) if self._of_classes else None

    def _with_outputs(self, dataset: Any) -> Posteriors:
        """Posteriors for all task labels, with an output for every class; ours stay as they are."""
        posteriors = {label: copy.copy(posterior) for label, posterior in self._posteriors.items()}
        found = self._classes(dataset)
        classes = 0 if found is None else int(found.max()) + 1
        for label in task_labels(self.model, dataset):
            if label not in posteriors:
                posteriors[label] = self._empty(ExperienceData(dataset, label), label, classes)
            if classes > posteriors[label].num_outputs:
                posteriors[label].grow_outputs(classes)
        return posteriors

    def _require_plugins(self) -> None:
        """Refuse what reads gradients of a loss, where there are none."""
        if any(isinstance(plugin, SynapticIntelligencePlugin) for plugin in self.plugins):
            raise ArgumentError(
                "expected plug-ins that need no gradients, since nothing is trained, got "
                "SynapticIntelligencePlugin: leave it out"
            )

    def _require_usable(self, dataset: Any) -> None:
        """Refuse, before training, a network there can be no posterior of, by making one."""
        for label in task_labels(self.model, dataset):
            rows = first_rows(dataset, label, of_classes=self._of_classes)
            if not len(self._head(label, rows[0]).active):
                continue  # a derivative of zero where training starts tells nothing yet
            classes = max(classes_of(dataset)) + 1 if self._of_classes else 0
            with without_warnings(), suppress(FactorizationError):
                self._empty([rows], label, classes, count=len(rows[1])).update(rows)

    def _head(self, label: int | None, x: Inputs) -> Head:
        return Head.of(self.model, label, x, self._parameters)

    def _spec(self) -> Spec:
        return Spec.checked(
            self._likelihood,
            parameters=TaskView.parameters_of(self._parameters),
            prior_precision=self._prior_precision,
            **self._options,
        )

    def _empty(
        self, data: Pairs, label: int | None, classes: int, count: int | None = None
    ) -> SFRPosterior:
        """A posterior without data, at the weights of now, over all inducing inputs or fewer."""
        head = self._head(label, next(iter(data))[0])
        view = TaskView(self.model, label, head.units)
        spec = self._spec()
        if self._of_classes and spec.any_outputs:  # more may come, where data says nothing of them
            spec = replace(spec, num_outputs=max(2, classes, 0 if spec.at_prior else head.size))
        wanted: Tensor | Selector = (
            self._inducing
            if isinstance(self._inducing, Tensor)
            else selector(self._inducing, count or self._num_inducing, without_data=True)
        )
        with torch.random.fork_rng():
            torch.manual_seed(self._seed)
            network = FrozenNetwork(view, spec.parameters, spec.dtype)
            state = empty_state(spec, wanted, Batches(data, BATCH), network)
        return SFRPosterior.of(spec, view, state)
