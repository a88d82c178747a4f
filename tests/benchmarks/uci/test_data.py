"""The eight sets are complete, and split as the table says."""

import math

import numpy as np
import pytest
import torch

from sfr_cl.benchmarks.uci import data, waveform

SHAPES = {
    "australian": (690, 14, 2),
    "breast_cancer": (683, 10, 2),
    "digits": (1797, 64, 10),
    "glass": (214, 9, 6),
    "ionosphere": (351, 34, 2),
    "satellite": (6435, 36, 6),
    "vehicle": (846, 18, 4),
    "waveform": (1000, 21, 3),
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_set_is_there_without_any_folder(name: str) -> None:
    x, y = data.load(name)
    assert (*x.shape, len(np.unique(y))) == SHAPES[name]
    assert y.min() == 0
    assert y.max() == SHAPES[name][2] - 1
    assert np.isfinite(x).all()


@pytest.mark.parametrize("name", ["glass", "waveform"])
def test_parts_are_disjoint_stratified_and_standardised_on_training_data(name: str) -> None:
    x, y = data.load(name)
    parts = data.split(name, 3)
    sizes = [len(labels) for _, labels in (parts.train, parts.valid, parts.test)]
    assert sum(sizes) == len(y)
    assert [round(size / len(y), 2) for size in sizes] == [0.70, 0.15, 0.15]
    for _, labels in (parts.train, parts.valid, parts.test):
        expected = np.bincount(y) * len(labels) / len(y)
        assert np.abs(np.bincount(labels, minlength=len(expected)) - expected).max() <= 1
    inputs = parts.train[0].double()
    varying = x.std(0) > 0
    assert torch.allclose(inputs.mean(0), torch.zeros(x.shape[1]).double(), atol=1e-5)
    assert np.allclose(inputs.std(0, correction=0)[varying], 1, atol=1e-4)
    # Undone, the parts are the set: no row is in two of them, none is missing.
    everything = torch.cat([part[0] for part in (parts.train, parts.valid, parts.test)])
    own = (x - x.mean(0)) / np.where(varying, x.std(0), 1)
    theirs = everything.double().numpy()
    theirs = (theirs - theirs.mean(0)) / np.where(varying, theirs.std(0), 1)
    first = own[:, 0] + math.pi * own[:, 1]
    assert np.allclose(np.sort(first), np.sort(theirs[:, 0] + math.pi * theirs[:, 1]), atol=1e-4)


def test_other_seeds_split_otherwise_and_one_seed_always_the_same() -> None:
    assert torch.equal(data.split("glass", 1).test[0], data.split("glass", 1).test[0])
    assert not torch.equal(data.split("glass", 1).test[0], data.split("glass", 2).test[0])


def test_waveform_is_breimans() -> None:
    x, y = waveform.make()
    # Class 0 mixes triangles at 11 and 7: the mean is half their sum, and noise adds 1 of variance.
    triangles = [np.maximum(6 - abs(np.arange(1, 22) - centre), 0) for centre in (11, 7)]
    mine = x[y == 0]
    assert np.allclose(mine.mean(0), sum(triangles) / 2, atol=5 * 2 / math.sqrt(len(mine)))
    mixture = (triangles[0] - triangles[1]) ** 2 / 12  # of a uniform share
    assert np.allclose(mine.var(0), mixture + 1, atol=0.5)
    assert np.bincount(y).min() > 280
    assert np.array_equal(x, waveform.make()[0])
