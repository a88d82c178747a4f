"""Wall-clock time, measured so that it can be compared."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

Value = TypeVar("Value")


def timed(work: Callable[[], Value]) -> tuple[Value, float]:
    """The value of `work()`, and the seconds it took."""
    start = time.perf_counter()
    value = work()
    return value, time.perf_counter() - start


def processor_timed(work: Callable[[], Value]) -> tuple[Value, float]:
    """The value of `work()`, and the processor seconds it took.

    With one thread, the time it would take on a machine that does nothing else.
    """
    start = time.process_time()
    value = work()
    return value, time.process_time() - start


def processor_seconds(work: Callable[[], object]) -> float:
    """The processor seconds of `work()` alone."""
    return processor_timed(work)[1]


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread meanwhile.

    On small matrices threads spend their time waiting for each other, most of all on a busy
    machine: with one, training a small network is fastest and its time can be repeated.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
