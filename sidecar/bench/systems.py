"""Systems under test: liftpy, JetStream with one or three servers, Liftbridge, Kafka, each with a stream ``bench`` on the
subject ``bench``."""

from __future__ import annotations

import asyncio
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import nats
import nats.errors
import nats.js.api
from nats.aio.client import Client

from liftpy.client import connect
from liftpy.errors import ConfigError, UnavailableError
from sidecar.bench.jetstream import JetStreamCluster
from sidecar.bench.kafka import KafkaCluster, require_kafka
from sidecar.bench.liftbridge import BINARY, LiftbridgeCluster, find_liftbridge
from sidecar.bench.servers import NatsCluster
from sidecar.dev.cluster import DevCluster
from sidecar.runtime.settings import search_path

STREAM = "bench"
OURS = "liftpy"
_JAVA_WARM_S = "3"
"""Before Java has compiled what runs often."""


class System(AbstractContextManager["System"], Protocol):
    """A cluster that stores ``bench``. ``kind``: ``liftpy``, ``jetstream``, ``liftbridge`` or ``kafka``; ``lacks``: cases that can't be
    measured of it."""

    kind: str
    lacks: frozenset[str]

    @property
    def ports(self) -> list[int]:
        """Ports of its nats-servers, for clients."""

    @property
    def pids(self) -> list[int]:
        """Ids of all its processes, including nats-servers."""

    def prepare(self) -> None:
        """Make the stream; returns when it takes messages."""

    def publisher(self, number: int, seconds: float, size_bytes: int, window: int, each: int = 1) -> list[str]:
        """The command of the ``number``-th publisher of several (``publisher.py``)."""

    def readers(self, seconds: float) -> dict[str, list[str]]:
        """Commands that read from the first record on, by name of the case."""

    async def ask(self, connection: Client, value: bytes, timeout_s: float) -> bool:
        """Publish one message with nats-py. Return whether it was acknowledged in time."""

    def kill_leader(self) -> int:
        """kill -9 the leader of the stream; a port that still answers."""


class _OverNats(ABC):
    """System whose publishers use NATS."""

    dialect_name = "plain"
    lacks: frozenset[str] = frozenset()
    reads: tuple[tuple[str, str], ...] = ()
    """(case, how ``consumer.py`` calls it)"""

    @property
    @abstractmethod
    def ports(self) -> list[int]:
        """Ports of its nats-servers."""

    def publisher(self, number: int, seconds: float, size_bytes: int, window: int, each: int = 1) -> list[str]:
        """Return the command of a publisher, each on the next nats-server."""
        given = (self.ports[number % len(self.ports)], STREAM, seconds, size_bytes, window, each, self.dialect_name)
        return [sys.executable, "-m", "sidecar.bench.publisher", *map(str, given)]

    def readers(self, seconds: float) -> dict[str, list[str]]:
        """Return the commands of readers with its Python client."""
        words = [sys.executable, "-m", "sidecar.bench.consumer", str(self.ports[0]), STREAM, str(seconds)]
        return {name: [*words, how] for name, how in self.reads}

    async def ask(self, connection: Client, value: bytes, timeout_s: float) -> bool:
        """Publish one message as a request."""
        try:
            return b'"error"' not in (await connection.request(STREAM, value, timeout=timeout_s)).data
        except (nats.errors.Error, OSError):
            return False


class Liftpy(_OverNats):
    """Three nodes. ``nats_servers``: one for all, or three that are a cluster, one beside each node."""

    kind = "liftpy"
    reads = (("batches", "liftpy-values"), ("one by one", "liftpy-record"))

    def __init__(self, nats_servers: int = 1) -> None:
        self._nats = NatsCluster(nats_servers)
        self._stack = ExitStack()
        self._cluster: DevCluster | None = None

    @property
    def ports(self) -> list[int]:
        """Ports of one or three nats-servers."""
        return self._nats.ports

    @property
    def pids(self) -> list[int]:
        """Ids of nats-servers and nodes."""
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
        """Create a stream with three replicas."""

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


class JetStream(JetStreamCluster, _OverNats):
    """JetStream with one server or three."""

    kind = "jetstream"
    reads = (("batches", "py-pull"), ("one by one", "py-ordered"))

    def prepare(self) -> None:
        """Create a stream on all servers."""
        asyncio.run(self.create(STREAM, STREAM))

    def kill_leader(self) -> int:
        """Kill the server that leads the stream, and with it its clients' connections."""

        async def leader() -> str:
            connection = await nats.connect(self.servers[0].url)
            cluster = (await connection.jetstream().stream_info(STREAM)).cluster
            await connection.close()
            return str(cluster.leader) if cluster is not None else ""

        name = asyncio.run(leader())
        if not name.startswith("peer") or len(self.servers) == 1:
            raise UnavailableError(
                "A stream on one server has no other replica, so the case failover is not possible. Choose another --case."
            )
        number = int(name.removeprefix("peer"))
        self.servers[number].kill()
        return next(port for other, port in enumerate(self.ports) if other != number)


