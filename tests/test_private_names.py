"""Below a public class there are public verbs: no module uses another's private names."""

import ast
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import pytest

from support.paths import ROOT

FOLDERS = ("sfr_cl", "strategies", "benchmarks")

FORCED = {
    "_criterion": "Avalanche's strategies keep their criterion there, and there alone",
    "_before_training": "hooks of Avalanche's training loop, which has no public ones",
    "_before_training_exp": "as above",
    "_version": "torch's counter of changes in place",
    "_forward_hooks": "torch tells in no other way whether a module has hooks",
    "_forward_pre_hooks": "as above",
    "_backward_hooks": "as above",
    "_backward_pre_hooks": "as above",
    "_apply": "what Module.to and Module.half are made of: to() makes complex weights real",
    "_orig_mod": "what torch.compile wraps, which has no public name",
    "_glm_predictive_distribution": "laplace-torch's moments of f, which it has no public name for",
}
"""Private names of other packages that are used, with the reason."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_"


def private_names(tree: ast.AST) -> set[str]:
    """Private names that a module defines: functions, classes, attributes of its objects."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return {name for name in found if is_private(name)}


def is_self(node: ast.expr) -> bool:
    """Whether an object is the method's own: what it inherits from other packages is theirs."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def foreign_uses(tree: ast.AST, ours: Collection[str] = ()) -> Iterator[tuple[int, str]]:
    """Lines that read or write a private name which the module does not define itself.

    Of an object's own names, those that another of our modules defines (`ours`).
    """
    own = private_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            if not is_self(node.value) or node.attr in ours:
                yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom):
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from ((node.lineno, part) for part in parts if is_private(part))


def modules() -> Iterable[Path]:
    return (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def uses() -> Iterator[tuple[str, str]]:
    """Where our modules use a private name that is not their own, and which."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in modules()}
    ours = {name for tree in trees.values() for name in private_names(tree)}
    for path, tree in trees.items():
        for line, name in foreign_uses(tree, ours):
            yield f"{path.relative_to(ROOT)}:{line}", name


def test_no_module_uses_anothers_private_names() -> None:
    found = [f"{place} {name}" for place, name in uses() if name not in FORCED]
    assert not found, "use a public verb, or add one"


def test_every_exception_is_needed() -> None:
    assert {name for _, name in uses()} == set(FORCED)


WRITES_ATTRIBUTES = {
    "sfr_cl/io/legacy.py": "objects of earlier versions get the fields of now",
    "strategies/checkpoints.py": "Avalanche restores a strategy so; torch hides its optimizers",
}
"""Modules that write through a dictionary of attributes, with the reason."""


def is_vars(node: ast.expr) -> bool:
    """A call of ``vars``."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "vars"


def writes_attributes(tree: ast.AST) -> bool:
    """Whether a module names ``__dict__``, or changes what ``vars`` gives."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "__dict__":
            return True
        if isinstance(node, ast.Attribute) and node.attr == "update" and is_vars(node.value):
            return True
        stores = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        if stores and is_vars(node.value):
            return True
    return False


def test_nothing_is_written_through_a_dictionary_of_attributes() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in modules()
        if writes_attributes(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set(WRITES_ATTRIBUTES), "declare the field"


@pytest.mark.parametrize(
    "source", ["x.__dict__", "vars(x)['a'] = 1", "del vars(x)['a']", "vars(x).update(a=1)"]
)
def test_writes_of_attributes_are_recognised(source: str) -> None:
    assert writes_attributes(ast.parse(source))
    assert not writes_attributes(ast.parse("found = {**vars(x)}; vars(x)['a']"))


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("posterior._state", ["_state"]),
        ("posterior._state = 1", ["_state"]),
        ("def f(self):\n    self._x = 1\n    other._x", []),
        ("from sfr_cl.core import _solve", ["_solve"]),
        ("from sfr_cl._core import solve", ["_core"]),
        ("self.__class__", []),
    ],
)
def test_uses_are_recognised(source: str, names: list[str]) -> None:
    assert [name for _, name in foreign_uses(ast.parse(source))] == names
