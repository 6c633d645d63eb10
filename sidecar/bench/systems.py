"""Systems under test: liftpy, JetStream with one or three servers, Liftbridge and Kafka.

Each has a stream ``bench`` on the subject ``bench``.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import nats
import nats.errors
import nats.js.api
import nats.js.errors
from nats.aio.client import Client

from liftpy.client import connect
from liftpy.errors import ConfigError, UnavailableError
from sidecar.bench.load import LIFTBRIDGE, envelope_of, field, number_field
from sidecar.dev.cluster import DevCluster
from sidecar.dev.nats_server import NatsServer, free_ports, spawn
from sidecar.runtime.settings import search_path

STREAM = "bench"
OURS = "liftpy"
_JAVA_WARM_S = "3"
"""Time in seconds in which Java compiles the code that runs often."""
_TAKEN = "address already in use"
"""Part of the error text if another process has taken the port. The port was free when it was chosen."""
_TRIES = 4
_READY_S = 30.0
BINARY = "liftbridge"
_SPACE = "liftbridge-bench"
_CONTROL = f"{_SPACE}.raft.metadata"
_PROPAGATED, _STATUS = 8, 12
_LIFTBRIDGE_READY_S, _ASK_S, _AGAIN_S, _STOP_S = 60.0, 2.0, 0.1, 5.0
_IS_LEADER = number_field(2, 1)
_CLIENT = Path(__file__).with_name("KafkaPeer.java")
_HEAP = "-Xmx512m"
_KAFKA_READY_S = 60.0
_KAFKA_STOP_S = 15.0
_FORMAT_S = 60.0
_BROKERS = 3


def process(module: str, *arguments: object) -> list[str]:
    """Return the command line that runs a module of this package as a process."""
    return [sys.executable, "-m", f"sidecar.bench.{module}", *map(str, arguments)]


class System(ABC):
    """A cluster under test. It has the stream ``bench``. Use it as a context manager.

    ``kind``: ``liftpy``, ``jetstream``, ``liftbridge`` or ``kafka``. ``lacks``: names of the cases that the system does not
    support. ``dialect_name``: dialect of ``load.py`` for its publishers. ``reads``: (case, argument HOW of ``client.py``).
    """

    kind: str
    lacks: frozenset[str] = frozenset()
    dialect_name = "plain"
    reads: tuple[tuple[str, str], ...] = ()

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    @property
    @abstractmethod
    def ports(self) -> list[int]:
        """Ports of its nats-servers, for clients."""

    @property
    @abstractmethod
    def pids(self) -> list[int]:
        """Ids of all its processes, including nats-servers."""

    @abstractmethod
    def prepare(self) -> None:
        """Create the stream, and return when it accepts messages."""

    def publisher(self, number: int, seconds: float, size_bytes: int, window: int, each: int = 1) -> list[str]:
        """Return the command line that starts a publisher process (``load.py``).

        ``number``: number of the publisher, from 0. ``seconds``: duration. ``size_bytes``: message size. ``window``: maximum number of
        messages without an ack. ``each``: only every ``each``-th message requests an ack.
        """
        arguments = (self.ports[number % len(self.ports)], STREAM, seconds, size_bytes, window, each, self.dialect_name)
        return process("load", "publish", *arguments)

    def readers(self, seconds: float) -> dict[str, list[str]]:
        """Return the command lines of the reader processes, by benchmark case. Each reads for ``seconds``, from the first record on."""
        return {name: process("client", "consume", self.ports[0], STREAM, seconds, how) for name, how in self.reads}

    async def ask(self, connection: Client, value: bytes, timeout_s: float) -> bool:
        """Publish one message over the nats-py connection. Return whether its ack arrived within ``timeout_s`` seconds."""
        try:
            return b'"error"' not in (await connection.request(STREAM, value, timeout=timeout_s)).data
        except (nats.errors.Error, OSError):
            return False

    @abstractmethod
    def kill_leader(self) -> int:
        """Kill the leader of the stream with kill -9. Return the port of a server that still answers."""


# ---- nats-servers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostNetwork:
    """Network between the hosts of a benchmark.

    ``delay_s``: delay of each direction between two hosts, in seconds. 0: that of the loopback. ``bytes_per_s``: bandwidth of each
    direction of the link of a nats-server, in bytes per second. 0: no limit.
    """

    delay_s: float = 0.0
    bytes_per_s: float = 0.0

    @property
    def is_loopback(self) -> bool:
        return not (self.delay_s or self.bytes_per_s)


LOOPBACK = HostNetwork()


class DelayRelay:
    """Processes that relay all bytes to and from ports of this machine (``delay_relay.py``), as slowly as ``network``.

    On the loopback there is no process, and the ports stay as they are.
    """

    def __init__(self, network: HostNetwork) -> None:
        self._network = network
        self._processes: list[subprocess.Popen[Any]] = []

    def ports(self, targets: Sequence[int]) -> list[int]:
        """Start a process that relays to the ports ``targets``. Return a port of this process for each of them."""
        if self._network.is_loopback:
            return [*targets]
        words = process("delay_relay", self._network.delay_s * 1000, self._network.bytes_per_s, *targets)
        relay = spawn(words, signal.SIGKILL, stdout=subprocess.PIPE, text=True)
        self._processes.append(relay)
        assert relay.stdout is not None
        relay_ports: list[int] = json.loads(relay.stdout.readline() or "[]")
        if len(relay_ports) != len(targets):
            raise UnavailableError("The process that delays the network did not start. Run the benchmark again.")
        return relay_ports

    def stop(self) -> None:
        """End the processes."""
        while self._processes:
            relay = self._processes.pop()
            relay.kill()
            relay.communicate()


class NatsCluster:
    """nats-servers that form a cluster. Use it as a context manager: ``with NatsCluster(3) as cluster``.

    With a ``network``, each server is on a host of its own, and all clients of ``ports`` are on other hosts.

    ``storing``: lines of the ``jetstream`` block of each server, without its directory. None: no JetStream.
    """

    def __init__(self, count: int, *, storing: str | None = None, network: HostNetwork = LOOPBACK) -> None:
        self._count = count
        self._storing = storing
        self._folder = Path()
        self._relay = DelayRelay(network)
        self._network = network
        self.servers: list[NatsServer] = []
        self._delayed_ports: list[int] = []

    @property
    def ports(self) -> list[int]:
        """Ports of the nats-servers, for clients on other hosts."""
        return self._delayed_ports or [server.port for server in self.servers]

    @property
    def node_urls(self) -> list[str]:
        """URLs of the nats-servers, for nodes. With several servers, each node is on the host of its server."""
        return [f"nats://127.0.0.1:{port}" for port in self.ports] if self._count == 1 else [one.url for one in self.servers]

    @property
    def pids(self) -> list[int]:
        return [server.pid for server in self.servers]

    def __enter__(self) -> Self:
        for _ in range(_TRIES - 1):
            try:
                return self._start()
            except UnavailableError as error:
                if _TAKEN not in str(error):
                    raise
        return self._start()

    def _start(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="liftpy-nats-cluster-"))
        ports = free_ports(self._count)
        try:
            relayed = self._relay.ports(ports) if self._count > 1 else ports
            routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in relayed)
            for number, (port, seen) in enumerate(zip(ports, relayed, strict=True)):
                config = f"server_name: peer{number}\n"
                if self._storing is not None:
                    config += f'jetstream {{ store_dir: "{self._folder / str(number)}", {self._storing} }}\n'
                if self._count > 1:
                    config += f'cluster {{ name: peers, listen: "127.0.0.1:{port}", routes: [{routes}]'
                    config += f', advertise: "127.0.0.1:{seen}" }}\n' if not self._network.is_loopback else " }\n"
                server = NatsServer(config=config)
                server.start()
                self.servers.append(server)
            if not self._network.is_loopback:
                self._delayed_ports = self._relay.ports(self.ports)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self.servers:
            self.servers.pop().stop()
        self._relay.stop()
        self._delayed_ports = []
        shutil.rmtree(self._folder, ignore_errors=True)


# ---- liftpy ----------------------------------------------------------------------------------------------------------


class Liftpy(System):
    """Three liftpy nodes.

    ``nats_servers``: 1 for all, or 3 that form a cluster, one per node.
    """

    kind = "liftpy"
    reads = (("batches", "liftpy-values"), ("one by one", "liftpy-record"))

    def __init__(self, nats_servers: int = 1, *, network: HostNetwork = LOOPBACK) -> None:
        self._nats = NatsCluster(nats_servers, network=network)
        self._stack = ExitStack()
        self._cluster: DevCluster | None = None

    @property
    def ports(self) -> list[int]:
        return self._nats.ports

    @property
    def pids(self) -> list[int]:
        nodes = self._cluster.nodes.values() if self._cluster is not None else ()
        return [*self._nats.pids, *(node.pid for node in nodes if node.running)]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            urls = stack.enter_context(self._nats).node_urls
            beside = {f"n{number + 1}": urls[number % len(urls)] for number in range(3)}
            self._cluster = stack.enter_context(DevCluster(3, nats_url=urls[0], node_nats_urls=beside))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def prepare(self) -> None:
        async def ask() -> None:
            async with connect(f"nats://127.0.0.1:{self.ports[0]}") as client:
                await client.create_stream(STREAM, STREAM)

        asyncio.run(ask())

    def kill_leader(self) -> int:
        async def leader() -> str:
            async with connect(f"nats://127.0.0.1:{self.ports[0]}") as client:
                return str((await client.stream(STREAM)).partitions[0].leader)

        assert self._cluster is not None
        self._cluster.nodes[asyncio.run(leader())].kill()
        return self.ports[0]


# ---- JetStream -------------------------------------------------------------------------------------------------------


class JetStream(NatsCluster, System):
    """nats-servers with JetStream on loopback: one or three. One stream is stored in files on all servers.

    ``sync_always``: True to flush every write before its ack. Otherwise nats-server flushes every two minutes.
    """

    kind = "jetstream"
    reads = (("batches", "py-pull"), ("one by one", "py-ordered"))

    def __init__(self, *, sync_always: bool, servers: int = 3, network: HostNetwork = LOOPBACK) -> None:
        super().__init__(servers, storing="sync_interval: always" if sync_always else "", network=network)

    @property
    def port(self) -> int:
        return self.ports[0]

    async def create(self, name: str, subject: str, *, batches: bool = False) -> None:
        """Create a stream with a replica on every server, and wait until it is ready."""
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

    def prepare(self) -> None:
        asyncio.run(self.create(STREAM, STREAM))

    def kill_leader(self) -> int:
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


# ---- Liftbridge ------------------------------------------------------------------------------------------------------


def find_liftbridge() -> Path:
    """Return the path of the Liftbridge binary. Raises ConfigError if it is not on the PATH."""
    binary = shutil.which(BINARY, path=search_path())
    if binary is None:
        raise ConfigError(f"`{BINARY}` is not on the PATH. Build Liftbridge (`go build`), or leave it out (--system).")
    return Path(binary)


class Liftbridge(System):
    """Three Liftbridge servers with default settings on loopback, with one nats-server or three.

    The binary is on the PATH. This process uses the NATS requests of Liftbridge's servers to create a stream and to find its
    leader, so it needs no gRPC. Liftbridge does not flush before an ack. Its readers need gRPC, so only publishers, idle
    servers and failovers are measured.
    """

    kind = "liftbridge"
    dialect_name = "liftbridge"
    lacks = frozenset({"consume", "latency"})

    def __init__(self, nats_servers: int = 1, *, servers: int = 3, network: HostNetwork = LOOPBACK) -> None:
        self._nats = NatsCluster(nats_servers, network=network)
        self._names = [f"l{number + 1}" for number in range(servers)]
        self._processes: dict[str, subprocess.Popen[Any]] = {}
        self._stack = ExitStack()

    @property
    def ports(self) -> list[int]:
        return self._nats.ports

    @property
    def pids(self) -> list[int]:
        return [*self._nats.pids, *(one.pid for one in self._processes.values() if one.poll() is None)]

    def __enter__(self) -> Self:
        binary = find_liftbridge()
        with ExitStack() as stack:
            urls = stack.enter_context(self._nats).node_urls
            folder = Path(tempfile.mkdtemp(prefix="liftpy-liftbridge-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.callback(self._stop)
            for number, (name, port) in enumerate(zip(self._names, free_ports(len(self._names)), strict=True)):
                config = folder / f"{name}.yaml"
                config.write_text(_settings(name, port, urls[number % len(urls)], folder / name, self._names))
                with (folder / f"{name}.log").open("wb") as log:
                    self._processes[name] = spawn(
                        [str(binary), "--config", str(config)], signal.SIGKILL, stdout=log, stderr=log
                    )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def _stop(self) -> None:
        for server in self._processes.values():
            server.kill()
        for server in self._processes.values():
            server.wait(_STOP_S)
        self._processes.clear()

    def prepare(self) -> None:
        asyncio.run(self._create())

    async def _create(self) -> None:
        """Create the stream with one partition on all servers, and wait until a first message is acknowledged.

        Raises UnavailableError if no ack arrives.
        """
        name = STREAM.encode()
        partition = field(1, name) + field(2, name) + number_field(5, len(self._names))
        stream = field(1, name) + field(2, name) + field(3, partition) + field(4, b"")
        request, said = envelope_of(_PROPAGATED, field(2, field(1, stream))), b""
        connection = await nats.connect(self._nats.servers[0].url)
        try:
            async with asyncio.timeout(_LIFTBRIDGE_READY_S):
                made = False
                while not (made and await self.ask(connection, b"ready?", _ASK_S)):
                    with contextlib.suppress(nats.errors.Error):
                        said = (await connection.request(f"{_CONTROL}.propagate", request, timeout=_ASK_S)).data
                        made = b"\x12" not in said or b"exists" in said
                    await asyncio.sleep(_AGAIN_S)
        except TimeoutError:
            raise UnavailableError(
                f"Liftbridge did not create the stream within {_LIFTBRIDGE_READY_S:.0f} s. Check its version. Last answer: {said!r}"
            ) from None
        finally:
            await connection.close()

    async def ask(self, connection: Client, value: bytes, timeout_s: float) -> bool:
        inbox = connection.new_inbox()
        subscription = await connection.subscribe(inbox, max_msgs=1)
        await connection.publish(STREAM, LIFTBRIDGE.message(value, inbox.encode()))
        try:
            return not LIFTBRIDGE.refused((await subscription.next_msg(timeout_s)).data + b"\r\n")
        except nats.errors.TimeoutError:
            await subscription.unsubscribe()
            return False

    def kill_leader(self) -> int:
        leader = self._processes[asyncio.run(self._leader())]
        leader.kill()
        leader.wait(_STOP_S)
        return self.ports[0]

    async def _leader(self) -> str:
        """Return the name of the server that leads the partition of the stream. Raises UnavailableError if none does."""
        connection = await nats.connect(self._nats.servers[0].url)
        try:
            for server in self._names:
                with contextlib.suppress(nats.errors.Error):
                    request = envelope_of(_STATUS, field(1, STREAM.encode()))
                    answer = await connection.request(f"{_CONTROL}.status.{server}", request, timeout=_ASK_S)
                    if answer.data.endswith(_IS_LEADER):
                        return server
        finally:
            await connection.close()
        raise UnavailableError("The Liftbridge stream has no leader. Run the benchmark again.")


def _settings(name: str, port: int, url: str, folder: Path, everybody: list[str]) -> str:
    return f"""
