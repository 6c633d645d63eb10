"""Prepares transfers of leaderships: a leader stops accepting publishes and answers the publishes that have arrived.

Until the next leader subscribes, NATS answers publishers with "no responders", and they retry. If the transfer does not
happen, the leader accepts publishes again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import nats.errors

from liftpy.core.base.ids import PartitionKey
from liftpy.core.partition.shell import PartitionShell
from liftpy.nats.cancellation import end_tasks
from sidecar.runtime.tasks import spawn
from sidecar.transport.ports import Links

logger = logging.getLogger("liftpy.partitions")

_POLL_S = 0.005
_TRANSFER_WAIT_S = 0.5
"""Maximum time for which a leader answers its publishers before a planned transfer, in seconds."""
_BACK_AFTER_S = 2.0
"""Time after which a leader accepts publishes again if its planned transfer did not happen, in seconds."""


class LeadershipTransfers:
    """Prepares the transfers of the leaderships of this process. At most one transfer per partition is in progress."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self.tasks: dict[PartitionKey, asyncio.Task[None]] = {}
        """Partition -> task of its transfer, until the leader has transferred it or accepts publishes again."""
        self._waiting_for_links: asyncio.Task[None] | None = None
        """Task that waits until the connections are restored, for all partitions that missed publishes."""
        self._closing = False
        """True while the node transfers all its leaderships before its stop."""
        self._has_ended = False

    def begin(self, leader: PartitionShell, done: Callable[[], None]) -> None:
        """Let ``leader`` stop accepting publishes and answer those that have arrived, then call ``done``."""
        self._start(leader.key, self._prepare(leader, done), f"leadership transfer of {leader.key}")

    def begin_after_lost_publishes(self, leader: PartitionShell, transfer: Callable[[], bool]) -> None:
        """Call ``transfer`` when the node's connections are restored, because ``leader`` missed publishes.

        If it returns False, or no other node has received these publishes, the leader accepts publishes again.
        """
        if not self._closing:
            self._start(leader.key, self._transfer(leader, transfer), f"transfer after lost publishes {leader.key}")

    def _start(self, key: PartitionKey, work: Coroutine[Any, Any, None], what: str) -> None:
        if self._has_ended:
            work.close()
            return
        earlier = self.tasks.get(key)
        if earlier is not None:
            earlier.cancel()
        self.tasks[key] = spawn(work, what)

    async def _prepare(self, leader: PartitionShell, done: Callable[[], None]) -> None:
        await self._drain([leader], _TRANSFER_WAIT_S)
        done()
        await asyncio.sleep(_BACK_AFTER_S)
        del self.tasks[leader.key]
        if not self._closing:
            leader.ingest.resubscribe()

    async def _transfer(self, leader: PartitionShell, transfer: Callable[[], bool]) -> None:
        while not self._links.are_up:
            if self._waiting_for_links is None or self._waiting_for_links.done():
                self._waiting_for_links = spawn(self._wait_for_links(), "waiting for the connections")
            await asyncio.wait([self._waiting_for_links])
        del self.tasks[leader.key]
        if self._closing:
            return
        if self._links.ingest.missed_by_all_nodes or not transfer():
            leader.ingest.resubscribe()

    async def _wait_for_links(self) -> None:
        while not self._links.are_up:
            await asyncio.sleep(_POLL_S)

    async def close_subjects(self, leaders: Sequence[PartitionShell], timeout_s: float) -> None:
        """Stop accepting publishes for the rest of this process, and answer the publishes that ``leaders`` have received.

        ``timeout_s``: time limit in seconds.
        """
        self._closing = True
        await self._drain(leaders, timeout_s)

    async def _drain(self, leaders: Sequence[PartitionShell], timeout_s: float) -> None:
        for leader in leaders:
            leader.ingest.leave()
        deadline = time.monotonic() + timeout_s
        try:
            await self._links.wait_until_processed(timeout_s)
        except (nats.errors.Error, TimeoutError, OSError) as error:
            logger.info("in-flight publishes not checked error=%r: transferring the leaderships", error)
            return
        leaders = [leader for leader in leaders if not leader.storage_failed]  # those can't answer any more
        while any(not leader.ingest.is_idle for leader in leaders) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)

    async def close(self) -> None:
        self._closing = self._has_ended = True
        await end_tasks([self._waiting_for_links, *self.tasks.values()])
