"""Rows as `sfr-cl cl` would write them, with made-up numbers, and a report of all of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfr_cl.benchmarks.cl import report

Row = dict[str, Any]

# Final accuracy, accuracy kept of an experience (1: nothing forgotten), seconds, stored per task.
CHARACTERS = {
    "sfr": (0.94, 0.96, 60.0, 1),
    "sfr-condition": (0.958, 1.0, 11.0, 0),
    "sfr-l2": (0.937, 0.95, 58.0, 1),
    "replay+sfr": (0.95, 0.97, 75.0, 2),
    "naive": (0.197, 0.0, 48.0, 0),
    "joint": (0.962, 1.0, 75.0, 60),  # all samples
    "ewc": (0.199, 0.02, 55.0, 0),
    "online-ewc": (0.198, 0.02, 54.0, 0),
    "si": (0.197, 0.01, 52.0, 0),
    "lwf": (0.22, 0.05, 57.0, 0),
    "replay": (0.92, 0.93, 53.0, 1),
    "der": (0.931, 0.94, 56.0, 1),
    "der++": (0.941, 0.95, 54.0, 1),
    "gdumb": (0.893, 0.95, 18.0, 1),
    "agem": (0.70, 0.65, 64.0, 1),
    "gem": (0.909, 0.92, 125.0, 1),
}
BINS = 15


def make_row(strategy: str, seed: int, experiences: int = 5, memory: int = 200) -> Row:
    """A row as `sfr-cl cl` would write it; its numbers are made up."""
    final, kept, seconds, stores = CHARACTERS.get(strategy, (0.5, 0.5, 10.0, 0))
    noise = np.random.default_rng([seed, *strategy.encode()])
    step, on = np.indices((experiences, experiences))
    known = np.where(on == step, 0.98, 0.98 * (1 - (1 - kept) * (1 - 0.3 ** (step - on))))
    known = np.where(on > step, 0.02, known)
    if final > 0.25:
        known[-1] *= final / known[-1].mean()
    matrix = np.clip(known + noise.normal(0, 0.008, known.shape), 0, 1)
    if strategy == "joint":
        matrix = matrix[-1:]
    accuracy = float(matrix[-1].mean())
    counts = noise.multinomial(10_000, np.linspace(0.2, 3, BINS) ** 3 / 200 + 1e-3, 1)[0]
    counts[:2] = 0
    confidence = (np.arange(BINS) + 0.5) / BINS
    right = np.clip(confidence - (0.96 - accuracy) * confidence**2 * 0.9, 0, 1)
    filled = counts > 0
    ece = float((counts * abs(confidence - right)).sum() / counts.sum())
    return {
        "data": "mnist",
        "scenario": "class",
        "strategy": strategy,
        "seed": seed,
        "accuracy": accuracy,
        "accuracy_matrix": matrix.tolist(),
        "forgetting": float(0.98 * (1 - kept) + abs(noise.normal(0, 0.01))),
        "nlpd": float(0.12 / accuracy**2.5 * noise.uniform(0.9, 1.1)),
        "ece": ece,
        "seconds": seconds * noise.uniform(0.95, 1.05),
        "stored_samples": stores * memory * experiences,
        "state_bytes": 1_075_240 + stores * memory * experiences * 3_136,
        "reliability_confidence": np.where(filled, confidence, None).tolist(),
        "reliability_accuracy": np.where(filled, right, None).tolist(),
        "reliability_count": counts.tolist(),
        "memory": memory,
        "settings": make_settings(strategy, final),
    }


def make_settings(strategy: str, accuracy: float) -> dict[str, Any]:
    settings: dict[str, Any] = {"hidden": [256, 256], "lr": 1e-4, "epochs": 5, "batch": 32}
    if "ewc" in strategy:
        return settings | make_choice("ewc_lambda", 1e4, [1.0, 10.0, 100.0, 1e3, 1e4], accuracy)
    if strategy.startswith("der"):
        return settings | {"beta": 0.5} | make_choice("alpha", 0.3, [0.1, 0.3, 1.0], accuracy)
    if strategy.startswith("sfr"):
        return settings | {"tau": 0.5, "chosen_by": "published"}
    return settings | {"chosen_by": "default"}


def make_choice(parameter: str, best: float, grid: list[float], accuracy: float) -> dict[str, Any]:
    tried = [{"value": v, "accuracy": accuracy - abs(np.log10(v / best)) / 100} for v in grid]
    return {
        parameter: best,
        "chosen_by": "tune",
        "parameter": parameter,
        "grid": tried,
        "on_edge": best in (grid[0], grid[-1]),
        "tuning_seed": 0,
        "validation": "a tenth of the training data",
    }


def make_rows(strategies: Sequence[str], seeds: int = 3, **options: int) -> list[Row]:
    return [make_row(name, seed, **options) for name in strategies for seed in range(seeds)]


def full_report(factory: pytest.TempPathFactory) -> Path:
    """A report with every strategy, written once for all tests."""
    folder = factory.getbasetemp() / "full-report"
    page = folder / "report.html"
    return page if page.exists() else report.write(folder, make_rows(list(CHARACTERS)))
