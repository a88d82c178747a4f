"""What a child process does that is killed while it compares strategies.

No test module, so that the child can import it.
"""

import os
import sys
from pathlib import Path

from sfr_cl.benchmarks import cli
from sfr_cl.benchmarks.cl import data, experiment, report, settings

PRELOADED = (data, experiment, report, settings)
"""Imported before children are forked, so that they are killed at work."""


def compare(words: list[str], log: Path) -> None:
    """The command; what it prints goes into a file."""
    with log.open("a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.exit(cli.main(words))
