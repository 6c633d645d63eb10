"""The story of every history: start a cluster, make streams, publish and read under faults, heal, and check that all is well."""

from __future__ import annotations

import asyncio

from liftpy.config import StreamConfig
from liftpy.core.base.partition import PartitionStatus
from liftpy.errors import ConfigError
from tests.simulation.world.checks.drills import drill
from tests.simulation.world.checks.figures import check_figures
from tests.simulation.world.checks.logs import MOST_REPLICAS, check_logs, unsettled, workers_of
from tests.simulation.world.checks.messages import MessageRules, QuietRules
from tests.simulation.world.checks.status import check_reports
from tests.simulation.world.checks.subscriptions import wrong_subscriptions
from tests.simulation.world.faults import Faults
from tests.simulation.world.load.attacks import attack, flood, probe
from tests.simulation.world.load.backups import Backups
from tests.simulation.world.load.clients import Clients, Model
from tests.simulation.world.load.groups import Groups, hostile_member
from tests.simulation.world.load.ledgers import Ledgers
from tests.simulation.world.load.losses import Losses
from tests.simulation.world.load.operations import KEYED, MOVED, PLAIN, Operations
from tests.simulation.world.load.rejections import LIMITED, LIMITED_SUBJECT, Rejections, create_limited
from tests.simulation.world.load.services import Services
from tests.simulation.world.machine.supervisor import wrong_reports
from tests.simulation.world.world import World

_START_S = 60.0
_MOST_SHOWN = 5
_SETTLE_S = 120.0
_ENDING_S = 90.0
_ELECTION_S = 5.0
"""Time for the elections after a restart, in seconds. Then a partition without a leader waits for an operator."""
_QUIET_S = 3.0
_QUIET_SAMPLES = 3
_QUIET_MESSAGES_PER_S = 400
_QUIET_WAKES_PER_S = 200
"""Maximum number of wake-ups of a node per second in a cluster without load, for each of its processes."""


