"""In whatever order: torchvision, Avalanche, which imports it, and what makes both importable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ORDERS = """
import itertools, os, sys
import {first}

IMPORTS = {imports}

def succeed(statement):
    try:
        exec(statement, {{}})
    except RuntimeError as error:  # a build of torchvision for another one of torch
        assert "torchvision::" in str(error), error
        return False
    return True

for order in itertools.permutations(IMPORTS):
    child = os.fork()
    if child == 0:
        for statement in order:
            assert succeed(statement) or statement != IMPORTS[0], statement
        # What failed before the operators were declared works now.
        every = all(succeed(statement) for statement in IMPORTS)
        os._exit(0 if every else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(status, *order, sep="; ")
"""

OF_ANOTHER_BUILD = """
import torch

@torch.library.register_fake("torchvision::nms")
def nms(dets, scores, iou_threshold):
    return dets
"""

OF_THIS_BUILD = """
import torch

library = torch.library.Library("torchvision", "DEF")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def statuses(script: str, folder: Path) -> list[str]:
    """What every order ended with."""
    command = [sys.executable, "-W", "ignore", "-c", script]
    path = {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env=path, cwd=folder
    )
    assert result.returncode == 0, result.stderr
    return [line.partition(";")[0] + result.stderr for line in result.stdout.splitlines()]


@pytest.mark.parametrize("torchvision", [OF_THIS_BUILD, OF_ANOTHER_BUILD], ids=["same", "other"])
def test_orders_with_packages_like_these(torchvision: str, tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision/__init__.py").write_text("from . import operators")
    (tmp_path / "torchvision/operators.py").write_text(torchvision)
    (tmp_path / "avalanche.py").write_text("import torchvision")
    declared = "from sfr_cl import torchvision_operators as t; t.declare(); import avalanche"
    imports = [declared, "import torchvision", "import avalanche"]
    script = ORDERS.format(first="sfr_cl", imports=imports)
    assert statuses(script, tmp_path) == ["0"] * 6


@pytest.mark.long
def test_orders(tmp_path: Path) -> None:
    imports = ["import sfr_cl.strategies", "import torchvision", "import avalanche"]
    script = ORDERS.format(first="torch._dynamo, scipy.signal, matplotlib", imports=imports)
    assert statuses(script, tmp_path) == ["0"] * 6
