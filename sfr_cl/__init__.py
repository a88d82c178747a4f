"""Sparse function-space posteriors of neural networks, for data that keeps arriving."""

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
