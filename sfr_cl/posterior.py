"""The posterior: a trained network as a sparse Gaussian process that data can be added to."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, MultivariateNormal

from sfr_cl import likelihoods
from sfr_cl.core import tune
from sfr_cl.core.absorb import Absorption, forecast, scores
from sfr_cl.core.calibration import NO_SCORES
from sfr_cl.core.penalty import Penalty
from sfr_cl.core.predict import Predictor, latents
from sfr_cl.core.solve import Solved, Sweep
from sfr_cl.core.spec import Spec
from sfr_cl.core.state import State
from sfr_cl.core.transfer import Sites, aligned, inducing
from sfr_cl.data.arguments import choice, fraction, positive, whole
from sfr_cl.data.batches import Batches, Data
from sfr_cl.data.inputs import Inputs
from sfr_cl.deprecation import renamed
from sfr_cl.errors import ArgumentError, DataError, MismatchError, NotFittedError
from sfr_cl.inducing import Selector, as_selector, checked_pairs, empty_state
from sfr_cl.io import files, snapshot
from sfr_cl.kernel.network import FrozenNetwork, named
from sfr_cl.likelihoods import LINKS, Likelihood
from sfr_cl.predictive import Normal, log_density

FIRST_BATCH = 256
"""Rows a selector sees at a time."""


class SFRPosterior:
    """A sparse function-space posterior over the outputs of a network.

    The kernel is the network's neural tangent kernel at its weights when :meth:`fit` is called, and
    all data lives in sums over M inducing inputs. Adding data is conditioning: no training.

    The defaults are the ones that made ``fit(a).update(b)`` best on held-out data, for known and
    for new classes alike. When to change them:

    * ``linearize_at="network"`` for the paper's posterior of the training data: its variance, the
      :meth:`penalty`, and a calibrated ``"probit"`` link. Do not absorb much classification data
      there: where the network is confident its curvature is nearly zero, and the step from there
      overshoots.
    * ``linearize_at="posterior"`` for any log p: it finds the mode, where one step from f = 0
      would miss it. In return the order of batches matters, and nothing can be forgotten or
      merged. For classes it is better calibrated where they overlap, and worse where they hardly
      do, or where new ones come.
    * ``mean="network"`` to keep the predictions of a network whose accuracy M inducing inputs
      can't hold, and add only what new data changes; ``mean="dual"`` to reproduce the paper.
    * ``output_kernel="per_output"`` for the paper's one kernel per output: C times the cost, and
      equal accuracy where we measured.
    * ``parameters="last_layer"`` for networks whose whole Jacobian is too large.
    * ``prior_precision``, ``logit_scale``: see :meth:`tune_prior_precision` if you have data for
      it, and :meth:`recalibrate`.

    What is exact: f, its mean and variance, at a given delta, does not depend on the order of data,
    and :meth:`forget` and ``+`` are exact for it. The scale of logits is an estimate of one number:
    ``+`` adds the scores it is read from, :meth:`forget` leaves them, they hold no sample, and they
    change confidence, never the order of classes.

    From 30 classes on, at the prior with a shared kernel, :meth:`predict` reads f through a linear
    discriminant (:mod:`sfr_cl.core.discriminant`), which follows from the sums, as exactly as f:
    the largest f need not be the most likely class. What :meth:`predict_f`, :meth:`novelty` and
    :meth:`log_marginal_likelihood` say is of f all the same.

    Args:
        network: a module that maps a batch of inputs to ``[B, C]``. It is copied, never changed.
        likelihood: ``"classification"`` (softmax), ``"binary"`` (one logit), ``"regression"``, or
            a :class:`~sfr_cl.likelihoods.Likelihood`.
        prior_precision: delta of the objective sum_i -log p(y_i | f_w(x_i)) + delta/2 |w|^2. A
            network trained on the mean of -log p with weight decay lambda has delta = N lambda. By
            default that of greatest evidence whenever the posterior is read: of regression, with
            one noise for all outputs (those of large targets set it), and of classes linearised at
            the prior, read as a regression whose noise is unknown; 1 for others.
        logit_scale: what logits are multiplied with before the link. By default 1, but for classes
            linearised at the prior, whose size says little: there it follows the predictions
            :meth:`update` makes of data before it absorbs it, from 2.5 / sqrt(C) on, of 30 classes
            and more (7 + 1.9 sqrt(C)) / C, or from less where the data of :meth:`fit`, on which the
            network was trained, speaks against it.
        inducing: M, a tensor (or tree) of inputs, or a selector of :mod:`sfr_cl.inducing`. By
            default 512 rows of the data chosen by ``greedy``, or all if there are fewer. They are
            stored; ``noise`` and ``smooth_noise``, for personal data, store none.
        noise_variance: of ``"regression"``: a number, one for each output, or ``"learn"``: for each
            output that of greatest evidence, under a weak prior, whenever the posterior is read.
        output_kernel: ``"shared"`` by all outputs, their mean, or ``"per_output"``.
        parameters: what the kernel differentiates: ``"all"``, but those with
            ``requires_grad=False`` (unless all have it); ``"last_layer"``, the one that makes the
            outputs; or names.
        mean: ``"natural"``, ``"dual"`` or ``"network"``.
        linearize_at: ``"prior"`` (f = 0), ``"posterior"`` (each batch at its mode given all data
            before it) or ``"network"`` (f at the network's output); by default ``"prior"``,
            ``"posterior"`` for custom likelihoods, and ``"network"`` for the means that are not
            the natural one.
        num_outputs: C, by default the network's. A shared kernel linearised at the prior takes
            any number of outputs, and so classes the network has no unit for.
        batch_size: rows worked on at a time; by default as many as modest memory allows.
        dtype: precision the network and its kernel are evaluated in; the sums are in float64.
            ``torch.float32`` is faster, and good to about three digits.

    Raises:
        ArgumentError: an option has a value that can't be used, or does not fit another.

    Every error is an :class:`~sfr_cl.errors.SFRError`, and leaves the posterior as it was.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> x = torch.linspace(-1, 1, 40)[:, None]
    >>> network = torch.nn.Sequential(
    ...     torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
    ... )
    >>> posterior = SFRPosterior(network, "regression").fit((x, x**2))
    >>> posterior.predict(torch.tensor([[0.5]])).mean
    tensor([[0.2500]], dtype=torch.float64)
    """

    _keeps_inducing = False
    """Whether :meth:`fit` starts over the inducing inputs there are, instead of those given."""

    def __init__(
        self,
        network: nn.Module,
        likelihood: str | Likelihood,
        *,
        prior_precision: float | None = None,
        logit_scale: float | None = None,
        inducing: int | Inputs | Selector | None = None,
        noise_variance: float | Sequence[float] | str = "learn",
        output_kernel: str = "shared",
        parameters: str | Sequence[str] = "all",
        mean: str = "natural",
        linearize_at: str | None = None,
        num_outputs: int | None = None,
        batch_size: int | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self._spec = Spec.checked(
            likelihood,
            noise_variance=noise_variance,
            output_kernel=output_kernel,
            parameters=parameters,
            mean=mean,
            linearize_at=linearize_at,
            dtype=dtype,
            prior_precision=prior_precision,
            num_outputs=num_outputs,
            batch_size=batch_size,
            logit_scale=logit_scale,
        )
        named(network, self._spec.parameters)  # refuses what has no parameters of these names
        self._network = network
        self._inducing = inducing
        self._fitted: _Fitted | None = None
        self._penalty: Penalty | None = None

    # Conditioning -------------------------------------------------------------------------------

    @torch.inference_mode(False)
    def fit(self, data: Data) -> SFRPosterior:
        """Freeze the network's weights, choose inducing inputs, absorb ``data``; start again.

        Args:
            data: a ``DataLoader``, a ``Dataset``, a pair ``(x, y)`` or an iterable of pairs: as a
                rule the data the network was trained on. Nothing is trained.

        Returns:
            The posterior itself.

        Raises:
            DataError: inputs or targets that can't be used, or fewer than inducing inputs wanted.
            DataTypeError: data of another type, or that can be walked through only once.
            MemoryLimitError: more inducing inputs, or a larger batch, than memory holds.
            FactorizationError: a kernel matrix that is not positive definite.
        """
        batches = Batches(data, self._spec.batch_size or FIRST_BATCH)
        state = self._empty(batches)
        batches.size = state.basis.batch_size

        def adopt(onto: Callable[[State], State]) -> None:
            fitted = onto(state)
            reference = fitted.sums.gradient if self._spec.mean == "network" else None
            self._adopt(fitted.with_sums(fitted.sums, reference))

        absorption = Absorption(state, self._predictor, adopt, trained_on=True)
        for x, y in batches:
            absorption.add(x, y)
        absorption.finish()
        return self

    @torch.inference_mode(False)
    def init(self, data: Data | None = None) -> SFRPosterior:
        """Freeze the network's weights over inducing inputs, and absorb nothing; start again.

        Args:
            data: what inducing inputs are chosen from, unless they were given themselves.

        Returns:
            The posterior itself.

        Raises:
            ArgumentError: neither inducing inputs nor data to choose them from.

        >>> z = torch.linspace(-1, 1, 5)[:, None]
        >>> SFRPosterior(torch.nn.Linear(1, 2), "classification", inducing=z).init().num_data
        0
        """
        size = self._spec.batch_size or FIRST_BATCH
        return self._adopt(self._empty(None if data is None else Batches(data, size)))

    @torch.inference_mode(False)
    def from_sites(self, sites: Sites) -> SFRPosterior:
        """Freeze the network's weights, and adopt what was known of f at other weights.

        Args:
            sites: of a posterior (:attr:`sites`), or of several, joined. They bring their
                inducing inputs, and are read as they are: what the weights have changed of f
                meanwhile is not in them.

        Returns:
            The posterior itself.

        Raises:
            MismatchError: sites of another number of kernels or outputs, of another likelihood, or
                linearised elsewhere.
        """
        if not isinstance(sites, Sites):
            raise ArgumentError(
                f"expected the sites of a posterior, got {type(sites).__name__}: give its .sites"
            )
        own = (self._spec.likelihood.name, self._spec.linearize_at)
        if sites.kind not in (None, own):
            raise MismatchError(
                f"expected sites of {own[0]!r} linearised at the {own[1]}, got those of "
                f"{sites.kind[0]!r} at the {sites.kind[1]}: build both posteriors alike"
            )
        state = empty_state(self._spec, sites.z, None, self._frozen())
        state = replace(state, basis=replace(inducing(state), given=sites.given))
        if state.sums.weight.shape != sites.sums.weight.shape:
            raise MismatchError(
                f"expected sites of {len(state.sums.weight)} kernels, got "
                f"{len(sites.sums.weight)}: build both posteriors with one output_kernel"
            )
        _require_same("number of outputs", state.num_outputs == sites.num_outputs)
        return self._adopt(sites.to(state.basis.network.device).at(state))

    fit_sites = renamed(from_sites, "fit_sites")

    @torch.inference_mode(False)
    def select(self, data: Data) -> Tensor:
        """Which rows of some data would become inducing inputs.

        Args:
            data: that can be walked through twice.

        Returns:
            Their indices, ``[M]``, by the selector that was given as ``inducing``.

        Raises:
            ArgumentError: the selector does not choose rows of the data.
        """
        batches = Batches(data, self._spec.batch_size or FIRST_BATCH)
        selector = as_selector(self.inducing, batches)
        if not hasattr(selector, "indices"):
            raise ArgumentError(
                f"expected a selector of rows of the data (random, class_balanced, greedy), got "
                f"{selector!r:.60}"
            )
        network = self._frozen()
        network.require_finite()
        pairs, kernel = checked_pairs(self._spec, batches, network)
        found: Tensor = selector.indices(pairs, kernel)
        return found

    @torch.inference_mode(False)
    def update(self, data: Data) -> SFRPosterior:
        """Absorb more data by conditioning: f is exact, in any order, in batches of any size.

        With ``linearize_at="posterior"``, in the order and the batches given. Where the scale of
        logits is learned, by what is predicted of each part, it follows order and batches a little.

        Args:
            data: as of :meth:`fit`; it may also be an iterator.

        Returns:
            The posterior itself.

        Raises:
            NotFittedError: there are no inducing inputs yet.
            DataError: inputs or targets that can't be used.
        """
        absorption = self.absorption()
        for x, y in Batches(data, self.state.basis.batch_size):
            absorption.add(x, y)
        absorption.finish()
        return self

    def absorption(self, *, trained_on: bool = False) -> Absorption:
        """A pass over data that is predicted before it is absorbed, batch by batch.

        Args:
            trained_on: whether the network was trained on the data, as that of :meth:`fit`.
        """

        def adopt(onto: Callable[[State], State]) -> None:
            self._adopt(onto(self.state))

        predictor = partial(self._predictor, by_weights=False)
        return Absorption(self.state, predictor, adopt, trained_on=trained_on)

    @torch.inference_mode(False)
    def forget(self, data: Data, *, weight: float = 1.0) -> SFRPosterior:
        """Take data out again, exactly as if it had never been seen.

        Inducing inputs that were chosen from data and equal one of its rows, in the precision of
        the posterior, are dropped: what is left is the posterior over the others, exactly, and a
        file saved after has none of these rows. So is one that equals a row of somebody else's
        data too, which stays in the sums. Fewer inducing inputs hold less. Those given as a tensor
        stay, with a warning. The scores that the scale of logits is read from stay, which hold no
        sample; :meth:`recalibrate` renews them.

        To forget persons, choose inducing inputs that are no data from the start
        (:class:`~sfr_cl.noise`, :class:`~sfr_cl.smooth_noise`): forgetting then costs nothing. The
        weights of a network that was trained on their data still remember it, and so does ``mean=
        "network"``. That can't be undone here: condition a network that never saw it.

        Sums can't tell whether these very samples were absorbed. What can be told is refused: more
        samples, of all or of a class, than were seen, and a posterior left indefinite.

        Args:
            data: the samples to take out, as they were absorbed.
            weight: what discounting has left of them: gamma after one ``discount(gamma)``.

        Returns:
            The posterior itself.

        Raises:
            DataError: samples that can't have been absorbed, or that are all inducing inputs.
            ArgumentError: ``linearize_at="posterior"``, where terms depend on the data before.
        """
        state, weight = self.state, positive("weight", weight)
        state.spec.require_order_free("to forget data")
        return self._adopt(state.forget(Batches(data, state.basis.batch_size), weight))

    def discount(self, gamma: float) -> SFRPosterior:
        """Give all data seen so far another weight.

        Args:
            gamma: what is left of it, in (0, 1].

        Returns:
            The posterior itself.
        """
        return self._adopt(self.state.discount(fraction("gamma", gamma)))

    def with_prior_precision(self, prior_precision: float) -> SFRPosterior:
        """The same data at another delta.

        Args:
            prior_precision: delta.

        Returns:
            Another posterior; this one stays as it is.
        """
        delta = positive("prior_precision", prior_precision)
        return copy.copy(self)._adopt(self.state.with_spec(prior_precision=delta))

    def __add__(self, other: SFRPosterior) -> SFRPosterior:
        """Merge two workers' posteriors over the same network and inducing inputs.

        Inducing inputs that one of them has dropped, to :meth:`forget` their rows, are dropped from
        the other too, exactly.

        Returns:
            A posterior of the data of both; they stay as they are.

        Raises:
            MismatchError: they differ in anything but their data.
            ArgumentError: ``linearize_at="posterior"``.
        """
        if not isinstance(other, SFRPosterior):
            return NotImplemented
        mine, theirs = self.state, other.state
        mine.spec.require_order_free("to merge posteriors")
        left, right = self._spec.likelihood, other.spec.likelihood
        _require_same("options", self._spec.options() == other.spec.options())
        _require_same("likelihoods", left.name == right.name and type(left) is type(right))
        _require_same("noise variances", left.settings() == right.settings())
        for name in ("prior_precision", "logit_scale"):
            agree = getattr(mine.spec, name) == getattr(theirs.spec, name)
            remedy = f"give both one {name}, or let both learn it"
            _require_same(f"{name.replace('_', ' ')}s", agree, remedy)
        _require_same("networks", mine.basis.network.agrees_with(theirs.basis.network))
        _require_same("kernels", mine.basis.kernel_outputs == theirs.basis.kernel_outputs)
        _require_same("number of outputs", mine.num_outputs == theirs.num_outputs)
        common = aligned(mine, theirs)
        if common is None:
            raise _different("inducing inputs")
        mine, theirs = common
        device = mine.basis.network.device
        sums = mine.sums + theirs.sums.to(device)
        reference = mine.reference + theirs.reference.to(device)
        merged = replace(
            mine.with_sums(sums, reference),
            scores=mine.scores + theirs.scores,
            bound=mine.bound + theirs.bound,
            discriminant=mine.discriminant and theirs.discriminant,
        )
        return copy.copy(self)._adopt(merged)

    def __radd__(self, other: object) -> SFRPosterior:
        """Let ``sum(posteriors)`` merge any number of workers."""
        return self if other == 0 else NotImplemented

    @torch.inference_mode(False)
    def add_inducing(self, z: Inputs) -> SFRPosterior:
        """Add inducing inputs. Predictions stay as they are until more data is absorbed.

        What was absorbed before has no part in the new directions, and can't be forgotten any more.

        Args:
            z: more inputs.

        Returns:
            The posterior itself.
        """
        basis = inducing(self.state)
        z = basis.network.prepare(z)
        basis.network(z)  # refuses what the network can't take
        return self._adopt(self.state.extend(basis.extended(z)))

    @torch.inference_mode(False)
    def replace_inducing(self, z: Inputs) -> SFRPosterior:
        """Exchange the inducing inputs: what was absorbed is projected onto the new ones.

        Dropping some, what remains is exact; in new places f is what the old ones say of it.

        Args:
            z: all inducing inputs from now on.

        Returns:
            The posterior itself.
        """
        basis = inducing(self.state)
        z = basis.network.prepare(z, "inducing inputs")
        over = replace(basis.over(z, self._spec.batch_size), given=True)
        return self._adopt(self.state.project(over))

    @torch.inference_mode(False)
    def grow_outputs(self, network: nn.Module | int) -> SFRPosterior:
        """Adopt a network whose head has grown, its other weights unchanged.

        A shared kernel remains that of the first outputs; all else is as if the new classes had
        been there from the start. Linearised at the prior, such a posterior needs no grown network,
        only the number of outputs. New outputs of a regression know no data: after the first of it
        they need ``output_kernel="per_output"``.

        Args:
            network: the grown network, or the number of outputs.

        Returns:
            The posterior itself.

        Raises:
            MismatchError: fewer outputs than before, or other weights.
            ArgumentError: a posterior whose kernels are the network's outputs can't grow freely,
                nor one whose outputs share the data they have seen, but for classes.
            DataError: more outputs than the likelihood takes.
        """
        state, spec = self.state, self._spec
        if isinstance(network, Integral | int):
            more = state.with_outputs(whole("number of outputs", int(network)))
            return self._adopt(more, self._fitted if state.likelihood.may_grow else None)
        grown = FrozenNetwork(network, state.basis.network.names, spec.dtype)
        grown.require_finite()
        grown.check_grown_from(state.basis.network)
        num_outputs = grown.bind(self.inducing_inputs)
        if num_outputs <= state.num_outputs:
            raise MismatchError(
                f"expected more than {state.num_outputs} outputs, got {num_outputs}: outputs can "
                f"be added, not taken away"
            )
        self._adopt(state.grow(grown, num_outputs))
        self._network = network
        return self

    # Prediction ---------------------------------------------------------------------------------

    @torch.inference_mode(False)
    def predict_f(self, x: Inputs, *, full_cov: bool = False) -> Normal | MultivariateNormal:
        """The posterior of the latent function f; of fewer than 30 classes, logits at scale 1.

        Args:
            x: inputs.
            full_cov: whether to give the covariance between inputs.

        Returns:
            ``Normal`` with mean and variance ``[B, C]``. With ``full_cov``, a
            ``MultivariateNormal`` over the B inputs for each of the C outputs: mean ``[C, B]``,
            covariance ``[C, B, B]``.
        """
        predictor = self._predictor()
        return predictor.joint(x) if full_cov else predictor.latent(x)

    @torch.inference_mode(False)
    def predict_f_at(self, x: Inputs, prior_precisions: Sequence[float]) -> list[Normal]:
        """What :meth:`predict_f` would give under other prior precisions.

        One pass over the inputs and one factorisation serve any number of them.

        Args:
            x: inputs.
            prior_precisions: values of delta.

        Returns:
            ``Normal`` with mean and variance ``[B, C]`` for each delta.
        """
        if not isinstance(prior_precisions, Iterable):
            raise ArgumentError(f"expected a list of prior precisions, got {prior_precisions!r}")
        deltas = [positive("prior_precision", delta) for delta in prior_precisions]
        return latents(Sweep(self.state, deltas), x)

    @torch.inference_mode(False)
    def novelty(self, x: Inputs) -> Tensor:
        """How little the data says of f at these inputs, ``[B]``: 0 all, 1 nothing.

        It is the share of the prior variance of f that is left, mean over outputs. Unlike the
        variance it does not grow with the kernel: what counts is whether the directions of weight
        space that move f at an input were seen in the data. Directions that no inducing input has
        count as never seen.

        Args:
            x: inputs.

        Returns:
            Numbers in [0, 1], ``[B]``.
        """
        return self._predictor().novelty(x)

    @torch.inference_mode(False)
    def predict(self, x: Inputs, *, link: str | None = None) -> Distribution:
        """The predictive distribution of y: ``Categorical``, ``Bernoulli`` or ``Normal``.

        Args:
            x: inputs.
            link: how the uncertainty of logits becomes that of probabilities: ``"probit"``
                (moderated logits), ``"mc"`` (sampled), ``"map"`` (the mean's). By default
                ``"map"`` when linearised at the prior, whose logits are moderate already, and
                ``"probit"`` at the network.

        Returns:
            Of a batch of B inputs; its ``log_prob`` takes targets as :meth:`fit` does, and is of
            their shape.

        Raises:
            DataError: inputs that can't be used, or so large that predictions overflow.
        """
        if link is not None:
            choice("link", link, LINKS)
        return self._predictor(link).predictive(x)

    @torch.inference_mode(False)
    def nlpd(self, data: Data) -> float:
        """Mean negative log predictive density of data, summed over outputs.

        Args:
            data: as of :meth:`fit`.

        Returns:
            Nats per sample.
        """
        state, predictor = self.state, self._predictor()
        total, count = 0.0, 0
        for x, y in state.checked(Batches(data, state.basis.batch_size)):
            total -= float(log_density(predictor.predictive(x), y).sum())
            count += len(y)
        return total / count

    def log_marginal_likelihood(self) -> float:
        """The log evidence of all data absorbed, under the Gaussian sites of its likelihood.

        Raises:
            DataError: there is no data.
        """
        self._require_data()
        return self.solved.log_evidence

    @torch.inference_mode(False)
    def tune_prior_precision(self, validation: Data | None = None) -> SFRPosterior:
        """Choose ``prior_precision`` by validation NLPD, or by evidence if there is no such data.

        Every candidate costs products only: the sums are made once and rescaled. With validation
        data and a likelihood with logits, one scale of the logits is chosen along with it. What is
        chosen stays, whatever is absorbed, until :meth:`fit` starts again.

        Args:
            validation: data that was not absorbed, as of :meth:`fit`.

        Returns:
            The posterior itself.

        Raises:
            DataError: no data was absorbed.
        """
        self._require_data()
        state = self.state
        if validation is None:
            tuned = tune.by_evidence(state)
        else:
            batches = state.checked(Batches(validation, state.basis.batch_size))
            tuned = tune.by_validation(state, batches, self._spec.link)
        return self._adopt(
            state.with_spec(prior_precision=tuned.prior_precision, logit_scale=tuned.logit_scale)
        )

    @torch.inference_mode(False)
    @torch.no_grad()
    def recalibrate(self, data: Data) -> SFRPosterior:
        """Learn the scale of the logits again, by predictions of some data, and delta by the sums.

        Numbers that were tuned, or came with the file of an earlier version, give way to learned
        ones, and many classes of such a file are read by a discriminant; a delta given to the
        constructor stays. Otherwise the scale follows the predictions that :meth:`update` makes of
        data before it absorbs it, and goes on to do so.

        Args:
            data: that was not absorbed, as of :meth:`fit`; nothing of it is kept but scores. Rows
                of classes that were never absorbed do not count.

        Returns:
            The posterior itself.

        Raises:
            ArgumentError: no scale is learned: the likelihood has no logits, or data is not
                linearised at the prior.
            DataError: no data was absorbed, or none of a class that was.
        """
        self._require_data()
        if not self._spec.has_prior_logits:
            raise ArgumentError(
                f"expected classes linearised at the prior, whose scale is learned, got "
                f"{self._spec.likelihood.name!r} at {self._spec.linearize_at!r}"
            )
        delta = self._spec.prior_precision
        state = self.state.with_spec(prior_precision=delta, logit_scale=None)
        state = replace(state, discriminant=True)
        found, total = forecast(state, None), NO_SCORES
        for x, y in state.checked(Batches(data, state.basis.batch_size)):
            total = total + scores(state.likelihood, found, state.basis.features(x).phi, y)
        if not total.num_seen:
            raise DataError("expected data of classes that were absorbed, got none: absorb it")
        return self._adopt(replace(state, scores=total))

    def penalty(self, network: nn.Module) -> Tensor:
        """The function-space regulariser, a scalar to add to the mean loss of the next task.

            1/(2M) sum_c d_c' P_c d_c,   d_c = f_c(Z; w) - f_c(Z; w*),   P_c = K^-1 B_u K^-1

        P_c is the identity for outputs no datum has observed. It does not depend on the prior
        precision (unless a noise is learned with it). The published curvature is that of
        ``linearize_at="network"``. In an autocast region it is in the network's own precision; call
        ``backward`` outside of it, as torch asks.

        Args:
            network: the network being trained, with at least as many outputs.

        Returns:
            A scalar, differentiable with respect to the network's parameters.

        Raises:
            DataError: no data was absorbed.
            MismatchError: the network has fewer outputs.
        """
        cast = self._penalty
        if cast is None or cast.like(network) is not cast:
            cast = self._penalty = self.as_penalty().like(network)
        return cast(network)

    def as_penalty(self) -> Penalty:
        """The regulariser by itself: what it needs of the posterior, and no more."""
        self._require_data()
        return self._fitted_or_refuse.penalty

    # State --------------------------------------------------------------------------------------

    @property
    def spec(self) -> Spec:
        """What the posterior was asked for."""
        return self._spec

    @property
    def network(self) -> nn.Module:
        """The network that :meth:`fit` would copy and freeze: the one given, or a stream's own."""
        return self._network

    @property
    def inducing(self) -> Any:
        """The inducing inputs, their number, or a selector, as given; those that a file had."""
        return self.inducing_inputs if self._keeps_inducing else self._inducing

    @property
    def is_fitted(self) -> bool:
        """Whether there are inducing inputs."""
        return self._fitted is not None

    @property
    def state(self) -> State:
        """All that is known, as an immutable record."""
        return self._fitted_or_refuse.state

    @property
    def solved(self) -> Solved:
        """The state's sums solved: once per read after any number of updates."""
        return self._fitted_or_refuse.solved

    @property
    def num_data(self) -> float:
        """Number of samples in the posterior, discounted ones by their weight."""
        count = float(self.state.sums.count)
        return int(count) if count.is_integer() else count

    @property
    def inducing_inputs(self) -> Inputs:
        """Z."""
        return inducing(self.state).z

    @property
    def sites(self) -> Sites:
        """What the data says about f at the inducing inputs, whatever the weights."""
        return Sites.of(self.state)

    @property
    def num_outputs(self) -> int:
        """C."""
        return self.state.num_outputs

    @property
    def prior_precision(self) -> float:
        """delta, learned if it is learned."""
        return self.solved.prior_precision

    @property
    def logit_scale(self) -> float:
        """What logits are multiplied with before the link, learned if it is learned."""
        return self.state.logit_scale

    @property
    def noise_variance(self) -> float | Tensor | None:
        """Of regression, learned if it is learned; ``None`` for other likelihoods.

        Learned for several outputs, it is one for each, ``[C]``.
        """
        solved = self.solved
        noise = solved.likelihood.noise_scale
        return solved.vectors.new_tensor(noise) if isinstance(noise, tuple) else noise

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood given, or that of the file."""
        return self._spec.likelihood

    def state_dict(self) -> dict[str, Any]:
        """All of the posterior as ``{"tensors": {name: tensor}, "values": plain values}``."""
        tensors, values = snapshot.take(self.state)
        return {"tensors": tensors, "values": {**values, "given": self._spec.given()}}

    def load_state_dict(self, state: dict[str, Any]) -> SFRPosterior:
        """Adopt what :meth:`state_dict` gave. The network lends its architecture only.

        What this one was given stays for the next :meth:`fit`, the rest is as it was stored.

        Args:
            state: what :meth:`state_dict` gave.

        Returns:
            The posterior itself.

        Raises:
            MismatchError: a part is missing, or belongs to another likelihood, option or network.
        """
        tensors, values = (
            snapshot.part(state, "tensors", dict),
            snapshot.part(state, "values", dict),
        )
        likelihood = snapshot.part(values, "likelihood", str)
        _require_same("likelihoods", likelihood == self._spec.likelihood.name)
        stored = snapshot.read_spec(values, self._spec.likelihood)
        _require_same("options", stored.options() == self._spec.options())
        restored = snapshot.restore(tensors, values, self._network, self._spec.likelihood)
        own = {name: value for name, value in self._spec.given().items() if value is not None}
        given = {**snapshot.read_given(values), **own}
        self._spec = replace(self._spec, likelihood=restored.likelihood, **given)
        return self._adopt(restored)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior to a safetensors file, atomically.

        Args:
            path: of the file; one that is there is replaced.
        """
        state = self.state_dict()
        files.write(path, state["tensors"], state["values"])

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        network: nn.Module,
        *,
        likelihood: Likelihood | None = None,
    ) -> SFRPosterior:
        """Read a posterior. Files hold tensors and plain values only: no code is run.

        Args:
            path: a file written by :meth:`save`.
            network: a module of the same architecture; the weights come from the file.
            likelihood: the object, if the posterior was made with a custom one; its settings must
                be those of the file.

        Returns:
            The posterior as it was saved, with the delta, the number of outputs and the batch size
            it was given for the next :meth:`fit`, and its inducing inputs.

        Raises:
            FileError: the file is truncated, altered, or not one of ours.
            MismatchError: the network, or the likelihood, is another one.
        """
        return cls.from_state_dict(*files.read(path), network, likelihood=likelihood)

    @classmethod
    def from_state_dict(
        cls,
        tensors: dict[str, Tensor],
        values: dict[str, Any],
        network: nn.Module,
        *,
        likelihood: Likelihood | None = None,
    ) -> SFRPosterior:
        """The posterior of a :meth:`state_dict`, its options included; see :meth:`load`."""
        snapshot.check_architecture(tensors, network)
        name = snapshot.part(values, "likelihood", str)
        own = likelihood or likelihoods.by_name(name)
        spec = replace(snapshot.read_spec(values, own), prior_precision=None, logit_scale=None)
        if likelihood is not None:
            snapshot.require_settings(values, likelihood)
        posterior = cls.of(spec, network).load_state_dict({"tensors": tensors, "values": values})
        posterior._keeps_inducing = True
        return posterior

    @classmethod
    def of(
        cls,
        spec: Spec,
        network: nn.Module,
        state: State | None = None,
        *,
        inducing: Any = None,
    ) -> SFRPosterior:
        """A posterior from its parts.

        Args:
            spec: what it is asked for.
            network: what :meth:`fit` would freeze.
            state: what it knows; by default nothing yet.
            inducing: as of the class.
        """
        keywords = {field.name: getattr(spec, field.name) for field in fields(Spec)}
        posterior = cls(network, keywords.pop("likelihood"), inducing=inducing, **keywords)
        return posterior if state is None else posterior._adopt(state)

    @classmethod
    def over(cls, spec: Spec, state: State) -> SFRPosterior:
        """A posterior from its parts that :meth:`fit` starts again over the inducing inputs it has.

        Args:
            spec: what it is asked for.
            state: what it knows.
        """
        posterior = cls.of(spec, inducing(state).network.module, state)
        posterior._keeps_inducing = True
        return posterior

    def to(self, device: torch.device | str) -> SFRPosterior:
        """Move the posterior; the user's network stays where it is.

        Args:
            device: as torch names it.

        Returns:
            The posterior itself.

        Raises:
            ArgumentError: torch can't use the device, or it has no float64.
        """
        state = self.state
        try:
            moved = state.to(torch.device(device))
        except (RuntimeError, AssertionError, ImportError) as error:
            raise ArgumentError(
                f"expected a device torch can use, got {device!r}: {error}"
            ) from error
        return self._adopt(moved)

    def __getstate__(self) -> dict[str, Any]:
        """For pickles and copies: all but what is computed from the rest."""
        return {**vars(self), "_penalty": None}

    def __repr__(self) -> str:
        what = f"SFRPosterior({self._spec.likelihood.name!r}"
        if self._fitted is None:
            return f"{what}, not fitted)"
        return (
            f"{what}, prior_precision={self.prior_precision:g}, {self.state.basis.size} inducing "
            f"inputs, {self.num_outputs} outputs, {self.num_data} data)"
        )

    # Private ------------------------------------------------------------------------------------

    @property
    def _fitted_or_refuse(self) -> _Fitted:
        if self._fitted is None:
            raise NotFittedError(
                "expected a fitted posterior, got one without inducing inputs: call fit first"
            )
        return self._fitted

    def _adopt(self, state: State, fewer: _Fitted | None = None) -> SFRPosterior:
        self._fitted, self._penalty = _Fitted(state, fewer), None
        return self

    def _predictor(self, link: str | None = None, *, by_weights: bool = True) -> Predictor:
        fitted = self._fitted_or_refuse
        scale = fitted.state.logit_scale
        return Predictor(fitted.solved, scale, link or self._spec.link, by_weights)

    def _frozen(self) -> FrozenNetwork:
        if self._fitted is not None:
            network = self._fitted.state.basis.network
            if network.module is self._network:  # of a posterior made of parts: frozen already
                return network
        return FrozenNetwork(self._network, self._spec.parameters, self._spec.dtype)

    def _empty(self, batches: Batches | None) -> State:
        state = empty_state(self._spec, self.inducing, batches, self._frozen())
        if not self._keeps_inducing:
            return state
        basis = inducing(state).like_origin(inducing(self.state))
        return replace(state, basis=basis)

    def _require_data(self) -> None:
        if not self.state.has_data:
            raise DataError("expected a posterior with data, got one that has forgotten it all")


@dataclass(frozen=True)
class _Fitted:
    """A state, with what is computed from it when it is first needed."""

    state: State
    fewer: _Fitted | None = None
    """The same with fewer outputs, what no data has changed since, where it serves to solve it."""

    @cached_property
    def solved(self) -> Solved:
        if self.fewer is None:
            return Solved.of(self.state)
        return self.fewer.solved.grown(self.state)

    @cached_property
    def penalty(self) -> Penalty:
        return Penalty.of(self.solved)

    def __getstate__(self) -> dict[str, Any]:
        """For pickles and copies: what is computed is computed again."""
        return {"state": self.state, "fewer": None}


ALIKE = "build both from the same network, with inducing=the other's inducing_inputs"


def _require_same(what: str, agree: bool, remedy: str = ALIKE) -> None:
    if not agree:
        raise _different(what, remedy)


def _different(what: str, remedy: str = ALIKE) -> MismatchError:
    return MismatchError(f"expected posteriors with the same {what}, got different ones: {remedy}")
