"""A posterior for streams that never stop."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from sfr_cl.core.basis import InducingInputs
from sfr_cl.core.predict import Predictor
from sfr_cl.core.solve import Solved
from sfr_cl.core.spec import Spec
from sfr_cl.core.state import State
from sfr_cl.core.transfer import inducing
from sfr_cl.data.arguments import fraction, positive, whole
from sfr_cl.data.batches import Data
from sfr_cl.data.inputs import Inputs, as_tensor, length, take
from sfr_cl.deprecation import renamed, warn
from sfr_cl.errors import ArgumentError, DataError, MismatchError, NotFittedError
from sfr_cl.inducing import DEFAULT_COUNT, choose
from sfr_cl.kernel import TangentKernel
from sfr_cl.kernel.network import FrozenNetwork
from sfr_cl.likelihoods import Likelihood
from sfr_cl.posterior import SFRPosterior
from sfr_cl.streaming import operations, storage
from sfr_cl.streaming.features import FeatureOrder, are_features
from sfr_cl.streaming.inducing import ResidualBound
from sfr_cl.streaming.monitor import Drift, ExcessNLL, OnDrift, callback
from sfr_cl.streaming.operations import Relinearized
from sfr_cl.streaming.samples import Samples, as_times, checked, one_input, one_target
from sfr_cl.streaming.settings import Settings
from sfr_cl.streaming.state import StreamState


def _renamed_property(old: str, new: str) -> property:
    def read(stream: StreamingPosterior) -> Any:
        warn(old, new)
        return getattr(stream, new)

    return property(read, doc=f"The old name of :attr:`{new}`.")


class StreamingPosterior:
    """An :class:`~sfr_cl.SFRPosterior` of endless data: fixed in size, ready at any moment.

    Samples come one at a time or in batches, as tensors or, for one sample, as a dictionary of
    numbers. What is known depends on the samples and their order only, not on how they were
    batched or when it was asked or saved. An error leaves it as it was. With a custom likelihood
    (``linearize_at="posterior"``) each sample is absorbed at its mode given all before it, and
    none can be forgotten.

    Inducing inputs chosen by the stream are rows of its first samples, and stand in its files until
    they are forgotten. For personal data give it a posterior over inducing inputs that are no data:
    ``SFRPosterior(..., inducing=noise(200)).init(data)``.

    Args:
        posterior: fitted, or not: then its inducing inputs are those it was given, or as many as
            it was told, chosen from the first samples. It is not changed.
        discount: weight that is left of everything when one more sample, or second, has passed.
        discount_per: ``"sample"`` or ``"second"``.
        window: samples that are remembered; older ones are forgotten exactly. They are stored.
        staleness: how many of the latest samples a prediction may leave out. Factoring is put off
            until then. From 30 classes on each prediction after a sample factors.
        swap: whether inducing inputs are exchanged where new regions appear, at the price of
            :attr:`residual_bound`, and of forgetting: samples from before an exchange can't be
            forgotten, unless there is a window.
        calibrate: whether the scale of logits follows the predictions of the last samples.
        on_drift: called with a :class:`Drift` after samples were far less likely than usual, and
            are learned. It may change the stream, or train its network.

    Raises:
        ArgumentError: if an argument has a value that can't be used: ``mean="dual"``, a selector
            of inducing inputs, ``swap=True`` or a ``window`` for a posterior with data, or
            ``on_drift`` with a custom likelihood.
        DataError: if the inducing inputs given can't be used.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> network = torch.nn.Sequential(
    ...     torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2)
    ... )
    >>> stream = StreamingPosterior(SFRPosterior(network, "classification", inducing=32))
    >>> for x in torch.randn(100, 2):
    ...     stream.learn_one(x, int(x.sum() > 0))
    >>> stream.predict_one({"a": 1.0, "b": 1.0})
    1

    Batches are learned as their samples would be, and samples can be forgotten.

    >>> x = torch.randn(50, 2)
    >>> stream.learn_many(x, (x.sum(1) > 0).long())
    >>> stream.forget_one(x[0], int(x[0].sum() > 0), at=100)
    >>> stream.n_seen, round(stream.num_data)
    (150, 149)

    What was learned can be given less weight, new classes can come, and all of it can be saved.

    >>> stream.discount(0.5)
    >>> stream.grow_outputs(3)
    >>> stream.learn_one(torch.tensor([5.0, -5.0]), 2)
    >>> stream.save("stream", cursor=151)
    >>> stream.close()
    >>> loaded, cursor = StreamingPosterior.load("stream", network)
    >>> loaded.predict_one(torch.tensor([5.0, -5.0])), cursor
    (2, 151)
    """

    _network: FrozenNetwork | None = None
    """Until the first sample; then it is that of the state."""
    _kernel: TangentKernel | None = None
    _features: FeatureOrder | None = None
    _stream: StreamState | None = None
    _solved: tuple[Solved, int] | None = None
    """The solved posterior in use, and :attr:`n_seen` when it was made."""
    _writer: storage.Writer | None = None

    def __init__(
        self,
        posterior: SFRPosterior,
        *,
        discount: float = 1.0,
        discount_per: str = "sample",
        window: int | None = None,
        staleness: int = 0,
        swap: bool = False,
        calibrate: bool = True,
        on_drift: OnDrift | None = None,
    ) -> None:
        if not isinstance(posterior, SFRPosterior):
            raise ArgumentError(f"expected an SFRPosterior, got {type(posterior).__name__}")
        spec = posterior.spec
        if posterior.is_fitted:  # a delta that was tuned, or given since, stays
            own = posterior.state.spec
            spec = replace(spec, prior_precision=own.prior_precision, logit_scale=own.logit_scale)
        if spec.mean == "dual":
            raise ArgumentError(
                "expected mean='natural' or 'network', got 'dual', which absorbs nothing: build "
                "the posterior without it"
            )
        if window is not None:
            spec.require_order_free("for a window, whose samples are forgotten")
        self._on_drift = callback(on_drift, spec.likelihood)
        z = posterior.inducing_inputs if posterior.is_fitted else _given_inducing(posterior)
        num_data = posterior.num_data if posterior.is_fitted else 0
        chooses = isinstance(z, int)
        self._settings = Settings(
            discount=discount,
            discount_per=discount_per,
            window=window,
            staleness=staleness,
            swap=swap,
            calibrate=calibrate,
            budget=z if chooses else length(z),
            learns_precision=spec.learns_precision,
        )
        if num_data > 0 and (swap or window is not None):
            raise ArgumentError(
                f"expected swap=False and no window for a posterior with data, got {num_data} data "
                f"that would never leave a window, and whose residuals are unknown: let the stream "
                f"learn them"
            )
        self._spec = spec
        if posterior.is_fitted:
            solved = posterior.solved
            self._stream = self._init(
                posterior.state.with_spec(
                    likelihood=solved.likelihood, prior_precision=solved.prior_precision
                )
            )
            return
        self._network = _frozen(posterior.network, spec)
        if not chooses:
            self._stream = self._init(self._over(self._network, z, given=True))

    # Learning -----------------------------------------------------------------------------------

    def learn_one(self, x: Inputs, y: Any, *, time: float | None = None) -> None:
        """Absorb one sample.

        Args:
            x: without a batch dimension; or numbers by name. Names that the first sample did not
                have are ignored, and those that are missing count as 0.
            y: its target.
            time: in seconds, where ``discount_per`` is; by default the system's. Late samples may
                come: they count for less.

        Raises:
            DataError: if ``x`` or ``y`` is not finite, too large, of another shape than those
                before, or no target of the likelihood.
            DataTypeError: if ``x``, ``y`` or ``time`` is of a type that can't be used.
            ArgumentError: if a time is given where samples age by their number.
        """
        order = self._features
        if order is None and not isinstance(x, Tensor) and are_features(x):
            order = FeatureOrder.of(x)
        self._tell(self._learn(one_input(x, order), one_target(y), time, order))

    def learn_many(self, x: Inputs, y: Any, *, time: Any = None) -> None:
        """Absorb a batch, exactly as one sample after the other; all of it, or nothing.

        Args:
            x: inputs, the batch first.
            y: targets.
            time: one, or one for each sample; see :meth:`learn_one`.

        Raises:
            DataError: as :meth:`learn_one` does, and if there is no sample, or not one target,
                and one time, for each.
            DataTypeError, ArgumentError: as :meth:`learn_one` does.
        """
        self._tell(self._learn(x, as_tensor(y), time, self._features))

    @torch.inference_mode(False)
    @torch.no_grad()
    def _learn(
        self, x: Inputs, y: Tensor, time: Any, features: FeatureOrder | None
    ) -> tuple[Drift, ...]:
        stream = self._stream or self._first(x)
        samples = Samples.of(stream.flushed.state, self._settings, stream.n_seen, x, y, time)
        start = 0
        while start < len(y):
            end = start + stream.capacity
            stream = stream.with_samples(samples.take(slice(start, end)))
            start = end
            if stream.capacity <= 0:
                stream = operations.maintained(stream.flush())
        drifts = stream.monitor.drifts
        if drifts:
            stream = replace(stream, monitor=replace(stream.monitor, drifts=()))
        self._stream, self._features = stream, features
        self._network = self._kernel = None
        return drifts

    def _tell(self, drifts: tuple[Drift, ...]) -> None:
        if self._on_drift is not None:
            for drift in drifts:
                self._on_drift(drift)

    def forget_one(
        self, x: Inputs, y: Any, *, at: float | None = None, weight: float = 1.0
    ) -> None:
        """Take one sample out again; see :meth:`forget_many`."""
        self.forget_many(one_input(x, self._features), one_target(y), at=at, weight=weight)

    @torch.inference_mode(False)
    @torch.no_grad()
    def forget_many(self, x: Inputs, y: Any, *, at: Any = None, weight: float = 1.0) -> None:
        """Take samples out again, exactly as if they had never been learned.

        Inducing inputs that the stream chose, or a posterior's selector, and that equal one of the
        samples are dropped too; see :meth:`SFRPosterior.forget`. A file saved after has none of
        these rows: save again, also with :class:`~sfr_cl.streaming.Autosave`. Where samples are
        stored, in a window, one that equals them and was not forgotten stays.

        Args:
            x: inputs, the batch first.
            y: targets.
            at: where samples lose weight, or inducing inputs were exchanged, when each was
                learned: its time, or the value that :attr:`n_seen` had just before.
            weight: what :meth:`discount` has left of them. Samples in a window know it.

        Raises:
            DataError: if samples can't have been learned, have left the window, are all inducing
                inputs, or came before an exchange of inducing inputs or weights that makes it
                inexact.
            DataTypeError: if an argument is of a type that can't be used.
            ArgumentError: if ``at`` is needed and not given, or ``weight`` is not positive.
            NotFittedError: if there are no inducing inputs yet.
        """
        stream, y = self.state, as_tensor(y)
        x, y = checked(stream.state, x, y)
        when = None if at is None else as_times(at).to(y.device)
        if when is not None and len(when) != len(y):
            raise DataError(f"expected one moment for each sample, got {len(when)} for {len(y)}")
        self._change(operations.forgotten(stream, x, y, when, positive("weight", weight)))

    def discount(self, gamma: float) -> None:
        """Give all that was learned so far another weight: after a drift, say.

        Args:
            gamma: at most 1.

        Raises:
            ArgumentError: if it is not in (0, 1].
            NotFittedError: if there are no inducing inputs yet.
        """
        self._change(operations.discounted(self.state, fraction("gamma", gamma)))

    @torch.no_grad()
    def merge(self, other: StreamingPosterior) -> None:
        """Absorb all that another stream over the same network and inducing inputs knows.

        Args:
            other: with the same settings; it is not changed.

        Raises:
            ArgumentError: if it is no stream, or has other settings.
            MismatchError: if its network, inducing inputs, outputs or options are others.
            DataError: if one of them stores samples: a window, or the first of a stream.
            NotFittedError: if one of them has no inducing inputs yet.
        """
        if not isinstance(other, StreamingPosterior):
            raise ArgumentError(f"expected a StreamingPosterior, got {type(other).__name__}")
        mine, theirs = self.state, other.state
        if mine.settings != theirs.settings:
            raise ArgumentError("expected streams with the same settings, got different ones")
        _ = self._as_asked_for() + other._as_asked_for()  # refuses what can't be added
        self._change(operations.merged(mine, theirs))

    @torch.inference_mode(False)
    @torch.no_grad()
    def relinearize(self, network: nn.Module, data: Data | None = None) -> Relinearized:
        """Carry all that is known to a network that was retrained or replaced.

        What was learned is carried through the values of f at the inducing inputs, and needs no
        data; samples in a window are evaluated again, exactly.

        Args:
            network: with as many outputs, if their number is the network's; it is copied.
            data: held-out samples, to measure what it costs.

        Returns:
            How far predictions have moved, and the NLPD of ``data`` before and after.

        Raises:
            MismatchError: if the network has another number of outputs.
            DataError, DataTypeError: if the network can't take the inducing inputs, has weights
                that are not finite, or ``data`` can't be used.
            NotFittedError: if there are no inducing inputs yet.
        """
        stream, z = self.state.flush(), self.inducing_inputs
        held_out = list(data) if isinstance(data, Iterator) else data
        num_outputs = stream.state.num_outputs
        empty = self._over(_frozen(network, self._spec), z, num_outputs, given=False)
        if empty.num_outputs != num_outputs:
            raise MismatchError(
                f"expected a network with {num_outputs} outputs, like the one before, got "
                f"{empty.num_outputs}"
            )
        before, after = copy.copy(self), copy.copy(self)
        before._stream, before._solved = stream, None
        after._stream = operations.relinearized(stream, empty)
        divergence = operations.divergence(before.predict(z), after.predict(z))
        costs = [None if held_out is None else each.nlpd(held_out) for each in (before, after)]
        self._change(after._stream)
        return Relinearized(divergence, *costs)

    relinearise = renamed(relinearize, "relinearise")

    @torch.no_grad()
    def grow_outputs(self, num_outputs: int) -> None:
        """Make room for classes to come; see :meth:`SFRPosterior.grow_outputs`.

        Args:
            num_outputs: classes from now on, no fewer than before.

        Raises:
            ArgumentError: if the likelihood has no classes, the number is less than before, or
                the kernel is not a shared one linearised at the prior.
        """
        whole("number of outputs", num_outputs)
        spec, stream = self._spec, self._stream
        if not spec.likelihood.may_grow:
            raise ArgumentError(
                f"expected 'classification', whose classes may grow, got {spec.likelihood.name!r}"
            )
        known = (spec.num_outputs or 1) if stream is None else stream.state.num_outputs
        if stream is None and not spec.any_outputs:
            raise ArgumentError(
                "expected a shared kernel with linearize_at='prior', which takes other numbers of "
                "outputs than the network's, got a posterior without"
            )
        if num_outputs < known and spec.any_outputs:
            raise ArgumentError(f"expected at least {known} outputs, got {num_outputs}")
        if stream is None:
            self._spec = replace(spec, num_outputs=num_outputs)
        elif num_outputs != known:
            self._change(operations.grown(stream, num_outputs))

    # Prediction ---------------------------------------------------------------------------------

    @torch.inference_mode(False)
    @torch.no_grad()
    def predict_f(self, x: Inputs) -> Normal:
        """The posterior of the latent function f.

        Args:
            x: inputs, the batch first.

        Returns:
            Mean and variance, ``[B, C]``.

        Raises:
            DataError: if inputs are not finite, or of another shape than those learned.
            DataTypeError: if they are of a type that can't be used.
        """
        predictor, x = self._predictor(x)
        return predictor.latent(x)

    @torch.inference_mode(False)
    @torch.no_grad()
    def predict(self, x: Inputs) -> Distribution:
        """The predictive distribution of y.

        Args:
            x: inputs, the batch first.

        Returns:
            ``Categorical``, ``Bernoulli``, ``Normal``, or that of a custom likelihood.

        Raises:
            DataError, DataTypeError: as :meth:`predict_f` does.
        """
        predictor, x = self._predictor(x)
        return predictor.predictive(x)

    def predict_proba_many(self, x: Inputs) -> Tensor:
        """Probabilities of the classes.

        Args:
            x: inputs, the batch first.

        Returns:
            ``[B, C]``; for a binary likelihood both classes.

        Raises:
            ArgumentError: if the likelihood has no classes.
            DataError, DataTypeError: as :meth:`predict_f` does.
        """
        found: Tensor | None = getattr(self.predict(x), "probs", None)
        if not self._spec.likelihood.has_logits or found is None:
            raise ArgumentError("expected a likelihood of classes, got another: use predict")
        if self._spec.likelihood.name == "binary":
            return torch.cat([1 - found, found], dim=1)
        return found

    def predict_proba_one(self, x: Inputs) -> dict[int, float]:
        """Probabilities by class.

        Args:
            x: one input, without a batch dimension; or numbers by name.

        Returns:
            A probability for each class.

        Raises:
            ArgumentError, DataError, DataTypeError: as :meth:`predict_proba_many` does.
        """
        return dict(enumerate(self.predict_proba_many(one_input(x, self._features))[0].tolist()))

    def predict_many(self, x: Inputs) -> Tensor:
        """The likeliest class of each input, or the mean of the targets.

        Args:
            x: inputs, the batch first.

        Returns:
            Classes ``[B]``, or means ``[B, C]``.

        Raises:
            DataError, DataTypeError: as :meth:`predict_f` does.
        """
        if self._spec.likelihood.has_logits:
            return self.predict_proba_many(x).argmax(1)
        return self.predict(x).mean

    def predict_one(self, x: Inputs) -> Any:
        """The likeliest class, or the mean of the target.

        Args:
            x: one input, without a batch dimension; or numbers by name.

        Returns:
            A number; a list of them, if there are several targets.

        Raises:
            DataError, DataTypeError: as :meth:`predict_f` does.
        """
        found = self.predict_many(one_input(x, self._features))[0].tolist()
        return found[0] if isinstance(found, list) and len(found) == 1 else found

    def nlpd(self, data: Data) -> float:
        """Mean negative log predictive density.

        Args:
            data: as of :meth:`SFRPosterior.fit`; nothing is learned from it.

        Returns:
            Nats per sample, summed over outputs.

        Raises:
            DataError, DataTypeError: if the data can't be used.
            NotFittedError: if there are no inducing inputs yet.
        """
        return self.posterior.nlpd(data)

    # State --------------------------------------------------------------------------------------

    @property
    def posterior(self) -> SFRPosterior:
        """All that is known now, as a posterior by itself.

        Raises:
            NotFittedError: if there are no inducing inputs yet.
        """
        stream = self.state
        state, likelihood = stream.state.with_sums(stream.sums), stream.state.likelihood
        if likelihood.learns_noise:  # not from here on
            likelihood = likelihood.with_settings({**likelihood.settings(), "learn": False})
        state = state.with_spec(likelihood=likelihood)
        spec = replace(self._spec, likelihood=likelihood)
        if (calibration := stream.monitor.calibration) is not None:
            state = replace(state, scores=calibration.scores)
        return SFRPosterior.over(spec, state.with_spec(logit_scale=self.logit_scale))

    @property
    def state(self) -> StreamState:
        """All that is known, as an immutable record.

        Raises:
            NotFittedError: if there are no inducing inputs yet.
        """
        if self._stream is None:
            raise NotFittedError(
                "expected a stream with inducing inputs, got one that has learned nothing yet: "
                "call learn_one or learn_many first"
            )
        return self._stream

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to save yet: no sample, and no inducing input."""
        return self._stream is None

    @property
    def n_seen(self) -> int:
        """Samples learned so far, whatever became of them."""
        return 0 if self._stream is None else self._stream.n_seen

    @property
    def num_data(self) -> float:
        """Samples that are remembered, each by its weight."""
        return 0.0 if self._stream is None else float(self._stream.sums.count)

    @property
    def inducing_inputs(self) -> Inputs:
        """Z; they never exceed the budget.

        Raises:
            NotFittedError: if there are no inducing inputs yet.
        """
        return inducing(self.state.state).z

    @property
    def residual_bound(self) -> ResidualBound:
        """How much of what was learned at these weights the inducing inputs miss, with bounds.

        Raises:
            NotFittedError: if there are no inducing inputs yet.
        """
        return self.state.flush().residual

    @property
    def excess_nll(self) -> float:
        """How unlikely recent samples were: standard deviations above the usual level."""
        excess = None if self._stream is None else self._stream.monitor.excess
        return 0.0 if excess is None else excess.score

    @property
    def logit_scale(self) -> float:
        """What logits are multiplied with before the link."""
        stream = self._stream
        if stream is None:
            return self._spec.logit_scale or 1.0
        return stream.monitor.scale(stream.solved.state)

    num_learned = _renamed_property("num_learned", "n_seen")
    coverage = _renamed_property("coverage", "residual_bound")
    surprise = _renamed_property("surprise", "excess_nll")

    # Files --------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, cursor: Any = None) -> None:
        """Write all of it, and the caller's place in the stream, to one file, atomically.

        Whatever happens meanwhile, a reader finds this file or the one before, complete. From the
        first save on this is the only stream that may write there, until :meth:`close` or a save to
        another path.

        Args:
            path: of the file; beside it lies a lock.
            cursor: where to go on reading after what has been learned: any JSON value.

        Raises:
            ArgumentError: if the cursor, or the name of a feature, is no JSON value.
            FileError: if another stream, or process, writes there.
            NotFittedError: if there are no inducing inputs yet.
        """
        content = self._content(cursor)
        self.claim(path).write(*content)

    def save_with(self, writer: storage.Writer, cursor: Any) -> None:
        """Write as :meth:`save` does, by a writer that another owner has.

        Args:
            writer: of the path.
            cursor: as of :meth:`save`.

        Raises:
            ArgumentError, FileError, NotFittedError: as :meth:`save` does.
        """
        writer.write(*self._content(cursor))

    def _content(self, cursor: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
        cursor, found = storage.plain("a cursor", cursor), self._as_asked_for().state_dict()
        return storage.content(self.state, found, self._features, cursor)

    def claim(self, path: str | os.PathLike[str]) -> storage.Writer:
        """Be the only one that may write there, from now on, as :meth:`save` does.

        Args:
            path: of the file to be written.

        Returns:
            What writes there.

        Raises:
            FileError: if another stream, or process, writes there.
        """
        if self._writer is None or self._writer.path != Path(path).absolute():
            writer = storage.Writer(path)
            if self._writer is not None:
                self._writer.close(force=False)
            self._writer = writer
        return self._writer

    def close(self) -> None:
        """Let others write where this stream was saved."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        network: nn.Module,
        *,
        likelihood: Likelihood | None = None,
        on_drift: OnDrift | None = None,
    ) -> tuple[StreamingPosterior, Any]:
        """A stream as it was saved, and the cursor saved with it.

        Args:
            path: a file written by :meth:`save`.
            network: a module of the same architecture; the weights come from the file.
            likelihood: the object, if the posterior was made with a custom one.
            on_drift: see the class.

        Returns:
            The stream, and the cursor.

        Raises:
            FileError: if the file is truncated, altered, or of another kind.
            MismatchError: if the network or the likelihood is not that of the file.
            ArgumentError: if a stored setting, or ``on_drift``, can't be used.
        """
        posterior, stream, features, cursor = storage.read(path, network, likelihood)
        excess = None if on_drift is None else stream.monitor.excess or ExcessNLL()
        loaded = object.__new__(cls)
        loaded._on_drift = callback(on_drift, posterior.likelihood)
        own = posterior.state.spec
        loaded._spec = replace(
            posterior.spec,
            num_outputs=posterior.num_outputs,
            prior_precision=own.prior_precision,
            logit_scale=own.logit_scale,
        )
        loaded._settings = stream.settings
        loaded._stream = replace(stream, monitor=replace(stream.monitor, excess=excess))
        loaded._features = features
        return loaded, cursor

    def __getstate__(self) -> dict[str, Any]:
        """For pickles and copies: the lock of a file stays with this one."""
        return {**vars(self), "_writer": None, "_solved": None, "_kernel": None}

    def __repr__(self) -> str:
        what = f"StreamingPosterior({self._spec.likelihood.name!r}"
        if self._stream is None:
            return f"{what}, nothing learned)"
        return (
            f"{what}, {self._stream.state.basis.size} inducing inputs, "
            f"{self.n_seen} samples learned)"
        )

    # Private ------------------------------------------------------------------------------------

    def _change(self, stream: StreamState) -> None:
        self._stream, self._solved = operations.maintained(stream), None

    def _as_asked_for(self) -> SFRPosterior:
        """A posterior with the flushed sums, and the settings the stream was given."""
        spec = self._spec
        if spec.likelihood.learns_noise:  # whatever it is by now
            spec = replace(spec, likelihood=spec.likelihood.with_noise(1.0))
        state = self.state.state.with_spec(prior_precision=spec.prior_precision)
        return SFRPosterior.over(spec, state)

    def _over(
        self, network: FrozenNetwork, z: Inputs, num_outputs: int | None = None, *, given: bool
    ) -> State:
        """An empty state over inducing inputs, with ``num_outputs`` if any number will do."""
        spec = self._spec
        if num_outputs is not None and spec.any_outputs:
            spec = replace(spec, num_outputs=num_outputs)
        z, kernel = choose(spec, z, None, network)
        spec.outputs(kernel.num_outputs)  # refuses a number that does not fit
        if self._kernel is not None and self._kernel.network is network:
            kernel = self._kernel
        basis = InducingInputs.of(kernel, z, spec.batch_size)
        return State.empty(spec, replace(basis, given=given))

    def _init(self, state: State, *, choosing: bool = False) -> StreamState:
        state = state.with_spec(prior_precision=state.spec.prior_precision or 1.0)
        watched = self._on_drift is not None
        stream = StreamState.init(self._settings, state, watched=watched, choosing=choosing)
        return operations.scheduled(stream)

    def _first(self, x: Inputs) -> StreamState:
        """Nothing learned yet, over the first of some inputs."""
        assert self._network is not None
        z = take(self._network.prepare(x), slice(0, 1))
        state = self._over(self._network, z, given=False)
        self._kernel = inducing(state).kernel
        return self._init(state, choosing=True)

    def _predictor(self, x: Inputs) -> tuple[Predictor, Inputs]:
        """What predicts, and inputs in the form of those learned."""
        stream = self._stream
        solved = self._first(x).solved if stream is None else self._latest(stream)
        basis = solved.state.basis
        x = basis.like(basis.prepare(x, "inputs to predict"))
        scale = solved.state.logit_scale if stream is None else stream.monitor.scale(solved.state)
        return Predictor(solved, scale, self._spec.link), x

    def _latest(self, stream: StreamState) -> Solved:
        """All sums solved, or those of a moment that staleness permits."""
        if self._solved is None or stream.n_seen - self._solved[1] > self._settings.staleness:
            self._solved = stream.solved, stream.n_seen
        return self._solved[0]


def _frozen(network: nn.Module, spec: Spec) -> FrozenNetwork:
    frozen = FrozenNetwork(network, spec.parameters, spec.dtype)
    frozen.require_finite()
    return frozen


def _given_inducing(posterior: SFRPosterior) -> Any:
    """How many inducing inputs a stream is to choose, or those that were given."""
    wanted = posterior.inducing
    if wanted is None:
        return DEFAULT_COUNT
    if isinstance(wanted, Integral):
        return whole("number of inducing inputs", int(wanted))
    if callable(wanted):
        raise ArgumentError(
            "expected a number of inducing inputs, or the inputs themselves, got a selector: fit "
            "the posterior to the first data, or give a number"
        )
    return wanted
