"""A stream and the caller's place in it, in one file and back."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from sfr_cl.core.calibration import CAUTION, GRID, Scores
from sfr_cl.core.state import State
from sfr_cl.core.sums import DualSums
from sfr_cl.core.transfer import inducing
from sfr_cl.data.arguments import positive
from sfr_cl.data.inputs import Inputs, leaves
from sfr_cl.errors import ArgumentError, FileError, MismatchError
from sfr_cl.io import files, snapshot
from sfr_cl.io.snapshot import part
from sfr_cl.likelihoods import Likelihood
from sfr_cl.posterior import SFRPosterior
from sfr_cl.streaming.features import FeatureOrder
from sfr_cl.streaming.inducing import Candidates, ResidualBound
from sfr_cl.streaming.monitor import Calibration, ExcessNLL, Monitor
from sfr_cl.streaming.samples import Batch, Samples
from sfr_cl.streaming.settings import Settings
from sfr_cl.streaming.state import Flushed, StreamState
from sfr_cl.streaming.window import Totals, Window

T = TypeVar("T")

FORMAT = "sfr-cl stream 1"
OLD_SCALES = [10 ** (step / 10) for step in range(-10, 11)]
MARK = "stream."

SAMPLES = ("y", "times", "scale")
COLUMNS = {"pending": SAMPLES, "kept": SAMPLES, "candidates": ("variance",)}
"""What is stored beside inputs, by the names they have in files."""


class Writer:
    """The one writer of a path, for as long as it lives or until it is closed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        from filelock import FileLock, Timeout  # only who saves needs it

        self.path = Path(path).absolute()
        self._process = os.getpid()
        self._lock = FileLock(f"{self.path}.lock", timeout=0, thread_local=False)
        self._refused = Timeout
        self._acquire()
        files.remove_leftovers(self.path)

    def _acquire(self) -> None:
        """Be the only writer, or an error."""
        if self._lock.is_locked:
            return
        files.require_folder(self.path)
        try:
            self._lock.acquire()
        except self._refused as error:
            raise FileError(
                f"expected to be the only writer of {self.path}, got another one that holds "
                f"{self._lock.lock_file}: give every stream a path of its own"
            ) from error

    def write(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Replace the file, all of it or not at all."""
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

    def close(self, *, force: bool = True) -> None:
        """Let others write until the next write; without force, if there is no other owner."""
        if os.getpid() == self._process:  # a forked process has no lock to release
            self._lock.release(force=force)


def plain(what: str, value: Any) -> Any:
    """A value that a JSON file gives back as it is, or an error."""
    try:
        changed = json.loads(json.dumps(value, allow_nan=False)) != value
        reason = "it would come back changed"
    except (TypeError, ValueError, RecursionError) as error:
        changed, reason = True, str(error)
    if changed:
        raise ArgumentError(
            f"expected {what} of finite numbers, strings, lists, and dictionaries whose names are "
            f"strings, got {value!r:.60}: {reason}"
        )
    return value


def content(
    stream: StreamState, posterior: Mapping[str, Any], features: FeatureOrder | None, cursor: Any
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and plain values of a file, beside the state dict of the posterior in it."""
    tensors, values = _stored(stream)
    # Under names that no posterior uses.
    marked = {f"{MARK}{name}": value for name, value in tensors.items()}
    return {**posterior["tensors"], **marked}, {
        "posterior": posterior["values"],
        "stream": values,
        "features": features and plain("names of features", list(features.names)),
        "cursor": cursor,
    }


def read(
    path: str | os.PathLike[str], network: nn.Module, likelihood: Likelihood | None
) -> tuple[SFRPosterior, StreamState, FeatureOrder | None, Any]:
    """The posterior of a file, the stream, its features, and the cursor."""
    tensors, values = files.read(path, form=FORMAT)
    own = {name: value for name, value in tensors.items() if not name.startswith(MARK)}
    rest = {name.removeprefix(MARK): value for name, value in tensors.items() if name not in own}
    posterior = SFRPosterior.from_state_dict(
        own, part(values, "posterior", dict), network, likelihood=likelihood
    )
    try:
        stream = _restored(posterior.state, rest, part(values, "stream", dict))
    except (MismatchError, ArgumentError):
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise MismatchError(
            f"expected a complete stored stream, got one with a part that can't be read: {error}"
        ) from error
    names = values.get("features")
    features = None if names is None else FeatureOrder(tuple(names))
    return posterior, stream, features, values.get("cursor")


def _stored(stream: StreamState) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and plain values of a stream, beside those of its state."""
    tensors: dict[str, Tensor] = {}
    window, rebuilt, found = stream.window, stream.rebuilt, stream.candidates
    if stream.pending:
        tensors |= _columns("pending", *Batch.join(stream.pending).samples.tree)
    if window is not None and len(window):
        tensors |= _columns("kept", *window.all().tree)
    if found.pool is not None:
        tensors |= _columns("candidates", *found.pool)
    if rebuilt is not None:
        tensors |= {f"fresh.{name}": value for name, value in rebuilt.sums.named().items()}
    monitor = stream.monitor
    values = {
        "settings": asdict(stream.settings),
        "prior_precision": stream.state.spec.prior_precision,
        "learned": stream.n_seen,
        "due": stream.maintenance_at,
        "choosing": stream.choosing,
        "keeps": window is not None,
        "fresh": rebuilt and {"coverage": asdict(rebuilt.residual), "count": rebuilt.count},
        "coverage": asdict(stream.residual),
        "looked_at": found.looked_at,
        "calibration": monitor.calibration
        and {"scores": monitor.calibration.scores.plain(), "scale": monitor.calibration.scale},
        "surprise": monitor.excess and asdict(monitor.excess),
    }
    times = {"clock": stream.clock, "now": stream.now, "exact_since": stream.exact_since}
    # JSON has no infinity; before all times is none.
    values |= {name: None if time == -math.inf else time for name, time in times.items()}
    return tensors, values


def _restored(
    state: State, tensors: Mapping[str, Tensor], values: Mapping[str, Any]
) -> StreamState:
    """The inverse of :func:`_stored`, over a state that was restored before."""
    tensors = {name: value.to(state.basis.network.device) for name, value in tensors.items()}
    z = inducing(state).z
    pending, kept = (_rows(name, z, tensors) for name in ("pending", "kept"))
    candidates = Candidates(_rows("candidates", z, tensors), part(values, "looked_at", int))
    window = rebuilt = None
    if part(values, "keeps", bool):
        window = Window(() if kept is None else (Samples(*kept),))
    if (stored := _optional(values, "fresh", dict)) is not None:
        sums = DualSums.from_named({name: tensors[f"fresh.{name}"] for name in state.sums.named()})
        if [value.shape for value in sums.tensors()] != [v.shape for v in state.sums.tensors()]:
            raise MismatchError("expected sums of one shape, got others in the window's")
        rebuilt = Totals(sums, _residual(stored), part(stored, "count", int))
    calibration, excess = (_optional(values, name, dict) for name in ("calibration", "surprise"))
    monitor = Monitor(
        None if calibration is None else _calibration(calibration, state),
        None if excess is None else ExcessNLL(**excess),
    )
    settings = Settings.from_plain(part(values, "settings", dict))
    state = state.with_spec(prior_precision=part(values, "prior_precision", float))
    n_seen = part(values, "learned", int)
    clock, flushed_at = _time(values, "clock"), n_seen - (0 if pending is None else len(pending[1]))
    stream = StreamState(
        settings=settings,
        flushed=Flushed(state, window, settings.block),
        monitor=Monitor(None, None),
        n_seen=flushed_at,
        flushed_at=flushed_at,
        maintenance_at=_optional(values, "due", int),
        choosing=part(values, "choosing", bool),
        rebuilt=rebuilt,
        residual=_residual(values),
        candidates=candidates,
        clock=clock,
        now=clock,
        exact_since=_time(values, "exact_since"),
    )
    if pending is not None:
        stream = stream.with_samples(Samples(*pending))
    return replace(stream, monitor=monitor, now=_time(values, "now"))


def _optional(values: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    return None if values[name] is None else part(values, name, kind)


def _time(values: Mapping[str, Any], name: str) -> float:
    found = _optional(values, name, float)
    return -math.inf if found is None else float(found)


def _residual(values: Mapping[str, Any]) -> ResidualBound:
    return ResidualBound(**part(values, "coverage", dict))


def _calibration(found: dict[str, Any], state: State) -> Calibration:
    if "costs" in found:
        return _old_calibration(part(found, "costs", list), part(found, "scale", float), state)
    scale = found.get("scale")
    return Calibration(
        Scores.from_plain(part(found, "scores", dict)),
        None if scale is None else positive("scale", scale),
    )


def _old_calibration(costs: list[float], scale: float, state: State) -> Calibration:
    """Of version 0.1.0: by the scale of f itself, its prior among the costs, which stays."""
    unit, logs = state.reading.unit * (state.spec.logit_scale or 1.0), np.log(OLD_SCALES)
    nats = np.asarray(costs, dtype=np.float64) - CAUTION * logs**2
    found = np.interp(GRID.log().numpy(), logs + math.log(unit), nats)
    return Calibration(Scores(torch.from_numpy(found), state.num_seen), scale * unit)


def _columns(name: str, x: Inputs, *columns: Tensor) -> dict[str, Tensor]:
    """Inputs and what goes with each of them, by name."""
    found = {f"{name}.x.{i}": leaf for i, (_, leaf) in enumerate(leaves(x))}
    return found | {f"{name}.{c}": value for c, value in zip(COLUMNS[name], columns, strict=True)}


def _rows(name: str, z: Inputs, tensors: Mapping[str, Tensor]) -> tuple[Any, ...] | None:
    """The inverse of :func:`_columns`, for inputs of the form of Z; ``None`` if there are none."""
    if f"{name}.{COLUMNS[name][0]}" not in tensors:
        return None
    x = [tensors[f"{name}.x.{i}"] for i in range(len(leaves(z)))]
    columns = (tensors[f"{name}.{column}"] for column in COLUMNS[name])
    return snapshot.rebuilt_like(z, x), *columns
