"""What a child process does that is killed while it learns and saves.

No test module, so that the child can import it.
"""

from pathlib import Path

import torch

from sfr_cl import SFRPosterior, StreamingPosterior
from support.posteriors import mlp
from support.streams import samples

SETTINGS = {"discount": 0.999, "window": 300}


def restored(path: Path) -> tuple[StreamingPosterior, int]:
    """The last complete save, or a new stream."""
    if path.exists():
        return StreamingPosterior.load(path, mlp())
    posterior = SFRPosterior(mlp(), "classification", inducing=12)
    return StreamingPosterior(posterior, **SETTINGS), 0


def learn_and_save(path: Path, until: int) -> None:
    """The child: learns from where the last save left off, and saves all the time."""
    torch.set_num_threads(1)
    x, y = samples(rows=600)
    live, cursor = restored(path)
    for position in range(cursor, until, 3):
        rows = [row % len(x) for row in range(position, position + 3)]
        live.learn_many(x[rows], y[rows])
        live.save(path, cursor=position + 3)
