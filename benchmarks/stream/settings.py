"""Hyperparameters of each method, chosen by `sfr-cl stream --tune` from as many trials for each.

They are in `settings.json`, with what was tried. Elec2's trials see its first samples, which are
not scored later; those of MNIST see other images than the stream does, the classes in its order.
"""

import json
from importlib.resources import files
from typing import Any

Setting = dict[str, float]

GRIDS: dict[str, tuple[Setting, ...]] = {
    "sfr-stream": tuple(
        {"discount": discount, "prior_precision": delta}
        for discount in (1.0, 0.99, 0.95)
        for delta in (1.0, 0.1)
    ),
    "logistic": tuple({"learning_rate": rate} for rate in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)),
    "hoeffding": tuple({"grace_period": n} for n in (25, 50, 100, 200, 400, 800)),
    "forest": tuple({"grace_period": n} for n in (10, 25, 50, 100, 200, 400)),
    "sgd": tuple({"alpha": alpha} for alpha in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)),
    "network": tuple({"learning_rate": rate} for rate in (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)),
}
"""What is tried for each method, as many for each; `no-change` has nothing to choose."""

NAME = "settings.json"


def read() -> dict[str, Any]:
    """Streams, and in them methods: the setting `chosen`, and the trials it was chosen from."""
    return dict(json.loads((files(__package__) / NAME).read_text(encoding="utf-8")))


def of(data: str, method: str) -> Setting:
    """The setting of a method on some data; empty for one without any."""
    return dict(read()[data][method]["chosen"]) if method in GRIDS else {}
