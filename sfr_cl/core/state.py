"""All that a fitted posterior knows: what was asked for, the features, the sums of the data.

Immutable. A verb makes a new state; a posterior adopts it only once it is complete, so that an
error in between changes nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sfr_cl.core import evaluate
from sfr_cl.core.basis import Basis, Features
from sfr_cl.core.calibration import NO_SCORES, Forecast, Scores
from sfr_cl.core.linalg import JITTER, Precision, is_semidefinite, transposed_product
from sfr_cl.core.modes import Conditional
from sfr_cl.core.spec import Spec
from sfr_cl.core.sums import SEEN, DualSums, Terms
from sfr_cl.data.inputs import Inputs, as_tensor, length, take
from sfr_cl.errors import ArgumentError, DataError, MismatchError, SFRWarning
from sfr_cl.kernel.network import FrozenNetwork, require_float64
from sfr_cl.likelihoods import Likelihood, PriorReading

Pairs = Iterable[tuple[Inputs, Any]]


@dataclass(frozen=True)
class State:
    """See the module."""

    spec: Spec
    """With the delta and the likelihood that hold now: tuned ones, if they were tuned."""
    basis: Basis
    sums: DualSums
    reference: Tensor
    """alpha of the data the network was trained on, ``[C, M]``; used by the mean ``"network"``."""
    scores: Scores = NO_SCORES
    """Of predictions made before their data was absorbed."""
    bound: Scores = NO_SCORES
    """The same of data that the network was trained on: too good, so that no scale beyond the one
    they lead to is the usual one."""
    forecast: Forecast | None = None
    """What the next data is predicted by; ``None``: these sums."""
    discriminant: bool = False
    """Whether many classes are read as a linear discriminant, as files of before were not."""

    @staticmethod
    def empty(spec: Spec, basis: Basis) -> State:
        """Nothing absorbed."""
        sums = _no_sums(spec.outputs(basis.kernel_outputs), basis)
        return State(spec, basis, sums, sums.gradient, discriminant=True)

    def no_sums(self) -> DualSums:
        """The sums of no data."""
        return _no_sums(self.num_outputs, self.basis)

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood that holds now."""
        return self.spec.likelihood

    @property
    def num_outputs(self) -> int:
        """C."""
        return len(self.sums.seen)

    @property
    def reading(self) -> PriorReading:
        """How sums made at f = 0 are read now; as they are, if they were made elsewhere."""
        if not self.spec.at_prior:
            return PriorReading()
        found = self.likelihood.prior_reading(self.num_seen)
        return found.of_discriminant() if self.discriminant and self.spec.shared else found.of_f()

    @property
    def num_seen(self) -> int:
        """Outputs that some target has observed."""
        return int((self.sums.seen > SEEN).sum())

    @property
    def logit_scale(self) -> float:
        """What logits are multiplied with before the link."""
        spec = self.spec
        if spec.logit_scale is not None or not spec.has_prior_logits:
            return spec.logit_scale or 1.0
        return self.scores.scale(self.reading, self.usual_scale)

    @property
    def usual_scale(self) -> float:
        """The scale where no prediction was scored, but of data the network was trained on."""
        if self.spec.logit_scale is not None:
            return self.spec.logit_scale
        reading = self.reading
        return min(reading.logit_scale, self.bound.scale(reading, reading.logit_scale))

    @property
    def has_data(self) -> bool:
        """Whether any sample is left in the sums."""
        return float(self.sums.count) > SEEN

    def with_sums(self, sums: DualSums, reference: Tensor | None = None) -> State:
        """Other sums over the same features."""
        reference = self.reference if reference is None else reference
        return replace(self, sums=sums, reference=reference)

    def with_spec(self, **changes: Any) -> State:
        """Another delta, noise or scale of logits."""
        return replace(self, spec=replace(self.spec, **changes), forecast=None)

    # Reading ------------------------------------------------------------------------------------

    def checked(self, batches: Pairs) -> Checked:
        """Batches with inputs and targets checked and moved to the state's device."""
        device = self.basis.network.device
        return Checked(batches, self.basis.prepare, device, self.likelihood, self.num_outputs)

    def checked_pair(self, x: Inputs, y: Any) -> tuple[Inputs, Tensor]:
        """One batch of :meth:`checked`."""
        return self.checked(()).pair(x, y)

    def walk(
        self, x: Inputs, *, diagonal: bool = False, what: str = "inputs"
    ) -> Iterator[tuple[Inputs, Features]]:
        """Batches of inputs, prepared, and their features."""
        for batch in self.batches(x, what):
            yield batch, self.basis.features(batch, diagonal=diagonal)

    def batches(self, x: Inputs, what: str = "inputs") -> Iterator[Inputs]:
        """Inputs, prepared, in batches that memory holds."""
        x = self.basis.prepare(x, what)
        for start in range(0, length(x), self.basis.batch_size):
            yield take(x, slice(start, start + self.basis.batch_size))

    # Adding -------------------------------------------------------------------------------------

    def terms(self, x: Inputs, features: Features, y: Tensor) -> Terms:
        """Gradient and curvature of a checked batch where it is linearised."""
        spec, outputs = self.spec, features.outputs
        if spec.at_prior:
            return Terms.at_prior(spec.likelihood, y, self.num_outputs, shared=spec.shared)
        if spec.at_posterior:
            precision = Precision(self.sums.weight, spec.prior_precision or 1.0)
            eta = self.sums.gradient + self.sums.point
            mode = Conditional.of(precision, eta, features.phi).mode(spec.likelihood, y)
            return Terms.at_mode(spec.likelihood, mode, y, shared=spec.shared)
        # The mean "network" has the prior mean f - J w*, so that f~ = J w*; the others have zero.
        point = self.basis.network.tangent(x) if spec.mean == "network" else outputs
        return Terms.at_outputs(spec.likelihood, outputs, point, y, shared=spec.shared)

    def sums_of(
        self, batches: Pairs, look: Callable[[Inputs], object] = lambda _: None
    ) -> DualSums:
        """The sums of some data, which may enter, or leave.

        Args:
            batches: the data.
            look: is shown the inputs of each batch.
        """
        total = self.no_sums()
        for x, y in self.checked(batches):
            look(x)
            features, before = self.basis.features(x), self
            if self.spec.at_posterior:
                before = self.add(total)
            total = total + DualSums.of(features.phi, before.terms(x, features, y))
        total.require_finite()
        return total

    def sums_of_terms(self, batches: Iterable[tuple[Inputs, Terms]]) -> DualSums:
        """The sums of inputs with given terms, in the place of targets."""
        total = self.no_sums()
        for x, terms in batches:
            features = self.basis.features(self.basis.prepare(x))
            total = total + DualSums.of(features.phi, terms)
        total.require_finite()
        return total

    def add(self, sums: DualSums) -> State:
        """With more data."""
        return self.with_sums(self.sums + sums)

    def remove(self, sums: DualSums) -> State:
        """Without some data, or an error where it can't have been absorbed.

        Sums can't tell whether these very samples were absorbed. What can be told is refused: more
        samples, of all or of a class, than were seen, and a posterior left indefinite.
        """
        left = self.sums - sums
        tolerance = SEEN * max(1.0, float(self.sums.count))
        if float(left.count) < -tolerance or bool((left.seen < -tolerance).any()):
            seen = ", ".join(f"{value:g}" for value in self.sums.seen.tolist())
            raise DataError(
                f"expected to forget at most what was seen, {float(self.sums.count):g} samples "
                f"({seen} by output), got more: check what was absorbed, and the weight if it was "
                f"discounted"
            )
        squares, before = -float(left.constant.sum()), -float(self.sums.constant.sum())
        if self.spec.likelihood.noise_scale is not None and squares < -tolerance * before:
            raise DataError(
                "expected targets that were absorbed, got some whose squares add up to more than "
                "those seen: check that they are the ones absorbed"
            )
        scale = self.sums.weight.diagonal(dim1=-2, dim2=-1).amax()
        if not is_semidefinite(left.weight, scale, JITTER[self.spec.dtype]):
            raise DataError(
                "expected samples that were absorbed, got some that leave the posterior indefinite:"
                " they were never seen, were discounted, or came before add_inducing"
            )
        # What was predicted by has seen the data that is to be forgotten.
        return replace(self.with_sums(left), forecast=None)

    def forget(self, batches: Pairs, weight: float = 1.0) -> State:
        """Without some data, and without the inducing inputs that are rows of it."""
        found: list[Tensor] = []
        sums = self.sums_of(batches, lambda x: found.append(self.basis.drawn_from(x)))
        left = self.remove(sums * weight)
        dropped = left.droppable(torch.stack(found).any(0))
        return left.restricted(dropped) if bool(dropped.any()) else left

    def droppable(self, found: Tensor) -> Tensor:
        """Which inducing inputs go when some were found among forgotten rows, ``[M]``."""
        if self.basis.given and bool(found.any()):
            warnings.warn(
                f"{int(found.sum())} of the inducing inputs that were given equal rows that are "
                f"now forgotten, and stay, in files too: take them out with replace_inducing, or "
                f"give inputs that are no data",
                SFRWarning,
                stacklevel=4,
            )
            return torch.zeros_like(found)
        if bool(found.all()):
            raise DataError(
                f"expected to leave some inducing input, got samples that are all {len(found)} of "
                f"them: begin again with the data that stays, over more inducing inputs or ones "
                f"that are no data, such as sfr_cl.noise(512)"
            )
        return found

    def restricted(self, dropped: Tensor) -> State:
        """Without some inducing inputs, ``[M]``: as if they had never been there, exactly."""
        return self._carried(*self.basis.without(dropped))

    def discount(self, gamma: float) -> State:
        """With a share of the weight of all data; scores are of predictions, and stay."""
        forecast = None if self.forecast is None else self.forecast.discount(gamma)
        return replace(self.with_sums(self.sums * gamma), forecast=forecast)

    # Moving -------------------------------------------------------------------------------------

    def project(self, basis: Basis) -> State:
        """Over other features of the same network: what was absorbed is projected onto them.

        With u' = f(Z') and u = f(Z), B' = K(Z', Z) K^-1 B K^-1 K(Z, Z') and so on: in whitened
        coordinates, A W A' with A = L'^-1 kappa(Z', Z) L^-T.
        """
        return self._carried(basis, self.basis.onto(basis))

    def _carried(self, basis: Basis, onto: Tensor) -> State:
        """Over features phi' = A phi."""
        reference = transposed_product(onto.mT, self.reference)
        sums = self.sums.projected(onto)
        return replace(self, basis=basis, sums=sums, reference=reference, forecast=None)

    def extend(self, basis: Basis) -> State:
        """Over features whose first ones are these. What was absorbed has no part in the others."""
        extra = basis.size - self.basis.size
        reference = torch.nn.functional.pad(self.reference, (0, extra))
        sums = self.sums.pad_features(extra)
        return replace(self, basis=basis, sums=sums, reference=reference, forecast=None)

    def grow(self, network: FrozenNetwork, num_outputs: int) -> State:
        """With more outputs. A shared kernel stays that of the first ones.

        It has one W for all outputs, so that new ones either share the data or come before it.
        """
        spec, extra = self.spec, num_outputs - self.num_outputs
        spec.likelihood.require_outputs(num_outputs)
        carry = spec.likelihood.may_grow and spec.at_prior
        if extra and spec.shared and self.has_data and not carry:
            raise ArgumentError(
                "expected outputs with kernels of their own, since no datum has observed the new "
                "ones, got 'shared': use output_kernel='per_output' and give the grown network "
                "(or classification at linearize_at='prior'), or start with all outputs"
            )
        basis = self.basis
        if network is not basis.network:
            basis = basis.grown(network, num_outputs, shared=spec.shared)
        sums = self.sums.pad_outputs(basis.factor, extra, carry=carry)
        reference = torch.nn.functional.pad(self.reference, (0, 0, 0, extra))
        forecast = None
        if self.forecast is not None and spec.shared and carry:  # W stays, and so would delta
            forecast = self.forecast.outdated(num_outputs)
        return replace(self, basis=basis, sums=sums, reference=reference, forecast=forecast)

    def with_outputs(self, num_outputs: int) -> State:
        """With more outputs than the network has, where the spec permits any number."""
        replace(self.spec, num_outputs=num_outputs).outputs(self.basis.kernel_outputs)
        if num_outputs < self.num_outputs:
            raise MismatchError(
                f"expected at least {self.num_outputs} outputs, got {num_outputs}: outputs can be "
                f"added, not taken away"
            )
        return self.grow(self.basis.network, num_outputs)

    def to(self, device: torch.device) -> State:
        """The same on another device."""
        require_float64(device)
        reference = self.reference.to(device)
        forecast = None if self.forecast is None else self.forecast.to(device)
        basis, sums = self.basis.to(device), self.sums.to(device)
        return replace(self, basis=basis, sums=sums, reference=reference, forecast=forecast)


def _no_sums(num_outputs: int, basis: Basis) -> DualSums:
    return DualSums.zeros(num_outputs, basis.num_kernels, basis.size, basis.network.device)


class Checked:
    """Pairs with inputs and targets checked and moved; may be walked through again."""

    def __init__(
        self,
        batches: Pairs,
        prepare: Callable[[Inputs], Inputs],
        device: torch.device,
        likelihood: Likelihood,
        num_outputs: int,
    ) -> None:
        self._batches = batches
        self._prepare = prepare
        self._device = device
        self._likelihood = likelihood
        self._num_outputs = num_outputs

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        return (self.pair(x, y) for x, y in self._batches)

    def pair(self, x: Inputs, y: Any) -> tuple[Inputs, Tensor]:
        """One batch."""
        y = as_tensor(y).detach().to(self._device)
        if not y.ndim:
            raise DataError("expected targets with a batch dimension, got a scalar")
        if not len(y):
            raise DataError("expected at least one sample, got none")
        targets = evaluate.targets(self._likelihood, self._num_outputs, y)
        x = self._prepare(x)
        if length(x) != len(targets):
            raise DataError(
                f"expected one target for each input, got {length(x)} inputs and {len(targets)} "
                f"targets"
            )
        return x, targets
