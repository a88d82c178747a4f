"""The posterior: a trained network as a sparse Gaussian process that data can be added to."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, MultivariateNormal, Normal

from sfr_cl import files, likelihoods, prediction, snapshot, tuning
from sfr_cl.absorption import Absorption
from sfr_cl.duals import DualSums
from sfr_cl.errors import ArgumentError, DataError, MismatchError, NotFittedError
from sfr_cl.evidence import SEEN
from sfr_cl.inducing import Selector, choose
from sfr_cl.inputs import Batches, Data, Inputs, length, same, take
from sfr_cl.likelihoods import LINKS, CategoricalLikelihood, GaussianLikelihood, Likelihood
from sfr_cl.network import FrozenNetwork
from sfr_cl.options import Options, positive, whole
from sfr_cl.penalty import Penalty
from sfr_cl.removal import removed
from sfr_cl.solution import Solution
from sfr_cl.state import State
from sfr_cl.value_sites import ValueSites

FIRST_BATCH = 256
"""Rows a selector sees at a time."""


class SFRPosterior:
    """A sparse function-space posterior over the outputs of a network.

    The kernel is the network's neural tangent kernel at its weights when :meth:`fit` is called, and
    all data lives in sums over M inducing inputs. Adding data is conditioning: no training.

    The defaults are the ones that made ``fit(a).update(b)`` best on held-out data, for known and
    for new classes alike. Leave them as follows:

    * ``linearize_at="network"`` for the paper's posterior of the training data: its variance, the
      :meth:`penalty`, and a calibrated ``"probit"`` link. Do not absorb much classification data
      there: where the network is confident its curvature is nearly zero, and the step from there
      overshoots.
    * ``mean="network"`` to keep the predictions of a network whose accuracy M inducing inputs
      can't hold, and add only what new data changes; ``mean="dual"`` to reproduce the paper.
    * ``output_kernel="per_output"`` for the paper's one kernel per output: C times the cost, and
      equal accuracy where we measured.
    * ``parameters="last_layer"`` for networks whose whole Jacobian is too large.
    * ``prior_precision``: see :meth:`tune_prior_precision`.

    Args:
        network: a module that maps a batch of inputs to ``[B, C]``. It is copied, never changed.
        likelihood: ``"classification"`` (softmax), ``"binary"`` (one logit), ``"regression"``, or
            a :class:`~sfr_cl.likelihoods.Likelihood`.
        prior_precision: delta of the objective sum_i -log p(y_i | f_w(x_i)) + delta/2 |w|^2. A
            network trained on the mean of -log p with weight decay lambda has delta = N lambda. By
            default 1; for regression, that of greatest evidence whenever the posterior is read.
        inducing: M, a tensor (or tree) of inputs, or a selector of :mod:`sfr_cl.inducing`. By
            default 512 inputs chosen by ``greedy``, or all if there are fewer.
        noise_variance: of ``"regression"``: a number, or ``"learn"``: that of greatest evidence,
            whenever the posterior is read.
        output_kernel: ``"shared"`` by all outputs, their mean, or ``"per_output"``.
        parameters: ``"all"``, ``"last_layer"`` or names: what the kernel differentiates.
        mean: ``"natural"``, ``"dual"`` or ``"network"``.
        linearize_at: ``"prior"`` (f = 0) or ``"network"`` (f at the network's output); by default
            ``"prior"`` for the natural mean and ``"network"`` for the others.
        num_outputs: C, by default the network's. A shared kernel linearised at the prior speaks of
            any number of outputs, and so of classes the network has no unit for.
        batch_size: rows worked on at a time; by default as many as modest memory allows.
        dtype: precision the network and its kernel are evaluated in; the sums are in float64.
            ``torch.float32`` is faster, and good to about three digits.

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

    def __init__(
        self,
        network: nn.Module,
        likelihood: str | Likelihood,
        *,
        prior_precision: float | None = None,
        inducing: int | Inputs | Selector | None = None,
        noise_variance: float | str = "learn",
        output_kernel: str = "shared",
        parameters: str | Sequence[str] = "all",
        mean: str = "natural",
        linearize_at: str | None = None,
        num_outputs: int | None = None,
        batch_size: int | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self._options = Options.checked(
            output_kernel=output_kernel,
            parameters=parameters,
            mean=mean,
            linearize_at=linearize_at,
            dtype=dtype,
        )
        self._likelihood = likelihoods.make(likelihood, noise_variance)
        if prior_precision is not None:
            prior_precision = positive("prior_precision", prior_precision)
        self._given_precision = self._prior_precision = prior_precision
        self._logit_scale = 1.0
        self._network = network
        self._inducing = inducing
        self._num_outputs = None if num_outputs is None else whole("num_outputs", num_outputs)
        self._batch_size = None if batch_size is None else whole("batch_size", batch_size)
        self._fitted: State | None = None
        self._solved: Solution | None = None
        self._direction: dict[str, Tensor] | None = None
        self._penalty: Penalty | None = None
        FrozenNetwork(network, self._options.parameters, dtype)  # refuses what can't be used

    # Conditioning -------------------------------------------------------------------------------

    @torch.inference_mode(False)
    def fit(self, data: Data) -> SFRPosterior:
        """Freeze the network's weights, choose inducing inputs, absorb ``data``; start afresh.

        Args:
            data: a ``DataLoader``, a ``Dataset``, a pair ``(x, y)`` or an iterable of pairs: as a
                rule the data the network was trained on. Nothing is trained.
        """
        network = FrozenNetwork(self._network, self._options.parameters, self._options.dtype)
        network.require_finite()
        batches = Batches(data, self._batch_size or FIRST_BATCH)
        z, kernel_outputs = choose(
            self._inducing,
            batches,
            network,
            self._likelihood,
            num_outputs=self._num_outputs,
            shared=self._options.shared,
        )
        state = self._without_data(network, kernel_outputs, z)
        batches.size = state.batch_size
        sums = state.absorb(batches)
        trained_on = sums.gradient if self._options.mean == "network" else None
        self._start_with(state.with_sums(sums, reference=trained_on))
        return self

    @torch.inference_mode(False)
    def fit_sites(self, sites: ValueSites) -> SFRPosterior:
        """Freeze the network's weights, and take over what was known of f at other weights.

        Args:
            sites: of a posterior (:attr:`sites`), or of several, joined. They bring their
                inducing inputs, and are read as they are: what the weights have changed of f
                meanwhile is not in them.
        """
        network = FrozenNetwork(self._network, self._options.parameters, self._options.dtype)
        network.require_finite()
        z = network.prepare(sites.z, "inducing inputs")
        state = self._without_data(network, network.bind(z), z)
        if state.sums.weight.shape != sites.sums.weight.shape:
            raise MismatchError(
                f"expected sites of {len(state.sums.weight)} kernels, got "
                f"{len(sites.sums.weight)}: build both posteriors with one output_kernel"
            )
        self._require_same("number of outputs", state.num_outputs == sites.num_outputs)
        self._start_with(sites.to(network.device).at(state))
        return self

    @torch.inference_mode(False)
    def update(self, data: Data) -> SFRPosterior:
        """Absorb more data by conditioning: exact, in any order, in batches of any size."""
        state = self._state
        self._take_over(state.with_sums(state.sums + self._sums(data)))
        return self

    def absorption(self) -> Absorption:
        """A pass over data that is predicted before it is absorbed, batch by batch."""
        return Absorption(self)

    @torch.inference_mode(False)
    def forget(self, data: Data, *, weight: float = 1.0) -> SFRPosterior:
        """Take data out again, exactly as if it had never been seen.

        Sums can't tell whether these very samples were absorbed. What can be told is refused: more
        samples, of all or of a class, than were seen, and a posterior left indefinite.

        Args:
            data: the samples to take out.
            weight: what discounting has left of them: gamma after one ``discount(gamma)``.
        """
        sums = self._sums(data) * positive("weight", weight)
        self._take_over(removed(self._state, sums))
        return self

    def discount(self, gamma: float) -> SFRPosterior:
        """Give all data seen so far the weight ``gamma``, at most 1."""
        if positive("gamma", gamma) > 1:
            raise ArgumentError(f"expected gamma in (0, 1], got {gamma}")
        state = self._state
        self._take_over(state.with_sums(state.sums * gamma))
        return self

    def __add__(self, other: SFRPosterior) -> SFRPosterior:
        """Merge two workers' posteriors over the same network and inducing inputs."""
        if not isinstance(other, SFRPosterior):
            return NotImplemented
        mine, theirs = self._state, other._state
        self._require_same("options", self._options == other._options)
        self._require_same("likelihoods", self._likelihood.name == other._likelihood.name)
        settings = self._likelihood.settings() == other._likelihood.settings()
        self._require_same("noise variances", settings)
        self._require_same("prior precisions", self._prior_precision == other._prior_precision)
        self._require_same("logit scales", self._logit_scale == other._logit_scale)
        self._require_same("networks", mine.network.agrees_with(theirs.network))
        self._require_same("kernels", mine.kernel_outputs == theirs.kernel_outputs)
        self._require_same("number of outputs", mine.num_outputs == theirs.num_outputs)
        self._require_same("inducing inputs", same(mine.z, theirs.z))
        merged = copy.copy(self)
        sums = mine.sums + theirs.sums.to(mine.network.device)
        reference = mine.reference + theirs.reference.to(mine.network.device)
        merged._take_over(mine.with_sums(sums, reference))
        return merged

    def __radd__(self, other: object) -> SFRPosterior:
        """Let ``sum(posteriors)`` merge any number of workers."""
        return self if other == 0 else NotImplemented

    @torch.inference_mode(False)
    def add_inducing(self, z: Inputs) -> SFRPosterior:
        """Add inducing inputs. Predictions stay as they are until more data is absorbed.

        What was absorbed before has no part in the new directions, and can't be forgotten any more.
        """
        state = self._state
        z = state.network.prepare(z)
        state.network(z)  # refuses what the network can't take
        self._take_over(state.add_inducing(z))
        return self

    @torch.inference_mode(False)
    def replace_inducing(self, z: Inputs) -> SFRPosterior:
        """Exchange the inducing inputs: what was absorbed is projected onto the new ones.

        Dropping some, what remains is exact; in new places f is what the old ones say of it.
        """
        state = self._state
        self._take_over(state.replace_inducing(state.network.prepare(z, "inducing inputs")))
        return self

    @torch.inference_mode(False)
    def grow_outputs(self, network: nn.Module | int) -> SFRPosterior:
        """Take over a network whose head has grown, its other weights unchanged.

        A shared kernel remains that of the first outputs; all else is as if the new classes had
        been there from the start. Linearised at the prior, such a posterior needs no grown network,
        only the number of outputs.
        """
        state = self._state
        if isinstance(network, int):
            return self._grow_freely(whole("number of outputs", network))
        grown = FrozenNetwork(network, state.network.names, self._options.dtype)
        grown.require_finite()
        grown.check_grown_from(state.network)
        num_outputs = grown.bind(take(state.z, slice(0, 1)))
        if num_outputs <= state.num_outputs:
            raise MismatchError(
                f"expected more than {state.num_outputs} outputs, got {num_outputs}: outputs can "
                f"be added, not taken away"
            )
        carry = isinstance(self._likelihood, CategoricalLikelihood) and self._options.at_prior
        if self._options.shared and not carry:
            raise ArgumentError(
                "expected outputs with kernels of their own, since no datum has spoken of the new "
                "ones, got 'shared': use output_kernel='per_output' (or classification at "
                "linearize_at='prior')"
            )
        self._take_over(state.add_outputs(grown, num_outputs, carry=carry))
        self._network = network
        return self

    def _grow_freely(self, num_outputs: int) -> SFRPosterior:
        state = self._state
        self._require_free_outputs(state.kernel_outputs, num_outputs)
        if num_outputs < state.num_outputs:
            raise MismatchError(
                f"expected at least {state.num_outputs} outputs, got {num_outputs}: outputs can be "
                f"added, not taken away"
            )
        self._take_over(state.add_outputs(state.network, num_outputs, carry=True))
        return self

    # Prediction ---------------------------------------------------------------------------------

    @torch.inference_mode(False)
    def predict_f(self, x: Inputs, *, full_cov: bool = False) -> Normal | MultivariateNormal:
        """The posterior of the latent function f.

        Returns:
            ``Normal`` with mean and variance ``[B, C]``. With ``full_cov``, a
            ``MultivariateNormal`` over the B inputs for each of the C outputs: mean ``[C, B]``,
            covariance ``[C, B, B]``.
        """
        if full_cov:
            return prediction.joint(self._state, self._solution, x)
        return prediction.marginal(self._state, self._solution, x)

    @torch.inference_mode(False)
    def predict_f_at(self, x: Inputs, prior_precisions: Sequence[float]) -> list[Normal]:
        """What :meth:`predict_f` would give under other prior precisions.

        One pass over the inputs and one factorisation serve any number of them.
        """
        deltas = [positive("prior_precision", delta) for delta in prior_precisions]
        return prediction.marginals(tuning.Sweep(self._state, deltas), x)

    @torch.inference_mode(False)
    def novelty(self, x: Inputs) -> Tensor:
        """How little the data says of f at these inputs, ``[B]``: 0 all, 1 nothing.

        It is the share of the prior variance of f that is left, mean over outputs. Unlike the
        variance it does not grow with the kernel: what counts is whether the directions of weight
        space that move f at an input were seen in the data. Directions that no inducing input has
        count as never seen.
        """
        return prediction.novelty(self._state, self._solution, x)

    @torch.inference_mode(False)
    def predict(self, x: Inputs, *, link: str | None = None) -> Distribution:
        """The predictive distribution of y: ``Categorical``, ``Bernoulli`` or ``Normal``.

        Args:
            x: inputs.
            link: how the uncertainty of logits becomes that of probabilities: ``"probit"``
                (moderated logits), ``"mc"`` (sampled), ``"map"`` (the mean's). By default
                ``"map"`` when linearised at the prior, whose logits are moderate already, and
                ``"probit"`` at the network.
        """
        if link is not None and link not in LINKS:
            raise ArgumentError(f"expected link to be one of {', '.join(LINKS)}; got {link!r}")
        link = link or self._default_link
        likelihood, scale = self._solution.likelihood, self._logit_scale
        if link == "map" and likelihood.has_logits:
            if self._direction is None:
                self._direction = self._solution.direction(self._state)
            mean = scale * prediction.mean(self._state, self._solution, x, self._direction)
            return likelihood.predictive(mean, torch.zeros_like(mean), link)
        latent = self.predict_f(x)
        return likelihood.predictive(scale * latent.mean, scale**2 * latent.variance, link)

    @torch.inference_mode(False)
    def nlpd(self, data: Data) -> float:
        """Mean negative log predictive density of data, summed over outputs."""
        state = self._state
        total, count = 0.0, 0
        for x, y in state.checked(Batches(data, state.batch_size)):
            total -= float(self.predict(x).log_prob(y).double().sum())
            count += len(y)
        return total / count

    def log_marginal_likelihood(self) -> float:
        """The log evidence of all data absorbed, under the Gaussian sites of its likelihood."""
        self._require_data()
        return self._solution.log_evidence

    @torch.inference_mode(False)
    def tune_prior_precision(self, validation: Data | None = None) -> SFRPosterior:
        """Choose ``prior_precision`` by validation NLPD, or by evidence if there is no such data.

        Every candidate costs products only: the sums are made once and rescaled. With validation
        data and a likelihood with logits, one scale of the logits is chosen along with it. What is
        chosen stays, whatever is absorbed, until :meth:`fit` starts afresh.
        """
        self._require_data()
        state = self._state
        if validation is None:
            tuned = tuning.by_evidence(state)
        else:
            batches = state.checked(Batches(validation, state.batch_size))
            tuned = tuning.by_validation(state, batches, self._default_link)
        self._prior_precision, self._logit_scale = tuned
        self._forget_solution()
        return self

    def penalty(self, network: nn.Module) -> Tensor:
        """The function-space regulariser, a scalar to add to the mean loss of the next task.

            1/(2M) sum_c d_c' P_c d_c,   d_c = f_c(Z; w) - f_c(Z; w*),   P_c = K^-1 B_u K^-1

        P_c is the identity for outputs no datum has spoken of. It does not depend on the prior
        precision (unless a noise is learned with it). The published curvature is that of
        ``linearize_at="network"``.
        """
        self._penalty = self.as_penalty().like(network)
        return self._penalty(network)

    def as_penalty(self) -> Penalty:
        """The regulariser by itself: what it needs of the posterior, and no more."""
        if self._penalty is None:
            self._require_data()
            self._penalty = Penalty.of(self._state, self._solution.weight)
        return self._penalty

    # State --------------------------------------------------------------------------------------

    @property
    def num_data(self) -> float:
        """Number of samples in the posterior, discounted ones by their weight."""
        count = float(self._state.sums.count)
        return int(count) if count.is_integer() else count

    @property
    def inducing_inputs(self) -> Inputs:
        """Z."""
        return self._state.z

    @property
    def sites(self) -> ValueSites:
        """What the data says about f at the inducing inputs, whatever the weights."""
        return ValueSites.of(self._state)

    @property
    def num_outputs(self) -> int:
        """C."""
        return self._state.num_outputs

    @property
    def prior_precision(self) -> float:
        """delta, learned if it is learned."""
        return self._solution.precision.prior_precision

    @property
    def logit_scale(self) -> float:
        """What logits are multiplied with before the link; 1 unless tuned."""
        return self._logit_scale

    @property
    def noise_variance(self) -> float | None:
        """Of regression, learned if it is learned; ``None`` for other likelihoods."""
        likelihood = self._solution.likelihood
        return likelihood.noise_variance if isinstance(likelihood, GaussianLikelihood) else None

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood given."""
        return self._likelihood

    def state_dict(self) -> dict[str, Any]:
        """All of the posterior as ``{"tensors": {name: tensor}, "values": plain values}``."""
        tensors, values = snapshot.take(self._state)
        settings = {"prior_precision": self._prior_precision, "logit_scale": self._logit_scale}
        return {"tensors": tensors, "values": {**values, **settings}}

    def load_state_dict(self, state: dict[str, Any]) -> SFRPosterior:
        """Take over what :meth:`state_dict` gave. The network lends its architecture only."""
        tensors, values = (
            snapshot.part(state, "tensors", dict),
            snapshot.part(state, "values", dict),
        )
        likelihood = snapshot.part(values, "likelihood", str)
        self._require_same("likelihoods", likelihood == self._likelihood.name)
        self._require_same("options", snapshot.read_options(values) == self._options)
        restored = snapshot.restore(tensors, values, self._network, self._likelihood)
        delta = values.get("prior_precision", 0.0)
        if delta is not None:
            delta = positive("prior_precision", delta)
        scale = positive("logit_scale", snapshot.part(values, "logit_scale", float))
        self._prior_precision, self._logit_scale = delta, scale
        self._likelihood = restored.likelihood
        self._take_over(restored)
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior to a safetensors file, atomically."""
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
            likelihood: the object, if the posterior was made with one of one's own.
        """
        return cls._restored(*files.read(path), network, likelihood)

    @classmethod
    def _restored(
        cls,
        tensors: dict[str, Tensor],
        values: dict[str, Any],
        network: nn.Module,
        likelihood: Likelihood | None,
    ) -> SFRPosterior:
        """The posterior of a :meth:`state_dict`, its options included."""
        options = snapshot.read_options(values)
        snapshot.check_architecture(tensors, network)
        posterior = cls(
            network,
            likelihood or likelihoods.named(snapshot.part(values, "likelihood", str)),
            output_kernel=options.output_kernel,
            parameters=options.parameters,
            mean=options.mean,
            linearize_at=options.linearize_at,
            dtype=options.dtype,
        )
        posterior.load_state_dict({"tensors": tensors, "values": values})
        posterior._inducing = posterior.inducing_inputs
        return posterior

    def to(self, device: torch.device | str) -> SFRPosterior:
        """Move the posterior; the user's network stays where it is."""
        state = self._state
        try:
            moved = state.to(torch.device(device))
        except (RuntimeError, AssertionError) as error:
            raise ArgumentError(
                f"expected a device torch can use, got {device!r}: {error}"
            ) from error
        self._take_over(moved)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copies: all but what is computed from the rest."""
        caches = {"_solved": None, "_direction": None, "_penalty": None}
        return {**self.__dict__, **caches}

    def __repr__(self) -> str:
        what = f"SFRPosterior({self._likelihood.name!r}"
        if self._fitted is None:
            return f"{what}, not fitted)"
        return (
            f"{what}, prior_precision={self.prior_precision:g}, {length(self._fitted.z)} inducing "
            f"inputs, {self.num_outputs} outputs, {self.num_data} data)"
        )

    # Private ------------------------------------------------------------------------------------

    @property
    def _state(self) -> State:
        if self._fitted is None:
            raise NotFittedError(
                "expected a fitted posterior, got one without data: call fit first"
            )
        return self._fitted

    @property
    def _solution(self) -> Solution:
        """Factored lazily: once per read after any number of updates."""
        if self._solved is None:
            self._solved = Solution.of(self._state, self._prior_precision)
        return self._solved

    @property
    def _default_link(self) -> str:
        return "map" if self._options.at_prior else "probit"

    def _without_data(self, network: FrozenNetwork, kernel_outputs: int, z: Inputs) -> State:
        num_outputs = self._num_outputs or kernel_outputs
        self._require_free_outputs(kernel_outputs, num_outputs)
        return State.without_data(
            network,
            self._options,
            self._likelihood,
            num_outputs,
            kernel_outputs,
            z,
            self._batch_size,
        )

    def _require_free_outputs(self, kernel_outputs: int, num_outputs: int) -> None:
        """Refuse a number of outputs other than the network's where the network speaks of them."""
        if num_outputs != kernel_outputs and not self._options.outputs_are_free:
            raise ArgumentError(
                f"expected num_outputs to be the network's, {kernel_outputs}, got {num_outputs}: "
                f"only a shared kernel with linearize_at='prior' speaks of other outputs"
            )

    def _start_with(self, state: State) -> None:
        self._prior_precision, self._logit_scale = self._given_precision, 1.0
        self._take_over(state)

    def _take_over(self, state: State) -> None:
        self._fitted = state
        self._forget_solution()

    def _forget_solution(self) -> None:
        self._solved, self._direction, self._penalty = None, None, None

    def __copy__(self) -> SFRPosterior:
        """A twin that goes its own way: what they share is never changed in place."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def _sums(self, data: Data) -> DualSums:
        return self._state.absorb(Batches(data, self._state.batch_size))

    def _require_data(self) -> None:
        if not float(self._state.sums.count) > SEEN:
            raise DataError("expected a posterior with data, got one that has forgotten it all")

    @staticmethod
    def _require_same(what: str, agree: bool) -> None:
        if not agree:
            raise MismatchError(
                f"expected posteriors with the same {what}, got different ones: build both from "
                f"the same network, with inducing=the other's inducing_inputs"
            )
