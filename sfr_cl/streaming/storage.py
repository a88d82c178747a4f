"""A memory and the caller's place in the stream, in one file and back."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from sfr_cl import files, snapshot
from sfr_cl.duals import DualSums
from sfr_cl.errors import ArgumentError, FileError, MismatchError
from sfr_cl.inputs import leaves
from sfr_cl.snapshot import part
from sfr_cl.state import State
from sfr_cl.streaming.budget import Candidates
from sfr_cl.streaming.coverage import Coverage
from sfr_cl.streaming.kept import Fresh, Kept
from sfr_cl.streaming.memory import Memory
from sfr_cl.streaming.rows import Rows, Samples
from sfr_cl.streaming.scores import Calibration, Scores, Surprise
from sfr_cl.streaming.settings import Settings

T = TypeVar("T")

FORMAT = "sfr-cl stream 1"
MARK = "stream."


class Writer:
    """The one writer of a path, for as long as it lives or until it is closed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        from filelock import FileLock, Timeout  # only who saves needs it

        self.path = absolute(path)
        self._process = os.getpid()
        self._lock = FileLock(f"{self.path}.lock", timeout=0, thread_local=False)
        self._refused = Timeout
        self._acquire()
        files.remove_leftovers(self.path)

    def _acquire(self) -> None:
        """Be the only writer, or an error."""
        if self._lock.is_locked:
            return
        try:
            self._lock.acquire()
        except self._refused as error:
            raise FileError(
                f"expected to be the only writer of {self.path}, got another one that holds "
                f"{self._lock.lock_file}: give every stream a path of its own"
            ) from error

    def write(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Replace the file, whole."""
        if os.getpid() != self._process:
            raise FileError(
                f"expected to write {self.path} from the process that began to, got one forked "
                f"from it: load the stream there, and give it a path of its own"
            )
        self._acquire()  # again, if it was closed
        files.write(self.path, tensors, values, form=FORMAT)

    def shared(self) -> Writer:
        """For one more owner: the path stays theirs when the first one goes elsewhere."""
        self._lock.acquire()
        return self

    def leave(self) -> None:
        """Let others write, if there is no other owner."""
        self._release(force=False)

    def close(self) -> None:
        """Let others write, until the next write."""
        self._release(force=True)

    def _release(self, *, force: bool) -> None:
        if os.getpid() == self._process:  # a forked process has no lock to release
            self._lock.release(force=force)


def absolute(path: str | os.PathLike[str]) -> Path:
    """A path as a writer knows it."""
    return Path(path).absolute()


def plain_names(names: tuple[Hashable, ...]) -> list[Any]:
    """Names of features that a file can give back as they are."""
    try:
        return list(plain_cursor(list(names)))
    except ArgumentError as error:
        raise ArgumentError(
            f"expected features with names that are strings or numbers, got {list(names)!r:.60}"
        ) from error


def plain_cursor(cursor: Any) -> Any:
    """A cursor that a file can give back as it is."""
    try:
        text = json.dumps(cursor, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(
            f"expected a cursor of numbers, strings, lists and dictionaries, got {cursor!r:.60}: "
            f"{error}"
        ) from error
    if json.loads(text) != cursor:
        raise ArgumentError(
            f"expected a cursor that a JSON file gives back as it is, got {cursor!r:.60}: use "
            f"lists, and names that are strings"
        )
    return cursor


def marked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Under names that no posterior uses."""
    return {f"{MARK}{name}": value for name, value in tensors.items()}


def split(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Those of the posterior, and those :func:`marked`."""
    own = {name: value for name, value in tensors.items() if not name.startswith(MARK)}
    rest = {name: value for name, value in tensors.items() if name not in own}
    return own, {name.removeprefix(MARK): value for name, value in rest.items()}


def stored(memory: Memory) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and plain values of a memory, beside those of its state."""
    tensors: dict[str, Tensor] = {}
    if memory.pending:
        tensors |= _stored_samples("pending", Rows.join(memory.pending).samples)
    if memory.kept is not None and len(memory.kept):
        tensors |= _stored_samples("kept", memory.kept.all())
    if memory.fresh is not None:
        sums = memory.fresh.sums
        tensors |= {f"fresh.{field.name}": getattr(sums, field.name) for field in fields(sums)}
    if memory.candidates.x is not None and memory.candidates.variance is not None:
        found = leaves(memory.candidates.x)
        tensors |= {f"candidates.x.{i}": leaf for i, (_, leaf) in enumerate(found)}
        tensors["candidates.variance"] = memory.candidates.variance
    scores = memory.scores
    values = {
        "settings": memory.settings.plain(),
        "prior_precision": memory.prior_precision,
        "clock": _finite(memory.clock),
        "now": _finite(memory.now),
        "learned": memory.learned,
        "due": memory.due,
        "choosing": memory.choosing,
        "keeps": memory.kept is not None,
        "fresh": None if memory.fresh is None else _fresh_values(memory.fresh),
        "coverage": asdict(memory.coverage),
        "looked_at": memory.candidates.looked_at,
        "exact_since": _finite(memory.exact_since),
        "calibration": None if scores.calibration is None else asdict(scores.calibration),
        "surprise": None if scores.surprise is None else asdict(scores.surprise),
    }
    return tensors, values


def restored(state: State, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> Memory:
    """The inverse of :func:`stored`, over a state that was restored before."""
    try:
        return _restored(state, tensors, values)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if isinstance(error, MismatchError | ArgumentError):
            raise
        raise MismatchError(
            f"expected a whole stored stream, got one with a part that can't be read: {error}"
        ) from error


def _restored(state: State, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> Memory:
    kept = fresh = None
    if part(values, "keeps", bool):
        found = _samples("kept", state, tensors)
        kept = Kept(() if found is None else (found,))
    if (counted := _optional(values, "fresh", dict)) is not None:
        sums = DualSums(*(tensors[f"fresh.{field.name}"] for field in fields(DualSums)))
        sums = sums.to(state.network.device)
        if [value.shape for value in sums.tensors()] != [v.shape for v in state.sums.tensors()]:
            raise MismatchError("expected sums of one shape, got others in the window's")
        coverage = Coverage(**part(counted, "coverage", dict))
        fresh = Fresh(sums, coverage, part(counted, "count", int))
    candidates = Candidates(looked_at=part(values, "looked_at", int))
    if "candidates.variance" in tensors:
        x = _inputs("candidates", state, tensors)
        variance = tensors["candidates.variance"].to(state.network.device)
        candidates = Candidates(x, variance, candidates.looked_at)
    scores = Scores(
        _calibration(_optional(values, "calibration", dict)),
        _record(Surprise, _optional(values, "surprise", dict)),
    )
    waiting, learned = _samples("pending", state, tensors), part(values, "learned", int)
    return Memory(
        settings=Settings.from_plain(part(values, "settings", dict)),
        state=state,
        prior_precision=part(values, "prior_precision", float),
        scores=scores,
        clock=_time(values, "clock"),
        now=_time(values, "now"),
        learned=learned,
        folded_at=learned - (0 if waiting is None else len(waiting)),
        due=_optional(values, "due", int),
        choosing=part(values, "choosing", bool),
        pending=() if waiting is None else (Rows.of(state, waiting),),
        kept=kept,
        fresh=fresh,
        coverage=Coverage(**part(values, "coverage", dict)),
        candidates=candidates,
        exact_since=_time(values, "exact_since"),
    )


def _optional(values: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    return None if values[name] is None else part(values, name, kind)


def _finite(time: float) -> float | None:
    """JSON has no infinity; before all times is none."""
    return None if time == -math.inf else time


def _time(values: Mapping[str, Any], name: str) -> float:
    found = _optional(values, name, float)
    return -math.inf if found is None else float(found)


def _record(kind: Callable[..., T], found: dict[str, Any] | None) -> T | None:
    return None if found is None else kind(**found)


def _calibration(found: dict[str, Any] | None) -> Calibration | None:
    if found is None:
        return None
    return Calibration(tuple(map(float, part(found, "costs", list))), part(found, "scale", float))


def _fresh_values(fresh: Fresh) -> dict[str, Any]:
    return {"coverage": asdict(fresh.coverage), "count": fresh.count}


def _stored_samples(name: str, samples: Samples) -> dict[str, Tensor]:
    found = {f"{name}.x.{i}": leaf for i, (_, leaf) in enumerate(leaves(samples.x))}
    rest = {"y": samples.y, "times": samples.times, "scale": samples.scale}
    return found | {f"{name}.{key}": value for key, value in rest.items()}


def _samples(name: str, state: State, tensors: Mapping[str, Tensor]) -> Samples | None:
    if f"{name}.y" not in tensors:
        return None
    device = state.network.device
    y, times, scale = (tensors[f"{name}.{key}"].to(device) for key in ("y", "times", "scale"))
    return Samples(_inputs(name, state, tensors), y, times, scale)


def _inputs(name: str, state: State, tensors: Mapping[str, Tensor]) -> Any:
    """Inputs of the form of Z."""
    count = len(leaves(state.z))
    found = [tensors[f"{name}.x.{i}"].to(state.network.device) for i in range(count)]
    return snapshot.rebuilt_like(state.z, found)
