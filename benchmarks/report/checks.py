"""What a run was to show, and whether its rows do."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """A promise, kept or not: decided by the rows alone."""

    what: str
    wanted: str
    got: str
    met: bool

    @property
    def verdict(self) -> str:
        return "met" if self.met else "missed"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for a README; the first column holds words, the others numbers.

    >>> print(markdown_table(["data", "NLPD"], [["boston", "0.5"]]), end="")
    | data | NLPD |
    |---|--:|
    | boston | 0.5 |
    """
    rule = ["---", *["--:"] * (len(header) - 1)]
    lines = [" | ".join(header), "|".join(rule), *(" | ".join(row) for row in rows)]
    return "".join(f"|{line}|\n" if line.startswith("---") else f"| {line} |\n" for line in lines)


def markdown_checks(checks: Sequence[Check]) -> str:
    """The checks as such a table."""
    rows = [[check.what, check.wanted, check.got, check.verdict] for check in checks]
    return markdown_table(["to show", "wanted", "got", ""], rows)
