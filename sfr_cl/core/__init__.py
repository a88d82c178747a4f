"""The posterior as records: an equation of the paper a file.

:class:`Spec` is what was asked for, :class:`Basis` the frozen network and its features phi(x),
:class:`DualSums` the data, :class:`State` the three together, and :class:`Solved` the mean and
variance of f that they give. All are immutable.
"""

from sfr_cl.core.basis import Basis, Features, InducingInputs
from sfr_cl.core.predict import Predictor
from sfr_cl.core.solve import Solved
from sfr_cl.core.spec import Spec
from sfr_cl.core.state import State
from sfr_cl.core.sums import DualSums, Terms

__all__ = [
    "Basis",
    "DualSums",
    "Features",
    "InducingInputs",
    "Predictor",
    "Solved",
    "Spec",
    "State",
    "Terms",
]