class Liftbridge(LiftbridgeCluster, _OverNats):
    """Three Liftbridge servers with default settings: nothing is flushed. Their readers use gRPC."""

    kind = "liftbridge"
    dialect_name = "liftbridge"
    lacks = frozenset({"consume", "latency"})

    def prepare(self) -> None:
        """Create a stream on all servers."""
        asyncio.run(self.create(STREAM, STREAM))

    async def ask(self, connection: Client, value: bytes, timeout_s: float) -> bool:
        """Publish one message with an inbox in it."""
        return await self.acked(connection, STREAM, value, timeout_s)

    def kill_leader(self) -> int:
        """The server that leads the stream; the nats-servers live on."""
        self.kill(asyncio.run(self.leader(STREAM)))
        return self.ports[0]


class Kafka(KafkaCluster):
    """Three Kafka brokers.

    ``flushed``: each flushes a record before the ack. It has no NATS, and its producer has its own window.
    """

    kind = "kafka"
    lacks = frozenset({"acked", "plain", "latency", "failover"})

    def __init__(self, jars: Path, *, flushed: bool) -> None:
        super().__init__(jars)
        self._flushed = flushed

    @property
    def ports(self) -> list[int]:
        """Return []: there is no nats-server."""
        return []

    def prepare(self) -> None:
        """Create a topic on all brokers."""
        self.create(STREAM, flushed=self._flushed)

    def publisher(self, number: int, seconds: float, size_bytes: int, window: int, each: int = 1) -> list[str]:
        """Return the command of its producer: acks=all, idempotent, batches of up to 1 MB."""
        return [*self.client(), "produce", self.servers, STREAM, str(seconds), str(size_bytes), _JAVA_WARM_S]

    def readers(self, seconds: float) -> dict[str, list[str]]:
        """Return the command of its consumer."""
        return {"batches": [*self.client(), "consume", self.servers, STREAM, str(seconds), _JAVA_WARM_S]}

    async def ask(self, connection: Client, value: bytes, timeout_s: float) -> bool:
        """Not supported: there is no NATS."""
        raise UnavailableError("Kafka does not listen on NATS subjects, so this case is not possible. Choose another --case.")

    def kill_leader(self) -> int:
        """Not supported: the case needs NATS publishers."""
        raise UnavailableError("Kafka does not listen on NATS subjects, so this case is not possible. Choose another --case.")


@dataclass(frozen=True)
class PeersGiven:
    """``nats_servers``: of liftpy and Liftbridge; ``kafka_jars``: None where there are none."""

    nats_servers: int = 1
    kafka_jars: Path | None = None

    @property
    def jars(self) -> Path:
        """Raises ConfigError where none are given."""
        if self.kafka_jars is None:
            raise ConfigError("Kafka needs its jars. Give their directory with --kafka-jars.")
        return self.kafka_jars


SYSTEMS: dict[str, Callable[[PeersGiven], System]] = {
    OURS: lambda given: Liftpy(given.nats_servers),
    "jetstream-always": lambda _: JetStream(sync_always=True),
    "jetstream": lambda _: JetStream(sync_always=False),
    "jetstream-r1-always": lambda _: JetStream(sync_always=True, servers=1),
    "jetstream-r1": lambda _: JetStream(sync_always=False, servers=1),
    "liftbridge": lambda given: Liftbridge(given.nats_servers),
    "kafka-flushed": lambda given: Kafka(given.jars, flushed=True),
    "kafka": lambda given: Kafka(given.jars, flushed=False),
}
"""Name -> what makes it; JetStream is its own servers."""
DEFAULT_SYSTEMS = (OURS, "jetstream-always", "jetstream")


def chosen(names: tuple[str, ...], given: PeersGiven, say: Callable[[str], None]) -> tuple[str, ...]:
    """Return the systems to measure: ``names``, or the defaults and all installed ones.

    ``say`` gets those that are left out. Raise ConfigError if a named one is missing.
    """
    kafkas = tuple(name for name in SYSTEMS if name.startswith("kafka"))
    if not names:
        found = [*DEFAULT_SYSTEMS]
        if shutil.which(BINARY, path=search_path()):
            found.append(BINARY)
        else:
            say(f"left out: liftbridge, for no `{BINARY}` is on the PATH")
        if given.kafka_jars is not None:
            found += kafkas
        else:
            say("left out: Kafka, for no --kafka-jars is given")
        names = tuple(found)
    if BINARY in names:
        find_liftbridge()
    if set(kafkas) & set(names):
        require_kafka(given.jars)
    return names
