"""Settings files: what `sfr-cl tune` chose, or others published, for each strategy.

One file per data set and scenario, and `default.json` for all without one. In it, for each memory
(stored samples per task), `common` holds what all strategies share, and `strategies` what differs:
`values`, and how they were chosen (`chosen_by`, and the grid where that was `tune`).
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from sfr_cl.errors import FileError

DEFAULT = "default.json"

Values = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What one strategy is run with."""

    common: Values
    """What all strategies share."""
    own: Values
    """What differs for this one."""
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """How: `chosen_by`, and of a tuned value the grid with its validation accuracies."""


def file_name(data: str, scenario: str) -> str:
    return f"{data}-{scenario}.json"


def read(data: str, scenario: str, file: Path | None = None) -> dict[str, Any]:
    """The content of `file`, of the package's file for the data, or of the default one.

    `data` is a name, or the path of your own data.
    """
    folder = files(__package__) / "settings"
    packaged = folder / file_name(Path(data).name, scenario)
    source = file or (packaged if packaged.is_file() else folder / DEFAULT)
    try:
        content = json.loads(source.read_text(encoding="utf-8"))
        memories = content["memories"]
        usable = memories and all(
            {"common", "strategies"} <= set(entry) and int(memory) > 0
            for memory, entry in memories.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(
            f"expected settings as `sfr-cl tune` writes them in {source}, got {error!r}: tune again"
        ) from error
    if not usable:
        raise FileError(f"expected settings for a memory in {source}, got none: tune again")
    return dict(content)


def entry(content: Mapping[str, Any], memory: int) -> tuple[int, dict[str, Any]]:
    """The memory nearest to `memory` (by ratio) that there are settings for, and these."""
    memories = {int(key): value for key, value in content["memories"].items()}
    nearest = min(memories, key=lambda known: (abs(math.log(known / memory)), known))
    return nearest, memories[nearest]


def setting(content: Mapping[str, Any], memory: int, strategy: str) -> Setting:
    """The common values, and over them the strategy's own."""
    nearest, found = entry(content, memory)
    own = found["strategies"].get(strategy, {"values": {}, "chosen_by": "default"})
    chosen = {key: value for key, value in own.items() if key != "values"}
    if nearest != memory:
        chosen["settings_for_memory"] = nearest
    return Setting(found["common"], own["values"], chosen)
