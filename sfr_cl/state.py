"""All that a fitted posterior knows: frozen network, inducing inputs, whitening, sums.

Immutable. An operation makes a new state; the posterior takes it over only once it is complete, so
that an error in between changes nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sfr_cl import memory
from sfr_cl.duals import DualSums, Sites
from sfr_cl.errors import DataError, SFRWarning
from sfr_cl.inputs import Inputs, concat, leaves, length, tree_map
from sfr_cl.kernel import InducingKernel, Kernel, TangentKernel
from sfr_cl.likelihoods import Likelihood
from sfr_cl.linalg import JITTER, cholesky, extend_cholesky, transposed_product, whiten
from sfr_cl.network import FrozenNetwork
from sfr_cl.options import Options

WORKING_BYTES = 2**28
"""The default batch size keeps a batch's working memory below this."""

LARGEST_BATCH = 1024

GRAM = "the kernel matrix of the inducing inputs"

Pairs = Iterable[tuple[Inputs, Any]]


@dataclass(frozen=True)
class State:
    """See the module."""

    network: FrozenNetwork
    options: Options
    likelihood: Likelihood
    num_outputs: int
    """C."""
    kernel_outputs: int
    """Outputs the kernel covers: C, or fewer for a shared kernel whose network has grown."""
    batch_size: int
    z: Inputs
    factor: Tensor
    """L with L L' = kappa(Z, Z), ``[K, M, M]``."""
    sums: DualSums
    reference: Tensor
    """alpha of the data the network was trained on, ``[C, M]``; used by the mean ``"network"``."""

    @cached_property
    def kernel(self) -> Kernel:
        """kappa."""
        return TangentKernel(self.network, self.kernel_outputs, self.options.shared, self.z)

    @cached_property
    def at_inducing(self) -> InducingKernel:
        """kappa with one side fixed at Z."""
        return self.kernel.inducing(self.z, self.batch_size)

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: kernels are made anew when they are needed."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @staticmethod
    def without_data(
        network: FrozenNetwork,
        options: Options,
        likelihood: Likelihood,
        num_outputs: int,
        kernel_outputs: int,
        z: Inputs,
        batch_size: int | None,
    ) -> State:
        """Z chosen and whitened, nothing absorbed."""
        kernel = TangentKernel(network, kernel_outputs, options.shared, z)
        size = choose_batch_size(kernel, network, length(z), batch_size)
        at_inducing = kernel.inducing(z, size)
        _warn_of_duplicates(at_inducing.gram)
        factor = cholesky(at_inducing.gram, GRAM, JITTER[network.dtype])
        sums = DualSums.zeros(num_outputs, factor)
        state = State(
            network=network,
            options=options,
            likelihood=likelihood,
            num_outputs=num_outputs,
            kernel_outputs=kernel_outputs,
            batch_size=size,
            z=z,
            factor=factor,
            sums=sums,
            reference=sums.gradient,
        )
        state.__dict__["at_inducing"] = at_inducing
        return state

    def with_sums(self, sums: DualSums, reference: Tensor | None = None) -> State:
        """Other sums over the same inducing inputs."""
        return self._with(sums=sums, reference=self.reference if reference is None else reference)

    def with_likelihood(self, likelihood: Likelihood) -> State:
        """Another noise."""
        return self._with(likelihood=likelihood)

    def _with(self, **changes: Any) -> State:
        state = replace(self, **changes)
        if "at_inducing" in self.__dict__:
            state.__dict__["at_inducing"] = self.at_inducing
        return state

    def require_form(self, x: Inputs) -> None:
        """Refuse inputs of another form than Z's."""
        found, expected = leaves(x), leaves(self.z)
        if [name for name, _ in found] != [name for name, _ in expected]:
            raise DataError(
                f"expected inputs of the form of the inducing inputs, got leaves "
                f"{[name for name, _ in found]} instead of {[name for name, _ in expected]}"
            )
        for (_, leaf), (_, known) in zip(found, expected, strict=True):
            if leaf.ndim != known.ndim:
                raise DataError(
                    f"expected inputs with {known.ndim} dimensions, the batch first, got shape "
                    f"{list(leaf.shape)}"
                )

    def features(
        self, x: Inputs, *, diagonal: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """f ``[B, C]``, phi = L^-1 kappa(Z, x) ``[K, B, M]`` and kappa(x, x) ``[K, B]``."""
        self.require_form(x)
        values = self.at_inducing(x, diagonal=diagonal)
        return values.outputs, whiten(self.factor, values.cross.double()), values.diagonal

    def checked(self, batches: Pairs) -> Checked:
        """Batches with inputs and targets checked and moved to the state's device."""
        return Checked(batches, self.network, self.likelihood, self.num_outputs)

    def absorb(self, batches: Pairs) -> DualSums:
        """The sums of some data: the one path by which data enters or leaves."""
        total = DualSums.zeros(self.num_outputs, self.factor)
        for x, y in self.checked(batches):
            outputs, features, _ = self.features(x)
            total = total + DualSums.of(features, self.sites(x, outputs, y))
        total.require_finite()
        return total

    def sites(self, x: Inputs, outputs: Tensor, y: Tensor) -> Sites:
        """Gradient and curvature of a checked batch where it is linearised."""
        if self.options.at_prior:
            return Sites.at_prior(self.likelihood, y, self.num_outputs)
        # The mean "network" has the prior mean f - J w*, so that f~ = J w*; the others have zero.
        point = self.network.tangent(x) if self.options.mean == "network" else outputs
        return Sites.at_outputs(self.likelihood, outputs, point, y, shared=self.options.shared)

    def add_inducing(self, z: Inputs) -> State:
        """More inducing inputs. What was absorbed has no part in their new directions."""
        joint = concat([self.z, z])
        size = min(
            self.batch_size, choose_batch_size(self.kernel, self.network, length(joint), None)
        )
        at_inducing = self.kernel.inducing(joint, size)
        _warn_of_duplicates(at_inducing.gram)
        state = replace(
            self,
            z=joint,
            batch_size=size,
            factor=extend_cholesky(self.factor, at_inducing.gram, GRAM, JITTER[self.network.dtype]),
            sums=self.sums.pad_inducing(length(z)),
            reference=torch.nn.functional.pad(self.reference, (0, length(z))),
        )
        state.__dict__["at_inducing"] = at_inducing
        return state

    def replace_inducing(self, z: Inputs) -> State:
        """Other inducing inputs, onto which what was absorbed is projected.

        With u' = f(Z') and u = f(Z), B' = K(Z', Z) K^-1 B K^-1 K(Z, Z') and so on: in whitened
        coordinates, A W A' with A = L'^-1 kappa(Z', Z) L^-T.
        """
        state = State.without_data(
            self.network,
            self.options,
            self.likelihood,
            self.num_outputs,
            self.kernel_outputs,
            z,
            None,
        )
        _, features, _ = self.features(z)
        onto = torch.linalg.solve_triangular(state.factor, features, upper=False)
        reference = transposed_product(onto.mT, self.reference)
        return state.with_sums(self.sums.seen_through(onto), reference)

    def add_outputs(self, network: FrozenNetwork, num_outputs: int, *, carry: bool) -> State:
        """A grown head. A shared kernel stays that of the first outputs."""
        extra = num_outputs - self.num_outputs
        grown = replace(
            self,
            network=network,
            num_outputs=num_outputs,
            kernel_outputs=self.kernel_outputs if self.options.shared else num_outputs,
        )
        choose_batch_size(grown.kernel, network, length(self.z), self.batch_size)
        factor = self.factor
        if not self.options.shared:
            new = grown.at_inducing.gram[self.num_outputs :]
            factor = torch.cat([factor, cholesky(new, GRAM, JITTER[network.dtype])])
        return replace(grown, factor=factor).with_sums(
            self.sums.pad_outputs(factor, extra, carry=carry),
            torch.nn.functional.pad(self.reference, (0, 0, 0, extra)),
        )

    def to(self, device: torch.device) -> State:
        """The same on another device."""
        return replace(
            self,
            network=self.network.to(device),
            z=tree_map(lambda leaf: leaf.to(device), self.z),
            factor=self.factor.to(device),
            sums=self.sums.to(device),
            reference=self.reference.to(device),
        )


class Checked:
    """Pairs with inputs and targets checked and moved; may be walked through again."""

    def __init__(
        self, batches: Pairs, network: FrozenNetwork, likelihood: Likelihood, num_outputs: int
    ) -> None:
        self._batches = batches
        self._network = network
        self._likelihood = likelihood
        self._num_outputs = num_outputs

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        for x, y in self._batches:
            targets = self._likelihood.targets(y.to(self._network.device), self._num_outputs)
            yield self._network.prepare(x), targets


def choose_batch_size(
    kernel: Kernel, network: FrozenNetwork, num_inducing: int, requested: int | None
) -> int:
    """The requested batch size, or one whose working memory is modest; refused if it can't fit."""
    per_input = kernel.bytes_per_input(num_inducing)
    # The kernel matrix, its factor, W, W's factor, and one sum in the making; and Z's side.
    matrices = 5 * kernel.num_kernels * num_inducing**2 * torch.float64.itemsize
    matrices += kernel.bytes_at_inducing(num_inducing)
    memory.require(
        matrices + per_input,
        f"a posterior over {num_inducing} inducing inputs and {kernel.num_kernels} kernel(s)",
        "lower inducing, use output_kernel='shared', or parameters='last_layer'",
        network.device,
    )
    if requested is None:
        return max(1, min(LARGEST_BATCH, WORKING_BYTES // per_input))
    memory.require(
        matrices + requested * per_input,
        f"a batch of {requested} inputs",
        f"lower batch_size (the default would be {WORKING_BYTES // per_input or 1})",
        network.device,
    )
    return requested


def _warn_of_duplicates(gram: Tensor) -> None:
    """Inducing inputs the kernel can't tell apart waste memory and cost precision."""
    scale = gram.diagonal(dim1=-2, dim2=-1).clamp_min(torch.finfo(gram.dtype).tiny).rsqrt()
    correlation = (scale[:, :, None] * gram * scale[:, None]).mean(0).triu(1)
    twins = int((correlation > 1 - 1e-10).any(0).sum())
    if twins:
        warnings.warn(
            f"{twins} of {gram.shape[-1]} inducing inputs are duplicates or nearly so: they add "
            f"nothing; remove them, or use a selector",
            SFRWarning,
            stacklevel=4,
        )
