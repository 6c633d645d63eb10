"""Chooses the closest in-sync replica for a reader: on its host, then in its rack, then any.

The choice is only a preference. If no replica on the host answers correctly, the reader asks one in the rack, and then
any other. After ``AWAY_S`` it tries the close ones again.

The choice does not change the result of a read. Each replica answers up to its own HW. A replica that is behind the
reader's progress counts as failed.

``this_host`` names this machine, so that a reader and a node can see if they can open each other's files.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection
from functools import cache
from pathlib import Path

from liftpy.core.base.partition import PartitionState
from liftpy.errors import LiftError

LOOK_EVERY_S = 30.0
"""Interval of requests to the metadata group while the reader reads outside its rack, in seconds."""
_LOOK_S = 1.0
"""Time that a reader waits for the answer of the metadata group, in seconds."""
AWAY_S = 10.0
"""Time for which a failed replica is not chosen, in seconds."""


class Nearest:
    """Closest replicas for a reader.

    ``rack``: of the reader, '' if unknown. ``partition``: current state. ``nodes_near``: nodes on its host, and in its rack.
    """

    def __init__(
        self,
        rack: str,
        partition: Callable[[], Awaitable[PartitionState]],
        nodes_near: Callable[[str], Awaitable[tuple[Collection[str], Collection[str]]]],
    ) -> None:
        self._rack = rack
        self._partition = partition
        self._nodes_near = nodes_near
        self._near: list[str] = []
        self._here: Collection[str] = ()
        """Nodes of ``_near`` on the reader's host."""
        self._away_until: dict[str, float] = {}
        """Node of ``_near`` -> time until which it is not chosen."""
        self._look_at = 0.0

    async def instead_of(self, node: str) -> str:
        """Return the node to ask instead of ``node`` ('': any): a close one without recent failures, or ``node`` itself."""
        now = asyncio.get_running_loop().time()
        fit = self._fit(now)
        if not fit and now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            with contextlib.suppress(LiftError, TimeoutError):
                await asyncio.wait_for(self._look(), _LOOK_S)
            fit = self._fit(now)
        return node if node in fit or not fit else secrets.choice(fit)

    def note_failure(self, node: str) -> None:
        """Note a failure of the node: others are preferred for a while."""
        if node in self._near:
            self._away_until[node] = asyncio.get_running_loop().time() + AWAY_S

    def _fit(self, now: float) -> list[str]:
        fit = [node for node in self._near if self._away_until.get(node, 0.0) <= now]
        return [node for node in fit if node in self._here] or fit

    async def _look(self) -> None:
        in_sync = (await self._partition()).isr
        here, there = await self._nodes_near(self._rack)
        self._near, self._here = [node for node in in_sync if node in here or node in there], here
        self._away_until = {node: until for node, until in self._away_until.items() if node in self._near}


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def this_host() -> str:
    """Return the name and boot id of the machine, the same for all its processes until a restart.

    '' if unknown. Containers on one machine may have the same value.
    """
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
    return f"{socket.gethostname()}/{boot}" if boot else ""
