"""Asks a controller before a node that is not a controller deletes data (``liftpy.core.metadata.data_deletion``)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from liftpy.core.base.ids import PartitionKey
from liftpy.core.metadata.data_deletion import may_go, question
from sidecar.metadata.group import MetadataGroup

logger = logging.getLogger("liftpy.partitions")

_ATTEMPT_S = 2.0
_PAUSE_S = 0.2
_GIVE_UP_AFTER_S = 30.0
"""Without an answer for so long the partition ends with its data, which is asked for later (``LATER_S``)."""
LATER_S = 30.0
"""Between two tries to delete what no controller has confirmed."""
_REMEMBERED = 10_000


class Deletions:
    """Permission to delete data. ``decides``: this node is a controller, and its image is committed, so it need not ask."""

    def __init__(self, group: MetadataGroup, node_id: str, *, decides: Callable[[], bool]) -> None:
        self._group = group
        self._node_id = node_id
        self._decides = decides
        self._gone: dict[str, None] = {}
        """Unique ids of streams that a controller said are gone: one question for all partitions of a stream."""
        self._asking: dict[str, asyncio.Lock] = {}
        self._closed = asyncio.Event()

    def close(self) -> None:
        """The node stops: nothing is deleted any more, and nobody waits for an answer."""
        self._closed.set()

    async def allowed(self, key: PartitionKey) -> bool | None:
        """Whether what is held of ``key`` may be deleted, as the image says; None: no controller says anything. Never raises."""
        if self._decides():
            return True
        lock = self._asking.setdefault(key.uid, asyncio.Lock())
        try:
            async with lock:
                return key.uid in self._gone or await self._asked(key)
        finally:
            if not lock.locked():
                self._asking.pop(key.uid, None)

    async def _asked(self, key: PartitionKey) -> bool | None:
        deadline = time.monotonic() + _GIVE_UP_AFTER_S
        while not self._closed.is_set() and time.monotonic() < deadline:
            response = await self._group.propose(question(key), _ATTEMPT_S)
            allowed = may_go(response, key, self._node_id)
            if allowed is None:
                await asyncio.sleep(_PAUSE_S)
                continue
            if not allowed:
                logger.error(
                    "%s: the feed said that it is not held here any more, the controllers say that it is: its data is kept, and the "
                    "image is fetched anew. Somebody else publishes on the feed: give the cluster rights of its own on NATS",
                    key,
                )
                self._group.distrust()
            elif not response.HasField("stream"):
                self._remember(key.uid)
            return allowed
        logger.warning("%s: no controller confirms that it is not held here any more: its data is kept", key)
        return None

    def _remember(self, uid: str) -> None:
        self._gone[uid] = None
        if len(self._gone) > _REMEMBERED:
            del self._gone[next(iter(self._gone))]
