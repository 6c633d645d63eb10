"""Figures as pages show them, in words; ``static/format.js`` says the same, and a test compares the two. Pure.

Halves are rounded up, in both, before they are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from typing import Any

NOTHING = "–"
KINDS = ("text", "int", "rate", "bytes", "span", "share", "age")
_UNITS = ("", " k", " M", " G", " T")


def figure(kind: str, value: Any) -> str:
    """``value`` as one of ``KINDS``: a text; a count; a rate; bytes; seconds; a part of one; seconds of uptime."""
    if value is None or value == "" or isinstance(value, Mapping):
        return NOTHING
    if kind == "text" or isinstance(value, (str, bool)):
        return ("yes" if value else "no") if isinstance(value, bool) else str(value)
    if kind == "int":
        return f"{_round(value, 0):,.0f}"
    if kind == "rate":
        return (
            f"{_round(value, 1):.1f}"
            if 0 < value < 9.95
            else f"{_round(value, 0):,.0f}"
            if value < 99_999.5
            else _unit(value, "")
        )
    if kind == "bytes":
        return _unit(value, "B")
    if kind == "span":
        return _span(value)
    if kind == "share":
        return f"{_round(value * 100, 0):.0f} %"
    return _age(value)


def look_up(found: Any, path: str) -> Any:
    """What stands under ``a.b.c``; None: nothing."""
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _round(value: float, digits: int) -> float:
    scale: float = 10.0**digits
    return floor(value * scale + 0.5) / scale


def _unit(value: float, unit: str) -> str:
    number = 0
    while number < len(_UNITS) - 1 and value >= 999.5:
        value, number = value / 1000, number + 1
    digits = 0 if number == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    text = f"{_round(value, digits):.{digits}f}{_UNITS[number]}"
    return f"{text}{unit}" if number else f"{text} {unit}".strip()


def _span(value: float) -> str:
    if value >= 0.9995:
        return f"{_round(value, 1):,.1f} s"
    ms = value * 1000
    digits = 2 if ms < 9.995 else 1 if ms < 99.95 else 0
    return f"{_round(ms, digits):.{digits}f} ms" if ms else "0 ms"


def _age(value: float) -> str:
    minutes = floor(value / 60)
    if minutes < 1:
        return f"{floor(value)} s"
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} days"
