"""Where data sets are looked for."""

import os
from pathlib import Path

from platformdirs import user_cache_path

from sfr_cl.errors import DataError


def roots(data_root: Path | None) -> list[Path]:
    """First match wins: the option `--data-root`, the environment, the user's cache."""
    named = [data_root, os.environ.get("SFR_CL_DATA")]
    return [*(Path(root).expanduser() for root in named if root), user_cache_path("sfr-cl")]


def find(file: str, data_root: Path | None, content: str) -> Path:
    """The file below the first root that has it; `content` says what it has to hold."""
    candidates = roots(data_root)
    for root in candidates:
        if (root / file).is_file():
            return root / file
    places = ", ".join(str(root) for root in candidates)
    raise DataError(
        f"expected {file} ({content}) under one of {places}, got none: put the file there, or name "
        "its folder with --data-root or SFR_CL_DATA"
    )
