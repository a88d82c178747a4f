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

    Call it with the cursor after every portion that was learned, and after what was forgotten.
    After a crash no more is lost than came since the last save, and that can be read again from the
    cursor in the file. As a context manager it saves once more at the end, and lets others write.

    Args:
        stream: what is saved.
        path: of the file. Nobody else may write there until the end.
        samples: after how many.
        seconds: after how long.

    Raises:
        ArgumentError: if neither ``samples`` nor ``seconds`` is given, or one is not positive.
        FileError: if another stream, or process, writes there.

    >>> import torch
    >>> from sfr_cl import SFRPosterior
    >>> network = torch.nn.Linear(2, 2)
    >>> stream = StreamingPosterior(SFRPosterior(network, "classification", inducing=4))
    >>> with Autosave(stream, "stream", samples=2) as autosave:
    ...     for position, x in enumerate(torch.eye(2).repeat(2, 1)):
    ...         stream.learn_one(x, position % 2)
    ...         print(autosave(position + 1))
    False
    True
    False
    True
    >>> StreamingPosterior.load("stream", network)
    (StreamingPosterior('classification', 2 inducing inputs, 4 samples learned), 4)
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
        """Save if it is time.

        Args:
            cursor: where to go on reading after what has been learned: any JSON value.

        Returns:
            Whether it was time.

        Raises:
            ArgumentError: if the cursor is no JSON value, when it is saved.
            FileError: if the path was closed, and another stream, or process, writes there.
        """
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
            if stream.n_seen == self._stream.n_seen:  # with what was forgotten since
                stream = self._stream
            if not stream.is_empty:
                stream.save_with(self._writer, cursor)
            self._latest = None
            self._restart()

    def _restart(self) -> None:
        self._n_seen, self._at = self._stream.n_seen, time.monotonic()
