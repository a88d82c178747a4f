"""What is compared: ours, river's, scikit-learn's, and a network trained as samples come."""

import warnings
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from river import dummy, forest, linear_model, optim, tree
from sklearn.linear_model import SGDClassifier
from torch import Tensor, nn

from sfr_cl import SFRPosterior, StreamingPosterior

from ..harness.networks import mlp
from .data import Stream
from .settings import Setting

INDUCING = {"elec2": 200, "mnist": 500}


class Method(Protocol):
    """A learner of one sample at a time."""

    @property
    def state(self) -> Any:
        """All it remembers, to be pickled."""

    def predict(self, x: Tensor) -> Tensor:
        """Probabilities of the classes for a batch, ``[B, C]``."""

    def learn(self, x: Tensor, y: int) -> None:
        """Learn one sample."""


def hidden_network(stream: Stream, outputs: int, seed: int) -> nn.Module:
    """One hidden layer: ours stays random, the other is trained."""
    torch.manual_seed(seed)
    return mlp(stream.x.shape[1], 256, outputs, activation=nn.Tanh)


class Ours:
    """`StreamingPosterior` of a random network."""

    def __init__(self, stream: Stream, setting: Setting, seed: int) -> None:
        posterior = SFRPosterior(
            hidden_network(stream, 1, seed),
            "classification",
            inducing=INDUCING[stream.name],
            prior_precision=setting["prior_precision"],
            num_outputs=stream.num_classes,
        )
        self.state = StreamingPosterior(posterior, discount=setting["discount"])

    def predict(self, x: Tensor) -> Tensor:
        return self.state.predict_proba_many(x)

    def learn(self, x: Tensor, y: int) -> None:
        self.state.learn_one(x, y)


class River:
    """An estimator of river."""

    def __init__(self, model: Any, num_classes: int) -> None:
        self.state, self._num_classes = model, num_classes

    def predict(self, x: Tensor) -> Tensor:
        rows = [self._row(self.state.predict_proba_one(_features(row))) for row in x]
        return torch.stack(rows)

    def learn(self, x: Tensor, y: int) -> None:
        self.state.learn_one(_features(x), y)

    def _row(self, found: dict[int, float]) -> Tensor:
        row = torch.tensor([float(found.get(label, 0.0)) for label in range(self._num_classes)])
        total = float(row.sum())
        return row.double() / total if total > 0 else torch.full_like(row, 1 / len(row)).double()


class Sgd:
    """scikit-learn's `SGDClassifier.partial_fit`, with the logistic loss."""

    def __init__(self, stream: Stream, setting: Setting, seed: int) -> None:
        self.state = SGDClassifier(loss="log_loss", random_state=seed, **setting)
        self._classes = np.arange(stream.num_classes)
        self._learned = False

    def predict(self, x: Tensor) -> Tensor:
        if not self._learned:
            return torch.full((len(x), len(self._classes)), 1 / len(self._classes)).double()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # its sigmoid may overflow to 0
            found = torch.from_numpy(self.state.predict_proba(x.numpy()))
        return found.nan_to_num(1 / len(self._classes))

    def learn(self, x: Tensor, y: int) -> None:
        self.state.partial_fit(x[None].numpy(), [y], classes=self._classes)
        self._learned = True


class Tuned:
    """The same network as ours, one step of stochastic gradient descent for every sample."""

    def __init__(self, stream: Stream, setting: Setting, seed: int) -> None:
        self.state = hidden_network(stream, stream.num_classes, seed)
        self._optimizer = torch.optim.SGD(self.state.parameters(), setting["learning_rate"])

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        return self.state(x.float()).softmax(1).double()

    def learn(self, x: Tensor, y: int) -> None:
        self._optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.state(x[None].float()), torch.tensor([y]))
        loss.backward()
        self._optimizer.step()


def _features(row: Tensor) -> dict[int, float]:
    return dict(enumerate(row.tolist()))


def _logistic(stream: Stream, setting: Setting) -> Any:
    optimizer = optim.SGD(setting["learning_rate"])
    if stream.num_classes == 2:
        return linear_model.LogisticRegression(optimizer)
    return linear_model.SoftmaxRegression(optimizer)


def _hoeffding(setting: Setting, seed: int) -> Any:
    return tree.HoeffdingAdaptiveTreeClassifier(int(setting["grace_period"]), seed=seed)


def _forest(setting: Setting, seed: int) -> Any:
    return forest.ARFClassifier(grace_period=int(setting["grace_period"]), seed=seed)


METHODS: dict[str, Callable[[Stream, Setting, int], Method]] = {
    "sfr-stream": Ours,
    "no-change": lambda stream, _, __: River(dummy.NoChangeClassifier(), stream.num_classes),
    "logistic": lambda stream, setting, _: River(_logistic(stream, setting), stream.num_classes),
    "hoeffding": lambda stream, setting, seed: River(_hoeffding(setting, seed), stream.num_classes),
    "forest": lambda stream, setting, seed: River(_forest(setting, seed), stream.num_classes),
    "sgd": Sgd,
    "network": Tuned,
}


def make(name: str, stream: Stream, setting: Setting, seed: int) -> Method:
    """A method with nothing learned."""
    return METHODS[name](stream, setting, seed)
