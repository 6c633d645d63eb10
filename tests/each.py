"""Try many rows of a table in one test.

pytest makes a test of each parameter, which costs some ten milliseconds in each of the workers. Use ``each`` like
``pytest.mark.parametrize`` where the rows come from a table of the code and need no fresh fixtures. All rows are tried, and each
failure names its row.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def each(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Call the test with each row. ``names`` and ``rows`` are as for ``parametrize``."""
    words = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    given = [dict(zip(words, _values(row, len(words)), strict=True)) for row in rows]
    assert given, "the table is empty"

    def wrap(test: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def all_rows(**fixtures: Any) -> None:
                failures = _Failures()
                for row in given:
                    with failures.of(row):
                        await test(**fixtures, **row)
                failures.raise_them()

        else:

            @functools.wraps(test)
            def all_rows(**fixtures: Any) -> None:
                failures = _Failures()
                for row in given:
                    with failures.of(row):
                        test(**fixtures, **row)
                failures.raise_them()

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in words]
        all_rows.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        del all_rows.__wrapped__  # type: ignore[attr-defined]
        return all_rows

    return wrap


class _Failures:
    """The errors of rows."""

    def __init__(self) -> None:
        self._errors: list[Exception] = []

    @contextmanager
    def of(self, row: dict[str, Any]) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            error.add_note(f"in the row {row!r}")
            self._errors.append(error)

    def raise_them(self) -> None:
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            raise ExceptionGroup(f"{len(self._errors)} rows fail", self._errors)


def _values(row: Any, count: int) -> Sequence[Any]:
    values = getattr(row, "values", None)  # of pytest.param
    if isinstance(values, tuple):
        return values
    return (row,) if count == 1 else row
