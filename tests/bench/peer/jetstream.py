"""A JetStream cluster of three nats-servers on loopback, one stream in files on all three."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import suppress
from types import TracebackType

import nats
import nats.errors
import nats.js.api
import nats.js.errors

from sidecar.dev.embedded import NatsServer
from tests.bench.ports import free_ports

_READY_S = 30.0


class JetStreamCluster:
    """``sync_always``: every write is flushed before it is acknowledged; otherwise, as nats-server comes, every two minutes."""

    def __init__(self, *, sync_always: bool) -> None:
        self._sync = "sync_interval: always" if sync_always else ""
        self._folder = ""
        self._servers: list[NatsServer] = []

    @property
    def port(self) -> int:
        """Of the first server, for clients."""
        return self._servers[0].port

    @property
    def pids(self) -> list[int]:
        """Of the three servers."""
        return [server.pid for server in self._servers]

    def __enter__(self) -> JetStreamCluster:
        self._folder = tempfile.mkdtemp(prefix="liftpy-peer-")
        ports = free_ports(3)
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
        for number, port in enumerate(ports):
            config = f"""
                server_name: peer{number}
                jetstream {{ store_dir: "{self._folder}/{number}", {self._sync} }}
                cluster {{ name: peers, listen: "127.0.0.1:{port}", routes: [{routes}] }}
            """
            server = NatsServer(config=config)
            server.start()
            self._servers.append(server)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for server in self._servers:
            server.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def create(self, name: str, subject: str, *, batches: bool = False) -> None:
        """Make a stream of three replicas, with ``batches`` one that takes atomic and fast ones; waits until the cluster can."""
        connection = await nats.connect(self._servers[0].url)
        stream = connection.jetstream()
        async with asyncio.timeout(_READY_S):
            while True:
                with suppress(nats.errors.Error, nats.js.errors.Error):
                    await stream.add_stream(
                        nats.js.api.StreamConfig(
                            name=name,
                            subjects=[subject],
                            num_replicas=3,
                            storage=nats.js.api.StorageType.FILE,
                            allow_atomic=batches or None,
                            allow_batched=batches or None,
                        )
                    )
                    break
                await asyncio.sleep(0.2)
        await connection.close()
