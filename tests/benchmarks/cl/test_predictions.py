"""What follows from the accuracies of all experiences."""

import pytest

from sfr_cl.benchmarks.cl import predictions


def test_forgetting_counts_from_the_best_since_the_experience_was_learned() -> None:
    matrix = [[0.9, 0.8, 0.0], [0.95, 0.7, 0.0], [0.5, 0.6, 1.0]]
    # The 0.8 was there before the second experience: nothing learned, nothing forgotten.
    assert predictions.forgetting(matrix) == pytest.approx((0.95 - 0.5 + 0.7 - 0.6) / 2)
    assert predictions.forgetting([[0.9, 0.8]]) == 0
