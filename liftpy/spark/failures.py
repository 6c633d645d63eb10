"""Errors on their way through Spark, which passes on an exception's text but not its type: so the text begins with the code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from liftpy.errors import LiftError


class SourceError(LiftError):
    """An error of the source as a Spark user sees it: ``[CODE] text``. ``code`` is that of the error behind it."""

    def __init__(self, text: str, code: str = "LIFT_ERROR") -> None:
        super().__init__(text)
        self.code = code


@contextmanager
def coded() -> Iterator[None]:
    """Turn a LiftError that leaves this block into a SourceError whose text names its code, once."""
    try:
        yield
    except SourceError:
        raise
    except LiftError as error:
        raise SourceError(f"[{error.code}] {error}", error.code) from error
