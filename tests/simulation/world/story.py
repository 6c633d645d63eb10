"""The story of every history: start a cluster, make streams, publish and read under faults, heal, and check that all is well."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from liftpy.config import StreamConfig
from liftpy.core.base.partition import PartitionStatus
from tests.simulation.world.checks.drills import drill
from tests.simulation.world.checks.figures import check_figures
from tests.simulation.world.checks.logs import MOST_REPLICAS, check_logs, unsettled, workers_of
from tests.simulation.world.checks.messages import MessageRules, QuietRules
from tests.simulation.world.checks.status import check_reports
from tests.simulation.world.faults import Faults
from tests.simulation.world.load.attacks import attack, flood, probe
from tests.simulation.world.load.backups import Backups
from tests.simulation.world.load.clients import Clients, Model
from tests.simulation.world.load.groups import Groups, hostile_member
from tests.simulation.world.load.operations import KEYED, MOVED, PLAIN, Operations
from tests.simulation.world.load.rejections import LIMITED, LIMITED_SUBJECT, Refusals, create_limited
from tests.simulation.world.load.services import OUTPUT, Services
from tests.simulation.world.machine.supervisor import wrong_reports
from tests.simulation.world.world import World

_START_S = 60.0
_SETTLE_S = 120.0
_ENDING_S = 90.0
_ELECTION_S = 5.0
"""Time for the elections after a restart, in seconds. Then a partition without a leader waits for an operator."""
_QUIET_S = 3.0
_QUIET_MESSAGES_PER_S = 400


async def tell(world: World) -> None:
    """Run the history from the first start to the last check."""
    rules, model, quiet = MessageRules(world), Model(world.scheduler), QuietRules(world)
    for node in world.nodes:
        node.start()
    if not await world.until("all nodes are ready", lambda: all(node.is_ready for node in world.nodes), _START_S):
        return
    streams = [("orders", "shop.orders", 2), ("bills", "shop.bills", 1)]
    everything = list(streams)
    config = StreamConfig(segment_bytes=64 * 1024)
    async with world.connect() as client:
        for name, subject, partitions in streams:
            await client.create_stream(name, subject, partitions=partitions, config=config)
        if world.profile.rejections:
            await create_limited(client)
            everything.append((LIMITED, LIMITED_SUBJECT, 1))
        clients, faults = Clients(world, model, streams), Faults(world)
        operations = Operations(world, model, clients)
        if world.profile.operations:
            await operations.create(client)
        services = Services(world, model, clients)
        if world.profile.services:
            await services.create(client)
            everything.append(OUTPUT)
    clients.start()
    backups = Backups(world, model, clients)
    if world.profile.operations:
        operations.start()
    if world.profile.services:
        services.start()
    if world.profile.backups:
        backups.start()
    if world.profile.rejections:
        Refusals(world, model, clients).start()
    of_clients = [*everything, KEYED, MOVED, PLAIN]
    if world.profile.strangers:
        world.run_in(world.client_process("stranger"), lambda: attack(world, rules, of_clients, lambda: clients.stopping))
    groups = Groups(world, model, clients)
    if world.profile.groups:
        groups.start()
        world.run_in(world.client_process("hostile"), lambda: hostile_member(world, lambda: clients.stopping))
    await faults.run()
    faults.heal()
    await asyncio.sleep(2)
    clients.stopping = True
    await world.until("all clients have ended", lambda: clients.running == 0, _ENDING_S)
    model.check_overdue()
    if world.profile.operations:
        everything += operations.streams
    for node in world.nodes:
        node.file.error = ""
        node.reload()
    await _elect_waiting(world, model)
    why = ""

    def settled() -> bool:
        nonlocal why
        why = unsettled(world, everything)
        return not why

    if not await _settles(world, settled, lambda: why):
        return
    before = world.scheduler.counters["messages"]
    await asyncio.sleep(_QUIET_S)
    per_s = (world.scheduler.counters["messages"] - before) / _QUIET_S
    world.scheduler.counters["messages per s when quiet, sum"] += int(per_s)
    if per_s > _QUIET_MESSAGES_PER_S:
        world.scheduler.violated(f"{per_s:.0f} messages per s in a quiet cluster")
    for node in world.nodes:
        if wrong := wrong_reports(node.process) if node.process is not None else "":
            world.scheduler.violated(f"supervisor of {node.name}: {wrong}")
    if readers := [one.process.name for one in world.network.connections if one.transport is not None and one.transport.reader]:
        world.scheduler.violated(f"threads of {readers} still read a burst in a quiet cluster")
    committed = check_logs(world, model, everything)
    if world.profile.groups and not model.may_lose:
        await groups.finish(committed)
    if world.profile.operations and not model.may_lose:
        await operations.check()
    if world.profile.services and not model.may_lose:
        await services.check()
    if world.profile.backups and not model.may_lose:
        await backups.check()
    if not model.may_lose:
        await check_reports(world, model, everything)
    # The checks read all records. A node that meets a flipped bit restarts to repair it.
    if not await _settles(world, settled, lambda: why):
        return
    await probe(world)
    if world.profile.floods:
        await flood(world)
    if not model.may_lose and len(world.nodes) >= MOST_REPLICAS:
        with quiet.hold():
            await check_figures(world)
        await quiet.check_answers()
    if world.profile.drills and not model.may_lose and world.profile.controllers >= MOST_REPLICAS:
        await drill(world, model)
        await _settles(world, settled, lambda: why)
    for what, count in sorted(model.answers.items()):
        world.scheduler.counters[what] += count


async def _elect_waiting(world: World, model: Model) -> None:
    """Elect a leader for each partition that waits for an operator, as docs/runbooks/partitions-offline.md says.

    A node with damage or with disk errors may count all its logs as incomplete (docs/invariants.md, "Damage in some logs"). A partition
    with this node as only member of the ISR then waits.
    """
    damaged = {node.name for node in world.nodes if node.disk.is_damaged or node.disk.failures}
    if not damaged or not await world.until(
        "all nodes are ready again", lambda: all(n.is_ready for n in world.nodes), _START_S
    ):
        return
    await asyncio.sleep(_ELECTION_S)
    async with world.connect() as client:
        for (stream, partition), workers in workers_of(world).items():
            state = max((one.state for one in workers if one.state is not None), key=lambda one: one.epoch, default=None)
            if state is not None and state.status is PartitionStatus.OFFLINE and damaged.issuperset(state.isr):
                await client.admin.elect_leader(stream, partition, state.isr[0], unclean=True)
                model.may_lose = True
                model.answers["an operator elected a leader"] += 1


async def _settles(world: World, settled: Callable[[], bool], why: Callable[[], str]) -> bool:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + _SETTLE_S
    while not settled():
        if loop.time() >= end_s:
            world.scheduler.violated(f"{_SETTLE_S:g} s after the last fault: {why()}")
            return False
        await asyncio.sleep(0.1)
    return True
