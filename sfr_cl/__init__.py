"""Sparse function-space posteriors of neural networks, for data that keeps arriving."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfr_cl.errors import SFRError, SFRWarning
    from sfr_cl.inducing import class_balanced, greedy, noise, random, smooth_noise
    from sfr_cl.likelihoods import Likelihood
    from sfr_cl.posterior import SFRPosterior
    from sfr_cl.streaming import StreamingPosterior

__version__ = "0.1.0"

__all__ = [
    "Likelihood",
    "SFRError",
    "SFRPosterior",
    "SFRWarning",
    "StreamingPosterior",
    "class_balanced",
    "greedy",
    "noise",
    "random",
    "smooth_noise",
]

ORIGINS = {
    "Likelihood": "likelihoods",
    "SFRError": "errors",
    "SFRPosterior": "posterior",
    "SFRWarning": "errors",
    "StreamingPosterior": "streaming",
    "class_balanced": "inducing",
    "greedy": "inducing",
    "noise": "inducing",
    "random": "inducing",
    "smooth_noise": "inducing",
}
"""Where each name is from. It is imported when it is asked for first: torch takes seconds, which
`sfr-cl --help` need not wait for."""
MODULES = {"core", "data", "io", "kernel", "predictive", *ORIGINS.values()}


if not TYPE_CHECKING:  # which knows all names: any other is an error there

    def __getattr__(name: str) -> Any:
        """A name, or a module, that was not asked for before."""
        if name in ORIGINS:
            found = getattr(import_module(f"sfr_cl.{ORIGINS[name]}"), name)
            globals()[name] = found  # the next time it is there
            return found
        if name in MODULES:
            return import_module(f"sfr_cl.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *MODULES})
