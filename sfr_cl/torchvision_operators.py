"""torchvision on a torch build of another kind.

Where torch is a CPU build and torchvision is not, ``import torchvision`` fails on two operators it
could not register. Nothing here uses them; declaring them makes the import, and that of packages
that stand on torchvision, work.
"""

from __future__ import annotations

import importlib
import sys

import torch

OPERATORS = ("nms", "qnms")
_declared: list[torch.library.Library] = []  # a library's operators live as long as it does


def declare() -> None:
    """Declare the operators if torchvision is there and its import fails for want of them."""
    if _declared or "torchvision" in sys.modules:
        return
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in OPERATORS:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
