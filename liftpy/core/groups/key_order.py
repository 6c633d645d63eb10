"""Decides which records of a work queue wait for an earlier record with the same key. Pure.

Goal: of the records of one key at most one is out, and they are done in order of offsets [Q7]; what has no key waits for nobody.
Constraint: the coordinator sees no records: whoever takes says the keys, as digests of 8 bytes. Two keys of one digest wait for each
other, which harms nobody.

Algorithm: each key has a line of the offsets that were seen and are not done, ascending. Its first may be given; the others are *held*.
What is done leaves the line, and the next one is free.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b

NO_KEY = 0


def key_digest(key: bytes | None) -> int:
    """Return the digest of ``key`` in commands and state. ``NO_KEY`` without a key or with an empty one."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little") or 1 if key else NO_KEY


class KeyOrder:
    """Waiting lines of one queue, one per key. Offsets arrive in ascending order."""

    def __init__(self) -> None:
        self._lines: dict[int, deque[int]] = {}
        self.count = 0
        """Offsets in all lines."""

    @property
    def held_count(self) -> int:
        """Number of records that wait for another one."""
        return self.count - len(self._lines)

    def add(self, key: int, offset: int) -> bool:
        """Add the record at ``offset`` with ``key``. Return whether it can be delivered now."""
        line = self._lines.setdefault(key, deque())
        line.append(offset)
        self.count += 1
        return len(line) == 1

    def holds(self, key: int, offset: int) -> bool:
        """Whether ``offset`` has to wait."""
        return key != NO_KEY and self._lines[key][0] != offset

    def remove(self, key: int, offset: int) -> int | None:
        """``offset`` is done, or the log does not have it any more. Returns the offset that is free by that, None: none is."""
        line = self._lines[key]
        was_first = line[0] == offset
        line.remove(offset)
        self.count -= 1
        if not line:
            del self._lines[key]
            return None
        return line[0] if was_first else None
