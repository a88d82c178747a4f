"""The old name of :mod:`sfr_cl.streaming.river`."""

from sfr_cl.deprecation import warn
from sfr_cl.streaming.river import StreamingClassifier, StreamingRegressor

__all__ = ["StreamingClassifier", "StreamingRegressor"]

warn(__name__, "sfr_cl.streaming.river")
