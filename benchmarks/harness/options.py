"""The options that several commands take: declared, explained, parsed and checked here."""

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from sfr_cl.errors import ArgumentError, FileError

LARGEST_SEED = 2**32 - 1
"""Of numpy and scikit-learn."""


class Options(Protocol):
    """A parser, or a group of its options."""

    def add_argument(self, *names: str, **details: Any) -> Any:
        """Add one."""


def name_list(text: str) -> list[str]:
    """Names separated by commas, each once.

    >>> name_list("a, b,a")
    ['a', 'b']
    """
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def number_list(text: str) -> list[int]:
    """Whole numbers separated by commas.

    >>> number_list("0,1")
    [0, 1]
    """
    return [int(number) for number in name_list(text)]


def add_out(parser: argparse.ArgumentParser, command: str) -> None:
    """`--out`, which every command has."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("results", command),
        metavar="DIR",
        help="folder the results are written to (default: %(default)s)",
    )


def add_names(
    parser: Options,
    option: str,
    known: Collection[str],
    *,
    default: str | None = None,
) -> None:
    """An option that takes some of the known names, by default all.

    With `default`, which says what a command does without the option, it is then `None`.
    """
    parser.add_argument(
        option,
        type=name_list,
        default=list(known) if default is None else None,
        metavar="A,B,...",
        help=f"of {', '.join(known)} (default: {default or 'all'})",
    )


def add_seeds(parser: argparse.ArgumentParser, default: Sequence[int], what: str) -> None:
    """`--seeds`; `what` says what they draw."""
    parser.add_argument(
        "--seeds",
        type=number_list,
        default=list(default),
        metavar="A,B,...",
        help=f"{what} (default: {','.join(map(str, default))})",
    )


def add_data_root(parser: argparse.ArgumentParser) -> None:
    """`--data-root`, for data that is not in the package."""
    parser.add_argument(
        "--data-root",
        type=Path,
        metavar="DIR",
        help="where the data sets are (default: SFR_CL_DATA, then the user's cache)",
    )


def add_resume(parser: argparse.ArgumentParser, what: str = "rows") -> None:
    """`--resume`; `what` is that which an earlier run has written."""
    parser.add_argument(
        "--resume",
        action="store_true",
        help=f"keep the {what} that an earlier run has written, and add those that are missing",
    )


def check_names(what: str, names: Collection[str], known: Collection[str]) -> None:
    """Refuse unknown names, and none at all."""
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ArgumentError(
            f"expected {what} of {', '.join(known)}, got {', '.join(unknown) or 'none'}: "
            "check the names"
        )


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse negative seeds, those that generators can't take, and none at all."""
    if not seeds or min(seeds) < 0 or max(seeds) > LARGEST_SEED:
        raise ArgumentError(
            f"expected seeds that are whole numbers from 0 to {LARGEST_SEED}, got "
            f"{', '.join(map(str, seeds)) or 'none'}: name others"
        )


def check_data_root(folder: Path | None) -> None:
    """Refuse a folder of data that is not there: it would be made, and downloaded into."""
    if folder is not None and not folder.expanduser().is_dir():
        raise FileError(
            f"expected --data-root to be a folder, got {folder}, which is not one: check the path, "
            "or make it first if data is to be downloaded there"
        )
