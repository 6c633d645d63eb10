"""What a node does now and then for all its logs: HW checkpoints and retention, a few at a time, without stalling the loop."""

from __future__ import annotations

import asyncio
import logging
import time

from sidecar.partitions import Partitions

logger = logging.getLogger("liftpy.housekeeping")

RETENTION_EVERY_S = 5.0
_AT_ONCE = 16


class Housekeeping:
    """A background task; ``close`` ends it."""

    def __init__(self, partitions: Partitions, checkpoint_every_s: float) -> None:
        self._partitions = partitions
        self._checkpoint_every_s = checkpoint_every_s
        self._task: asyncio.Task[None] | None = None
        self._checkpointed: dict[object, int] = {}
        """Partition -> the HW that its last checkpoint holds."""

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        next_retention = time.monotonic() + RETENTION_EVERY_S
        while True:
            await asyncio.sleep(self._checkpoint_every_s)
            await self._checkpoints()
            if time.monotonic() >= next_retention:
                next_retention = time.monotonic() + RETENTION_EVERY_S
                await self._retention()

    async def _checkpoints(self) -> None:
        done = 0
        for worker in self._partitions:
            if self._checkpointed.get(worker.key) != worker.high_watermark:
                self._checkpointed[worker.key] = worker.high_watermark
                worker.flusher.checkpoint()
                done += 1
                if done % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        known = {worker.key for worker in self._partitions}
        for key in [key for key in self._checkpointed if key not in known]:
            del self._checkpointed[key]

    async def _retention(self) -> None:
        for number, worker in enumerate(self._partitions):
            config = worker.config
            if config.retention_age_s or config.retention_bytes or config.retention_records:
                worker.apply_retention(time.time_ns())
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
