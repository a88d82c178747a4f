"""SFR for Avalanche: a strategy, a plug-in, conditioning alone, metrics and checkpoints."""

from importlib.util import find_spec

from sfr_cl import torchvision_operators

if find_spec("avalanche") is None:
    raise ModuleNotFoundError(
        "expected Avalanche, on which sfr_cl.strategies stands, got none: install the extra "
        "'strategies', sfr-cl[strategies], which brings it",
        name="avalanche",
    )
torchvision_operators.declare()  # before the first import of Avalanche, which imports torchvision

from .checkpoints import maybe_load_checkpoint, save_checkpoint  # noqa: E402
from .conditioning import SFRConditioning  # noqa: E402
from .metrics import brier_metrics, ece_metrics, nlpd_metrics  # noqa: E402
from .plugin import SFRPlugin  # noqa: E402
from .sfr import SFR  # noqa: E402

__all__ = [
    "SFR",
    "SFRConditioning",
    "SFRPlugin",
    "brier_metrics",
    "ece_metrics",
    "maybe_load_checkpoint",
    "nlpd_metrics",
    "save_checkpoint",
]
