"""What all methods of a direction and seed share: the network, and the images they are given."""

from functools import cached_property
from typing import Any, NamedTuple

import torch
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from ..harness.images import Data
from ..harness.run import ShowShare
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
    """Images of one data set, and out-of-distribution (OOD) images of another."""

    def __init__(self, data: Data, ood: Data, seed: int) -> None:
        self.data, self.ood, self.seed = data.name, ood.name, seed
        self.show: ShowShare = lambda _: None
        kept, held = train_test_split(
            torch.arange(len(data.y_train)).numpy(),
            test_size=min(VALIDATION, len(data.y_train) // 4),
            stratify=data.y_train.numpy(),
            random_state=seed,
        )
        known = Labelled(data.x_train, data.y_train)
        self.fitted = known.at(kept)
        """What the network is trained on, and the posteriors are fitted on."""
        self.validation = known.at(held[:CHOSEN_ON])
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randperm(len(data.y_test), generator=generator)[:TESTED]
        self.test = Labelled(data.x_test, data.y_test).at(rows)
        rows = torch.randperm(len(ood.y_test), generator=generator)[:TESTED]
        self.ood_images = ood.x_test[rows]

    @cached_property
    def network(self) -> nn.Sequential:
        """Trained once, when first asked for."""
        return training.train(*self.fitted, self.seed, lambda share: self.show(0.9 * share))
