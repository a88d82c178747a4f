"""Saving a stream with the caller's place in it, and loading both."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from sfr_cl import files
from sfr_cl.likelihoods import Likelihood
from sfr_cl.posterior import SFRPosterior
from sfr_cl.snapshot import part
from sfr_cl.streaming import storage
from sfr_cl.streaming.features import FeatureOrder
from sfr_cl.streaming.memory import Memory
from sfr_cl.streaming.scores import OnDrift, Surprise, callback
from sfr_cl.streaming.settings import Settings

Stream = TypeVar("Stream", bound="Durable")


class Durable:
    """A stream that can be saved: whole, or not at all."""

    _template: SFRPosterior
    _settings: Settings
    _memory: Memory | None
    _features: FeatureOrder | None
    _on_drift: OnDrift | None
    _read: Any

    if TYPE_CHECKING:

        @property
        def _known(self) -> Memory: ...
        def _bare(self) -> SFRPosterior: ...

    def __init__(self) -> None:
        self._writer: storage.Writer | None = None

    def save(self, path: str | os.PathLike[str], *, cursor: Any = None) -> None:
        """Write all of it, and the caller's place in the stream, to one file, atomically.

        Whatever happens meanwhile, a reader finds this file or the one before, whole. From the
        first save on this is the only stream that may write there, until :meth:`close` or a save to
        another path.

        Args:
            path: of the file; beside it lies a lock.
            cursor: where to go on reading after what has been learned: any JSON value.
        """
        content = self._content(cursor)
        self.claim(path).write(*content)

    def save_with(self, writer: storage.Writer, cursor: Any) -> None:
        """Write as :meth:`save` does, by a writer that another stream has."""
        writer.write(*self._content(cursor))

    def _content(self, cursor: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain values of the file."""
        cursor = storage.plain_cursor(cursor)
        memory = self._known
        state = self._bare()
        state._take_over(memory.state)
        found = state.state_dict()
        tensors, values = storage.stored(memory)
        names = None if self._features is None else storage.plain_names(self._features.names)
        return (
            {**found["tensors"], **storage.marked(tensors)},
            {"posterior": found["values"], "stream": values, "features": names, "cursor": cursor},
        )

    def claim(self, path: str | os.PathLike[str]) -> storage.Writer:
        """Be the only one that may write there, from now on, as :meth:`save` does."""
        if self._writer is None or self._writer.path != storage.absolute(path):
            writer = storage.Writer(path)
            if self._writer is not None:
                self._writer.leave()
            self._writer = writer
        return self._writer

    def close(self) -> None:
        """Let others write where this stream was saved."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    @classmethod
    def load(
        cls: type[Stream],
        path: str | os.PathLike[str],
        network: nn.Module,
        *,
        likelihood: Likelihood | None = None,
        on_drift: OnDrift | None = None,
    ) -> tuple[Stream, Any]:
        """A stream as it was saved, and the cursor saved with it.

        Args:
            path: a file written by :meth:`save`.
            network: a module of the same architecture; the weights come from the file.
            likelihood: the object, if the posterior was made with one of one's own.
            on_drift: see the class.
        """
        tensors, values = files.read(path, form=storage.FORMAT)
        own, rest = storage.split(tensors)
        stored = part(values, "posterior", dict)
        posterior = SFRPosterior._restored(own, stored, network, likelihood)
        memory = storage.restored(posterior._state, rest, part(values, "stream", dict))
        surprise = None if on_drift is None else memory.scores.surprise or Surprise()
        names = values.get("features")
        stream = object.__new__(cls)
        Durable.__init__(stream)
        posterior._num_outputs = posterior.num_outputs
        stream._template, posterior._fitted = posterior, None
        stream._settings = memory.settings
        stream._memory = replace(memory, scores=replace(memory.scores, surprise=surprise))
        stream._features = None if names is None else FeatureOrder(tuple(names))
        stream._on_drift = callback(on_drift, posterior.likelihood)
        stream._read = None
        return stream, values.get("cursor")
