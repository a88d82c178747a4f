"""Tables for a terminal of 80 columns."""

from rich import box
from rich.table import Table


def grid(*words: str) -> Table:
    """A table without frames, its first columns, of `words`, to the left."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in words:
        table.add_column(name, no_wrap=True)
    return table
