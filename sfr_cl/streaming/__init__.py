"""Streams that never stop: learned in any portions, answered at any moment, never lost."""

from sfr_cl.streaming.autosave import Autosave
from sfr_cl.streaming.changes import Relinearised
from sfr_cl.streaming.coverage import Coverage
from sfr_cl.streaming.posterior import StreamingPosterior
from sfr_cl.streaming.scores import Drift

__all__ = ["Autosave", "Coverage", "Drift", "Relinearised", "StreamingPosterior"]
