"""Invariants as code: ``check`` survives ``python -O`` and names the invariant of the specification that broke."""

from __future__ import annotations

from liftpy.errors import InvariantError


def check(holds: bool, name: str, *details: object) -> None:
    """Raise InvariantError unless ``holds``. ``name`` is the specification's (``D7``); ``details`` are printed with it."""
    if not holds:
        raise InvariantError(f"invariant {name} does not hold: {' '.join(map(str, details))}")
