"""What a strategy of `sfr-cl cl` used, and the grid it was chosen on."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .numbers import NONE
from .summary import Strategy

ABOUT = ("edge", "grid", "source")


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
    source: str
    values: list[tuple[str, str]]
    grid: list[Tried]
    edge: bool


def used(strategy: Strategy) -> list[Used]:
    """One entry, unless the settings differ by seed."""
    seeds: dict[str, list[int]] = {}
    for row in strategy.rows:
        text = json.dumps(row.get("settings") or {}, sort_keys=True, default=str)
        seeds.setdefault(text, []).append(row["seed"])
    return [
        _used(strategy.name, own if len(seeds) > 1 else [], json.loads(text))
        for text, own in seeds.items()
    ]


def _used(name: str, seeds: list[int], settings: dict[str, Any]) -> Used:
    plain = {key: value for key, value in settings.items() if key not in ABOUT}
    return Used(
        strategy=name,
        seeds=seeds,
        source=str(settings.get("source") or NONE),
        values=list(_flat(plain)),
        grid=_grid(settings.get("grid") or []),
        edge=bool(settings.get("edge")),
    )


def _grid(entries: list[dict[str, Any]]) -> list[Tried]:
    scores = [entry.get("accuracy") for entry in entries]
    known = [score for score in scores if score is not None]
    best = scores.index(max(known)) if known else None
    return [
        Tried(
            label=_label({key: value for key, value in entry.items() if key != "accuracy"}),
            accuracy=NONE if score is None else f"{100 * score:.1f}",
            best=i == best,
        )
        for i, (entry, score) in enumerate(zip(entries, scores, strict=True))
    ]


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
