"""What the defaults cost beside those before, and the best on validation data: fourteen problems.

The numbers that were chosen (`CAUTION`, `CONFIDENCE`, `GROWTH`) were chosen on seeds 0 to 3.
"""

from pathlib import Path

import pytest

from support import calibration
from support.calibration import PROBLEMS, SEEDS, measure, over

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", PROBLEMS)
def test_never_worse_than_the_defaults_before(name: str, data_root: Path) -> None:
    row = over([measure(name, seed, data_root) for seed in SEEDS])
    print(f"{calibration.HEADER}\n{calibration.line(name, row)}")
    assert row.now.nlpd <= row.before.nlpd + 0.02
