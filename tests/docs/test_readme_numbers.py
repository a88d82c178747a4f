"""No figure of the README is written by hand: tables and prose, times included."""

from collections.abc import Callable

import pytest
import readme_claims

import readme_tables
from support.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROSE = readme_claims.prose(README, readme_tables.TABLES)


@pytest.mark.parametrize("name", list(readme_tables.TABLES))
def test_readme_table_is_the_results(name: str) -> None:
    _, inside, _ = readme_tables.between(README, name)
    assert inside == readme_tables.TABLES[name]()


@pytest.mark.parametrize("claim", readme_claims.CLAIMS, ids=lambda claim: claim.__name__)
def test_readme_says_what_was_measured(claim: Callable[[], str]) -> None:
    assert claim() in PROSE


def test_every_number_has_a_source() -> None:
    found = readme_claims.unexplained(PROSE)
    assert not found, "compute them in tests/readme_claims.py, or say there why they are no results"


@pytest.mark.parametrize("words", list(readme_claims.NO_MEASUREMENT))
def test_every_exception_is_needed(words: str) -> None:
    assert words in PROSE


@pytest.mark.parametrize(
    "words", ["it takes 20 minutes", "half an hour", "98.3 %", "in a few seconds", "x 1,000"]
)
def test_numbers_are_recognised(words: str) -> None:
    assert readme_claims.unexplained(words)
    assert not readme_claims.unexplained("`--seeds 0,1` of the first")
