"""Rechecks: what a replica does when somebody says that it served wrong bytes [S14].

A follower or reader that meets a wrong CRC says at which offset. The server reads that one block from the file again, whatever it
checked before. Bad: its own damage, repaired as any other (``Log.met_damage``). Right: counted, and no more: the bytes were spoilt on
their way, or the complaint is made up. So all that a complaint can cost is the read of a block, and how often is bounded here: one
each ``EVERY_NS`` for each follower, and one for all readers together.
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
    """What became of a complaint; the values are the names of counters."""

    DAMAGED = "complaints: damage found"
    SOUND = "complaints: own copy is right"
    TOO_SOON = "complaints: too many"
    NOT_HERE = "complaints: about offsets that are not here"


class Rechecks:
    """Who has complained when."""

    def __init__(self) -> None:
        self._last_ns: OrderedDict[str, int] = OrderedDict()

    def is_due(self, asker: str, now_ns: int) -> bool:
        """Whether a complaint of ``asker`` (a node id, or READERS) is looked into now (monotonic)."""
        last_ns = self._last_ns.get(asker)
        if last_ns is not None and now_ns - last_ns < EVERY_NS:
            return False
        self._last_ns[asker] = now_ns
        self._last_ns.move_to_end(asker)
        if len(self._last_ns) > MAX_ASKERS:
            self._last_ns.popitem(last=False)
        return True
