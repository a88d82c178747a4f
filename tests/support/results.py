"""What a command has written, read back."""

import json
from pathlib import Path
from typing import Any


def rows_in(out: Path) -> list[dict[str, Any]]:
    """The rows of `results.json` in a folder."""
    content = json.loads((out / "results.json").read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = content["rows"]
    return rows
