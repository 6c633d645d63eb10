"""A replicated service next to each node of a simulated cluster. Its processes are killed, and its outputs are written exactly once."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable
from typing import Any

from liftpy.client import Client
from liftpy.core.wire.batch import Record
from liftpy.errors import LiftError
from liftpy.nats.transport import Transport, open_connection
from liftpy.service import Service
from liftpy.service.host import ServiceHost
from liftpy.service.settings import ServiceSettings
from sidecar.cli.service import restart_helps
from tests.simulation.world.load.clients import Clients, Model
from tests.simulation.world.machine.disk import Disk, close_descriptors
from tests.simulation.world.machine.scheduler import NS_PER_S, Process
from tests.simulation.world.node_process import NodeProcess, begin
from tests.simulation.world.world import World

SERVICE, INPUT = "sums", "orders"
OUTPUT = ("sums", "sums.x", 2)
_RESTART_NS = NS_PER_S // 2
_WITHIN_S = 60.0


class Sums(Service):
    """Emits the number of records and a checksum of all of them, for each record."""

    def on_start(self, snapshot: bytes | None) -> None:
        """Start with the state."""
        self.state = snapshot or b"0 0"

    def on_record(self, record: Record) -> None:
        """Count the record."""
        self.state = next_state(self.state, record.value or b"")
        self.emit(self.state)

    def on_query(self, query: bytes) -> bytes:
        """Return the state."""
        return self.state

    def take_snapshot(self) -> bytes:
        """Return the state."""
        return self.state


def next_state(state: bytes, value: bytes) -> bytes:
    """Return the state after one more record."""
    count, checksum = map(int, state.split())
    return b"%d %d" % (count + 1, zlib.crc32(value, checksum))


class ServiceProcess:
    """Process of a service next to one node, and its supervisor. Its files survive its process."""

    def __init__(
        self,
        world: World,
        node: NodeProcess,
        settings: ServiceSettings,
        factory: Callable[[], Callable[[], Service]],
        on_failure: Callable[[ServiceProcess, LiftError], None],
        disk: Disk | None = None,
    ) -> None:
        """Create the process.

        ``factory``: returns the factory of the service for each start. ``on_failure``: called after an end that a restart does not
        repair. ``disk``: disk of the host, which loses unflushed data in a power cut. None: a disk that keeps everything.
        """
        self.node = node
        self.settings = settings
        self.process: Process | None = None
        self.disk = disk
        self.wants_restart = True
        """True if its supervisor starts it again after its end."""
        self._world = world
        self.factory = factory
        self._on_failure = on_failure
        self._host: ServiceHost | None = None
        if disk is not None:
            node.on_power_cut.append(self._lose_power)

    @property
    def is_up(self) -> bool:
        """True if there is a process."""
        return self.process is not None and self.process.is_alive

    def start(self) -> None:
        """Start a process."""
        if self.is_up or self.node.is_lost:
            return
        scheduler = self._world.scheduler
        process = Process(scheduler, f"service {self.node.name}")
        process.host = self.node.name
        process.disk = self.disk
        process.on_end += [
            lambda: self._world.network.process_ended(process),
            lambda: close_descriptors(process),
            lambda: scheduler.after(_RESTART_NS, self.start) if process.exit_code and self.wants_restart else None,
        ]
        self.process = process
        self.wants_restart = True
        scheduler.trace("service starts", self.node.name)
        begin(process, self._run, lambda task: self._returned(process, task))

    def kill(self) -> None:
        """Kill the process. Its supervisor restarts it."""
        if self.process is not None:
            self.process.end(-9)

    def stop(self) -> None:
        """Send SIGTERM. Its supervisor restarts it."""
        if self.process is not None and self.process.is_alive and self._host is not None:
            self._world.scheduler.run_as(self.process, self._host.stop)

    def end(self) -> None:
        """Kill the process, and start no other one."""
        self.wants_restart = False
        if self.is_up:
            self.kill()

    def _lose_power(self) -> None:
        self.kill()
        assert self.disk is not None
        self.disk.power_cut()

    async def _run(self) -> None:
        self._host = None
        while True:
            try:
                connection = await open_connection(
                    list(self._world.nats.urls),
                    credentials=self._world.credentials,
                    name=f"liftpy-service-{self.settings.service}",
                )
                break
            except LiftError:
                await asyncio.sleep(1)
        self._host = ServiceHost(self.factory(), self.settings, Transport(connection))
        await self._host.run()

    def _returned(self, process: Process, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        scheduler = self._world.scheduler
        scheduler.trace("service ends", self.node.name, type(error).__name__, error)
        scheduler.counters[f"service ended: {type(error).__name__}"] += 1
        if isinstance(error, LiftError):
            if not restart_helps(error):
                self._on_failure(self, error)
        elif error is not None:
            scheduler.unhandled(process, "the service", error, {})
        process.end(1)


class Services:
    """The instances, a client that queries them, and a killer."""

    def __init__(self, world: World, model: Model, clients: Clients) -> None:
        self.world = world
        self.model = model
        self.clients = clients
        self.instances = [self._instance(node) for node in world.nodes]

    @property
    def streams(self) -> list[tuple[str, str, int]]:
        """Streams whose replicas must be equal at the end."""
        return [OUTPUT]

    def _instance(self, node: NodeProcess) -> ServiceProcess:
        settings = ServiceSettings(
            service=SERVICE,
            stream=INPUT,
            node=node.name,
            data=self.world.folder / node.name / "service",
            output_stream=OUTPUT[0],
            snapshot_interval_records=40,
        )
        return ServiceProcess(self.world, node, settings, lambda: Sums, self._failed)

    def _failed(self, instance: ServiceProcess, error: LiftError) -> None:
        if not self.model.may_lose:
            self.world.scheduler.violated(f"the service next to {instance.node.name} ends, and no restart helps: {error!r}")

    def node_lost(self, node: NodeProcess) -> None:
        """End the instance next to a node whose machine is lost for ever."""
        for instance in [one for one in self.instances if one.node is node]:
            self.instances.remove(instance)
            instance.kill()

    def node_joined(self, node: NodeProcess) -> None:
        """Start an instance next to a new node."""
        instance = self._instance(node)
        self.instances.append(instance)
        instance.start()

    async def create(self, client: Client) -> None:
        """Create the stream of the outputs."""
        await client.create_stream(OUTPUT[0], OUTPUT[1], partitions=OUTPUT[2])

    def start(self) -> None:
        """Start all instances."""
        for instance in self.instances:
            instance.start()
        self.clients.begin("services", self._run(random.Random(f"services {self.world.seed}")))

    async def _run(self, draw: random.Random) -> None:
        client = await self.clients.connect()
        while not self.clients.stopping:
            await asyncio.sleep(draw.random())
            if draw.random() < 0.3:
                draw.choice(self.instances).kill()
            else:
                await self.model.call("query", client.services.query(SERVICE, b"", partition=0, timeout_s=3.0))
        await client.close()

    async def check(self) -> None:
        """Check after recovery that the outputs are those of the records, and that a query sees all records."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + _WITHIN_S
        async with self.world.connect() as client:
            while True:
                try:
                    wrong = await self._wrong_outputs(client)
                except LiftError as error:
                    wrong = repr(error)
                if not wrong:
                    return
                if loop.time() >= end_s:
                    self.world.scheduler.violated(f"the service after {_WITHIN_S:g} s in a quiet cluster: {wrong}")
                    return
                await asyncio.sleep(0.5)

    async def _wrong_outputs(self, client: Client) -> str:
        state, wanted = b"0 0", []
        async for record in client.consume(INPUT, 0, until="end"):
            state = next_state(state, record.value or b"")
            wanted.append(state)
        found = [record.value async for record in client.consume(OUTPUT[0], 0, until="end")]
        if found != wanted:
            at = next((number for number, (one, other) in enumerate(zip(found, wanted, strict=False)) if one != other), -1)
            return f"{len(found)} outputs of {len(wanted)} records, the first wrong one is {at}"
        answer = await client.services.query(SERVICE, b"", partition=0)
        self.world.scheduler.counters["outputs of the service"] += len(found)
        return "" if answer.value == state else f"a query is answered with {answer.value!r}, the state is {state!r}"
