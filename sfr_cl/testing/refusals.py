"""A refusal is one of our errors, says what to do, and changes nothing."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

from sfr_cl.errors import SFRError
from sfr_cl.testing.expectations import expect, expect_same


def check_refusal(
    call: Callable[[], object],
    contents: Callable[[], Any],
    *,
    error: type[BaseException] | tuple[type[BaseException], ...] = SFRError,
    message: str = "",
) -> SFRError:
    """Check that a call is refused, and that nothing has changed afterwards.

    Args:
        call: raises :class:`~sfr_cl.errors.SFRError`.
        contents: what must stay as it is: a tree of dictionaries, lists, tensors and plain values,
            such as ``posterior.state_dict``.
        error: what the error must be besides, such as ``ValueError``.
        message: a regular expression found in it.

    Returns:
        the error.

    Raises:
        AssertionError: the call returns, raises another error, or changes the contents.

    >>> import torch
    >>> from sfr_cl import SFRPosterior
    >>> posterior = SFRPosterior(torch.nn.Linear(2, 3), "classification", inducing=4)
    >>> posterior = posterior.fit((torch.randn(20, 2), torch.arange(20) % 3))
    >>> bad = torch.full((1, 2), torch.nan), torch.tensor([0])
    >>> refusal = check_refusal(lambda: posterior.update(bad), posterior.state_dict)
    >>> print(refusal)
    expected finite inputs, got NaN or infinity in row 0 of the batch: drop or impute such rows
    """
    before = copy.deepcopy(contents())
    try:
        value = call()
    except SFRError as raised:
        refusal = raised
    except Exception as other:
        raise AssertionError(
            f"expected an SFRError, got {type(other).__name__}: {other}"
        ) from other
    else:
        raise AssertionError(f"expected an SFRError, got the value {value!r:.200}")
    text = str(refusal)
    expect(isinstance(refusal, error), f"a refusal that is a {error}", refusal)
    expect("expected" in text and "got" in text, "what was expected and what was got", text)
    expect(re.search(message, text, re.DOTALL) is not None, f"a message with {message!r}", text)
    expect_same(contents(), before, "contents")
    return refusal
