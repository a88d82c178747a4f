"""The conditioning pass shows how far it is, where somebody watches."""

from __future__ import annotations

import io
import sys

import pytest
import torch
from avalanche.logging import InteractiveLogger
from avalanche.training.plugins import EvaluationPlugin

from sfr_cl.strategies import SFRConditioning, SFRPlugin, progress
from sfr_cl.testing.streams import Labelled, blobs, class_benchmark, single_head


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "verbose", "bar"),
    [(Terminal, True, True), (Terminal, False, False), (io.StringIO, True, False)],
    ids=["a terminal", "not verbose", "a file"],
)
def test_a_bar_where_somebody_watches(
    stream: type[io.StringIO], verbose: bool, bar: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", screen := stream())
    monkeypatch.setattr(progress, "DELAY", 0.0)
    plugin = SFRPlugin(num_inducing=10, likelihood="classification", verbose=verbose)
    plugin.end_task(single_head(), Labelled(*blobs(1)))
    assert ("conditioning" in screen.getvalue()) is bar


def test_conditioning_alone_shows_in_avalanches_logger(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    strategy = SFRConditioning(
        model=single_head(),
        num_inducing=10,
        inducing="noise",
        train_mb_size=10,
        evaluator=EvaluationPlugin(loggers=[InteractiveLogger()]),
    )
    strategy.train(class_benchmark().train_stream[0])
    assert "4/4" in capsys.readouterr().out
