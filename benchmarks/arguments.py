"""Option values that several commands take."""


def names(text: str) -> list[str]:
    """Names separated by commas, each once.

    >>> names("a, b,a")
    ['a', 'b']
    """
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def numbers(text: str) -> list[int]:
    """Whole numbers separated by commas.

    >>> numbers("0,1")
    [0, 1]
    """
    return [int(number) for number in names(text)]
