"""How much may be on its way: a bound in messages (or records) and in bytes, whoever waits longest first."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque


class Window:
    """``count`` and ``size_bytes``: what is on its way now. One message alone may be larger than the bound in bytes."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._waiting: deque[tuple[asyncio.Future[None], int, int]] = deque()
        self.count = 0
        self.size_bytes = 0

    def try_enter(self, size_bytes: int, count: int = 1) -> bool:
        """Enter if there is room and nobody waits for some. ``count``: several at once, ``size_bytes`` in all."""
        there, total_bytes = self.count + count, self.size_bytes + size_bytes
        if self._waiting or (self.count and (there > self._most or total_bytes > self._most_bytes)):
            return False
        self.count, self.size_bytes = there, total_bytes
        return True

    async def enter(self, size_bytes: int, count: int = 1) -> None:
        """Wait for room; ``leave`` must follow unless this is cancelled."""
        if self.try_enter(size_bytes, count):
            return
        place = (asyncio.get_running_loop().create_future(), size_bytes, count)
        self._waiting.append(place)
        try:
            await place[0]
        except asyncio.CancelledError:
            if place[0].cancelled():
                with contextlib.suppress(ValueError):  # passed over already
                    self._waiting.remove(place)
                self._wake()
            else:  # the room was given in the same turn of the loop
                self.leave(size_bytes, count)
            raise

    def leave(self, size_bytes: int, count: int = 1) -> None:
        """A message of ``size_bytes`` is not on its way any more."""
        self.count -= count
        self.size_bytes -= size_bytes
        if self._waiting:
            self._wake()

    def end(self) -> None:
        """Nothing is bounded any more, nobody waits: it is over."""
        self._most = self._most_bytes = 1 << 62
        self._wake()

    def _fits(self, size_bytes: int, count: int) -> bool:
        return not self.count or (self.count + count <= self._most and self.size_bytes + size_bytes <= self._most_bytes)

    def _add(self, size_bytes: int, count: int) -> None:
        self.count += count
        self.size_bytes += size_bytes

    def _wake(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1], self._waiting[0][2]):
            place, size_bytes, count = self._waiting.popleft()
            if not place.done():
                self._add(size_bytes, count)
                place.set_result(None)
