"""A posterior for streams that never stop."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from sfr_cl.errors import ArgumentError, DataError, MismatchError, NotFittedError
from sfr_cl.inputs import Data, Inputs, as_tensor, length
from sfr_cl.likelihoods import CategoricalLikelihood, GaussianLikelihood
from sfr_cl.options import positive, whole
from sfr_cl.posterior import SFRPosterior
from sfr_cl.state import State
from sfr_cl.streaming import beginning, changes
from sfr_cl.streaming.changes import Relinearised
from sfr_cl.streaming.coverage import Coverage
from sfr_cl.streaming.durable import Durable
from sfr_cl.streaming.features import FeatureOrder, are_features
from sfr_cl.streaming.learning import learned, looked_after
from sfr_cl.streaming.memory import Memory
from sfr_cl.streaming.reading import Reading
from sfr_cl.streaming.rows import Samples, checked
from sfr_cl.streaming.samples import moments, one_input, one_target, times_of
from sfr_cl.streaming.scores import Drift, OnDrift, callback


class StreamingPosterior(Durable):
    """An :class:`~sfr_cl.SFRPosterior` of endless data: fixed in size, ready at any moment.

    Samples come one at a time or in batches, as tensors or, for one sample, as a dictionary of
    numbers. What is known depends on the samples and their order only, not on how they were
    batched or when it was asked or saved. An error leaves it as it was.

    Args:
        posterior: fitted, or not: then its inducing inputs are those it was given, or as many as
            it was told, chosen from the first samples. It is not changed.
        discount: weight that is left of everything when one more sample, or second, has passed.
        discount_per: ``"sample"`` or ``"second"``.
        window: samples that are remembered; older ones are forgotten exactly. They are stored.
        staleness: how many of the latest samples an answer may leave out. Factoring is put off
            until then.
        swap: whether inducing inputs are exchanged where new regions appear, at the price of
            :attr:`coverage`, and of exact forgetting of earlier samples unless there is a window.
            By default those that the stream chose are.
        calibrate: whether the scale of logits follows the predictions of the last samples.
        on_drift: called with a :class:`Drift` after samples were far more surprising than usual,
            and are learned. It may change the stream, or train its network.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> network = torch.nn.Sequential(
    ...     torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2)
    ... )
    >>> stream = StreamingPosterior(SFRPosterior(network, "classification", inducing=32))
    >>> for x in torch.randn(500, 2):
    ...     stream.learn_one(x, int(x.sum() > 0))
    >>> stream.predict_one({"a": 1.0, "b": 1.0})
    1
    """

    def __init__(
        self,
        posterior: SFRPosterior,
        *,
        discount: float = 1.0,
        discount_per: str = "sample",
        window: int | None = None,
        staleness: int = 0,
        swap: bool | None = None,
        calibrate: bool = True,
        on_drift: OnDrift | None = None,
    ) -> None:
        if not isinstance(posterior, SFRPosterior):
            raise ArgumentError(f"expected an SFRPosterior, got {type(posterior).__name__}")
        super().__init__()
        self._template = copy.copy(posterior)
        if posterior._options.mean == "dual":
            raise ArgumentError(
                "expected mean='natural' or 'network', got 'dual', which absorbs nothing: build "
                "the posterior without it"
            )
        self._on_drift = callback(on_drift, posterior.likelihood)
        self._features: FeatureOrder | None = None
        self._memory: Memory | None = None
        self._read: tuple[Reading, int] | None = None
        self._settings = beginning.settings_for(
            posterior,
            discount=discount,
            discount_per=discount_per,
            window=window,
            staleness=staleness,
            swap=swap,
            calibrate=calibrate,
        )
        inducing = beginning.given_inducing(posterior)
        if posterior._fitted is not None:
            if window is not None and posterior.num_data > 0:
                raise ArgumentError(
                    f"expected a posterior without data for a window, got {posterior.num_data} "
                    f"data that would never leave it: let the stream learn them"
                )
            fitted = posterior._fitted.with_likelihood(posterior._solution.likelihood)
            self._memory = self._begun(fitted, posterior.prior_precision)
            return
        self._template._network = copy.deepcopy(posterior._network)
        if not isinstance(inducing, int):
            state = beginning.empty(self._template, self._template._network, inducing)
            self._memory = self._begun(state, self._template._prior_precision or 1.0)

    # Learning -----------------------------------------------------------------------------------

    def learn_one(self, x: Inputs, y: Any, *, time: float | None = None) -> None:
        """Absorb one sample.

        Args:
            x: without a batch dimension; or numbers by name (:class:`FeatureOrder`).
            y: its target.
            time: in seconds, where ``discount_per`` is; by default the system's. Late samples may
                come: they count for less.
        """
        order = self._features
        if are_features(x) and order is None:
            order = FeatureOrder.of(x)
        drifts = self._learn(one_input(x, order), one_target(y), time)
        self._features = order
        self._tell(drifts)

    def learn_many(self, x: Inputs, y: Any, *, time: Any = None) -> None:
        """Absorb a batch, exactly as one sample after the other; whole, or not at all."""
        self._tell(self._learn(x, as_tensor(y), time))

    @torch.inference_mode(False)
    @torch.no_grad()
    def _learn(self, x: Inputs, y: Tensor, time: Any) -> tuple[Drift, ...]:
        memory = self._memory or self._first(x)
        x, y = checked(memory.state, x, y)
        times = times_of(self._settings, memory.learned, length(x), time)
        times = times.to(memory.state.network.device)
        memory = learned(memory, Samples(x, y, times, torch.ones_like(times)))
        drifts = memory.scores.drifts
        self._memory = (
            replace(memory, scores=replace(memory.scores, drifts=())) if drifts else memory
        )
        return drifts

    def _tell(self, drifts: tuple[Drift, ...]) -> None:
        if self._on_drift is not None:
            for drift in drifts:
                self._on_drift(drift)

    def forget_one(
        self, x: Inputs, y: Any, *, at: float | None = None, weight: float = 1.0
    ) -> None:
        """Take one sample out again; see :meth:`forget_many`."""
        self._forget(one_input(x, self._features), one_target(y), at, weight)

    def forget_many(self, x: Inputs, y: Any, *, at: Any = None, weight: float = 1.0) -> None:
        """Take samples out again, exactly as if they had never been learned.

        Args:
            x: inputs.
            y: targets.
            at: where samples lose weight, when each was learned: its time, or the value that
                :attr:`num_learned` had just before.
            weight: what :meth:`discount` has left of them. Samples in a window know it.
        """
        self._forget(x, as_tensor(y), at, weight)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _forget(self, x: Inputs, y: Tensor, at: Any, weight: float) -> None:
        memory = self._known
        x, y = checked(memory.state, x, y)
        when = None if at is None else moments(at).to(memory.state.network.device)
        if when is not None and len(when) != len(y):
            raise DataError(f"expected one moment for each sample, got {len(when)} for {len(y)}")
        self._change(changes.forgotten(memory, x, y, when, positive("weight", weight)))

    def discount(self, gamma: float) -> None:
        """Give all that was learned so far the weight ``gamma``, at most 1: after a drift, say."""
        if positive("gamma", gamma) > 1:
            raise ArgumentError(f"expected gamma in (0, 1], got {gamma}")
        self._change(changes.discounted(self._known, gamma))

    @torch.no_grad()
    def merge(self, other: StreamingPosterior) -> None:
        """Absorb all that another stream over the same network and inducing inputs knows."""
        if not isinstance(other, StreamingPosterior):
            raise ArgumentError(f"expected a StreamingPosterior, got {type(other).__name__}")
        mine, theirs = self._known, other._known
        if mine.settings != theirs.settings:
            raise ArgumentError("expected streams with the same settings, got different ones")
        _ = self._bare() + other._bare()  # refuses what can't be added
        self._change(changes.merged(mine, theirs))

    @torch.inference_mode(False)
    @torch.no_grad()
    def relinearise(self, network: nn.Module, data: Data | None = None) -> Relinearised:
        """Carry all over to a network that was retrained or replaced.

        What was learned is carried through the values of f at the inducing inputs, and needs no
        data; what a window holds is seen anew, exactly.

        Args:
            network: with as many outputs, if their number is the network's; it is copied.
            data: held-out samples, to measure what it costs.
        """
        memory = self._known
        held_out = list(data) if isinstance(data, Iterator) else data
        template = copy.copy(self._template)
        template._network = copy.deepcopy(network)
        if template._options.outputs_are_free:
            template._num_outputs = memory.state.num_outputs
        state = beginning.empty(template, template._network, memory.state.z)
        if state.num_outputs != memory.state.num_outputs:
            raise MismatchError(
                f"expected a network with {memory.state.num_outputs} outputs, like the one before, "
                f"got {state.num_outputs}"
            )
        before, after = copy.copy(self), copy.copy(self)
        after._template = template
        after._memory = changes.relinearised(memory, state)
        divergence = changes.divergence(*(each.predict(memory.state.z) for each in (before, after)))
        costs = [None if held_out is None else each.nlpd(held_out) for each in (before, after)]
        self._template = template
        self._change(after._known)
        return Relinearised(divergence, *costs)

    @torch.no_grad()
    def grow_outputs(self, num_outputs: int) -> None:
        """Make room for classes to come; see :meth:`SFRPosterior.grow_outputs`."""
        whole("number of outputs", num_outputs)
        if not isinstance(self._template.likelihood, CategoricalLikelihood):
            raise ArgumentError(
                f"expected 'classification', whose classes may grow, got "
                f"{self._template.likelihood.name!r}"
            )
        if self._memory is None:
            if not self._template._options.outputs_are_free:
                raise ArgumentError(
                    "expected a shared kernel with linearize_at='prior', which speaks of other "
                    "outputs than the network's, got a posterior without"
                )
            if num_outputs < (least := self._template._num_outputs or 1):
                raise ArgumentError(f"expected at least {least} outputs, got {num_outputs}")
            self._template = copy.copy(self._template)
            self._template._num_outputs = num_outputs
            return
        state = self._memory.state
        self._template._require_free_outputs(state.kernel_outputs, num_outputs)
        if num_outputs < state.num_outputs:
            raise ArgumentError(f"expected at least {state.num_outputs} outputs, got {num_outputs}")
        if num_outputs > state.num_outputs:
            self._change(changes.grown(self._memory, num_outputs))

    # Prediction ---------------------------------------------------------------------------------

    @torch.inference_mode(False)
    @torch.no_grad()
    def predict_f(self, x: Inputs) -> Normal:
        """The posterior of the latent function at a batch of inputs."""
        mean, variance = self._moments(x, variance=True)
        return Normal(mean, variance.clamp_min(torch.finfo(mean.dtype).tiny).sqrt())

    @torch.inference_mode(False)
    @torch.no_grad()
    def predict(self, x: Inputs) -> Distribution:
        """The predictive distribution of y at a batch of inputs."""
        memory = self._memory or self._first(x)
        likelihood, scale = memory.state.likelihood, self.logit_scale
        needed = memory.link != "map" or not likelihood.has_logits
        mean, variance = self._moments(x, variance=needed)
        return likelihood.predictive(scale * mean, scale**2 * variance, memory.link)

    def predict_proba_many(self, x: Inputs) -> Tensor:
        """Probabilities of the classes, ``[B, C]``."""
        probabilities = getattr(self.predict(x), "probs", None)
        if not self._template.likelihood.has_logits or probabilities is None:
            raise ArgumentError("expected a likelihood of classes, got another: use predict")
        if self._template.likelihood.name == "binary":
            return torch.cat([1 - probabilities, probabilities], dim=1)
        found: Tensor = probabilities
        return found

    def predict_proba_one(self, x: Inputs) -> dict[int, float]:
        """Probabilities by class."""
        return dict(enumerate(self.predict_proba_many(one_input(x, self._features))[0].tolist()))

    def predict_many(self, x: Inputs) -> Tensor:
        """The likeliest class of each input, or the mean of the targets."""
        if self._template.likelihood.has_logits:
            return self.predict_proba_many(x).argmax(1)
        return self.predict(x).mean

    def predict_one(self, x: Inputs) -> Any:
        """The likeliest class, or the mean of the target."""
        found = self.predict_many(one_input(x, self._features))[0].tolist()
        return found[0] if isinstance(found, list) and len(found) == 1 else found

    def nlpd(self, data: Data) -> float:
        """Mean negative log predictive density of data, summed over outputs."""
        return self.posterior.nlpd(data)

    # State --------------------------------------------------------------------------------------

    @property
    def posterior(self) -> SFRPosterior:
        """All that is known now, as a posterior of its own."""
        memory = self._known
        twin = self._bare()
        twin._prior_precision, twin._logit_scale = memory.prior_precision, self.logit_scale
        if isinstance(memory.state.likelihood, GaussianLikelihood):
            fixed = GaussianLikelihood(memory.state.likelihood.noise_variance)
            twin._likelihood = fixed
            twin._take_over(twin._state.with_likelihood(fixed))
        return twin

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to save yet: no sample, and no inducing input."""
        return self._memory is None

    @property
    def num_learned(self) -> int:
        """Samples learned so far, whatever became of them."""
        return 0 if self._memory is None else self._memory.learned

    @property
    def num_data(self) -> float:
        """Samples that are remembered, each by its weight."""
        return 0.0 if self._memory is None else float(self._memory.sums.count)

    @property
    def inducing_inputs(self) -> Inputs:
        """Z; they never exceed the budget."""
        return self._known.state.z

    @property
    def coverage(self) -> Coverage:
        """How much of what was learned at these weights the inducing inputs see, with bounds."""
        return self._known.folded().coverage

    @property
    def surprise(self) -> float:
        """How surprising recent samples were: standard deviations above the usual level."""
        scores = None if self._memory is None else self._memory.scores
        return 0.0 if scores is None or scores.surprise is None else scores.surprise.score

    @property
    def logit_scale(self) -> float:
        """What logits are multiplied with before the link."""
        scale = 1.0 if self._memory is None else self._memory.scores.scale
        return self._template.logit_scale * scale

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copies: the lock of a file stays with this one."""
        return {**self.__dict__, "_writer": None, "_read": None}

    def __repr__(self) -> str:
        what = f"StreamingPosterior({self._template.likelihood.name!r}"
        if self._memory is None:
            return f"{what}, nothing learned)"
        return (
            f"{what}, {length(self._memory.state.z)} inducing inputs, "
            f"{self.num_learned} samples learned)"
        )

    # Private ------------------------------------------------------------------------------------

    @property
    def _known(self) -> Memory:
        if self._memory is None:
            raise NotFittedError(
                "expected a stream with inducing inputs, got one that has learned nothing yet: "
                "call learn_one or learn_many first"
            )
        return self._memory

    def _change(self, memory: Memory) -> None:
        self._memory, self._read = looked_after(memory), None

    def _bare(self) -> SFRPosterior:
        """A posterior with all sums, and the settings the stream was given."""
        twin = copy.copy(self._template)
        twin._take_over(self._known.state.with_sums(self._known.sums))
        if isinstance(twin.likelihood, GaussianLikelihood) and twin.likelihood.learn:
            twin._likelihood = GaussianLikelihood(1.0, learn=True)  # whatever it is by now
        return twin

    def _begun(self, state: State, prior_precision: float) -> Memory:
        watched = self._on_drift is not None
        return beginning.begun(self._settings, state, prior_precision, watched=watched)

    def _first(self, x: Inputs) -> Memory:
        watched = self._on_drift is not None
        return beginning.first(self._template, self._settings, x, watched=watched)

    def _moments(self, x: Inputs, *, variance: bool) -> tuple[Tensor, Tensor]:
        """Mean and variance of f, ``[B, C]``; zeros if no variance is asked for."""
        reading = self._reading() if self._memory is not None else self._first(x).reading
        return reading.at(x, variance=variance)

    def _reading(self) -> Reading:
        memory = self._known
        if self._read is not None and memory.learned - self._read[1] <= self._settings.staleness:
            return self._read[0]
        self._read = (memory.answer, memory.learned)
        return self._read[0]
