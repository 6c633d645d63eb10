"""``Rechecks``: what a replica does when a reader or follower reports damaged bytes [S14].

The replica reads the reported block from the file again. If it is damaged, it is repaired as any other damage
(``Log.met_damage``). If not, the report is only counted. The number of checks is limited: one each ``EVERY_NS`` per
follower, and one for all readers together.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum

EVERY_NS = 1_000_000_000
MAX_ASKERS = 64
"""More are forgotten, the oldest first: a partition has a handful of replicas."""
READERS = ""
"""All readers are one asker; a node id is never empty."""


class Recheck(Enum):
    """Result of a corruption report. The values are names of counters."""

    DAMAGED = "complaints: damage found"
    SOUND = "complaints: own copy is right"
    TOO_SOON = "complaints: too many"
    NOT_HERE = "complaints: about offsets that are not here"


class Rechecks:
    """Limits the checks after corruption reports."""

    def __init__(self) -> None:
        self._last_ns: OrderedDict[str, int] = OrderedDict()

    def is_due(self, asker: str, now_ns: int) -> bool:
        """Return whether a report of ``asker`` (a node id, or READERS) should be checked now. ``now_ns``: monotonic."""
        last_ns = self._last_ns.get(asker)
        if last_ns is not None and now_ns - last_ns < EVERY_NS:
            return False
        self._last_ns[asker] = now_ns
        self._last_ns.move_to_end(asker)
        if len(self._last_ns) > MAX_ASKERS:
            self._last_ns.popitem(last=False)
        return True
