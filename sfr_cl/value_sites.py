"""The old name of :mod:`sfr_cl.core.transfer`."""

from sfr_cl.core.transfer import Sites as ValueSites
from sfr_cl.deprecation import warn

__all__ = ["ValueSites"]

warn(f"{__name__}.ValueSites", "sfr_cl.core.transfer.Sites")
