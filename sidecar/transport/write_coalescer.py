"""``Outlet``: combines the messages of one turn of the event loop into few writes.

The first AT_ONCE messages of a turn are written at once. Further ones wait until the current read is processed, until
TOGETHER_BYTES are collected, or until the turn ends. Callers that know that more follows use ``hold`` and ``release``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

TOGETHER_BYTES = 16 * 1024
"""So much waits at most. A message of this size waits for nobody, and nobody for what was sent before it."""

AT_ONCE = 8
"""A record's way takes so many writes of a turn: answers to followers, an ack, what follows them."""

Buffer = bytes | bytearray | memoryview


class Outlet:
    """Combines writes for one transport. At its end, waiting data is lost with the transport's buffer."""

    def __init__(self, transport: asyncio.WriteTransport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes] = []
        self.waiting_bytes = 0
        self._written = 0
        """Writes of this turn of the loop that left at once."""
        self._held = False
        self._ends = False
        """The end of this turn is waited for."""

    def write(self, pieces: Sequence[Buffer], size_bytes: int) -> None:
        """Send ``pieces`` of together ``size_bytes``. Pieces that wait are copied."""
        if not self._ends:
            self._ends = True
            self._loop.call_soon(self._turn_ends)
        if size_bytes >= TOGETHER_BYTES:
            self.let_go()
            self._written += 1
            self._transport.writelines(pieces)
        elif self._written < AT_ONCE and not self._held:
            self._written += 1
            self._transport.writelines(pieces)
        else:
            message = b"".join(pieces)
            self._waiting.append(message)
            self.waiting_bytes += len(message)
            if self.waiting_bytes >= TOGETHER_BYTES:
                self.let_go()

    def hold(self) -> None:
        """Delay writes until ``release`` in this turn of the loop."""
        self._held = True

    def release(self) -> None:
        """Send the delayed writes as one."""
        self._held = False
        if self._waiting and self._written < AT_ONCE:
            self._written += 1
            self.let_go()

    def let_go(self) -> None:
        """Write the waiting data."""
        if not self._waiting:
            return
        waiting, self._waiting, self.waiting_bytes = self._waiting, [], 0
        if not self._transport.is_closing():
            self._transport.write(b"".join(waiting))

    def _turn_ends(self) -> None:
        self._written, self._held, self._ends = 0, False, False
        self.let_go()
