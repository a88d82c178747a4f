"""Likelihoods: gradient and curvature of log p(y | f), and the predictive distribution.

For a custom one, subclass :class:`Likelihood`. Counts with a log rate, complete:

>>> import torch
>>> from sfr_cl.likelihoods import Likelihood
>>> class Poisson(Likelihood):
...     name = "poisson"
...
...     def targets(self, y, num_outputs):
...         return y.reshape(len(y), num_outputs).double()
...
...     def log_prob(self, f, y):
...         return torch.distributions.Poisson(f.exp()).log_prob(y).sum(1)
...
...     def gradient(self, f, y):
...         return y - f.exp()
...
...     def curvature(self, f, y):
...         return f.exp()
...
...     def predictive(self, mean, variance, link):
...         return torch.distributions.Poisson((mean + variance / 2).exp())
>>> Poisson().gradient(torch.zeros(1, 1), torch.tensor([[3.0]]))
tensor([[2.]])

Its data is linearised at the mode of each batch given all before (``linearize_at="posterior"``):
counts are far from where log p is nearly quadratic around f = 0.

>>> from sfr_cl import SFRPosterior
>>> _ = torch.manual_seed(0)
>>> x = torch.linspace(-2, 2, 200)[:, None]
>>> network = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
>>> posterior = SFRPosterior(network, Poisson()).fit((x, torch.poisson(20 * torch.sigmoid(3 * x))))
>>> posterior.predict(torch.tensor([[-2.0], [0.0], [2.0]])).mean.round().flatten().tolist()
[0.0, 9.0, 19.0]
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from sfr_cl.data import targets
from sfr_cl.data.arguments import positive
from sfr_cl.deprecation import renamed
from sfr_cl.errors import ArgumentError, DataError, MismatchError
from sfr_cl.predictive import Bernoulli, Categorical, Normal

Noise = float | tuple[float, ...]
"""A noise variance: one for all outputs, or one for each."""

LINKS = ("probit", "mc", "map")
MC_SAMPLES, MC_CHUNKS = 1000, 20

CONFIDENCE = 2.5
"""In one-hot units the scale of logits that predicted held-out data best was near this times
sqrt(C), on twelve problems of 2 to 100 classes."""


MANY_CLASSES = 30
"""From here on logits are those of a linear discriminant, where all classes share a kernel: with 30
to 100 of them held-out NLPD was a fifth to a third lower, and accuracy up to three points higher.
With 20 accuracy was a quarter of a point lower, with fewer NLPD sometimes higher."""

MANY_CONFIDENCE = 7.0, 1.9
"""In one-hot units the scale of a discriminant's logits that predicted held-out data best was near
7 + 1.9 sqrt(C), on problems of 20 to 100 classes, after fitting and after absorbing."""


class PriorReading(NamedTuple):
    """How sums made at f = 0 are read: a = statistic - offset, b = scale * weight."""

    offset: float = 0.0
    scale: float = 1.0
    log_prob: float = 0.0
    unit: float = 1.0
    """f of a ridge regression on one-hot targets of which the other regression's f is 1."""
    logit_scale: float = 1.0
    """What logits are multiplied with where no prediction was scored."""
    discriminant: float | None = None
    """The same of the logits of a linear discriminant of f; ``None``: f is the logits."""

    def of_f(self) -> PriorReading:
        """The same where f is the logits, whatever the number of classes."""
        return self._replace(discriminant=None)

    def of_discriminant(self) -> PriorReading:
        """The same where a discriminant's logits are wanted, if there are classes enough."""
        return self if self.discriminant is None else self._replace(logit_scale=self.discriminant)


