"""Tables for terminals of 80 columns. Columns that do not fit are wrapped, the least important first. Nothing is truncated."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

_SHORT = 24
"""Maximum width of a column that is shown in one line, in characters, unless it may be folded."""


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    folds: Collection[str] = (),
    title: str | None = None,
    width: int | None = None,
) -> Table:
    """Make a table that fits the terminal.

    ``folds``: columns that are folded first. ``width``: width of the terminal in characters, None: ask it. If the other
    columns do not fit, the gaps become smaller. If that is not enough, all columns are folded.
    """
    width = Console().width if width is None else width
    cells = [tuple(row) for row in rows]
    widths = [max(len(name), *(len(row[number]) for row in cells), 0) for number, name in enumerate(columns)]
    folded = [name in folds or widest > _SHORT for name, widest in zip(columns, widths, strict=True)]
    least = [
        max(map(len, name.split())) if folds_first else widest
        for name, widest, folds_first in zip(columns, widths, folded, strict=True)
    ]
    tight, fits = sum(widths) + 3 * len(columns) > width, sum(least) + len(columns) < width
    made = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 0) if tight else (0, 1), pad_edge=False)
    for name, may_fold, smallest in zip(columns, folded, least, strict=True):
        made.add_column(name, overflow="fold", no_wrap=fits and not may_fold, min_width=smallest if fits else None)
    for row in cells:
        made.add_row(*row)
    return made
