"""Fixtures shared by the tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sfr_cl import torchvision_operators

torchvision_operators.declare()  # before any test imports Avalanche


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small take twenty times longer on several threads of a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data sets; tests that ask for it skip where there is none."""
    folder = os.environ.get("SFR_CL_DATA")
    if not folder:
        pytest.skip("needs real data: set SFR_CL_DATA to the data folder")
    if not Path(folder).is_dir():
        pytest.skip(f"needs real data: SFR_CL_DATA={folder} is not a folder")
    return Path(folder)
