"""Readable ids of parametrized tests: the value itself in the place of ``argument0``.

An id is equal in all workers. So objects whose ``repr`` may differ between two processes keep the id that pytest gives them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

MAX_CHARS = 48


def id_of(value: object) -> str | None:
    """Return the id of a parameter, or None if that of pytest is good enough."""
    if isinstance(value, bytes):
        return _short(value.decode("ascii", errors="backslashreplace")) if len(value) > MAX_CHARS else None
    if isinstance(value, Exception):
        return _short(f"{type(value).__name__} {value}".strip())
    if isinstance(value, list | tuple | dict | set | frozenset):
        text = _told(value)
        return None if text is None else _short(text)
    return None


def _told(value: object) -> str | None:
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, str | int | float | bytes):
        return str(value) if isinstance(value, str) else repr(value)
    if isinstance(value, Exception):
        return type(value).__name__
    if isinstance(value, dict):
        keys, values = _all_told(value), _all_told(value.values())
        return None if keys is None or values is None else ", ".join(f"{k}={v}" for k, v in zip(keys, values, strict=True))
    if isinstance(value, list | tuple | set | frozenset):
        told = _all_told(value)
        if told is None:
            return None
        text = ", ".join(sorted(told) if isinstance(value, set | frozenset) else told)
        return text or "none"
    return None


def _all_told(values: Iterable[object]) -> list[str] | None:
    told = [_told(value) for value in values]
    return None if None in told else [text for text in told if text is not None]


def _short(text: str) -> str:
    """Return the text on one short line of ASCII, because ids travel between processes as UTF-8."""
    line = " ".join(text.encode("ascii", errors="backslashreplace").decode().split())
    return line if len(line) <= MAX_CHARS else line[: MAX_CHARS - 3] + "..."
