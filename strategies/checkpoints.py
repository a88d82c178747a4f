"""Avalanche's checkpoints on current torch: replaced in one step, read from any version."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import dill
import torch
from avalanche import checkpointing
from avalanche.training.determinism.rng_manager import RNGManager
from torch import Tensor

from sfr_cl.errors import ArgumentError, FileError
from sfr_cl.io import legacy
from sfr_cl.io.files import replacing

S = TypeVar("S")
MapLocation = str | torch.device | dict[str, str] | Callable[[Tensor, str], Tensor]


def save_checkpoint(
    strategy: Any, fname: str | os.PathLike[str], exclude: Collection[str] | None = None
) -> None:
    """Save a strategy between two calls of ``train`` or ``eval``, with the global random states.

    The file is replaced in one step: after a crash it is the old one or the new one, complete.

    Args:
        strategy: any Avalanche strategy, with any torch optimizer. All it holds, plug-ins and
            metrics too, goes into the file.
        fname: path of the file.
        exclude: names of attributes to leave out.
    """
    missing = sorted(set(exclude or ()) - vars(strategy).keys())
    if missing:
        raise ArgumentError(
            f"expected exclude to name attributes of {type(strategy).__name__}, got {missing}: "
            f"leave them out"
        )
    with replacing(Path(fname)) as file, _optimizers_in_reach():
        checkpointing.save_checkpoint(strategy, file, exclude)


def maybe_load_checkpoint(
    strategy: S,
    fname: str | os.PathLike[str],
    map_location: MapLocation | None = None,
    unique_objects: Any = None,
) -> tuple[S, int]:
    """Restore a strategy and the global random states, if there is a file.

    Open only files you trust: a checkpoint is a pickle, and loading one runs whatever code it
    holds. (Files of :meth:`sfr_cl.SFRPosterior.save` hold tensors alone.)

    The attributes of ``strategy`` are replaced by those in the file, so what was made before and
    kept in a variable (its model, optimizer, plug-ins) is stale: read it from the strategy again.
    Private random generators come back only if ``RNGManager`` has them registered; Avalanche's
    ``CSVLogger`` begins its files again.

    Checkpoints of earlier versions of this package are read too.

    Args:
        strategy: made by the code that made the saved one.
        fname: path of the file.
        map_location: as in ``torch.load``; a device stands for all devices but the CPU.
        unique_objects: what need not be loaded twice, as a rule the benchmark: data sets of
            Avalanche's own found there are used again.

    Returns:
        The strategy, and the index of the experience to go on with: 0 if there is no file.
    """
    if not os.path.exists(fname):
        return strategy, 0
    with open(fname, "rb") as file, _optimizers_in_reach(), legacy.readable(dill), _refusing(fname):
        loaded, experience = checkpointing.maybe_load_checkpoint(
            SimpleNamespace(), file, map_location, unique_objects
        )
    vars(strategy).update(vars(loaded))
    return strategy, experience


@contextlib.contextmanager
def _refusing(fname: str | os.PathLike[str]) -> Iterator[None]:
    """What fails in reading is a :class:`FileError`, and leaves the random states as they were."""
    random_states = RNGManager.__getstate__()
    try:
        yield
    except BaseException as error:
        RNGManager.__setstate__(random_states)
        if isinstance(error, MemoryError) or not isinstance(error, Exception):
            raise
        raise FileError(
            f"expected {fname} to be a checkpoint written by save_checkpoint, got a file that "
            f"can't be read here ({type(error).__name__}: {error}): restore it from a copy, or "
            f"delete it to start again"
        ) from error


@contextlib.contextmanager
def _optimizers_in_reach() -> Iterator[None]:
    """Modules of ``torch.optim`` as its attributes, where dill looks for a class to name.

    torch deletes these attributes; what dill does not find there it tries to take apart, and fails.
    """
    hidden = {}
    for path, module in list(sys.modules.items()):
        package, _, name = path.rpartition(".")
        if package == torch.optim.__name__ and not hasattr(torch.optim, name):
            hidden[name] = module
    vars(torch.optim).update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            delattr(torch.optim, name)
