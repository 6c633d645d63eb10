"""Strict decoding of JSON from users and other nodes. Every invalid text raises ValueError. Pure."""

from __future__ import annotations

import json
import math
import re
from typing import Any

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""A lone surrogate, as a JSON escape or as bytes, which is not valid UTF-8."""


def load_json(text: str | bytes, *, unique: bool = False) -> Any:
    """Return the JSON value of ``text``. Raises ValueError for invalid JSON.

    Extensions of Python (NaN, Infinity, huge numbers), unpaired surrogates and too deep nesting are invalid too.
    ``unique`` True: an object that has a name twice is also invalid.
    """
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_unique if unique else None)
        if _SURROGATE.search(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")):
            json.dumps(value, ensure_ascii=False).encode()  # encode() raises UnicodeEncodeError for a lone surrogate
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("the JSON contains an unpaired surrogate (\\ud800 to \\udfff). Replace this character") from None
    return value


def is_count(value: object) -> bool:
    """Return whether ``value`` is an int from -1 to 2**63 - 1. -1 stands for "none"."""
    return type(value) is int and -1 <= value < 1 << 63


def whole_number(value: object, low: int, high: int) -> int:
    """Return ``value`` if it is an int (not a bool) from ``low`` to ``high``, inclusive. Otherwise raise ValueError."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{str(value)[:40]!r} is not a whole number from {low} to {high}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} occurs twice in one JSON object")
    return entries


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is not a valid number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number
