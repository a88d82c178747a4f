"""What `sfr-cl figure1` shows on the terminal."""

from collections.abc import Sequence

from rich.table import Table

from .experiment import Row


def table(rows: Sequence[Row]) -> Table:
    """The rows for a terminal of 80 columns."""
    result = Table(
        title="Regression with a gap in D1, new data D2 in the gap, test points everywhere",
        caption=(
            "absorb: fit or update; predict: the first input; "
            "fitted on all: the D1 network, as a check of the update"
        ),
    )
    result.add_column("posterior")
    for name in ("data", "NLPD", "RMSE", "train", "absorb", "predict", "total"):
        result.add_column(name, justify="right")
    for row in rows:
        parts = (row.seconds_train, row.seconds_absorb, row.seconds_first_prediction, row.seconds)
        numbers = (f"{row.num_data:g}", f"{row.nlpd:.3f}", f"{row.rmse:.3f}")
        result.add_row(row.method, *numbers, *map(readable, parts))
    return result


def readable(seconds: float) -> str:
    """Seconds in the unit a reader would choose.

    >>> readable(0.0042), readable(1.25), readable(0)
    ('4.2 ms', '1.25 s', '-')
    """
    if not seconds:
        return "-"
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"
