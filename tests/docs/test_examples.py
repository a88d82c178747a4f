"""The examples in the README and in the docstrings run."""

import doctest
import json
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

import readme_tables
from support.paths import ROOT

README = ROOT / "README.md"
README_EXAMPLES = list(Sybil(parsers=[PythonCodeBlockParser()]).parse(README).examples())


OLD_NAMES = {"sfr_cl.streaming.estimators", "sfr_cl.value_sites"}
"""Modules that warn that they have another name now."""


def module_names() -> list[str]:
    # An editable install maps the sub-packages by name, outside the folder of `sfr_cl`.
    names = set()
    for package in ("sfr_cl", "sfr_cl.strategies", "sfr_cl.benchmarks"):
        names.add(package)
        paths = import_module(package).__path__
        names.update(module.name for module in pkgutil.walk_packages(paths, f"{package}."))
    return sorted(names - OLD_NAMES)


@pytest.fixture(scope="module")
def readme_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One working folder for all blocks: a later one may read what an earlier one saved."""
    return tmp_path_factory.mktemp("readme")


@pytest.mark.parametrize("example", README_EXAMPLES, ids=lambda example: f"line-{example.line}")
def test_readme_block_runs(
    example: Example, readme_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(readme_folder)
    example.evaluate()


def test_readme_has_python_blocks() -> None:
    assert README_EXAMPLES


def test_readme_installs_what_its_first_example_imports() -> None:
    text = README.read_text()
    install, example = text.index("pip install . scikit-learn"), text.index("from sklearn")
    assert install < example
    assert "pip install sfr-cl" not in text
    assert 'pip install "sfr-cl[' not in text
    assert ".venv/bin/python" in text[install:example]


def test_readme_tables_are_the_results() -> None:
    """No figure is written by hand: each comes from the file its command made."""
    text = README.read_text()
    docs = README.parent / "docs" / "results"
    figure1 = json.loads((docs / "figure1" / "results.json").read_text())["rows"]
    for row in figure1:
        if row["method"] != "fitted on all":
            assert f"| {row['nlpd']:.2f} | {row['rmse']:.2f} |" in text
    speed = json.loads((docs / "speed" / "results.json").read_text())["rows"]
    for row in speed:
        if "ratio" in row and "case table" not in row["case"]:
            ratio = f"{row['ratio']:.2g}" if row["ratio"] < 10 else f"{row['ratio']:.0f}"
            line = f"| {row['case']} | {row['peer']} | {row['seconds']:.2g} s | {ratio} |"
            assert line in text


@pytest.mark.parametrize("name", list(readme_tables.TABLES))
def test_readme_table_is_the_results(name: str) -> None:
    _, inside, _ = readme_tables.between(README.read_text(), name)
    assert inside == readme_tables.TABLES[name]()


@pytest.mark.parametrize("name", module_names())
def test_doctests_pass(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(import_module(name), optionflags=options).failed == 0
