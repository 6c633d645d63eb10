"""What is measured: this cluster, and JetStream with one or three servers, each with one stream ``bench`` on subject ``bench``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Protocol, Self

import nats
import nats.js.api

from liftpy.client import connect
from liftpy.errors import UnavailableError
from sidecar.bench.jetstream import JetStreamCluster
from sidecar.bench.servers import NatsCluster
from sidecar.dev.cluster import DevCluster

STREAM = "bench"
OURS = "liftpy"


class System(AbstractContextManager["System"], Protocol):
    """A cluster that stores ``bench``. ``kind``: ``liftpy`` or ``jetstream``, for readers."""

    kind: str

    @property
    def ports(self) -> list[int]:
        """Of its nats-servers, for clients."""

    @property
    def pids(self) -> list[int]:
        """Of all its processes, nats-servers too."""

    def prepare(self) -> None:
        """Make the stream; returns when it takes messages."""

    def kill_leader(self) -> int:
        """kill -9 the leader of the stream; a port that still answers."""


class Liftpy:
    """Three nodes. ``nats_servers``: one for all, or three that are a cluster, one beside each node."""

    kind = "liftpy"

    def __init__(self, nats_servers: int = 1) -> None:
        self._nats = NatsCluster(nats_servers)
        self._stack = ExitStack()
        self._cluster: DevCluster | None = None

    @property
    def ports(self) -> list[int]:
        """One, or three."""
        return self._nats.ports

    @property
    def pids(self) -> list[int]:
        """nats-servers and nodes."""
        nodes = self._cluster.nodes.values() if self._cluster is not None else ()
        return [*self._nats.pids, *(node.pid for node in nodes if node.running)]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            urls = [server.url for server in stack.enter_context(self._nats).servers]
            beside = {f"n{number + 1}": urls[number % len(urls)] for number in range(3)}
            self._cluster = stack.enter_context(DevCluster(3, nats_url=urls[0], node_nats_urls=beside))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def prepare(self) -> None:
        """Three replicas."""

        async def ask() -> None:
            async with connect(f"nats://127.0.0.1:{self.ports[0]}") as client:
                await client.create_stream(STREAM, STREAM)

        asyncio.run(ask())

    def kill_leader(self) -> int:
        """The node that leads; the nats-servers live on."""

        async def leader() -> str:
            async with connect(f"nats://127.0.0.1:{self.ports[0]}") as client:
                return str((await client.stream(STREAM)).partitions[0].leader)

        assert self._cluster is not None
        self._cluster.nodes[asyncio.run(leader())].kill()
        return self.ports[0]


class JetStream(JetStreamCluster):
    """One server or three."""

    kind = "jetstream"

    def prepare(self) -> None:
        """On all of them."""
        asyncio.run(self.create(STREAM, STREAM))

    def kill_leader(self) -> int:
        """The server that leads the stream, and with it whoever is connected to it."""

        async def leader() -> str:
            connection = await nats.connect(self.servers[0].url)
            cluster = (await connection.jetstream().stream_info(STREAM)).cluster
            await connection.close()
            return str(cluster.leader) if cluster is not None else ""

        name = asyncio.run(leader())
        if not name.startswith("peer") or len(self.servers) == 1:
            raise UnavailableError("a stream on one server has nobody to take over")
        number = int(name.removeprefix("peer"))
        self.servers[number].kill()
        return next(port for other, port in enumerate(self.ports) if other != number)


SYSTEMS: dict[str, Callable[[int], System]] = {
    OURS: Liftpy,
    "jetstream-always": lambda _: JetStream(sync_always=True),
    "jetstream": lambda _: JetStream(sync_always=False),
    "jetstream-r1-always": lambda _: JetStream(sync_always=True, servers=1),
    "jetstream-r1": lambda _: JetStream(sync_always=False, servers=1),
}
"""Name -> what makes it, given how many nats-servers liftpy is to have; JetStream is its servers."""
DEFAULT_SYSTEMS = (OURS, "jetstream-always", "jetstream")
