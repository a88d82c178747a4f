"""Saving every so often."""

from __future__ import annotations

import copy
import os
import time
from typing import Any

from sfr_cl.data.arguments import positive, whole
from sfr_cl.errors import ArgumentError
from sfr_cl.streaming.posterior import StreamingPosterior


class Autosave:
    """Saves a stream when enough samples, or enough seconds, have passed since the last save.

    Call it with the cursor after every portion that was learned; after a crash no more is lost
    than came since the last save, and that can be read again from the cursor in it. As a context
    manager it saves once more at the end, and lets others write.

    Args:
        stream: what is saved.
        path: where, for nobody else to write from now on.
        samples: after how many.
        seconds: after how long.
    """

    def __init__(
        self,
        stream: StreamingPosterior,
        path: str | os.PathLike[str],
        *,
        samples: int | None = None,
        seconds: float | None = None,
    ) -> None:
        if samples is None and seconds is None:
            raise ArgumentError("expected samples=... or seconds=..., got neither")
        self._samples = None if samples is None else whole("samples", samples)
        self._seconds = None if seconds is None else positive("seconds", seconds)
        self._stream, self._writer = stream, stream.claim(path).shared()
        self._latest: tuple[StreamingPosterior, Any] | None = None
        self._restart()

    def __call__(self, cursor: Any) -> bool:
        """Save if it is time, and say whether it was."""
        self._latest = copy.copy(self._stream), cursor  # what is learned later has another cursor
        new = self._stream.n_seen - self._n_seen
        due = self._samples is not None and new >= self._samples
        due = due or (self._seconds is not None and time.monotonic() - self._at >= self._seconds)
        if due:
            self._save()
        return due

    def __enter__(self) -> Autosave:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._save()
        finally:
            self._writer.close()

    def _save(self) -> None:
        if self._latest is not None:
            stream, cursor = self._latest
            if not stream.is_empty:
                stream.save_with(self._writer, cursor)
            self._latest = None
            self._restart()

    def _restart(self) -> None:
        self._n_seen, self._at = self._stream.n_seen, time.monotonic()
