"""Names beside what they name keep order and distance."""

import numpy as np
import pytest

from sfr_cl.benchmarks.report import labels


@pytest.mark.parametrize("seed", range(5))
def test_spread_keeps_order_and_distance(seed: int) -> None:
    values = np.random.default_rng(seed).beta(0.3, 0.3, 16)
    places = np.array(labels.spread(values.tolist(), 0.05, 0.0, 1.0))
    order = np.argsort(values)
    assert np.diff(places[order]).min() > 0.05 - 1e-5
    assert places.min() >= 0
    assert places.max() <= 1 + 1e-5


def test_spread_leaves_what_is_far_apart() -> None:
    assert labels.spread([0.9, 0.1, 0.5], 0.1, 0.0, 1.0) == [0.9, 0.1, 0.5]
    crowded = labels.spread([0.5] * 30, 0.1, 0.0, 1.0)  # more than there is room for
    assert np.diff(sorted(crowded)) == pytest.approx(1 / 29, abs=1e-5)
