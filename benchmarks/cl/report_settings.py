"""What a strategy of `sfr-cl cl` used, and the grid it was chosen on."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..harness.results import Row
from ..report.numbers import NONE
from .summary import Strategy

ABOUT = (
    "chosen_by",
    "grid",
    "on_edge",
    "parameter",
    "settings_for_memory",
    "tuning_seed",
    "validation",
)
"""Keys of a row's settings that say how the others were chosen."""

ACCURACIES = ("accuracy", "accuracy_all")
"""Keys of a grid's entry: what was measured first, and on all tasks after that."""


@dataclass(frozen=True)
class Tried:
    """One entry of a grid."""

    label: str
    accuracy: str
    best: bool


@dataclass(frozen=True)
class Used:
    """Settings of a strategy; `seeds` names those that used them, where seeds differ."""

    strategy: str
    seeds: list[int]
    chosen_by: str
    values: list[tuple[str, str]]
    parameter: str
    grid: list[Tried]
    validation: str
    edge: bool


def used(strategy: Strategy) -> list[Used]:
    """One entry, unless the settings differ by seed."""
    groups: dict[str, list[Row]] = {}
    for row in strategy.rows:
        text = json.dumps(row.get("settings") or {}, sort_keys=True, default=str)
        groups.setdefault(text, []).append(row)
    return [
        _used(
            strategy.name,
            [row["seed"] for row in rows] if len(groups) > 1 else [],
            rows[0].get("settings") or {},
        )
        for rows in groups.values()
    ]


def shared(everyone: Sequence[Used]) -> list[tuple[str, str]]:
    """Settings that several strategies have, all of them; one alone has none to share."""
    if len(everyone) < 2:
        return []
    return [pair for pair in everyone[0].values if all(pair in other.values for other in everyone)]


def _used(name: str, seeds: list[int], settings: Mapping[str, Any]) -> Used:
    plain = {key: value for key, value in settings.items() if key not in ABOUT}
    return Used(
        strategy=name,
        seeds=seeds,
        chosen_by=_chosen_by(settings),
        values=list(_flat(plain)),
        parameter=str(settings.get("parameter") or ""),
        grid=_grid(settings),
        validation=_validation(settings),
        edge=bool(settings.get("on_edge")),
    )


def _chosen_by(settings: Mapping[str, Any]) -> str:
    by = str(settings.get("chosen_by") or NONE)
    memory = settings.get("settings_for_memory")
    return by if memory is None else f"{by}, for a memory of {memory}"


def _validation(settings: Mapping[str, Any]) -> str:
    """What the grid's accuracies were measured on."""
    parts = [str(settings["validation"])] if settings.get("validation") else []
    if settings.get("tuning_seed") is not None:
        parts.append(f"seed {settings['tuning_seed']}")
    return ", ".join(parts)


def _grid(settings: Mapping[str, Any]) -> list[Tried]:
    entries = settings.get("grid") or []
    best = _chosen(entries, settings)
    return [
        Tried(
            label=_label({key: value for key, value in entry.items() if key not in ACCURACIES}),
            accuracy=_accuracies(entry),
            best=i == best,
        )
        for i, entry in enumerate(entries)
    ]


def _accuracies(entry: Mapping[str, Any]) -> str:
    """On the first tasks, then on all, where these were tried apart."""
    found = [entry[key] for key in ACCURACIES if entry.get(key) is not None]
    return ", ".join(f"{100 * accuracy:.1f}" for accuracy in found) or NONE


def _chosen(entries: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> int | None:
    """Which entry is in use: the one of that value, or else the first of the most accurate."""
    used = settings.get(settings.get("parameter", ""))
    values = [entry.get("value") for entry in entries]
    if used is not None and used in values:
        return values.index(used)
    scores = [-1.0 if entry.get("accuracy") is None else entry["accuracy"] for entry in entries]
    return scores.index(max(scores)) if scores else None


def _label(entry: Mapping[str, Any]) -> str:
    """A lone value speaks for itself; several are named."""
    pairs = list(_flat(entry))
    if len(pairs) == 1 and pairs[0][0] in ("value", "values"):
        return pairs[0][1]
    return ", ".join(f"{name} {value}" for name, value in pairs)


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and values, those of an inner table among them."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        elif isinstance(value, float):
            yield str(name), f"{value:g}"
        elif isinstance(value, list | tuple):
            yield str(name), ", ".join(str(item) for item in value)
        else:
            yield str(name), str(value)
