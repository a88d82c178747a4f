"""Streams that never stop: learned in any portions, predicting at any moment, never lost."""

from typing import Any

from sfr_cl import deprecation
from sfr_cl.streaming.autosave import Autosave
from sfr_cl.streaming.inducing import ResidualBound
from sfr_cl.streaming.monitor import Drift
from sfr_cl.streaming.operations import Relinearized
from sfr_cl.streaming.posterior import StreamingPosterior

__all__ = ["Autosave", "Drift", "Relinearized", "ResidualBound", "StreamingPosterior"]

RENAMED = {"Coverage": "ResidualBound", "Relinearised": "Relinearized"}


def __getattr__(name: str) -> Any:
    """Names that were changed."""
    if name not in RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    deprecation.warn(name, RENAMED[name])
    return globals()[RENAMED[name]]
