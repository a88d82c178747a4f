"""Contracts that classes of your own can be checked against.

Plain functions: each raises an ``AssertionError`` that names what was expected and what came, under
any test runner or none. :func:`check_likelihood` is for a custom
:class:`~sfr_cl.likelihoods.Likelihood`, :func:`check_refusal` for a call that must change nothing,
and :func:`sfr_cl.testing.strategies.check_strategy` for an Avalanche strategy; that module needs
Avalanche, this one does not.
"""

from sfr_cl.testing.likelihoods import check_likelihood
from sfr_cl.testing.refusals import check_refusal

__all__ = ["check_likelihood", "check_refusal"]
