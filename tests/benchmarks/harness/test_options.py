"""Options that commands share mean the same everywhere."""

import argparse
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

from sfr_cl.benchmarks.cli import COMMANDS, main
from sfr_cl.benchmarks.harness import options
from sfr_cl.errors import ArgumentError

SHARED = {"--seeds", "--data-root", "--resume"}


def actions(module: str) -> dict[str, argparse.Action]:
    parser = argparse.ArgumentParser()
    import_module(module).add_arguments(parser)
    return {action.option_strings[-1]: action for action in parser._actions}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_shared_options_are_parsed_alike(command: argparse.Namespace) -> None:
    parser = argparse.ArgumentParser()
    options.add_seeds(parser, [0], "")
    options.add_data_root(parser)
    options.add_resume(parser)
    wanted = {action.option_strings[-1]: action for action in parser._actions}
    found = actions(command.module)
    for name in SHARED & set(found):
        assert type(found[name]) is type(wanted[name])
        assert (found[name].type, found[name].metavar) == (wanted[name].type, wanted[name].metavar)


@pytest.mark.parametrize(
    ("names", "made"),
    [
        ("cl.names.STRATEGIES", "cl.strategies.RECIPES"),
        ("cl.names.DATA", "cl.data.LOADERS"),
        ("ood.names.METHODS", "ood.methods.METHODS"),
        ("stream.names.DATA", "stream.data.LOADERS"),
        ("stream.names.METHODS", "stream.methods.METHODS"),
        ("uci.names.DATA", "uci.data.SETS"),
        ("update.names.REGRESSION", "update.data.FEATURES"),
    ],
)
def test_names_are_those_of_what_is_made(names: str, made: str) -> None:
    found = []
    for path in (names, made):
        module, _, name = path.rpartition(".")
        found.append(tuple(getattr(import_module(f"sfr_cl.benchmarks.{module}"), name)))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("words", "joined"),
    [
        (["cl", "--seeds", "-1,0", "--out", "x"], ["cl", "--seeds=-1,0", "--out", "x"]),
        (["cl", "--resume", "--seeds=0"], ["cl", "--resume", "--seeds=0"]),
        (["--help"], ["--help"]),
    ],
)
def test_a_negative_number_is_a_value(
    words: list[str], joined: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Sequence[str]] = []

    def parse(_: argparse.ArgumentParser, given: Sequence[str]) -> None:
        seen.append(given)
        raise ArgumentError("seen")

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    assert main(words) == 2
    assert seen == [joined]


def test_out_is_a_folder_of_the_command() -> None:
    parser = argparse.ArgumentParser()
    options.add_out(parser, "cl")
    assert parser.parse_args([]).out == Path("results", "cl")


@pytest.mark.parametrize(("names", "got"), [(["sfr", "swag"], "swag"), ([], "none")])
def test_unknown_names_and_none_are_refused(names: list[str], got: str) -> None:
    with pytest.raises(ArgumentError, match=f"expected methods of sfr, map, got {got}"):
        options.check_names("methods", names, ["sfr", "map"])
    options.check_names("methods", ["map"], ["sfr", "map"])


@pytest.mark.parametrize("seeds", [[], [0, -1]])
def test_impossible_seeds_are_refused(seeds: list[int]) -> None:
    with pytest.raises(ArgumentError, match="expected seeds that are whole numbers from 0"):
        options.check_seeds(seeds)
