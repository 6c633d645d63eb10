"""Errors of Spark jobs, in both directions.

Spark keeps the text of an exception but not its type, so the text begins with the error code. ``error_of`` converts
such a text back into a liftpy error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from liftpy.errors import (
    ConfigError,
    DataLossError,
    FencedError,
    InvalidNameError,
    LiftError,
    NoClusterError,
    NoMajorityError,
    NoSpaceError,
    NotAllowedError,
    NotFoundError,
    OffsetOutOfRangeError,
    ProtocolError,
    StorageError,
    UnavailableError,
)

_KINDS: dict[str, type[LiftError]] = {
    kind.code: kind
    for kind in (
        ConfigError,
        DataLossError,
        FencedError,
        InvalidNameError,
        NoClusterError,
        NoMajorityError,
        NoSpaceError,
        NotAllowedError,
        NotFoundError,
        OffsetOutOfRangeError,
        ProtocolError,
        StorageError,
        UnavailableError,
    )
}
_OTHERS = {"NO_RESPONDERS": UnavailableError, "NOT_SERVED": UnavailableError, "CONNECTION_CLOSED": UnavailableError}
"""Codes of errors that only their module knows -> error that says what to do: run the command again."""
_CODED = re.compile(r"SourceError: \[([A-Z_]+)\] ([^\n]*)")
_SHOWN_LINES = 3
_NOT_STARTED = "Python worker failed to connect back"
"""Text of Spark when a Python worker of its driver did not start within ten seconds. No setting changes that time."""


class SourceError(LiftError):
    """Error of the source or the sink, as a Spark user sees it: ``[CODE] text``. ``code``: code of the original error."""

    def __init__(self, text: str, code: str = "LIFT_ERROR") -> None:
        super().__init__(text)
        self.code = code


@contextmanager
def with_error_code() -> Iterator[None]:
    """Convert a LiftError of this block into a SourceError whose text begins with its code."""
    try:
        yield
    except SourceError:
        raise
    except LiftError as error:
        raise SourceError(f"[{error.code}] {error}", error.code) from error


class WorkerStartError(UnavailableError):
    """Spark did not start its Python worker in time. A second try may succeed."""


def error_of(text: str) -> LiftError:
    """Return the error that ``text``, the text of a Spark exception, describes. Without an error code it is a LiftError."""
    match = _CODED.search(text)
    if match is None and _NOT_STARTED in text:
        return WorkerStartError(
            "The Python worker of Spark did not start within ten seconds. Run the command again. If this "
            "repeats, the machine is overloaded."
        )
    if match is None:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return LiftError("The Spark job failed: " + " / ".join(lines[:_SHOWN_LINES]))
    code, detail = match[1], match[2].strip()
    kind = _KINDS.get(code) or _OTHERS.get(code)
    return SourceError(f"[{code}] {detail}", code) if kind is None else kind(detail)


@contextmanager
def unwrap_spark_errors() -> Iterator[None]:
    """Replace Spark errors and SourceErrors of this block by the liftpy errors that have caused them."""
    try:
        yield
    except LiftError as error:
        if isinstance(error, SourceError):
            raise error_of(f"SourceError: {error}") from error
        raise
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("pyspark", "py4j"):
            raise
        raise error_of(str(error)) from error
