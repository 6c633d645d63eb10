"""Reading from the rack where the reader stands: which in-sync replicas of a partition are there, and which of them to ask.

It is a wish: where no replica of the rack answers well, any other does, and after ``AWAY_S`` the rack is tried again. What may be read
does not depend on it: each replica answers up to its own HW.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Collection

from liftpy.errors import LiftError
from liftpy.partition import PartitionState

LOOK_EVERY_S = 30.0
"""How often the metadata group is asked while the reader is away from its rack."""
_LOOK_S = 1.0
"""How long a reading waits for that."""
AWAY_S = 10.0
"""How long a replica that did not answer well is passed over."""


class Nearest:
    """``rack``: where the reader stands. ``partition``: as it is now. ``nodes_in``: the nodes of a rack."""

    def __init__(
        self,
        rack: str,
        partition: Callable[[], Awaitable[PartitionState]],
        nodes_in: Callable[[str], Awaitable[Collection[str]]],
    ) -> None:
        self._rack = rack
        self._partition = partition
        self._nodes_in = nodes_in
        self._near: list[str] = []
        self._away_until: dict[str, float] = {}
        """Of nodes in ``_near`` only."""
        self._look_at = 0.0

    async def instead_of(self, node: str) -> str:
        """Whom to ask rather than ``node`` (empty: any): one of the rack that has not failed lately, or ``node`` itself."""
        now = asyncio.get_running_loop().time()
        fit = self._fit(now)
        if not fit and now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            with contextlib.suppress(LiftError, TimeoutError):
                await asyncio.wait_for(self._look(), _LOOK_S)
            fit = self._fit(now)
        return node if node in fit or not fit else secrets.choice(fit)

    def failed(self, node: str) -> None:
        """It did not answer, or not well: others are asked for a while."""
        if node in self._near:
            self._away_until[node] = asyncio.get_running_loop().time() + AWAY_S

    def _fit(self, now: float) -> list[str]:
        return [node for node in self._near if self._away_until.get(node, 0.0) <= now]

    async def _look(self) -> None:
        in_sync = (await self._partition()).isr
        there = await self._nodes_in(self._rack)
        self._near = [node for node in in_sync if node in there]
        self._away_until = {node: until for node, until in self._away_until.items() if node in self._near}
