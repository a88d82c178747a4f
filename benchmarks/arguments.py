"""Option values that several commands take."""


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
