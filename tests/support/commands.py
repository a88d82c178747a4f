"""Commands as a user types them: in a process of their own."""

import resource
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

PROGRAM = str(Path(sysconfig.get_path("scripts"), "sfr-cl"))


def sfr_cl(
    *words: str | Path, cwd: Path | None = None, prepare: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    """`sfr-cl WORDS`; `prepare` is called in the new process."""
    command = [PROGRAM, *map(str, words)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        preexec_fn=prepare,  # a limit of the system, no code of ours
        check=False,
    )


def processor_seconds() -> float:
    """Of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def files_in(folder: Path) -> dict[str, bytes | None]:
    """What is below a folder: the content of each file, and folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }
