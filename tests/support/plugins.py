"""SFR plug-ins, tasks for them, and a model after training."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from sfr_cl.strategies import SFRPlugin
from sfr_cl.testing.streams import Labelled, blobs


def task(*classes: int, rows: int = 20) -> Labelled:
    x, y = blobs(1, rows)
    own = torch.isin(y, torch.tensor(classes))
    return Labelled(x[own], y[own])


def plugin(**options: Any) -> SFRPlugin:
    options = {"num_inducing": 10, "likelihood": "classification", "verbose": False, **options}
    return SFRPlugin(**options)


def moved(model: nn.Module, step: float = 0.1) -> nn.Module:
    """Other weights, the same for every copy."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(step * torch.randn(parameter.shape, generator=generator).to(parameter))
    return other


def three_tasks(model: nn.Module, **options: Any) -> SFRPlugin:
    sfr = plugin(**options)
    for classes in ((0, 1), (2, 3), (4, 5)):
        sfr.end_task(model, task(*classes))
    return sfr
