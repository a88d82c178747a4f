"""The examples in the README and in the docstrings run."""

import doctest
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

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


@pytest.mark.parametrize("name", module_names())
def test_doctests_pass(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(import_module(name), optionflags=options).failed == 0
