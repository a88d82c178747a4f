"""Files that earlier versions wrote: they open, and answer as they did."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sfr_cl import SFRPosterior, StreamingPosterior
from support import old_files

FIXTURES = Path(__file__).with_name("fixtures")
VERSIONS = sorted(folder.name for folder in FIXTURES.iterdir())


def compare(answers: old_files.Answers, path: Path, *, chosen_again: str = "") -> None:
    """``chosen_again``: a scale of logits that was one of a grid of version 0.1.0."""
    expected = load_file(old_files.expected_file(path))
    assert answers.keys() == expected.keys()
    tolerance = 1e-5 if path.stem == "regression" else 1e-10  # its kernel is in float32
    for name, value in expected.items():
        if name == chosen_again:
            torch.testing.assert_close(answers[name], value, rtol=0.26, atol=0)
            continue
        torch.testing.assert_close(answers[name], value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", old_files.POSTERIORS)
def test_posteriors_open_for_ever(version: str, name: str) -> None:
    path = FIXTURES / version / f"{name}.safetensors"
    posterior = SFRPosterior.load(path, old_files.network(name, seed=9))
    compare(old_files.posterior_answers(posterior, name), path)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", old_files.STREAMS)
def test_streams_open_for_ever(version: str, name: str) -> None:
    path = FIXTURES / version / f"{name}.safetensors"
    stream, cursor = StreamingPosterior.load(path, old_files.network(name, seed=9))
    assert cursor == old_files.CURSOR
    compare(old_files.stream_answers(stream, name), path, chosen_again="later_logit_scale")


@pytest.mark.filterwarnings("ignore:the best .* lies at the edge")
def test_a_set_of_files_can_be_written(tmp_path: Path) -> None:
    """By the command of `support.old_files`, for a version to come."""
    old_files.write(tmp_path)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {path.name for path in (FIXTURES / VERSIONS[-1]).iterdir()}
