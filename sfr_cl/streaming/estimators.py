"""The old name of :mod:`sfr_cl.streaming.river`."""

from sfr_cl.deprecation import warn
from sfr_cl.streaming.river import StreamingClassifier, StreamingRegressor, random_network

__all__ = ["StreamingClassifier", "StreamingRegressor", "random_network"]

warn(__name__, "sfr_cl.streaming.river")
