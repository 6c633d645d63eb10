"""A JetStream cluster on loopback, one stream in files on all its servers."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import nats
import nats.errors
import nats.js.api
import nats.js.errors

from sidecar.bench.servers import NatsCluster

_READY_S = 30.0


class JetStreamCluster(NatsCluster):
    """``sync_always``: every write is flushed before it is acknowledged; otherwise, as nats-server comes, every two minutes."""

    def __init__(self, *, sync_always: bool, servers: int = 3) -> None:
        super().__init__(servers, storing="sync_interval: always" if sync_always else "")

    @property
    def port(self) -> int:
        """Port of the first server, for clients."""
        return self.ports[0]

    async def create(self, name: str, subject: str, *, batches: bool = False) -> None:
        """Create a stream on every server and wait for it. ``batches``: with atomic and fast batches."""
        connection = await nats.connect(self.servers[0].url)
        stream = connection.jetstream()
        async with asyncio.timeout(_READY_S):
            while True:
                with suppress(nats.errors.Error, nats.js.errors.Error):
                    await stream.add_stream(
                        nats.js.api.StreamConfig(
                            name=name,
                            subjects=[subject],
                            num_replicas=len(self.servers),
                            storage=nats.js.api.StorageType.FILE,
                            allow_atomic=batches or None,
                            allow_batched=batches or None,
                        )
                    )
                    break
                await asyncio.sleep(0.2)
        await connection.close()