class Likelihood(ABC):
    """p(y | f), factorised over the C outputs as far as the curvature is concerned.

    All tensors are ``[B, C]`` unless said otherwise; ``y`` is what :meth:`targets` returned.
    """

    name: ClassVar[str]
    """Stored in files, and compared when posteriors are merged."""

    has_logits: ClassVar[bool] = False
    """Whether f is a logit, so that a scale of f is worth tuning and links apply."""

    linearize_at: ClassVar[str] = "posterior"
    """Where data is linearised by default: ``"prior"`` is exact for a quadratic log p only."""

    may_grow: ClassVar[bool] = False
    """Whether outputs that come later may share what data said before: of classes, it was evidence
    against them."""

    @abstractmethod
    def targets(self, y: Tensor, num_outputs: int) -> Tensor:
        """Check raw targets and bring them to the form the other methods take, batch first.

        As a rule ``[B, C]``: ``[B]`` beside f of ``[B, 1]`` would be broadcast to ``[B, B]``.
        """

    @abstractmethod
    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """log p(y | f), ``[B]``."""

    def log_prob_by_output(self, f: Tensor, y: Tensor) -> Tensor:
        """log p(y | f) by output; equal shares where it is no sum over outputs."""
        log_prob = require_shape(self, "log_prob", self.log_prob(f, y), f.shape[:1])
        return (log_prob / f.shape[1])[:, None].expand(-1, f.shape[1])

    @abstractmethod
    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """a = d log p(y | f) / df."""

    @abstractmethod
    def curvature(self, f: Tensor, y: Tensor) -> Tensor:
        """b = - d2 log p(y | f) / df2, the diagonal over outputs."""

    def curvature_product(self, f: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """- d2 log p(y | f) / df2 times v, what couples outputs included; never negative."""
        return self.curvature(f, y).clamp_min(0) * v

    @abstractmethod
    def predictive(self, mean: Tensor, variance: Tensor, link: str) -> Distribution:
        """p(y | x) with f(x) ~ N(mean, variance)."""

    def require_outputs(self, num_outputs: int) -> None:
        """Refuse a number of outputs that it has no targets for."""
        del num_outputs

    @property
    def noise_scale(self) -> Noise | None:
        """The noise that sums are divided by when they are read, if they are made at unit noise."""
        return None

    @property
    def noise_by_output(self) -> bool:
        """Whether a noise that is learned is one for each output, with a weak prior."""
        return False

    @property
    def learns_noise(self) -> bool:
        """Whether the noise is that of greatest evidence."""
        return False

    def needs_variance(self, link: str) -> bool:
        """Whether :meth:`predictive` depends on the variance of f."""
        return link != "map" or not self.has_logits

    def with_noise(self, variance: Noise) -> Likelihood:
        """The same with another noise; itself, if it has none."""
        del variance
        return self

    def settings(self) -> dict[str, Any]:
        """Plain values a file stores beside the name, and merging compares."""
        return {}

    def with_settings(self, settings: Mapping[str, Any]) -> Likelihood:
        """The same with the settings of a file."""
        del settings
        return self

    def seen(self, y: Tensor, num_outputs: int) -> Tensor:
        """1 where a target observes an output, 0 elsewhere."""
        return torch.ones(len(y), num_outputs, dtype=torch.float64, device=y.device)

    def prior_statistics(self, y: Tensor, num_outputs: int) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient, curvature and log p by output at f = 0, before :meth:`prior_reading`."""
        f = torch.zeros(len(y), num_outputs, dtype=torch.float64, device=y.device)
        return self.gradient(f, y), self.curvature(f, y), self.log_prob_by_output(f, y)

    def prior_reading(self, num_seen: int) -> PriorReading:
        """What is only known when the sums are read: the number of outputs seen so far."""
        del num_seen
        return PriorReading()

    def prior_squares(self, seen: Tensor, count: Tensor, num_seen: int) -> Tensor | None:
        """sum a^2 / b of data read at f = 0, by output ``[C]``; ``None`` where it is unknown.

        With it, a prior precision can be learned from the sums as that of a regression whose noise
        is unknown.

        Args:
            seen: targets that observe each output, ``[C]``.
            count: targets.
            num_seen: outputs seen.
        """
        del seen, count, num_seen
        return None


class CategoricalLikelihood(Likelihood):
    """y in 0..C-1 with p = softmax(f): a = onehot(y) - p, b = p (1 - p).

    At f = 0 the sums hold onehot(y) and a unit weight, and are read with the number of classes seen
    by then: a = onehot(y) - 1/C, b = 1/C (the curvature on centred outputs), so that a class may
    appear at any time.

    >>> likelihood = CategoricalLikelihood()
    >>> likelihood.gradient(torch.zeros(1, 4), torch.tensor([2]))
    tensor([[-0.2500, -0.2500,  0.7500, -0.2500]])
    """

    name = "classification"
    linearize_at = "prior"
    has_logits = True
    may_grow = True

    def targets(self, y: Tensor, num_outputs: int) -> Tensor:
        return targets.labels(y, num_outputs)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return f.log_softmax(1).gather(1, y[:, None])[:, 0]

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(y, f.shape[1]) - f.softmax(1)

    def curvature(self, f: Tensor, y: Tensor) -> Tensor:
        p = f.softmax(1)
        return p * (1 - p)

    def curvature_product(self, f: Tensor, y: Tensor, v: Tensor) -> Tensor:
        p = f.softmax(1)
        return p * (v - (p * v).sum(1, keepdim=True))

    def seen(self, y: Tensor, num_outputs: int) -> Tensor:
        return torch.nn.functional.one_hot(y, num_outputs).double()

    def prior_statistics(self, y: Tensor, num_outputs: int) -> tuple[Tensor, Tensor, Tensor]:
        onehot = torch.nn.functional.one_hot(y, num_outputs).double()
        return onehot, torch.ones_like(onehot), torch.zeros_like(onehot)

    def prior_reading(self, num_seen: int) -> PriorReading:
        classes, many = max(num_seen, 2), None
        if classes >= MANY_CLASSES:
            least, growth = MANY_CONFIDENCE
            many = (least + growth * classes**0.5) / classes
        return PriorReading(
            offset=1 / classes,
            scale=1 / classes,
            log_prob=-math.log(classes),
            unit=classes,
            logit_scale=CONFIDENCE / classes**0.5,
            discriminant=many,
        )

    def prior_squares(self, seen: Tensor, count: Tensor, num_seen: int) -> Tensor:
        classes = max(num_seen, 2)
        return (classes - 2) * seen + count / classes

    def predictive(self, mean: Tensor, variance: Tensor, link: str) -> Distribution:
        if link == "mc":
            return Categorical(probs=_average(lambda f: f.softmax(2), mean, variance))
        return Categorical(logits=_moderate(mean, variance) if link == "probit" else mean)


class BernoulliLikelihood(Likelihood):
    """y in {0, 1} with p = sigmoid(f), one logit: a = y - p, b = p (1 - p).

    >>> BernoulliLikelihood().curvature(torch.zeros(1, 1), torch.ones(1, 1))
    tensor([[0.2500]])
    """

    name = "binary"
    linearize_at = "prior"
    has_logits = True

    def targets(self, y: Tensor, num_outputs: int) -> Tensor:
        return targets.flags(y, num_outputs)

    def require_outputs(self, num_outputs: int) -> None:
        targets.require_one_output(num_outputs)

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid((2 * y - 1) * f).sum(1)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        return y - f.sigmoid()

    def curvature(self, f: Tensor, y: Tensor) -> Tensor:
        p = f.sigmoid()
        return p * (1 - p)

    def prior_reading(self, num_seen: int) -> PriorReading:
        del num_seen
        return PriorReading(unit=2.0, logit_scale=CONFIDENCE / 2**0.5)

    def prior_squares(self, seen: Tensor, count: Tensor, num_seen: int) -> Tensor:
        del num_seen
        return count.expand_as(seen)

    def predictive(self, mean: Tensor, variance: Tensor, link: str) -> Distribution:
        if link == "mc":
            return Bernoulli(probs=_average(torch.sigmoid, mean, variance))
        return Bernoulli(logits=_moderate(mean, variance) if link == "probit" else mean)


class GaussianLikelihood(Likelihood):
    """y ~ N(f, s2): a = (y - f) / s2, b = 1 / s2, for any number of outputs.

    Its sums are made at s2 = 1 and rescaled when read, so that the noise may change afterwards:
    with ``learn`` each output has the one of greatest evidence of all data in the sums, under a
    weak prior (see :mod:`sfr_cl.core.evidence`).

    Args:
        noise_variance: s2, one for all outputs or one for each; with ``learn`` where it starts.
        learn: whether it is learned.

    Raises:
        ArgumentError: the noise is not positive.

    >>> GaussianLikelihood(0.25).predictive(torch.zeros(1, 1), torch.zeros(1, 1), "map").stddev
    tensor([[0.5000]])
    """

    name = "regression"
    linearize_at = "prior"

    by_output = False
    """As version 0.1.0 learned one noise for all outputs: its files, and its pickles."""

    def __init__(self, noise_variance: float | Sequence[float], *, learn: bool = False) -> None:
        self.noise_variance = _noise(noise_variance)
        self.learn = bool(learn)
        self.by_output = True

    @property
    def noise_scale(self) -> Noise:
        return self.noise_variance

    @property
    def learns_noise(self) -> bool:
        return self.learn

    @property
    def noise_by_output(self) -> bool:
        return self.by_output

    def with_noise(self, variance: Noise) -> GaussianLikelihood:
        return self.with_settings({**self.settings(), "noise_variance": variance})

    def settings(self) -> dict[str, Any]:
        noise = self.noise_variance
        return {
            "noise_variance": list(noise) if isinstance(noise, tuple) else noise,
            "learn": self.learn,
            "by_output": self.by_output,
        }

    def with_settings(self, settings: Mapping[str, Any]) -> GaussianLikelihood:
        learn, by_output = settings.get("learn"), settings.get("by_output", False)
        if not (isinstance(learn, bool) and isinstance(by_output, bool)):
            raise MismatchError(
                f"expected a stored noise_variance and whether it is learned, got {settings!r:.60}"
            )
        found = copy.copy(self)  # of its own class, if that is another one
        found.noise_variance = _noise(settings.get("noise_variance"))
        found.learn, found.by_output = learn, by_output
        return found

    def targets(self, y: Tensor, num_outputs: int) -> Tensor:
        self.require_outputs(num_outputs)
        return targets.numbers(y, num_outputs)

    def require_outputs(self, num_outputs: int) -> None:
        if isinstance(self.noise_variance, tuple) and len(self.noise_variance) != num_outputs:
            raise DataError(
                f"expected one noise_variance, or {num_outputs}, one for each output, got "
                f"{len(self.noise_variance)}"
            )

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return self.log_prob_by_output(f, y).sum(1)

    def log_prob_by_output(self, f: Tensor, y: Tensor) -> Tensor:
        return -(y - f).square() / 2

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        return y - f

    def curvature(self, f: Tensor, y: Tensor) -> Tensor:
        return torch.ones_like(f)

    def predictive(self, mean: Tensor, variance: Tensor, link: str) -> Distribution:
        noise = torch.as_tensor(self.noise_variance, dtype=mean.dtype, device=mean.device)
        return Normal(mean, (variance + noise).sqrt())


def make(likelihood: str | Likelihood, noise_variance: float | Sequence[float] | str) -> Likelihood:
    """A likelihood from its name, or the object itself."""
    learned = isinstance(noise_variance, str) and noise_variance == "learn"
    if likelihood != "regression" and not learned:
        raise ArgumentError(
            f"expected noise_variance with 'regression' only, got {noise_variance!r} with "
            f"{likelihood!r}"
        )
    if isinstance(likelihood, Likelihood):
        name = getattr(likelihood, "name", None)
        if not (isinstance(name, str) and name):
            raise ArgumentError(
                f"expected a likelihood with a name, which files keep, got {name!r} of "
                f"{type(likelihood).__name__}: give the class a name = '...'"
            )
        return likelihood
    if likelihood == "regression":
        if learned:
            return GaussianLikelihood(1.0, learn=True)
        if isinstance(noise_variance, str):
            raise ArgumentError(
                f"expected a positive noise_variance or 'learn', got {noise_variance!r}"
            )
        return GaussianLikelihood(noise_variance)
    if likelihood == "classification":
        return CategoricalLikelihood()
    if likelihood == "binary":
        return BernoulliLikelihood()
    raise ArgumentError(
        f"expected a likelihood 'classification', 'binary', 'regression' or a Likelihood object, "
        f"got {likelihood!r}"
    )


def require_shape(likelihood: Likelihood, method: str, found: Any, shape: torch.Size) -> Tensor:
    """What a method gave, which must have some shape."""
    if not isinstance(found, Tensor) or found.shape != shape:
        got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ArgumentError(
            f"expected {method} of {likelihood.name!r} to be of shape {list(shape)}, got {got}: "
            f"let it and the targets have the shapes that Likelihood says, and check them with "
            f"sfr_cl.testing.check_likelihood"
        )
    return found


def by_name(name: str) -> Likelihood:
    """A likelihood by the name a file gives it; its noise is set from the file."""
    if name not in ("classification", "binary", "regression"):
        raise ArgumentError(
            f"expected the likelihood object the posterior was made with, {name!r}: give it as "
            f"load(path, network, likelihood=...)"
        )
    return make(name, "learn")


named = renamed(by_name, "named")


def is_built_in(likelihood: Likelihood) -> bool:
    """Whether :func:`by_name` makes its class: a subclass may compute something else."""
    return type(likelihood) in (CategoricalLikelihood, BernoulliLikelihood, GaussianLikelihood)


def _noise(variance: Any) -> Noise:
    """One positive number, or one for each output."""
    if isinstance(variance, Tensor | np.ndarray):
        variance = variance.tolist()
    if isinstance(variance, list | tuple) and variance:
        return tuple(positive("noise_variance", each) for each in variance)
    return positive("noise_variance", variance)


def _moderate(mean: Tensor, variance: Tensor) -> Tensor:
    """The probit approximation: logits shrunk by their variance."""
    return mean / (1 + math.pi / 8 * variance).sqrt()


def _average(link: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor) -> Tensor:
    """Monte Carlo mean of link(f), with the same draws at every call: predicting is repeatable."""
    generator = torch.Generator(mean.device).manual_seed(0)
    shape = (MC_SAMPLES // MC_CHUNKS, *mean.shape)
    total = torch.zeros_like(mean)
    for _ in range(MC_CHUNKS):
        noise = torch.randn(shape, generator=generator, dtype=mean.dtype, device=mean.device)
        total += link(mean + variance.sqrt() * noise).sum(0)
    return total / MC_SAMPLES
