"""Files of posteriors and streams, and what they answered when they were written.

`tests/io/fixtures/VERSION` holds what a version wrote: for every file `<file>.expected.safetensors`
with its answers, before and after more learning. Later versions must open them for ever, and answer
the same. From the folder `tests`, `python -m support.old_files FOLDER` writes such a set.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sfr_cl import SFRPosterior, StreamingPosterior

FEATURES, CLASSES = 4, 3

Answers = dict[str, Tensor]


class TwoInputs(nn.Module):
    """A network that takes a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(FEATURES, 5), nn.Linear(2, 5)
        self.head = nn.Sequential(nn.Tanh(), nn.Linear(5, CLASSES))

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        found: Tensor = self.head(self.left(x["left"]) + self.right(x["right"]))
        return found


POSTERIORS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "classification": ("classification", CLASSES, {}),
    "regression": ("regression", 1, {"mean": "network", "dtype": torch.float32}),
    "binary": ("binary", 1, {"output_kernel": "per_output", "linearize_at": "network"}),
    "dictionaries": ("classification", CLASSES, {"parameters": "last_layer"}),
}
"""Likelihood, outputs and options."""

STREAMS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "stream": ("classification", CLASSES, {}),
    "stream-window": ("regression", 1, {"window": 12}),
    "stream-discount": ("classification", CLASSES, {"discount": 0.95}),
}
"""Likelihood, outputs and settings."""

INDUCING = 5
CURSOR = {"file": "part-3", "line": 17}


def network(name: str, seed: int = 0) -> nn.Module:
    """The architecture a file was made with; the file brings the weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if name == "dictionaries":
            return TwoInputs()
        outputs = {**POSTERIORS, **STREAMS}[name][1]
        return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, outputs))


def numbers(seed: int, rows: int, columns: int = FEATURES) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def inputs(name: str, seed: int, rows: int) -> Any:
    """What the network of a name takes."""
    if name == "dictionaries":
        return {"left": numbers(seed, rows), "right": numbers(seed + 1, rows, 2)}
    return numbers(seed, rows)


def samples(name: str, seed: int, rows: int) -> tuple[Any, Tensor]:
    """Inputs, and targets that alternate or, of a regression, are a function of them."""
    x = inputs(name, seed, rows)
    kind = {**POSTERIORS, **STREAMS}[name][0]
    if kind == "regression":
        return x, x.sum(1, keepdim=True).sin() + 0.1 * numbers(seed + 1, rows, 1)
    return x, torch.arange(rows) % (CLASSES if kind == "classification" else 2)


def posterior_answers(posterior: SFRPosterior, name: str) -> Answers:
    """What a posterior answers before and after an update. It is changed."""
    x = inputs(name, 3, 6)
    latent = posterior.predict_f(x)
    predictive = posterior.predict(x)
    found = {
        "latent_mean": latent.mean,
        "latent_variance": latent.variance,
        "predictive_mean": getattr(predictive, "probs", predictive.mean),
        "novelty": posterior.novelty(x),
        "prior_precision": scalar(posterior.prior_precision),
        "logit_scale": scalar(posterior.logit_scale),
        "noise_variance": scalar(posterior.noise_variance or 0.0),
        "num_data": scalar(posterior.num_data),
        "evidence": scalar(posterior.log_marginal_likelihood()),
    }
    found["updated_mean"] = posterior.update(samples(name, 5, 7)).predict_f(x).mean
    return found


def stream_answers(stream: StreamingPosterior, name: str) -> Answers:
    """What a stream answers before and after it learned more. It is changed."""
    x = inputs(name, 3, 6)

    def now(when: str) -> Answers:
        return {
            f"{when}_mean": stream.predict_f(x).mean,
            f"{when}_variance": stream.predict_f(x).variance,
            f"{when}_predictions": stream.predict_many(x),
            f"{when}_logit_scale": scalar(stream.logit_scale),
            f"{when}_num_learned": scalar(stream.n_seen),
            f"{when}_num_data": scalar(stream.num_data),
            f"{when}_coverage": scalar(stream.residual_bound.unexplained),
            f"{when}_noise_variance": scalar(stream.posterior.noise_variance or 0.0),
        }

    before = now("loaded")
    stream.learn_many(*samples(name, 5, 20))
    return {**before, **now("later")}


def scalar(value: Any) -> Tensor:
    return torch.as_tensor(float(value), dtype=torch.float64)


def expected_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.expected.safetensors")


def write(folder: Path) -> None:
    """A set of files, as the present version writes them."""
    for name, (kind, _, options) in POSTERIORS.items():
        posterior = SFRPosterior(
            network(name), kind, inducing=inputs(name, 2, INDUCING), **options
        ).fit(samples(name, 1, 20))
        if kind == "binary":
            posterior.tune_prior_precision(samples(name, 4, 20))
        posterior.save(path := folder / f"{name}.safetensors")
        _write_beside(path, posterior_answers(posterior, name))
    for name, (kind, _, settings) in STREAMS.items():
        stream = StreamingPosterior(
            SFRPosterior(network(name), kind, inducing=INDUCING), **settings
        )
        stream.learn_many(*samples(name, 1, 40))
        stream.save(path := folder / f"{name}.safetensors", cursor=CURSOR)
        stream.close()
        _write_beside(path, stream_answers(stream, name))
        path.with_name(f"{path.name}.lock").unlink(missing_ok=True)


def _write_beside(path: Path, answers: Answers) -> None:
    found = {name: value.detach().contiguous() for name, value in answers.items()}
    save_file(found, expected_file(path))


if __name__ == "__main__":
    torch.set_num_threads(1)
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    write(Path(sys.argv[1]))
