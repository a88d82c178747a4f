"""Threads of a server, or one that trains meanwhile: each as if it were alone."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from support.posteriors import CLASSES, fitted, inputs, mlp

THREADS, CALLS = 3, 10
X = inputs(4)


class Slow(nn.Module):
    """Lets other threads in between its layers, and tells the default precision that it met."""

    def __init__(self, made: Callable[[], Tensor]) -> None:
        super().__init__()
        self.body, self.made = mlp(CLASSES), made

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body[:2](x)
        time.sleep(0.001)
        return self.body[2](hidden) + self.made()


def half() -> Tensor:
    return torch.tensor(0.5)


def third() -> Tensor:
    return torch.tensor(1 / 3)


@pytest.mark.parametrize("same", [True, False], ids=["one posterior", "several"])
@pytest.mark.parametrize("made", [half, third])
def test_that_predict_at_once(made: Callable[[], Tensor], same: bool) -> None:
    dtypes = [torch.float64, torch.float32, torch.float64]
    posteriors = [fitted(network=Slow(made), dtype=dtype) for dtype in dtypes]
    if same:
        posteriors = posteriors[:1] * THREADS
    expected = [posterior.predict(X).probs for posterior in posteriors]

    def predicted(thread: int) -> list[Tensor]:
        return [posteriors[thread].predict(X).probs for _ in range(CALLS)]

    with ThreadPoolExecutor(THREADS) as threads:
        for answers, answer in zip(threads.map(predicted, range(THREADS)), expected, strict=True):
            for found in answers:
                torch.testing.assert_close(found, answer, rtol=0, atol=0)
    assert torch.get_default_dtype() == torch.float32


def test_that_makes_tensors_while_another_predicts() -> None:
    met = []

    def watched() -> Tensor:
        met.append(torch.get_default_dtype())
        return half()

    posterior = fitted(network=Slow(watched))
    met.clear()
    posterior.predict(X)
    posterior.update((X, torch.arange(4) % CLASSES))
    assert set(met) == {torch.float32}
