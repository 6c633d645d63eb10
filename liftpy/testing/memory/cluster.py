"""``MemoryCluster``: nodes, NATS and the metadata group in one thread of this process, with the real client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nats.aio.client import Client as NatsConnection

from liftpy.client import sync
from liftpy.client.awaitable_context import AwaitableContext
from liftpy.client.client import Client, factories_for
from liftpy.client.consumer import ReadOptions
from liftpy.config import ReplicationConfig
from liftpy.core.groups.coordinator import GroupCoordinator
from liftpy.core.metadata.image import ClusterImage, StreamImage
from liftpy.core.services.effects import EffectNumbering
from liftpy.core.services.machine import ServiceMachine
from liftpy.core.services.outbox import Outbox
from liftpy.core.services.service import Role, Service
from liftpy.core.services.snapshot import Identity
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import GROUPS_SERVICE, GROUPS_STREAM, Subjects
from liftpy.errors import ConfigError, NotFoundError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.transport import Transport, open_connection
from liftpy.renamed import accept_old_keywords
from liftpy.service.bad_record_writer import RecordWriter
from liftpy.service.effect_runner import EffectRunner
from liftpy.service.initial_version import activate_newest_version
from liftpy.service.output_writer import Emitter
from liftpy.service.query_server import QueryServer
from liftpy.service.reply_sender import Replier
from liftpy.service.settings import ServiceSettings
from liftpy.testing.memory.group import MemoryGroup
from liftpy.testing.memory.nats import MAX_PAYLOAD_BYTES, URL, Bus, MemoryServer, MemoryTransport
from liftpy.testing.memory.node import MemoryNode
from sidecar.dev.cluster_for_tests import ClusterForTests

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

_T = TypeVar("_T")
DEFAULT_NODES = 3
MAX_NODES = 16
_TICK_S = 0.1
_CALL_S = 30.0
_NOT_RUNNING = "this cluster in memory does not run: use it as a context manager"


class MemoryCluster(ClusterForTests):
    """A cluster of nodes n1, n2... in this process. Use it with ``with`` or ``async with``.

    Calls may come from any thread. They take milliseconds, except those that wait.

    Args:
        nodes: Number of nodes (1 to 16). Default 3.
        namespace: Namespace of the cluster. Default ``liftpy``.
        config: Timeouts and limits of the nodes. Default: ``ReplicationConfig()``.
        max_payload: Maximum size of a NATS message, in bytes. Default: that of nats-server, 1 MiB.

    Raises:
        ConfigError: The number of nodes is out of range.

    Example:
        from liftpy.testing.memory import memory_cluster

        with memory_cluster() as cluster, cluster.sync_client() as client:
            client.create_stream("orders", "shop.orders")
            cluster.kill_leader("orders")
            client.publish("orders", b"one")
    """

    poll_s = 0.01

    def __init__(
        self,
        nodes: int = DEFAULT_NODES,
        *,
        namespace: str = "liftpy",
        config: ReplicationConfig | None = None,
        max_payload: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        if not 1 <= nodes <= MAX_NODES:
            raise ConfigError(f"Invalid number of nodes: {nodes}. An in-memory cluster has 1 to {MAX_NODES} nodes.")
        self._count = nodes
        self._subjects = Subjects(namespace)
        self._config = config or ReplicationConfig()
        self._max_payload = max_payload
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._nodes: dict[str, MemoryNode] = {}
        self._server: MemoryServer | None = None
        self._group: MemoryGroup | None = None
        self._services: list[MemoryService] = []
        self._coordinators: tuple[str, asyncio.Task[None]] | None = None
        """Uid of the stream of groups, and the task that starts its coordinators. They are among the services."""

    # ---- life ------------------------------------------------------------------------------------------------------------
    def start_all(self) -> None:
        """Start all nodes. ``with`` calls it."""
        if self._loop is not None:
            raise ConfigError("This in-memory cluster is already running. Stop it first, or create another one.")
        self._loop = loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="liftpy-memory", daemon=True)
        self._thread.start()
        self._call(self._begin)

    def _begin(self) -> None:
        assert self._loop is not None
        loop = self._loop
        bus = Bus(loop.call_soon, self._max_payload)
        self._server = MemoryServer(bus, loop)
        self._group = MemoryGroup(bus, self._subjects, self._config, self._image_changed, self._first_up)
        for number in range(1, self._count + 1):
            node_id = f"n{number}"
            self._nodes[node_id] = MemoryNode(node_id, loop, bus, self._subjects, self._config, self._nodes)
        for node in self._nodes.values():
            node.start(self._group)
        self._tick()

    def stop(self) -> None:
        """Stop all nodes and disconnect all clients. A second call does nothing."""
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        services, self._services = self._services, []
        coordinators, self._coordinators = self._coordinators, None
        ended = threading.Event()

        async def close() -> None:
            await end_tasks([coordinators[1]] if coordinators is not None else [])
            for service in services:
                await service.close()

        with contextlib.suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(close(), loop).result(_CALL_S)

        async def end() -> None:
            try:
                self._end()
                await end_tasks(asyncio.all_tasks() - {asyncio.current_task()})
            finally:
                loop.call_soon(loop.stop)
                ended.set()

        asyncio.run_coroutine_threadsafe(end(), loop)
        ended.wait(_CALL_S)
        thread.join(_CALL_S)
        if not thread.is_alive():
            loop.close()

    def _end(self) -> None:
        if self._server is not None:
            self._server.is_up = False
            self._server.cut_all()
        for node in self._nodes.values():
            node.close()
        self._nodes.clear()
        self._group = None

    async def __aenter__(self) -> MemoryCluster:
        self.start_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    def _call(self, work: Callable[[], _T]) -> _T:
        """Run ``work`` on the thread of the cluster, wait for it, and return its result."""
        if self._loop is None:
            raise ConfigError(_NOT_RUNNING)
        done: concurrent.futures.Future[_T] = concurrent.futures.Future()

        def call() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(call)
        return done.result(_CALL_S)

    # ---- clients ---------------------------------------------------------------------------------------------------------
    @property
    def namespace(self) -> str:
        """Namespace of the cluster."""
        return self._subjects.namespace

    def client(self, name: str = "liftpy-client", *, trace: bool | TracerProvider = False) -> AwaitableContext[Client]:
        """Return a client for the running event loop. Use it with ``async with``, or ``await`` it.

        Args:
            name: Name of the connection. Default ``liftpy-client``.
            trace: True, or an OpenTelemetry TracerProvider, to create spans. Default False.

        Example:
            async with cluster.client() as client:
                await client.create_stream("orders", "shop.orders")
        """
        return AwaitableContext(self._client(name, trace))

    def sync_client(self, name: str = "liftpy-client", *, trace: bool | TracerProvider = False) -> sync.SyncClient:
        """Return a client without asyncio. Use it with ``with``, or close it.

        Args:
            name: Name of the connection. Default ``liftpy-client``.
            trace: True, or an OpenTelemetry TracerProvider, to create spans. Default False.
        """
        return sync.sync_client_of(partial(self._client, name, trace))

    def nats(self, **options: Any) -> AwaitableContext[NatsConnection]:
        """Return a nats-py client of the cluster's NATS. Use it with ``async with``, or ``await`` it.

        Args:
            **options: Arguments for ``nats.connect``.
        """
        return AwaitableContext(self._connection(**options))

    def _connection(self, **options: Any) -> Coroutine[Any, Any, NatsConnection]:
        if self._server is None or self._loop is None:
            raise ConfigError(_NOT_RUNNING)
        return open_connection(URL, carrier=MemoryTransport(self._server), **options)

    async def _client(self, name: str, trace: bool | TracerProvider = False) -> Client:
        factories = factories_for(trace)
        connection = await self._connection(name=name)
        return Client(Transport(connection), self._subjects, owns_connection=True, factories=factories)

    # ---- services --------------------------------------------------------------------------------------------------------
    @accept_old_keywords
    def serve(
        self,
        factory: Callable[[], Service],
        name: str,
        stream: str,
        *,
        partition: int = 0,
        output_stream: str = "",
        tick_interval_s: float = 1.0,
    ) -> None:
        """Run a replicated service as one LEADER instance until the cluster stops.

        The call returns when the service receives records. Its callbacks run on the cluster's thread.

        Args:
            factory: The service class, or a function that returns an instance.
            name: Name of the service.
            stream: Name of the stream that it reads.
            partition: Number of the partition. Default 0.
            output_stream: Name of the stream for outputs. Default '': none.
            tick_interval_s: Interval of records that advance log time, in seconds. Default 1.

        Raises:
            NotFoundError: No such stream or partition.
            ConfigError: The service and its settings do not fit together.

        Example:
            cluster.serve(Counter, "counter", "orders")
        """
        more = {"output_stream": output_stream, "tick_interval_s": tick_interval_s}
        self._wait_for(self._serve(factory, name, stream, partition, **more))

    async def _serve(self, factory: Callable[[], Service], name: str, stream: str, partition: int, **more: Any) -> None:
        settings = ServiceSettings(name, stream, _NODE, Path(), partition, **more)
        service = MemoryService(await self._client(name), self._subjects, factory, settings)
        self._services.append(service)
        await service.begin()

    def serve_groups(self) -> None:
        """Wait until the coordinators of groups and queues run. They also start on first use."""

        async def made() -> None:
            async with AwaitableContext(self._client("groups")) as client:
                await client.groups.stream()
            if self._coordinators is not None:
                await asyncio.shield(self._coordinators[1])

        self._wait_for(made())

    async def _coordinate(self, stream: StreamImage) -> None:
        for partition in stream.partitions:
            await self._serve(GroupCoordinator, GROUPS_SERVICE, GROUPS_STREAM, partition.partition, tick_interval_s=1.0)

    def _wait_for(self, work: Coroutine[Any, Any, None]) -> None:
        if self._loop is None:
            work.close()
            raise ConfigError(_NOT_RUNNING)
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_S)

    # ---- what goes on by itself ------------------------------------------------------------------------------------------
    def _first_up(self) -> str:
        return next((node.node_id for node in self._nodes.values() if node.up), "")

    def _image_changed(self, image: ClusterImage) -> None:
        if self._loop is None:
            return  # the cluster stops: nothing that a node has asked for changes anything any more
        for node in self._nodes.values():
            if node.up:
                node.loop.call_soon(node.image_changed, image)
        for service in self._services:
            service.image_changed(image)
        groups = image.streams.get(GROUPS_STREAM)
        known = self._coordinators[0] if self._coordinators is not None else ""
        if groups is not None and groups.partitions and groups.uid != known:
            self._coordinators = groups.uid, self._loop.create_task(self._coordinate(groups), name="coordinators in memory")

    def _tick(self) -> None:
        """Do the periodic work of the cluster: send heartbeats, make due decisions, and renew leases.

        Heartbeats come first, so that no node is fenced because this process was stopped.
        """
        group, loop = self._group, self._loop
        if group is None or loop is None:
            return
        up = {node.node_id: node.incarnation for node in self._nodes.values() if node.up}
        for node_id in group.tick(up, [node_id for node_id in self._nodes if node_id not in up]):
            loop.call_soon(self._nodes[node_id].beat)  # behind the images that show what was decided
        loop.call_later(_TICK_S, self._tick)

    async def _keep_house(self) -> None:
        await asyncio.gather(*(node.keep_house() for node in self._nodes.values()))

    def keep_house(self) -> None:
        """Run retention and compaction on all nodes now. Without this call, they run every few seconds."""
        self._wait_for(self._keep_house())

    # ---- nodes and faults ------------------------------------------------------------------------------------------------
    @property
    def nodes(self) -> list[str]:
        """Ids of all nodes, also of stopped ones."""
        return list(self._nodes)

    @property
    def running(self) -> list[str]:
        """Ids of the running nodes."""
        return [node.node_id for node in self._nodes.values() if node.up]

    def _node(self, node: str) -> MemoryNode:
        memory_node = self._nodes.get(node)
        if memory_node is None:
            raise self._unknown_node(node)
        return memory_node

    def kill(self, node: str) -> None:
        """Kill a node. Its data stays for the next start. The metadata group learns of it at once.

        Args:
            node: Id of the node.
        """
        memory_node = self._node(node)

        def killed() -> None:
            if memory_node.up:
                memory_node.kill()
                fence = pb.FenceNode(nodeId=node, incarnation=memory_node.incarnation)
                assert self._group is not None
                self._group.apply(pb.ControlRequest(fenceNode=fence))

        self._call(killed)

    def start(self, node: str) -> None:
        """Start a stopped node and wait until it is registered.

        Args:
            node: Id of the node.

        Raises:
            ConfigError: The node is running.
        """
        memory_node = self._node(node)
        if memory_node.up:
            raise ConfigError(f"Node {node} is already running. Kill or stop it first.")
        assert self._group is not None
        self._call(partial(memory_node.start, self._group))

    def _leader_of(self, stream: str, partition: int) -> str:
        image = self._image().streams.get(stream)
        if image is None or not 0 <= partition < len(image.partitions):
            raise ConfigError(f"Partition {stream}/{partition} does not exist. Create the stream first.")
        return image.partitions[partition].leader

    def _image(self) -> ClusterImage:
        assert self._group is not None
        return self._group.image  # never changed, only replaced

    def restart_nats(self) -> None:
        """Disconnect all clients, as a restart of nats-server does. They reconnect by themselves."""
        if self._server is not None:
            self._call(self._server.cut_all)

    def heal(self) -> None:
        """Start all stopped nodes."""
        for node in self.nodes:
            if node not in self.running:
                self.start(node)

    def delete_streams(self) -> None:
        """Delete all streams."""

        def delete() -> None:
            assert self._group is not None
            for name, stream in list(self._group.image.streams.items()):
                self._group.decide(pb.ControlRequest(deleteStream=pb.DeleteStream(name=name, uid=stream.uid)))

        self._call(delete)


def memory_cluster(nodes: int = DEFAULT_NODES, **options: Any) -> MemoryCluster:
    """Return a cluster in this process. Use it with ``with`` or ``async with``.

    Args:
        nodes: Number of nodes. Default 3.
        **options: More arguments of ``MemoryCluster``.

    Example:
        async with memory_cluster() as cluster, cluster.client() as client:
            await client.create_stream("orders", "shop.orders")
    """
    return MemoryCluster(nodes, **options)


logger = logging.getLogger("liftpy.testing")

_NODE = "memory"
_NO_SNAPSHOTS = 1 << 40
_READING = ReadOptions(patience_s=3600.0, wait_s=1.0, answer_timeout_s=0.5)
"""Options for reading without a time limit. A test may stop all nodes for a long time. A killed node does not answer any more."""
_CHUNK_RECORDS = 128
_FULL_S = 0.005
_LEADER_EPOCH = 1


class MemoryService:
    """A replicated service that runs on an in-memory cluster (implements ``ServiceInstance``). Call ``begin``, then ``close``.

    There is one instance, which leads. It depends on no node, and stores no snapshots. ``client``: client that only this service
    uses. ``close`` closes it, too.
    """

    leads = is_fed = has_caught_up = True

    def __init__(self, client: Client, subjects: Subjects, factory: Callable[[], Service], settings: ServiceSettings) -> None:
        self._client = client
        self._subjects = subjects
        self._factory = factory
        self._settings = settings
        self._tasks: list[asyncio.Task[None]] = []
        self.machine: ServiceMachine | None = None
        self._outbox: Outbox | None = None
        self._uid = ""
        """Uid of the stream. Empty before ``begin``."""
        self._has_ended = False

    async def begin(self) -> None:
        """Create the state of the service and start to feed it records. Raises NotFoundError, and the error of ``on_start``."""
        settings, client, transport = self._settings, self._client, self._client.transport
        stream = await client.stream(settings.stream)
        if settings.partition >= len(stream.partitions):
            raise NotFoundError(f"Stream {stream.name} has no partition {settings.partition}. It has {len(stream.partitions)}.")
        uid = self._uid = stream.uid
        identity = Identity(settings.service, settings.stream, uid, settings.partition)
        if settings.output_stream:
            await client.stream(settings.output_stream)
            bounds = {"max_records": settings.outbox_records, "max_bytes": settings.outbox_bytes}
            self._outbox = Outbox(f"{uid}/{settings.partition}", service=settings.service, **bounds)
            self._spawn(Emitter(client, transport, settings, self._outbox, self).run())
        self.machine = machine = ServiceMachine(
            self._factory(), identity, snapshot_interval_records=_NO_SNAPSHOTS, outbox=self._outbox
        )
        machine.effects.change_numbering(EffectNumbering.BY_RECORD)
        machine.start(None)
        machine.change_role(Role.LEADER, _LEADER_EPOCH)
        activate_newest_version(machine, stream.created_time_ns)
        self._spawn(self._feed(machine))
        self._spawn(Replier(transport, settings, machine.replies, self).run())
        effects = EffectRunner(RecordWriter(client, settings.emit_timeout_s), settings, self)
        machine.on_work = effects.wake
        self._spawn(effects.run())
        if machine.takes_queries:
            self._spawn(QueryServer(client, transport, self._subjects, settings, self).run())

    @property
    def emitted_end(self) -> int | None:
        return None if self._outbox is None else self._outbox.emitted_end

    async def _feed(self, machine: ServiceMachine) -> None:
        """Pass all records of the partition to the service, until it raises an error. After that it does not answer."""
        settings = self._settings
        consumer = self._client.consume(settings.stream, settings.partition, options=_READING)
        async for piece in consumer.batches():
            records = list(piece.records())
            while records and machine.position <= records[-1].offset:
                machine.apply(records[:_CHUNK_RECORDS])
                records = [record for record in records if record.offset >= machine.position]
                await asyncio.sleep(_FULL_S if machine.waits_for_outputs else 0)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"service {self._settings.service} in memory")
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Log that the service has ended with ``error``, and stop its tasks, so that it answers nothing any more."""
        if self._has_ended:
            return
        self._has_ended = True
        logger.error("service %s in memory has ended: %s", self._settings.service, error, exc_info=error)
        for task in self._tasks:
            task.cancel()

    def image_changed(self, image: ClusterImage) -> None:
        """End the service if its stream was deleted in ``image``. A service of a new stream with the name may use its name."""
        name = self._settings.stream
        stream = image.streams.get(name)
        if self._uid and (stream is None or stream.uid != self._uid):
            self.fail(NotFoundError(f"Stream {name} was deleted."))

    def outputs_known(self) -> None:
        """Do nothing: the one instance always leads."""

    outputs_written = outputs_disproven = outputs_known

    async def close(self) -> None:
        await end_tasks(self._tasks)
        await self._client.close()
