"""Streams as river's estimators: for its pipelines, its evaluation and its checks.

They work without river too; with it (``pip install "sfr-cl[streams]"``) they are its own kind.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sfr_cl.errors import DataTypeError
from sfr_cl.posterior import SFRPosterior
from sfr_cl.streaming.features import FeatureOrder, plain
from sfr_cl.streaming.posterior import StreamingPosterior

if TYPE_CHECKING:
    import pandas as pd

try:
    from river.base import MiniBatchClassifier, MiniBatchRegressor
except ImportError:
    MiniBatchClassifier = MiniBatchRegressor = object

__all__ = ["StreamingClassifier", "StreamingRegressor"]

Features = Mapping[Hashable, Any]


class _Estimator:
    """What both faces share. The stream is made when the first sample shows its features."""

    likelihood: str

    def __init__(
        self,
        network: nn.Module | None = None,
        inducing: int = 200,
        prior_precision: float | None = None,
        discount: float = 1.0,
        window: int | None = None,
        swap: bool = True,
        hidden: int = 256,
        seed: int = 0,
    ) -> None:
        self.network = network
        self.inducing = inducing
        self.prior_precision = prior_precision
        self.discount = discount
        self.window = window
        self.swap = swap
        self.hidden = hidden
        self.seed = seed
        self._stream: StreamingPosterior | None = None
        self._order: FeatureOrder | None = None
        self._labels: list[Hashable] = []

    def _learn(
        self,
        first: Features,
        inputs: Callable[[FeatureOrder], Tensor],
        y: Tensor,
        *,
        grow_to: int | None = None,
    ) -> None:
        """Absorb a batch; only then is anything of it remembered."""
        order = self._order or FeatureOrder.of(first)
        x = inputs(order)
        stream = self._stream or self._made(len(order.names))
        if grow_to is not None:
            stream = copy.copy(stream)
            stream.grow_outputs(grow_to)
        stream.learn_many(x, y)
        self._stream, self._order = stream, order

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

    def _vector(self, x: Features) -> Tensor:
        assert self._order is not None
        return self._order.vector(x)[None]

    def _matrix(self, x: pd.DataFrame) -> Tensor:
        assert self._order is not None
        return self._order.matrix(x)


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
        swap: whether inducing inputs are exchanged where new regions appear.
        hidden: units of the default network.
        seed: of the default network.
    """

    likelihood = "classification"

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: Features, y: Hashable) -> None:
        """Absorb one sample."""
        self._learn_labels(x, lambda order: order.vector(x)[None], [y])

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:
        """Absorb a batch, as one sample after the other."""
        first = dict.fromkeys(X.columns, 0.0)
        self._learn_labels(first, lambda order: order.matrix(X), y.tolist())

    def predict_proba_one(self, x: Features) -> dict[Hashable, float]:
        """Probabilities of the labels seen so far."""
        if self._stream is None or not self._labels:
            return {}
        return dict(
            zip(self._labels, self._probabilities(self._vector(x))[0].tolist(), strict=True)
        )

    def predict_one(self, x: Features) -> Hashable | None:
        """The likeliest label."""
        found = self.predict_proba_one(x)
        return max(found, key=found.__getitem__) if found else None

    def predict_proba_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """Probabilities of the labels seen so far, a column for each."""
        import pandas as pd

        if self._stream is None or not self._labels:
            return pd.DataFrame(index=X.index)
        found = self._probabilities(self._matrix(X))
        return pd.DataFrame(found.numpy(), index=X.index, columns=self._labels)

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """The likeliest labels."""
        import pandas as pd

        found = self.predict_proba_many(X)
        if found.empty:
            return pd.Series([None] * len(X), index=X.index, dtype=object)
        return found.idxmax(axis="columns")

    def _probabilities(self, x: Tensor) -> Tensor:
        assert self._stream is not None
        found = self._stream.predict_proba_many(x)[:, : len(self._labels)]
        return found / found.sum(1, keepdim=True)

    def _learn_labels(
        self, first: Features, inputs: Callable[[FeatureOrder], Tensor], y: list[Any]
    ) -> None:
        labels, indices = list(self._labels), []
        for given in y:
            label = _label(given)
            if label not in labels:
                labels.append(label)
            indices.append(labels.index(label))
        grow_to = len(labels) if len(labels) > max(2, len(self._labels)) else None
        self._learn(first, inputs, torch.tensor(indices), grow_to=grow_to)
        self._labels = labels


class StreamingRegressor(_Estimator, MiniBatchRegressor):  # type: ignore[misc]
    """A regressor that learns its noise and prior precision; see :class:`StreamingPosterior`.

    Before it has learned much it expects targets around 0: let them be scaled, by river's
    ``TargetStandardScaler(regressor=StreamingRegressor())`` for one. The arguments are those of
    :class:`StreamingClassifier`.
    """

    likelihood = "regression"

    def learn_one(self, x: Features, y: float) -> None:
        """Absorb one sample."""
        self._learn(x, lambda order: order.vector(x)[None], _targets([y]))

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:
        """Absorb a batch, as one sample after the other."""
        first = dict.fromkeys(X.columns, 0.0)
        self._learn(first, lambda order: order.matrix(X), _targets(y.tolist()))

    def predict_one(self, x: Features) -> float:
        """The mean of the target; 0 before anything was learned."""
        if self._stream is None:
            return 0.0
        return float(self._stream.predict_many(self._vector(x))[0, 0])

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """The means of the targets."""
        import pandas as pd

        found = [0.0] * len(X)
        if self._stream is not None:
            found = self._stream.predict_many(self._matrix(X))[:, 0].tolist()
        return pd.Series(found, index=X.index)


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


def _targets(y: list[Any]) -> Tensor:
    try:
        return torch.tensor([float(plain(value)) for value in y], dtype=torch.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataTypeError(f"expected targets that are numbers, got {y!r:.60}") from error


def random_network(num_features: int, hidden: int, seed: int) -> nn.Module:
    """One hidden layer with random weights: its tangent kernel is a sensible one."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(num_features, hidden), nn.Tanh(), nn.Linear(hidden, 1))
