"""The folder a command writes to: checked before anything is imported, and the command's alone."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from sfr_cl.errors import FileError

ANOTHER = "choose another --out"


@contextlib.contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Make `out`, and be the only command that writes there meanwhile.

    The lock is the system's, on the folder itself: it ends with the process, however that ends. A
    folder that was made and stayed empty is removed.
    """
    made = [folder for folder in (out, *out.parents) if not os.path.lexists(folder)]
    try:
        _make(out)
        handle = os.open(out, os.O_RDONLY)
        try:
            _lock(handle, out)
            yield
        finally:
            os.close(handle)
    finally:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise FileError(
            f"expected --out to be a folder, got {out}, which is a file or in one: {ANOTHER}"
        ) from error
    except OSError as error:
        raise FileError(
            f"expected an --out that can be made, got {out} ({error.strerror}): {ANOTHER}"
        ) from error
    if not os.access(out, os.R_OK | os.W_OK | os.X_OK):
        raise FileError(f"expected an --out that can be written to, got {out}: {ANOTHER}")


def _lock(handle: int, out: Path) -> None:
    if sys.platform == "win32":
        return  # folders have no locks there
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FileError(
            f"expected one command at a time in {out}, got another one that is running there: wait "
            f"for it, or {ANOTHER}"
        ) from error
    except OSError:
        pass  # some file systems of networks have no locks