class Story:
    """One history, step by step."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rules, self.model, self.quiet = MessageRules(world), Model(world.scheduler), QuietRules(world)
        self.streams = [("orders", "shop.orders", 2), ("bills", "shop.bills", 1)]
        """(name, subject, partitions) of the streams that clients use."""
        self.all_streams = list(self.streams)
        """Streams whose replicas must be equal at the end."""
        self.clients, self.faults = Clients(world, self.model, self.streams), Faults(world)
        self.operations = Operations(world, self.model, self.clients)
        make_services = Ledgers if world.profile.service_features else Services
        self.services: Ledgers | Services = make_services(world, self.model, self.clients)
        self.backups = Backups(world, self.model, self.clients)
        self.groups = Groups(world, self.model, self.clients)
        self.losses = Losses(world, self.clients, self.services, self.faults.victim)

    async def tell(self) -> None:
        """Run the history from the first start to the last check."""
        for node in self.world.nodes:
            node.start()
        if not await self.world.until("all nodes are ready", lambda: all(one.is_ready for one in self.world.nodes), _START_S):
            return
        await self._create_streams()
        self._start_load()
        await self.faults.run()
        self.faults.heal()
        electing = asyncio.create_task(self._elect_after_restarts(), name="an operator")
        try:
            await self._recover()
            if not await self._settles():
                return
        finally:
            electing.cancel()
        await self._check_silence()
        await self._check_results()
        # The checks read all records. A node that meets a flipped bit restarts to repair it.
        if not await self._settles():
            return
        await self._check_quiet_cluster()
        for what, count in sorted(self.model.answers.items()):
            self.world.scheduler.counters[what] += count

    async def _create_streams(self) -> None:
        profile = self.world.profile
        async with self.world.connect() as client:
            for name, subject, partitions in self.streams:
                config = StreamConfig(segment_bytes=64 * 1024)
                await client.create_stream(name, subject, partitions=partitions, config=config)
            if profile.rejections:
                await create_limited(client)
                self.all_streams.append((LIMITED, LIMITED_SUBJECT, 1))
            if profile.operations:
                await self.operations.create(client)
            if profile.services:
                await self.services.create(client)
                self.all_streams += self.services.streams

    def _start_load(self) -> None:
        world, profile, clients = self.world, self.world.profile, self.clients
        clients.start()
        if profile.operations:
            self.operations.start()
        if profile.services:
            self.services.start()
        if profile.backups:
            self.backups.start()
        if profile.rejections:
            Rejections(world, self.model, clients).start()
        if profile.strangers:
            of_clients = [*self.all_streams, KEYED, MOVED, PLAIN]
            stranger = world.client_process("stranger")
            world.run_in(stranger, lambda: attack(world, self.rules, of_clients, lambda: clients.stopping))
        if profile.loses_node:
            self.losses.start()
        if profile.groups:
            self.groups.start()
            world.run_in(world.client_process("hostile"), lambda: hostile_member(world, lambda: clients.stopping))

    async def _recover(self) -> None:
        """End the load. Clients must end, too."""
        await asyncio.sleep(2)
        if self.world.profile.lazy_flush:
            await _elect_waiting(self.world, self.model)  # before clients give up
        self.clients.stopping = True
        await self.world.until("all clients have ended", lambda: self.clients.running == 0, _ENDING_S)
        self.model.check_overdue()
        if self.world.profile.operations:
            self.all_streams += self.operations.streams
        for node in self.world.nodes:
            node.file.error = ""
            node.reload()
        await _elect_waiting(self.world, self.model)
        if self.world.profile.loses_node:
            await self.losses.finish()

    async def _settles(self) -> bool:
        """Wait until the cluster has recovered. Return whether it has."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + _SETTLE_S
        while why := unsettled(self.world, self.all_streams) or ", ".join(wrong_subscriptions(self.world)[:_MOST_SHOWN]):
            if loop.time() >= end_s:
                self.world.scheduler.violated(f"{_SETTLE_S:g} s after the last fault: {why}")
                return False
            await asyncio.sleep(0.1)
        return True

    async def _elect_after_restarts(self) -> None:
        """Elect leaders after later restarts: a node that a full disk had stopped restarts 60 s after its disk has room again."""
        starts = -1
        while self.world.profile.lazy_flush:
            if (count := sum(node.lives for node in self.world.nodes)) > starts >= 0:
                await _elect_waiting(self.world, self.model)
            starts = count
            await asyncio.sleep(1)

    async def _measure_silence(self) -> tuple[dict[str, float], float]:
        """Return the wake-ups of each node per second, and the number of messages per second."""
        world = self.world
        before = world.scheduler.counters["messages"]
        loops = {loop: loop.wakes for loop in world.scheduler.loops if loop.process.name in {node.name for node in world.nodes}}
        await asyncio.sleep(_QUIET_S)
        wakes: dict[str, float] = {}
        for loop, seen in loops.items():
            wakes[loop.process.name] = wakes.get(loop.process.name, 0.0) + (loop.wakes - seen) / _QUIET_S
        return wakes, (world.scheduler.counters["messages"] - before) / _QUIET_S

    async def _check_silence(self) -> None:
        """Check that a cluster without load is quiet, and that its supervisors are satisfied.

        A controller may still store the events of the faults. So a cluster that is not quiet is measured again.
        """
        world = self.world
        loud: list[str] = []
        for _ in range(_QUIET_SAMPLES):
            wakes, messages_per_s = await self._measure_silence()
            loud = [f"{name} wakes up {count:.0f} times per s" for name, count in wakes.items() if count > _QUIET_WAKES_PER_S]
            if messages_per_s > _QUIET_MESSAGES_PER_S:
                loud.append(f"{messages_per_s:.0f} messages per s")
            if not loud:
                break
        for what in loud:
            world.scheduler.violated(f"{what} in a quiet cluster")
        world.scheduler.counters["wake-ups of nodes per s when quiet, sum"] += int(sum(wakes.values()))
        world.scheduler.counters["messages per s when quiet, sum"] += int(messages_per_s)
        for node in world.nodes:
            if wrong := wrong_reports(node.process) if node.process is not None else "":
                world.scheduler.violated(f"supervisor of {node.name}: {wrong}")
        readers = [one.process.name for one in world.network.connections if one.transport is not None and one.transport.reader]
        if readers:
            world.scheduler.violated(f"threads of {readers} still read a burst in a quiet cluster")

    async def _check_results(self) -> None:
        """Compare what the cluster has with what clients were told."""
        if not await self._settles():  # a service may have appended a decision since
            return
        committed = check_logs(self.world, self.model, self.all_streams)
        if self.model.may_lose:
            return
        profile = self.world.profile
        if profile.groups:
            await self.groups.finish(committed)
        if profile.operations:
            await self.operations.check()
        if profile.services:
            await self.services.check()
        if profile.backups:
            await self.backups.check()
        if profile.loses_node:
            await self.losses.check()
        await check_reports(self.world, self.model, self.all_streams)

    async def _check_quiet_cluster(self) -> None:
        """Attack the quiet cluster, compare figures with known work, and drill."""
        world, profile = self.world, self.world.profile
        await probe(world)
        if profile.floods:
            await flood(world)
        if not self.model.may_lose and len(world.nodes) >= MOST_REPLICAS:
            with self.quiet.hold():
                await check_figures(world)
            await self.quiet.check_answers()
        if profile.drills and not self.model.may_lose and profile.controllers >= MOST_REPLICAS:
            await drill(world, self.model)
            await self._settles()


async def tell(world: World) -> None:
    """Run the history of a world."""
    await Story(world).tell()


async def _elect_waiting(world: World, model: Model) -> None:
    """Elect a leader for each partition that waits for an operator, as docs/runbooks/partitions-offline.md says.

    A node with damage or with disk errors may count all its logs as incomplete (docs/invariants.md, "Damage in some logs"). A partition
    with this node as only member of the ISR then waits.
    """
    is_lazy = world.profile.lazy_flush  # then each kill of a node makes its logs count as incomplete
    damaged = {node.name for node in world.nodes if is_lazy or node.disk.is_damaged or node.disk.failures}
    if not damaged or not await world.until(
        "all nodes are ready again", lambda: all(n.is_ready for n in world.nodes), _START_S
    ):
        return
    await asyncio.sleep(_ELECTION_S)
    async with world.connect() as client:
        for (stream, partition), workers in workers_of(world).items():
            state = max((one.state for one in workers if one.state is not None), key=lambda one: one.epoch, default=None)
            if state is not None and state.status is PartitionStatus.OFFLINE and damaged.issuperset(state.isr):
                try:
                    await client.admin.elect_leader(stream, partition, state.isr[0], unclean=True)
                except ConfigError:  # an election has begun by itself
                    continue
                model.may_lose = True
                model.answers["an operator elected a leader"] += 1
