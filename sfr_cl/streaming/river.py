"""Streams as river's estimators: for its pipelines, its evaluation and its checks.

They work without river too; with it (``pip install "sfr-cl[streams]"``) they are its subclasses.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from sfr_cl.errors import DataError, DataTypeError, NotFittedError
from sfr_cl.posterior import SFRPosterior
from sfr_cl.streaming.features import FeatureOrder, plain, require_one
from sfr_cl.streaming.posterior import StreamingPosterior

if TYPE_CHECKING:
    import pandas as pd

try:
    from river.base import MiniBatchClassifier, MiniBatchRegressor
except ImportError:
    MiniBatchClassifier = MiniBatchRegressor = object

__all__ = ["StreamingClassifier", "StreamingRegressor"]

Features = Mapping[Hashable, Any]


@dataclass(eq=False, repr=False)
class _Estimator(ABC):
    """What both estimators share. The stream is made when the first sample shows its features."""

    likelihood: ClassVar[str]

    network: nn.Module | None = None
    inducing: int = 200
    prior_precision: float | None = None
    discount: float = 1.0
    window: int | None = None
    swap: bool = False
    hidden: int = 256
    seed: int = 0
    _stream: StreamingPosterior | None = field(default=None, init=False)
    _order: FeatureOrder | None = field(default=None, init=False)
    _labels: list[Hashable] = field(default_factory=list, init=False)

    def learn_one(self, x: Features, y: Any) -> None:
        """Absorb one sample.

        Args:
            x: numbers by name.
            y: its target.

        Raises:
            DataError: if a number is not finite, or there are no features.
            DataTypeError: if ``x`` or ``y`` is of a type that can't be used.
        """
        require_one(x)
        self._learn(x, [y])

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:
        """Absorb a batch, as one sample after the other: all of it, or nothing.

        Args:
            X: a row of numbers for each sample.
            y: the targets.

        Raises:
            DataError: if a number is not finite, or there is not one target for each row.
            DataTypeError: if a feature or a target is of a type that can't be used.
        """
        self._learn(X, y.tolist())

    def forget_one(self, x: Features, y: Any, *, at: float | None = None) -> None:
        """Take one sample out again, exactly as if it had never been learned.

        An inducing input that is this sample is dropped too; see
        :meth:`StreamingPosterior.forget_many`. What a pipeline has learned before this model, means
        and scales say, is not: the features must be those it was given then.

        Args:
            x: numbers by name, as they were learned.
            y: its target.
            at: how many samples had been learned before it, where ``discount`` is below 1.

        Raises:
            NotFittedError: if nothing was learned yet.
            DataError: if the sample can't have been learned, or is all inducing inputs.
            DataTypeError: if ``x`` or ``y`` is of a type that can't be used.
            ArgumentError: if ``at`` is needed and not given.
        """
        require_one(x)
        if self._stream is None:
            raise NotFittedError("expected a model that has learned a sample, got one that has not")
        targets, labels = self._targets([y])
        if len(labels) > len(self._labels):
            raise DataError(f"expected a label that was learned, got {y!r:.60}")
        self._stream.forget_many(self._inputs(x), targets, at=at)

    def _learn(self, x: Any, y: list[Any]) -> None:
        targets, labels = self._targets(y)
        order = self._order or FeatureOrder.of(x)
        stream = self._stream or self._made(len(order.names))
        if len(labels) > max(2, len(self._labels)):
            stream = copy.copy(stream)
            stream.grow_outputs(len(labels))
        stream.learn_many(order.batch(x), targets)
        self._stream, self._order, self._labels = stream, order, labels

    @abstractmethod
    def _targets(self, y: list[Any]) -> tuple[Tensor, list[Hashable]]:
        """Targets of the stream, and all labels known after them."""

    def _made(self, num_features: int) -> StreamingPosterior:
        posterior = SFRPosterior(
            self.network or random_network(num_features, self.hidden, self.seed),
            self.likelihood,
            inducing=self.inducing,
            prior_precision=self.prior_precision,
            num_outputs=2 if self.likelihood == "classification" else 1,
        )
        return StreamingPosterior(
            posterior, discount=self.discount, window=self.window, swap=self.swap
        )

    def _inputs(self, x: Any) -> Tensor:
        assert self._order is not None
        return self._order.batch(x)


class StreamingClassifier(_Estimator, MiniBatchClassifier):  # type: ignore[misc]
    """A classifier of any labels, new ones at any time; see :class:`StreamingPosterior`.

    Features that are missing count as 0, so scale before: ``StandardScaler() | ...``.
    Features that the first sample does not have are ignored.

    Args:
        network: maps as many features as the first sample has, sorted by name; its outputs need
            not be the classes. By default a random one, of one hidden layer.
        inducing: M.
        prior_precision: see :class:`SFRPosterior`.
        discount: weight that is left of everything when one more sample has passed.
        window: samples that are remembered, by default all.
        swap: whether inducing inputs are exchanged where new regions appear; samples from before
            an exchange can't be forgotten, unless there is a window.
        hidden: units of the default network.
        seed: of the default network.

    Raises:
        ArgumentError: from the first ``learn_one`` or ``learn_many``, if an option has a value
            that can't be used.

    >>> model = StreamingClassifier(inducing=8, hidden=16)
    >>> for step in range(30):
    ...     model.learn_one({"x": step % 2}, "odd" if step % 2 else "even")
    >>> model.predict_one({"x": 1})
    'odd'
    """

    likelihood = "classification"

    @property
    def _multiclass(self) -> bool:
        return True

    def predict_proba_one(self, x: Features) -> dict[Hashable, float]:
        """Probabilities of the labels seen so far.

        Args:
            x: numbers by name.

        Returns:
            A probability for each label; nothing before the first sample.

        Raises:
            DataError: if a number is not finite.
            DataTypeError: if ``x`` is no dictionary of numbers.
        """
        require_one(x)
        if self._stream is None:
            return {}
        return dict(zip(self._labels, self._probabilities(x)[0].tolist(), strict=True))

    def predict_one(self, x: Features) -> Hashable | None:
        """The likeliest label.

        Args:
            x: numbers by name.

        Returns:
            The label; ``None`` before the first sample.

        Raises:
            DataError, DataTypeError: as :meth:`predict_proba_one` does.
        """
        found = self.predict_proba_one(x)
        return max(found, key=found.__getitem__) if found else None

    def predict_proba_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """Probabilities of the labels seen so far.

        Args:
            X: a row of numbers for each sample.

        Returns:
            A row for each sample, a column for each label.

        Raises:
            DataError: if a number is not finite.
            DataTypeError: if a feature is no number.
        """
        import pandas as pd

        if self._stream is None:
            return pd.DataFrame(index=X.index)
        found = self._probabilities(X).cpu().numpy()
        return pd.DataFrame(found, index=X.index, columns=self._labels)

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """The likeliest label of each sample.

        Args:
            X: a row of numbers for each sample.

        Returns:
            The labels; each is ``None`` before the first sample.

        Raises:
            DataError, DataTypeError: as :meth:`predict_proba_many` does.
        """
        import pandas as pd

        found = self.predict_proba_many(X)
        if found.empty:
            return pd.Series([None] * len(X), index=X.index, dtype=object)
        return found.idxmax(axis="columns")

    def _probabilities(self, x: Any) -> Tensor:
        assert self._stream is not None
        found = self._stream.predict_proba_many(self._inputs(x))[:, : len(self._labels)]
        return found / found.sum(1, keepdim=True)

    def _targets(self, y: list[Any]) -> tuple[Tensor, list[Hashable]]:
        given = [_label(label) for label in y]
        labels = list(dict.fromkeys([*self._labels, *given]))
        return torch.tensor([labels.index(label) for label in given]), labels


class StreamingRegressor(_Estimator, MiniBatchRegressor):  # type: ignore[misc]
    """A regressor that learns its noise and prior precision; see :class:`StreamingPosterior`.

    Before it has learned much it expects targets around 0: let them be scaled, by river's
    ``TargetStandardScaler(regressor=StreamingRegressor())`` for one.

    Args:
        network: maps as many features as the first sample has, sorted by name. By default a
            random one, of one hidden layer.
        inducing: M.
        prior_precision: see :class:`SFRPosterior`.
        discount: weight that is left of everything when one more sample has passed.
        window: samples that are remembered, by default all.
        swap: whether inducing inputs are exchanged where new regions appear; samples from before
            an exchange can't be forgotten, unless there is a window.
        hidden: units of the default network.
        seed: of the default network.

    Raises:
        ArgumentError: from the first ``learn_one`` or ``learn_many``, if an option has a value
            that can't be used.

    >>> model = StreamingRegressor(inducing=8, hidden=16)
    >>> for step in range(30):
    ...     model.learn_one({"x": step / 10}, 2 * step / 10)
    >>> round(model.predict_one({"x": 1.5}), 1)
    3.0
    """

    likelihood = "regression"

    def predict_one(self, x: Features) -> float:
        """The mean of the target.

        Args:
            x: numbers by name.

        Returns:
            The mean; 0 before the first sample.

        Raises:
            DataError: if a number is not finite.
            DataTypeError: if ``x`` is no dictionary of numbers.
        """
        require_one(x)
        return 0.0 if self._stream is None else self._means(x)[0]

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """The mean of the target of each sample.

        Args:
            X: a row of numbers for each sample.

        Returns:
            The means; each is 0 before the first sample.

        Raises:
            DataError: if a number is not finite.
            DataTypeError: if a feature is no number.
        """
        import pandas as pd

        found = [0.0] * len(X) if self._stream is None else self._means(X)
        return pd.Series(found, index=X.index)

    def _means(self, x: Any) -> list[float]:
        assert self._stream is not None
        found: list[float] = self._stream.predict_many(self._inputs(x))[:, 0].tolist()
        return found

    def _targets(self, y: list[Any]) -> tuple[Tensor, list[Hashable]]:
        try:
            return torch.tensor([float(plain(value)) for value in y], dtype=torch.float64), []
        except (TypeError, ValueError, OverflowError) as error:
            raise DataTypeError(f"expected targets that are numbers, got {y!r:.60}") from error


def _label(given: Any) -> Hashable:
    label: Hashable = plain(given)
    try:
        hash(label)
        usable = bool(label == label)
    except (TypeError, ValueError, RuntimeError):
        usable = False
    if not usable:
        raise DataTypeError(
            f"expected a label that can be hashed, and equals itself, got {label!r:.60}"
        )
    return label


def random_network(num_features: int, hidden: int, seed: int) -> nn.Module:
    """One hidden layer with random weights: its tangent kernel is a sensible one."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(num_features, hidden), nn.Tanh(), nn.Linear(hidden, 1))
