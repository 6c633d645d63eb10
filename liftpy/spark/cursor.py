"""A streaming query's position for tools outside of Spark: a cursor of the cluster (docs/groups.md), the option ``cursor``.

It is a copy: the query goes on from its checkpoint, whatever the cursor says. Spark tells of a micro-batch that is done when it begins
the next one, so the cursor is one behind; each time it is set, to where the checkpoint was. A cluster that can't take it for now is no
reason to end a query: that is logged, and tried again with a later micro-batch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from liftpy.client.client import Client
from liftpy.client.group_admin import set_cursor
from liftpy.errors import LiftError, UnavailableError
from liftpy.ids import PartitionKey
from liftpy.spark.link import Link
from liftpy.spark.offsets import StreamOffsets

PATIENCE_S = 5.0
"""How long a micro-batch may wait for it."""
RETRY_S = 10.0
"""How long nothing is tried after it failed."""
_logger = logging.getLogger(__name__)


class CursorWriter:
    """Sets the cursor ``name``. On the driver."""

    def __init__(self, link: Link, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._name = name
        self._clock = clock
        self._client: Client | None = None
        self._not_before_s = 0.0

    def write(self, offsets: StreamOffsets) -> bool:
        """Whether the cursor says ``offsets`` now."""
        if self._clock() < self._not_before_s:
            return False
        positions = {
            PartitionKey(stream, offsets.uids[stream], partition): offset
            for (stream, partition), offset in offsets.next_offsets.items()
        }
        try:
            self._link.call(self._set(positions), PATIENCE_S)
        except LiftError as error:
            self._not_before_s = self._clock() + RETRY_S
            _logger.warning("the cursor %s is not set: [%s] %s", self._name, error.code, error)
            return False
        return True

    async def _set(self, positions: dict[PartitionKey, int]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                transport = await self._link.transport(PATIENCE_S)
                if self._client is None or self._client.transport is not transport:
                    self._client = Client(transport, self._link.subjects, owns_connection=False)
                await set_cursor(self._client, self._name, positions)
        except TimeoutError:
            raise UnavailableError(f"nobody has taken it for {PATIENCE_S:g} s") from None
