"""Where data sets are looked for."""

import os
from pathlib import Path

from platformdirs import user_cache_path


def roots(data_root: Path | None) -> list[Path]:
    """First match wins: the option `--data-root`, the environment, the user's cache."""
    named = [data_root, os.environ.get("SFR_CL_DATA")]
    return [*(Path(root).expanduser() for root in named if root), user_cache_path("sfr-cl")]
