"""Numbers as people read them."""

from .seeds import Spread

NONE = "\N{EN DASH}"


def percent(value: Spread | None, *, spread: bool = True) -> str:
    """A share in percent, with its standard deviation over seeds unless `spread` is off.

    >>> percent(Spread(0.9423, 0.0031, 0.94, 0.945))
    '94.2 ± 0.3'
    """
    if value is None:
        return NONE
    mean = f"{100 * value.mean:.1f}"
    return f"{mean} ± {100 * value.sd:.1f}" if spread and value.sd is not None else mean


def plain(spread: Spread | None, digits: int) -> str:
    """The mean alone, with this many decimals."""
    return NONE if spread is None else f"{spread.mean:,.{digits}f}"


def seconds(spread: Spread | None) -> str:
    """The mean, to two digits or the second.

    >>> [seconds(Spread(s, None, s, s)) for s in (0.0123, 4.56, 78.9, 1234.5)]
    ['0.012', '4.6', '79', '1,234']
    """
    if spread is None:
        return NONE
    return f"{spread.mean:.2g}" if 0 < spread.mean < 10 else f"{spread.mean:,.0f}"


def size(spread: Spread | None) -> str:
    """Bytes in the unit that suits them.

    >>> [size(Spread(b, None, b, b)) for b in (0, 900, 4_300, 12_600_000, 309_040)]
    ['0 B', '900 B', '4.3 kB', '13 MB', '309 kB']
    """
    if spread is None:
        return NONE
    value, unit = spread.mean, "B"
    for larger in ("kB", "MB", "GB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    digits = 0 if unit == "B" or value >= 10 else 1
    return f"{value:.{digits}f} {unit}"
