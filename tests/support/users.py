"""People whose rows are to be forgotten, and a search of files for what is left of them."""

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from sfr_cl import SFRPosterior, class_balanced, greedy, random

USERS, LEAVING, ROWS, FEATURES, CLASSES = 120, 100, 3, 5, 3


def first_rows(batches: Any, kernel: Any) -> Tensor:
    """A selector of the user's."""
    del kernel
    found: Tensor = next(iter(batches))[0][:40]
    return found


DRAWN: dict[str, Any] = {
    "default": None,
    "count": 40,
    "random": random(40),
    "class_balanced": class_balanced(40),
    "greedy": greedy(40),
    "custom": first_rows,
}
"""All ways to draw inducing inputs from data."""


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def people() -> tuple[Tensor, Tensor]:
    """Real-valued rows, those of a person one after the other; classes."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(USERS * ROWS, FEATURES, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def leaving() -> Iterator[slice]:
    """The rows of those who leave, one person after the other, in no order."""
    order = torch.randperm(USERS, generator=torch.Generator().manual_seed(4))[:LEAVING]
    return (slice(ROWS * int(user), ROWS * int(user) + ROWS) for user in order)


def stays(gone: list[slice]) -> Tensor:
    """Rows of all others."""
    kept = torch.ones(USERS * ROWS, dtype=torch.bool)
    for rows in gone:
        kept[rows] = False
    return kept


def traces(path: Path, gone: Tensor) -> list[str]:
    """Where numbers of some rows stand in a file: its tensors, its text; the last in its bytes."""
    numbers = np.concatenate([gone.numpy().ravel(), gone.double().numpy().ravel()])
    with safe_open(path, framework="np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = " ".join(file.metadata().values())
    found = [name for name, value in tensors.items() if np.isin(value, numbers).any()]
    found += [f"text: {value!r}" for value in numbers.tolist() if repr(value) in text]
    return found + bytes_left(path.read_bytes(), gone[-ROWS:])


def bytes_left(content: bytes, gone: Tensor) -> list[str]:
    """Rows that stand in some bytes, in either precision."""
    rows = [row for kind in (gone, gone.double()) for row in kind.numpy()]
    return [f"bytes: {row}" for row in rows if row.tobytes() in content]


def forget_everybody(
    face: Any, forget: Callable[[Tensor, Tensor], Any], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each person in turn; after each a file without a trace, and the posterior of the others.

    Args:
        face: has ``save``, ``predict_f`` and ``inducing_inputs``.
        forget: takes x and y.
        path: of the file.
        monkeypatch: pytest's.
    """
    (x, y), new = people(), people()[0][:20] + 0.5
    gone: list[slice] = []
    monkeypatch.setattr("os.fsync", lambda _: None)  # which is most of the time of a hundred files
    face.save(path)
    assert "inducing.0" in traces(path, x)
    for rows in leaving():
        forget(x[rows], y[rows])
        gone.append(rows)
        face.save(path)
        assert traces(path, torch.cat([x[each] for each in gone])) == []
        if len(gone) in (1, 40, LEAVING):
            z, others = face.inducing_inputs, stays(gone)
            never = SFRPosterior(network(), "classification", inducing=z, prior_precision=1.0).fit(
                (x[others], y[others])
            )
            found, expected = face.predict_f(new), never.predict_f(new)
            torch.testing.assert_close(found.mean, expected.mean, atol=1e-6, rtol=0)
            torch.testing.assert_close(found.variance, expected.variance, atol=1e-6, rtol=0)
    assert bytes_left(pickle.dumps(face), x[~stays(gone)]) == []
