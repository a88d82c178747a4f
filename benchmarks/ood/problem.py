"""What all methods of a direction and seed share: the network, and the images they are given."""

from functools import cached_property
from typing import Any, NamedTuple

import torch
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from ..cl.data import Data
from ..runner import ShowShare
from . import training

VALIDATION = 5_000
"""Training images held out: methods choose on some of them."""
CHOSEN_ON, TESTED = 1_000, 2_000
"""Images a posterior chooses on, and is tested with, on either side.

Equal for all methods; laplace-torch's predictions take too long for more.
"""


class Labelled(NamedTuple):
    """Images and labels."""

    x: Tensor
    y: Tensor

    def at(self, rows: Any) -> "Labelled":
        """Some of them."""
        return Labelled(self.x[rows], self.y[rows])


class Problem:
    """Images of one data set to be told from those of another."""

    def __init__(self, inside: Data, outside: Data, seed: int) -> None:
        self.inside, self.outside, self.seed = inside.name, outside.name, seed
        self.show: ShowShare = lambda _: None
        kept, held = train_test_split(
            torch.arange(len(inside.y_train)).numpy(),
            test_size=min(VALIDATION, len(inside.y_train) // 4),
            stratify=inside.y_train.numpy(),
            random_state=seed,
        )
        known = Labelled(inside.x_train, inside.y_train)
        self.fitted = known.at(kept)
        """What the network is trained on, and the posteriors are fitted on."""
        self.validation = known.at(held[:CHOSEN_ON])
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randperm(len(inside.y_test), generator=generator)[:TESTED]
        self.test = Labelled(inside.x_test, inside.y_test).at(rows)
        rows = torch.randperm(len(outside.y_test), generator=generator)[:TESTED]
        self.strangers = outside.x_test[rows]

    @cached_property
    def network(self) -> nn.Sequential:
        """Trained once, when first asked for."""
        return training.train(*self.fitted, self.seed, lambda share: self.show(0.9 * share))