listen: 127.0.0.1:{port}
host: 127.0.0.1
data.dir: {folder}
nats.servers: ["{url}"]
clustering:
  server.id: {name}
  namespace: {_SPACE}
  raft.bootstrap.peers: [{", ".join(everybody)}]
"""


# ---- Kafka -----------------------------------------------------------------------------------------------------------


def find_java() -> str:
    """Return the path of java. Raises ConfigError if there is none."""
    java = shutil.which("java", path=search_path())
    if java is None:
        raise ConfigError("Kafka needs Java 17 or later. Put `java` on the PATH.")
    return java


def require_kafka(jars: Path) -> None:
    """Check that Kafka can be started from ``jars``. Raises ConfigError if not. Call it before a long run."""
    find_java()
    if not any(jars.glob("kafka_*.jar")) or not any(jars.glob("kafka-clients-*.jar")):
        raise ConfigError(
            f"{jars} has no kafka_*.jar and kafka-clients-*.jar. Give the directory `libs` of a Kafka "
            "distribution (--kafka-jars)."
        )


class Kafka(System):
    """Three Kafka brokers on loopback. Each broker is also a controller (KRaft).

    Publishers do not use NATS, and Kafka's producer has its own window. ``jars``: directory ``libs`` of Kafka's distribution.
    ``flushed``: True if each broker flushes a record before the ack. The start raises UnavailableError with Kafka's own text if it
    fails. All child processes end with the context.
    """

    kind = "kafka"
    lacks = frozenset({"acked", "plain", "latency", "failover"})

    def __init__(self, jars: Path, *, flushed: bool) -> None:
        self._jars = jars
        self._flushed = flushed
        self._folder = Path()
        self._brokers: list[subprocess.Popen[Any]] = []
        self.servers = ""
        """Value of Kafka's setting ``bootstrap.servers``."""

    @property
    def ports(self) -> list[int]:
        """Empty, because there is no nats-server."""
        return []

    @property
    def pids(self) -> list[int]:
        return [broker.pid for broker in self._brokers]

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="liftpy-peer-"))
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self) -> None:
        ports = free_ports(2 * _BROKERS)
        talk, vote = ports[:_BROKERS], ports[_BROKERS:]
        self.servers = ",".join(f"127.0.0.1:{port}" for port in talk)
        voters = ",".join(f"{number + 1}@127.0.0.1:{port}" for number, port in enumerate(vote))
        cluster = "k" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode()[1:22]
        words = [find_java(), _HEAP, *self._class_path]
        for number in range(_BROKERS):
            settings = self._folder / f"{number}.properties"
            settings.write_text(_kafka_settings(number, (talk[number], vote[number]), voters, self._folder / str(number)))
            formatted = [*words, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
            done = subprocess.run(formatted, capture_output=True, text=True, timeout=_FORMAT_S, check=False)
            if done.returncode:
                raise UnavailableError(
                    f"Cannot format the storage of Kafka. Check --kafka-jars and `java`. Output: {(done.stderr or done.stdout)[-300:]}"
                )
            with (self._folder / f"{number}.log").open("wb") as log:
                started = [*words, "kafka.Kafka", str(settings)]
                self._brokers.append(spawn(started, signal.SIGTERM, stdout=log, stderr=log))
        for port in talk:
            self._wait_for(port)

    def _wait_for(self, port: int) -> None:
        give_up_at = time.monotonic() + _KAFKA_READY_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            if time.monotonic() > give_up_at or any(broker.poll() is not None for broker in self._brokers):
                raise UnavailableError(
                    "A Kafka broker did not start. Check --kafka-jars and `java`. Last log lines: "
                    f"{(self._folder / '0.log').read_text()[-300:]}"
                )
            time.sleep(0.1)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for broker in self._brokers:
            broker.terminate()
        for broker in self._brokers:
            try:
                broker.wait(_KAFKA_STOP_S)
            except subprocess.TimeoutExpired:
                broker.kill()
                broker.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _class_path(self) -> list[str]:
        return ["-cp", str(self._jars / "*")]

    def _client(self, command: str) -> list[str]:
        """Return the command line of Kafka's client ``KafkaPeer.java`` for this cluster, without the last arguments of ``command``."""
        return [find_java(), *self._class_path, str(_CLIENT), command, self.servers, STREAM]

    def prepare(self) -> None:
        """Create a topic with one partition on all brokers and min.insync.replicas 2."""
        words = [*self._client("create"), "1" if self._flushed else str((1 << 63) - 1)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=_KAFKA_READY_S, check=False)
        if done.returncode:
            raise UnavailableError(f"Cannot create a Kafka topic. Check --kafka-jars. Output: {done.stderr[-300:]}")

    def publisher(self, number: int, seconds: float, size_bytes: int, window: int, each: int = 1) -> list[str]:
        """Return the command line of Kafka's producer: acks=all, idempotent, batches of up to 1 MB. ``window`` is not used."""
        return [*self._client("produce"), str(seconds), str(size_bytes), _JAVA_WARM_S]

    def readers(self, seconds: float) -> dict[str, list[str]]:
        return {"batches": [*self._client("consume"), str(seconds), _JAVA_WARM_S]}

    def kill_leader(self) -> int:
        raise UnavailableError("Kafka does not listen on NATS subjects, so this case is not possible. Choose another --case.")


def _kafka_settings(number: int, ports: tuple[int, int], voters: str, folder: Path) -> str:
    talk, vote = ports
    return f"""
process.roles=broker,controller
node.id={number + 1}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{talk},CONTROLLER://127.0.0.1:{vote}
advertised.listeners=PLAINTEXT://127.0.0.1:{talk}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}
offsets.topic.replication.factor={_BROKERS}
transaction.state.log.replication.factor={_BROKERS}
transaction.state.log.min.isr=1
message.max.bytes=2097152
replica.fetch.max.bytes=2097152
log.cleaner.enable=false
"""


# ---- choice of systems -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComparisonOptions:
    """Options of ``liftpy bench`` about the systems to compare with.

    ``nats_servers``: number of nats-servers for liftpy and Liftbridge. ``kafka_jars``: directory of Kafka's jars. None: not given.
    ``network``: network between the hosts. Kafka's brokers use the loopback.
    """

    nats_servers: int = 1
    kafka_jars: Path | None = None
    network: HostNetwork = LOOPBACK

    @property
    def jars(self) -> Path:
        if self.kafka_jars is None:
            raise ConfigError("Kafka needs its jars. Give their directory with --kafka-jars.")
        return self.kafka_jars


SYSTEMS: dict[str, Callable[[ComparisonOptions], System]] = {
    OURS: lambda given: Liftpy(given.nats_servers, network=given.network),
    "jetstream-always": lambda given: JetStream(sync_always=True, network=given.network),
    "jetstream": lambda given: JetStream(sync_always=False, network=given.network),
    "jetstream-r1-always": lambda given: JetStream(sync_always=True, servers=1, network=given.network),
    "jetstream-r1": lambda given: JetStream(sync_always=False, servers=1, network=given.network),
    "liftbridge": lambda given: Liftbridge(given.nats_servers, network=given.network),
    "kafka-flushed": lambda given: Kafka(given.jars, flushed=True),
    "kafka": lambda given: Kafka(given.jars, flushed=False),
}
DEFAULT_SYSTEMS = (OURS, "jetstream-always", "jetstream")


def choose_systems(names: tuple[str, ...], comparison: ComparisonOptions, say: Callable[[str], None]) -> tuple[str, ...]:
    """Return the names of the systems to measure: ``names``, or by default all that are installed.

    ``say`` is called with a line of text for each system that is skipped. Raises ConfigError if a named system is missing.
    """
    kafkas = tuple(name for name in SYSTEMS if name.startswith("kafka"))
    if not names:
        system_names = [*DEFAULT_SYSTEMS]
        if shutil.which(BINARY, path=search_path()):
            system_names.append(BINARY)
        else:
            say(f"skipped: liftbridge, because `{BINARY}` is not on the PATH")
        if comparison.kafka_jars is not None:
            system_names += kafkas
        else:
            say("skipped: Kafka, because --kafka-jars is not given")
        names = tuple(system_names)
    if BINARY in names:
        find_liftbridge()
    if set(kafkas) & set(names):
        if not comparison.network.is_loopback:
            raise ConfigError(
                "Kafka cannot be measured with --network-delay or --network-bandwidth. Leave out --kafka-jars, or these options."
            )
        require_kafka(comparison.jars)
    return names
