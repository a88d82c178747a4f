"""What the table must show, decided by its rows."""

from collections.abc import Callable
from dataclasses import dataclass

from .summary import TITLES, Setting, Table, published

MARGIN = 0.02
"""A method is behind another if its NLPD is higher by more than this plus one standard error."""
AHEAD_ON = 7 / 8
"""Share of the sets on which SFR must be ahead."""


@dataclass(frozen=True)
class Line:
    """One set: the difference, negative where ours is ahead, and what it may be at most."""

    data: str
    against: str
    difference: float
    allowed: float

    @property
    def holds(self) -> bool:
        return self.difference <= self.allowed


@dataclass(frozen=True)
class Check:
    """A statement about all sets."""

    statement: str
    lines: list[Line]
    share: float = 1.0
    """Of the sets it must hold on."""

    @property
    def count(self) -> int:
        return sum(line.holds for line in self.lines)

    @property
    def holds(self) -> bool:
        return self.count >= self.share * len(self.lines)

    @property
    def verdict(self) -> str:
        return f"{'holds' if self.holds else 'missed'}: {self.count} of {len(self.lines)} sets"


def checks(table: Table) -> list[Check]:
    """Those with rows to decide them."""
    found = [
        Check(
            "Tuned SFR is not behind the tuned GP on its inducing points",
            _lines(table, lambda data: _paired(table, data, ("sfr", True), ("gp subset", True))),
        ),
        Check(
            "Tuned SFR is not behind the published tuned SFR",
            _lines(table, lambda data: _published(table, data)),
        ),
        Check(
            "Untuned SFR is ahead of the untuned BNN and GLM",
            _lines(table, lambda data: _ahead(table, data)),
            AHEAD_ON,
        ),
        Check(
            "Our default, tuned, is not behind the best of all methods, tuned",
            _lines(table, lambda data: _best(table, data)),
        ),
    ]
    return [check for check in found if check.lines]


def _lines(table: Table, line: Callable[[str], Line | None]) -> list[Line]:
    return [found for data in table.data if (found := line(data)) is not None]


def _line(data: str, against: str, difference: float, error: float) -> Line:
    return Line(TITLES[data], against, difference, MARGIN + error)


def _paired(table: Table, data: str, first: Setting, second: Setting) -> Line | None:
    difference = table.difference(data, first, second)
    if difference is None:
        return None
    return _line(data, second[0], difference.mean, difference.error)


def _published(table: Table, data: str) -> Line | None:
    mean = table.mean(data, ("sfr", True))
    if mean is None:
        return None
    difference = mean.mean - published()[data, "sfr", True]
    return _line(data, "published sfr", difference, mean.error)


def _ahead(table: Table, data: str) -> Line | None:
    """Of the two, the one with the lower NLPD decides; ahead is below zero."""
    gaps = [
        (gap.mean, method)
        for method in ("bnn", "glm")
        if (gap := table.difference(data, ("sfr", False), (method, False)))
    ]
    if len(gaps) < 2:
        return None
    largest, method = max(gaps)
    return Line(TITLES[data], method, largest, 0.0)


def _best(table: Table, data: str) -> Line | None:
    ours = ("sfr (ours)", True)
    others = [
        (mean.mean, setting)
        for setting in [("nn map", False), *table.settings(tuned=True)]
        if setting != ours and (mean := table.mean(data, setting))
    ]
    if not others or table.mean(data, ours) is None:
        return None
    return _paired(table, data, ours, min(others)[1])
