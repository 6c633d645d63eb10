"""Chooses the in-sync replica that is closest to a reader: first on the reader's host, then in its rack, then any.

The choice affects only speed. Every replica answers up to its own high watermark (HW). A replica that lacks records
that the reader already has counts as failed. A reader and a node on the same machine have the same ``this_host``, so
they can open each other's files.
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

CHECK_EVERY_S = 30.0
"""Interval at which a reader outside its rack requests the current replicas from the metadata group, in seconds."""
_CHECK_INTERVAL_S = 1.0
"""Time that a reader waits for the answer of the metadata group, in seconds."""
AWAY_S = 10.0
"""Time for which a failed replica is not chosen, in seconds."""


class ReplicaSelector:
    """Chooses the closest replica for a reader.

    ``rack``: rack of the reader, '' if unknown. ``partition``: returns the current state of the partition. ``nodes_near``:
    function of a rack that returns the nodes on the reader's host, and the nodes in the rack.
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
        self._next_check_s = 0.0

    async def instead_of(self, node: str) -> str:
        """Return the id of a close replica that has not failed recently, if possible ``node``.

        If there is no such replica, return ``node``. '' means any replica.
        """
        now = asyncio.get_running_loop().time()
        fit = self._fit(now)
        if not fit and now >= self._next_check_s:
            self._next_check_s = now + CHECK_EVERY_S
            with contextlib.suppress(LiftError, TimeoutError):
                await asyncio.wait_for(self._refresh(), _CHECK_INTERVAL_S)
            fit = self._fit(now)
        return node if node in fit or not fit else secrets.choice(fit)

    def note_failure(self, node: str) -> None:
        """Do not choose this node for the next ``AWAY_S`` seconds."""
        if node in self._near:
            self._away_until[node] = asyncio.get_running_loop().time() + AWAY_S

    def _fit(self, now: float) -> list[str]:
        fit = [node for node in self._near if self._away_until.get(node, 0.0) <= now]
        return [node for node in fit if node in self._here] or fit

    async def _refresh(self) -> None:
        in_sync = (await self._partition()).isr
        here, there = await self._nodes_near(self._rack)
        self._near, self._here = [node for node in in_sync if node in here or node in there], here
        self._away_until = {node: until for node, until in self._away_until.items() if node in self._near}


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def this_host() -> str:
    """Return an id of this machine: its name and boot id. All processes on it have the same id until a reboot.

    Return '' if it cannot be read. Containers on one machine may have the same id.
    """
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
    return f"{socket.gethostname()}/{boot}" if boot else ""
