"""Short runs of the benchmark, shared by its tests."""

import json
from pathlib import Path
from typing import Any

from sfr_cl.benchmarks import cli
from sfr_cl.benchmarks.cl import data, experiment, settings
from sfr_cl.benchmarks.cl.experiment import Case

DIGITS = data.load("digits")
MEMORY = 20
CONDITIONING = {"num_inducing": 60, "hidden": [32, 32]}
SHORT: dict[str, Any] = {
    "memories": {
        str(MEMORY): {
            "common": {
                "network": "mlp",
                "hidden": [32],
                "optimizer": "adam",
                "lr": 1e-2,
                "batch": 16,
                "epochs": 4,
                "weight_decay": 0.0,
            },
            "strategies": {
                "sfr-condition": {"values": CONDITIONING, "chosen_by": "default"},
                "sfr-condition-cnn": {"values": {"num_inducing": 60}, "chosen_by": "default"},
            },
        }
    }
}


def short_case(strategy: str, scenario: str = "class", seed: int = 0) -> Case:
    setting = settings.setting(SHORT, MEMORY, strategy)
    return Case(DIGITS, scenario, strategy, seed, MEMORY, setting)


def short_row(strategy: str, scenario: str = "class", seed: int = 0) -> dict[str, Any]:
    return experiment.run(short_case(strategy, scenario, seed))


def command(name: str, out: Path, *options: str) -> int:
    """The exit code of a command with the short settings."""
    file = out.parent / "short.json"
    file.write_text(json.dumps(SHORT), encoding="utf-8")
    shared = ["--memory", str(MEMORY), "--settings", str(file), "--out", str(out)]
    return cli.main([name, *shared, *options])
