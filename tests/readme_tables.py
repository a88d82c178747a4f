"""The README's tables, from the results that its commands made.

To renew them after a run: ``python tests/readme_tables.py``.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sfr_cl.benchmarks.report import stream

ROOT = Path(__file__).parents[1]


def rows_of(name: str) -> list[dict[str, Any]]:
    """What a command wrote into ``docs``."""
    found: list[dict[str, Any]] = json.loads((ROOT / "docs" / name / "results.json").read_text())[
        "rows"
    ]
    return found


def streams() -> str:
    """Every method on every stream."""
    names = ["stream", "method", *(f"{name} {unit}".strip() for _, name, unit in stream.COLUMNS)]
    lines = [names[:-1], ["---"] * (len(names) - 1)]
    for data, methods in stream.gathered(rows_of("stream")).items():
        for method in methods:
            shown = f"**`{method.name}`**" if "sfr" in method.name else f"`{method.name}`"
            lines.append([data, shown, *method.cells()[:-1]])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def latencies() -> str:
    """One sample learned, one answered, and a million."""
    lines = [["inducing inputs", "samples before", "median", "99th percentile"], ["---"] * 4]
    for row in rows_of("stream-limits"):
        if row["case"] != "learn_many":
            times = [f"{row[name]:.1f} ms" for name in ("median_ms", "p99_ms")]
            lines.append([str(row["num_inducing"]), f"{row['samples']:,}", *times])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


TABLES: dict[str, Callable[[], str]] = {"streams": streams, "latencies": latencies}


def between(text: str, name: str) -> tuple[str, str, str]:
    """A page before, in and after one of its tables."""
    start, end = f"<!-- {name} -->\n\n", f"\n\n<!-- end of {name} -->"
    before, rest = text.split(start)
    inside, after = rest.split(end)
    return before + start, inside, end + after


if __name__ == "__main__":
    path = ROOT / "README.md"
    for name, table in TABLES.items():
        before, _, after = between(path.read_text(), name)
        path.write_text(before + table() + after)
