"""All deadlines of a node in one heap with one timer of the event loop, rounded up to a grid so that they fire together.

A replica moves its deadlines with nearly every message ("the leader was heard: 2 s from now"). Such a move costs a dictionary
write: the heap keeps the earlier entry and looks again when that one comes up.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from typing import Any

NS_PER_MS = 1_000_000
GRID_NS = 5 * NS_PER_MS
"""Deadlines fire at most this much late, and those of one grid step fire in one wake-up."""

Owner = Callable[[Any], None]
"""Called with the deadline's kind when it is reached."""


class Timers:
    """``set`` and ``cancel`` deadlines of (owner, kind); times are ``time.monotonic_ns``."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._wanted: dict[tuple[Owner, Any], int] = {}
        """(owner, kind) -> when it shall fire, ns."""
        self._earliest: dict[tuple[Owner, Any], int] = {}
        """(owner, kind) -> its earliest entry in the heap, ns; never later than wanted."""
        self._heap: list[tuple[int, int, tuple[Owner, Any]]] = []
        self._count = 0
        self._handle: asyncio.TimerHandle | None = None
        self._handle_ns = 0

    def __len__(self) -> int:
        return len(self._wanted)

    def set(self, owner: Owner, kind: Any, at_ns: int) -> None:
        """Call ``owner(kind)`` at ``at_ns``, instead of an earlier setting of the same kind."""
        key = (owner, kind)
        self._wanted[key] = at_ns
        known = self._earliest.get(key)
        if known is None or at_ns < known:
            self._push(key, at_ns)

    def cancel(self, owner: Owner, kind: Any) -> None:
        """Forget a deadline; none is fine."""
        self._wanted.pop((owner, kind), None)

    def cancel_all(self, owner: Owner) -> None:
        """Forget everything of one owner."""
        for key in [key for key in self._wanted if key[0] == owner]:
            del self._wanted[key]

    def _push(self, key: tuple[Owner, Any], at_ns: int) -> None:
        self._earliest[key] = at_ns
        self._count += 1
        heapq.heappush(self._heap, (at_ns, self._count, key))
        if self._handle is None or _round_up(at_ns) < self._handle_ns:
            self._arm(at_ns)

    def _arm(self, at_ns: int) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle_ns = _round_up(at_ns)
        delay_s = max(0, self._handle_ns - time.monotonic_ns()) / 1e9
        self._handle = self._loop.call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._handle = None
        now_ns = time.monotonic_ns()
        due: list[tuple[Owner, Any]] = []
        while self._heap and self._heap[0][0] <= now_ns:
            at_ns, _, key = heapq.heappop(self._heap)
            if self._earliest.get(key) != at_ns:
                continue  # an earlier entry took its place
            del self._earliest[key]
            wanted = self._wanted.get(key)
            if wanted is None:
                continue
            if wanted > now_ns:
                self._push(key, wanted)
            else:
                due.append(key)
        if self._heap and (self._handle is None or _round_up(self._heap[0][0]) < self._handle_ns):
            self._arm(self._heap[0][0])
        for key in due:
            if self._wanted.get(key, now_ns + 1) <= now_ns:  # not cancelled or moved by one before it
                del self._wanted[key]
                key[0](key[1])

    def close(self) -> None:
        """Stop; nothing fires any more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._wanted.clear()
        self._earliest.clear()
        self._heap.clear()


def _round_up(at_ns: int) -> int:
    return -(-at_ns // GRID_NS) * GRID_NS
