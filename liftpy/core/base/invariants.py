"""Checks of invariants. ``check`` also runs under ``python -O`` and names the broken invariant."""

from __future__ import annotations

from liftpy.errors import InvariantError


def check(holds: bool, name: str, *details: object) -> None:
    """Raise InvariantError unless ``holds``.

    ``name``: code of the invariant in docs/invariants.md (``D7``). ``details``: values for the error text.
    """
    if not holds:
        raise InvariantError(f"invariant {name} does not hold: {' '.join(map(str, details))}")
