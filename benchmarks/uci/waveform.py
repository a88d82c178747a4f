"""Breiman's waveforms (Classification and Regression Trees, 1984): 21 noisy points on a curve.

A class is a pair of three triangles; a sample is a random mixture of the pair, plus unit noise at
every point. The best possible classifier is wrong on 14 % of it.
"""

import numpy as np
import numpy.typing as npt

SEED = 0
ROWS = 1000
POINTS = np.arange(1, 22)
CENTRES = (11, 7, 15)
HEIGHT = 6
PAIRS = ((0, 1), (0, 2), (1, 2))
"""Of triangles, by class."""


def make() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Inputs [1000, 21] and labels [1000], the same at every call."""
    generator = np.random.default_rng(SEED)
    triangles = np.array([np.maximum(HEIGHT - abs(POINTS - centre), 0) for centre in CENTRES])
    labels = generator.integers(len(PAIRS), size=ROWS)
    first, second = triangles[np.array(PAIRS)[labels].T]
    share = generator.random((ROWS, 1))
    noise = generator.standard_normal((ROWS, len(POINTS)))
    return share * first + (1 - share) * second + noise, labels
