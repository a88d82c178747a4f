"""What `sfr-cl cl` knows by name, and which of it goes together.

Apart from what makes it, so that help, and the refusal of a misspelt name, wait for no import.
"""

from collections.abc import Sequence

from sfr_cl.errors import ArgumentError

from ..harness.options import check_names

DATA = ("digits", "mnist", "fmnist", "pmnist", "cifar10")
PERMUTED = "pmnist"
SCENARIOS = ("class", "domain", "task")
STRATEGIES = (
    "sfr",
    "sfr-l2",
    "sfr-condition",
    "sfr-condition-cnn",
    "replay+sfr",
    "naive",
    "joint",
    "ewc",
    "online-ewc",
    "si",
    "lwf",
    "replay",
    "der",
    "der++",
    "gdumb",
    "agem",
    "gem",
)
ONE_HEAD = ("der", "der++")
"""Strategies that can't work with one head per task."""


def default_scenario(data: str) -> str:
    """The scenario of a data set where none is asked for."""
    return "domain" if data == PERMUTED else "class"


def check_scenario(data: str, scenario: str) -> None:
    """Refuse a combination that makes no benchmark."""
    if scenario not in SCENARIOS:
        raise ArgumentError(
            f"expected a scenario of {', '.join(SCENARIOS)}, got {scenario!r}: check the name"
        )
    if data == PERMUTED and scenario != "domain":
        raise ArgumentError(
            f"expected the scenario domain for {PERMUTED}, whose tasks all have the same classes, "
            f"got {scenario}: use --scenario domain, or --data mnist"
        )


def able(scenario: str) -> list[str]:
    """The strategies that can do a scenario."""
    return [name for name in STRATEGIES if scenario != "task" or name not in ONE_HEAD]


def check_strategies(names: Sequence[str], scenario: str) -> None:
    """Refuse unknown names, and strategies that can't do the scenario."""
    check_names("strategies", names, STRATEGIES)
    if unable := [name for name in names if name not in able(scenario)]:
        raise ArgumentError(
            f"expected strategies that work with one head per task, got {', '.join(unable)}: "
            "Avalanche's DER keeps the logits of one fixed head; leave it out of --scenario task"
        )
