"""The strategies by name: ours and Avalanche's, on the same network with the same memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import torch
from avalanche.core import SupervisedPlugin
from avalanche.logging import BaseLogger
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import (
    AGEM,
    DER,
    EWC,
    GEM,
    GDumb,
    JointTraining,
    LwF,
    Naive,
    Replay,
    SynapticIntelligence,
)
from avalanche.training.templates import SupervisedTemplate
from torch import nn

from sfr_cl.errors import ArgumentError
from sfr_cl.strategies import SFR, SFRConditioning, SFRPlugin

from . import networks
from .scenarios import Scenario
from .settings import Setting, Values

EVAL_BATCH = 1000
TRAINING = ("network", "hidden", "outputs", "optimizer", "lr", "batch", "epochs", "weight_decay")
OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


class Stores(Enum):
    """What a strategy's own argument for its memory counts."""

    NOTHING = "nothing"
    PER_TASK = "samples of each task"
    IN_ALL = "samples of all tasks"


@dataclass(frozen=True)
class Recipe:
    """How a strategy is made."""

    build: Callable[..., SupervisedTemplate]
    """Takes the arguments Avalanche's templates share, and the strategy's own."""
    tuned: str
    """The argument, or part of the training, that `sfr-cl tune` chooses."""
    grid: tuple[float, ...]
    own: Values = field(default_factory=dict)
    """Values where the settings name none."""
    stores: Stores = Stores.NOTHING
    memory_argument: str = ""
    trains: bool = True


def replay_with_sfr(
    *, mem_size: int, num_inducing: int, tau: float, plugins: list[SupervisedPlugin], **rest: Any
) -> SupervisedTemplate:
    """Replay, regularised by the posteriors of earlier tasks."""
    penalty = SFRPlugin(num_inducing=num_inducing, tau=tau, verbose=False)
    return Replay(mem_size=mem_size, plugins=[penalty, *plugins], **rest)


EWC_DECADES = (1e3, 1e4, 1e5, 1e6, 1e7, 1e8)
SI_DECADES = (1.0, 1e1, 1e2, 1e3, 1e4, 1e5)
RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
HIGH_RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
TAUS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
IDENTITY_TAUS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
WEIGHTS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
PRIOR_PRECISIONS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
CONDITIONING: Values = {
    "num_inducing": 1000,
    "inducing": "smooth_noise",
    "outputs": 1,  # one kernel for all classes
    "batch": 512,
}

RECIPES: dict[str, Recipe] = {
    "sfr": Recipe(
        partial(SFR, verbose=False), "tau", TAUS, {"tau": 0.5}, Stores.PER_TASK, "num_inducing"
    ),
    "sfr-l2": Recipe(
        partial(SFR, verbose=False),
        "tau",
        IDENTITY_TAUS,
        {"tau": 0.5, "covariance": "identity"},
        Stores.PER_TASK,
        "num_inducing",
    ),
    "sfr-condition": Recipe(
        SFRConditioning,
        "prior_precision",
        PRIOR_PRECISIONS,
        {"network": "ntk-mlp", "hidden": [1024, 1024], "parameters": "all", **CONDITIONING},
        trains=False,
    ),
    "sfr-condition-cnn": Recipe(
        SFRConditioning,
        "prior_precision",
        PRIOR_PRECISIONS,
        {"network": "cnn", "parameters": "last_layer", **CONDITIONING},
        trains=False,
    ),
    "replay+sfr": Recipe(
        replay_with_sfr, "tau", TAUS, {"tau": 0.5}, Stores.PER_TASK, "num_inducing"
    ),
    "naive": Recipe(Naive, "lr", RATES),
    "joint": Recipe(JointTraining, "lr", RATES),
    "ewc": Recipe(EWC, "ewc_lambda", EWC_DECADES, {"ewc_lambda": 1e3}),
    "online-ewc": Recipe(
        EWC,
        "ewc_lambda",
        EWC_DECADES,
        {"ewc_lambda": 1e3, "mode": "online", "decay_factor": 1.0},
    ),
    "si": Recipe(SynapticIntelligence, "si_lambda", SI_DECADES, {"si_lambda": 1.0}),
    "lwf": Recipe(LwF, "alpha", WEIGHTS, {"alpha": 1.0, "temperature": 2.0}),
    "replay": Recipe(Replay, "lr", RATES, {}, Stores.IN_ALL, "mem_size"),
    "der": Recipe(
        DER,
        "alpha",
        WEIGHTS,
        {"alpha": 0.3, "beta": 0.0},
        Stores.IN_ALL,
        "mem_size",
    ),
    "der++": Recipe(
        DER,
        "alpha",
        WEIGHTS,
        {"alpha": 0.3, "beta": 0.5},
        Stores.IN_ALL,
        "mem_size",
    ),
    "gdumb": Recipe(GDumb, "lr", HIGH_RATES, {}, Stores.IN_ALL, "mem_size"),
    "agem": Recipe(AGEM, "lr", RATES, {"sample_size": 64}, Stores.PER_TASK, "patterns_per_exp"),
    "gem": Recipe(GEM, "lr", RATES, {"memory_strength": 0.5}, Stores.PER_TASK, "patterns_per_exp"),
}


def check_memory(names: Sequence[str], memory: int, classes: int) -> None:
    """Refuse a memory too small for the classes of a task."""
    storing = [name for name in names if RECIPES[name].stores is not Stores.NOTHING]
    if memory < 1 or (storing and memory < classes):
        raise ArgumentError(
            f"expected --memory of at least {classes}, a sample of each class of a task, got "
            f"{memory}: store more; {', '.join(storing) or 'every strategy'} can't do with less"
        )


def values_of(name: str, setting: Setting) -> Values:
    """All that a strategy is run with: what all share, then its defaults, then its settings."""
    recipe = RECIPES[name]
    common = setting.common if recipe.trains else {}
    return {**common, **recipe.own, **setting.own}


def make(
    name: str,
    values: Values,
    scenario: Scenario,
    memory: int,
    plugins: list[SupervisedPlugin],
) -> SupervisedTemplate:
    """The strategy, with a network of its own, initialised from torch's generator."""
    recipe = RECIPES[name]
    network = networks.make(
        values["network"], values.get("hidden", ()), scenario, values.get("outputs")
    )
    arguments = {key: value for key, value in values.items() if key not in TRAINING}
    if recipe.stores is not Stores.NOTHING:
        tasks = scenario.num_experiences if recipe.stores is Stores.IN_ALL else 1
        arguments[recipe.memory_argument] = memory * tasks
    if name == "replay+sfr":
        arguments["mem_size"] = memory * scenario.num_experiences
    if recipe.trains:
        kind = OPTIMIZERS[values["optimizer"]]
        optimizer = kind(
            network.parameters(),
            lr=values["lr"],
            weight_decay=values.get("weight_decay", 0.0),
            fused=True,  # a training step of a small network takes half the time
        )
        arguments |= {
            "optimizer": optimizer,
            "criterion": nn.CrossEntropyLoss(),
            "train_epochs": values["epochs"],
        }
    return recipe.build(
        model=network,
        train_mb_size=values["batch"],
        eval_mb_size=EVAL_BATCH,
        evaluator=EvaluationPlugin(loggers=BaseLogger()),
        plugins=plugins,
        **arguments,
    )
