"""A comparison that is killed at random instants, again and again, and resumed.

A program, so that its children are forked from a process with all imports and nothing more:
``python -m support.killed_runs LOG FOLDER KILLS WORDS...``. It prints how many were killed, how
many rows there were after each, and the exit code of the last run, which goes on to the end.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sfr_cl import torchvision_operators

torchvision_operators.declare()

from sfr_cl.benchmarks import cli  # noqa: E402
from sfr_cl.benchmarks.cl import data, experiment, report, settings  # noqa: E402
from support.results import rows_in  # noqa: E402

IMPORTED_BEFORE_CHILDREN_ARE = (data, experiment, report, settings)


def started(words: Sequence[str], log: str) -> int:
    """The command in a child, which prints into a file: its process."""
    process = os.fork()
    if process == 0:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os._exit(cli.main(words))
    return process


def finished(process: int) -> int:
    """The exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main(log: str, folder: str, kills: int, words: Sequence[str]) -> None:
    """A complete run, which takes some time; killed ones; and one that goes on to the end."""
    start = time.monotonic()
    assert finished(started([*words, "--out", f"{folder}-never-killed"], log)) == 0
    seconds = time.monotonic() - start
    words = [*words, "--resume", "--out", folder]
    instants = random.Random(0)
    killed, counts = 0, []
    for _ in range(kills):
        process = started(words, log)
        time.sleep(instants.uniform(0, seconds / 4))
        os.kill(process, signal.SIGKILL)
        killed += finished(process) == -signal.SIGKILL
        there = Path(folder, "results.json").exists()
        counts.append(len(rows_in(Path(folder))) if there else 0)
    code = finished(started(words, log))
    print(json.dumps({"killed": killed, "counts": counts, "code": code}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
