"""What the distribution promises: import direction, few dependencies, types, a command."""

import ast
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from support.paths import ROOT

# From the bottom up: a package imports those before it, never those after it.
FOLDERS = {
    "sfr_cl": "sfr_cl",
    "sfr_cl.strategies": "strategies",
    "sfr_cl.testing": "sfr_cl/testing",
    "sfr_cl.benchmarks": "benchmarks",
}
LAYERS = list(FOLDERS)
NOT_INSTALLED = {"benchmarks", "examples", "strategies", "support", "tests"}
OPTIONAL = {"avalanche", "matplotlib", "pandas", "rich", "river", "sklearn"}

BLOCKED_EXTRA = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"matplotlib", "rich", "sklearn"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from sfr_cl.benchmarks.cli import main
sys.exit(main(["demo"]))
"""


def run(*command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def imported_names(source: str, package: str) -> Iterator[str]:
    """Full names of everything the source imports, written in a module of `package`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def layer_of(name: str) -> int:
    """Position in LAYERS of the package that holds `name`; -1 outside the distribution."""
    inside = [i for i, layer in enumerate(LAYERS) if f"{name}.".startswith(f"{layer}.")]
    return max(inside, default=-1)


def wrong_imports(source: str, package: str) -> list[str]:
    return [
        name
        for name in imported_names(source, package)
        if layer_of(name) > layer_of(package) or name.partition(".")[0] in NOT_INSTALLED
    ]


def test_imports_go_one_way() -> None:
    found = {}
    for layer, folder in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            package = ".".join([layer, *path.relative_to(ROOT / folder).parts[:-1]])
            if names := wrong_imports(path.read_text(encoding="utf-8"), package):
                found[str(path.relative_to(ROOT))] = names
    assert not found, "imports against benchmarks -> strategies -> sfr_cl"


@pytest.mark.parametrize(
    ("package", "source", "wrong"),
    [
        ("sfr_cl", "from sfr_cl.kernel import ntk", False),
        ("sfr_cl", "from sfr_cl import strategies", True),
        ("sfr_cl", "from . import benchmarks", True),
        ("sfr_cl", "def late():\n    import sfr_cl.benchmarks.cli", True),
        ("sfr_cl.strategies", "from .. import SFRPosterior", False),
        ("sfr_cl.strategies", "from ..benchmarks import cli", True),
        ("sfr_cl.benchmarks", "from sfr_cl.strategies import SFR", False),
        ("sfr_cl.benchmarks", "from strategies import SFR", True),
        ("sfr_cl.benchmarks", "import tests.conftest", True),
    ],
)
def test_wrong_imports_are_recognised(package: str, source: str, wrong: bool) -> None:
    assert bool(wrong_imports(source, package)) is wrong


def test_import_needs_no_optional_package() -> None:
    code = f"import sys, sfr_cl; print(*sorted({OPTIONAL} & set(sys.modules)))"
    result = run(sys.executable, "-W", "error", "-c", code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


LAZY = """
import sys
import sfr_cl
assert "torch" not in sys.modules
assert set(sfr_cl.__all__) <= set(dir(sfr_cl))
from sfr_cl import *
from sfr_cl import posterior
assert SFRPosterior is posterior.SFRPosterior is sfr_cl.SFRPosterior
assert sfr_cl.likelihoods.Likelihood is Likelihood
assert all(hasattr(sfr_cl, name) for name in dir(sfr_cl))
assert not hasattr(sfr_cl, "SfrPosterior")
"""


def test_names_are_imported_when_they_are_asked_for() -> None:
    result = run(sys.executable, "-W", "error", "-c", LAZY)
    assert result.returncode == 0, result.stderr


def test_contracts_need_no_optional_package() -> None:
    code = f"import sys, sfr_cl.testing; print(*sorted({OPTIONAL | {'pytest'}} & set(sys.modules)))"
    result = run(sys.executable, "-W", "error", "-c", code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


def test_every_folder_is_packaged() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {
        ".".join([layer, *path.relative_to(ROOT / folder).parts[:-1]])
        for layer, folder in FOLDERS.items()
        for path in (ROOT / folder).rglob("*.py")
    }
    assert sorted(project["tool"]["setuptools"]["packages"]) == sorted(folders)


def test_package_is_typed() -> None:
    assert files("sfr_cl").joinpath("py.typed").is_file()


def test_command_shows_help_and_version() -> None:
    command = str(Path(sysconfig.get_path("scripts"), "sfr-cl"))
    assert "demo" in run(command, "--help").stdout
    assert "--out DIR" in run(command, "demo", "--help").stdout
    assert run(command, "--version").stdout.startswith("sfr-cl ")


def test_missing_extra_is_one_sentence(tmp_path: Path) -> None:
    result = run(sys.executable, "-c", BLOCKED_EXTRA, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert result.stderr.count("\n") == 1
    assert 'pip install "sfr-cl[benchmarks]"' in result.stderr
