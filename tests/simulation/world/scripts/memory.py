"""Scripts about the memory of nodes: what comes and goes leaves nothing behind.

Each script does the same work again and again. Then it looks through everything that the nodes keep: what has grown with each round
is a leak.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

from sidecar.runtime import memory
from tests.simulation.world.checks.memory import sizes_of
from tests.simulation.world.scripts.stage import Stage, script

_WARM_UP, _ROUNDS = 3, 8
_REST_S = 5.0
"""Time after the last round, in seconds. Answers that come late have arrived then, and timers have ended."""
_MAY_GROW = (
    "Segment.", "EpochCache.", "Checkpoints.", "RecentIds.", "_BatchIds.", "_Record.", "FastEnvelope.",  # of stored records
    "GroupJournal.", "FeedProducer.", "FeedSubscription.", "PartitionState.", "StreamImage.", "Purge.",  # changes of the metadata
    "RecentEvents.", "NodeEvents.", "FollowerRole.", "OffsetHistory.", "_FlushTimes.",  # histories
    "AckResendBuffer.", "AnswerTable.", "ReplyBuffer.", "SharedAnswers.", "LogTimers.",  # newest answers, and deadlines of members
    "Pattern.known", "Deletions._deleted", "DepartedPartitions._deleted_uids",
)  # fmt: skip
"""Objects that may grow with each round: state of stored records and deleted streams, caches, and histories with a limit."""


async def _leaves_nothing(s: Stage, work: Callable[[int], Awaitable[None]]) -> None:
    """Expect that nothing in a node grows by one element or more with each round of ``work``."""
    for number in range(_WARM_UP):
        await work(number)
    await asyncio.sleep(_REST_S)
    before = {node.name: sizes_of(node) for node in s.world.nodes}
    for number in range(_WARM_UP, _WARM_UP + _ROUNDS):
        await work(number)
    await asyncio.sleep(_REST_S)
    for node in s.world.nodes:
        grown = {name: (before[node.name][name], count) for name, count in sizes_of(node).items()}
        leaks = {
            name: sizes for name, sizes in grown.items() if sizes[1] - sizes[0] >= _ROUNDS and not name.startswith(_MAY_GROW)
        }
        s.expect(leaks, {}, f"what grows with each round in {node.name}, before and after {_ROUNDS} rounds,")


@script(controllers=1)
async def script_streams_come_and_go(s: Stage) -> None:
    """Given an application that creates, uses and deletes streams, the memory of the nodes does not grow.

    Two of the nodes are no controllers. They ask one before they delete data.
    """

    async def work(number: int) -> None:
        await s.create(
            "orders", leader="n2", failover_standby=bool(number % 2), compaction=bool(number % 3), dedup_window_s=1.0
        )
        for key in range(3):
            await s.client.publish("orders", b"record", key=b"%d" % key, msg_id=f"id-{number}-{key}")
        await s.read("orders")
        await s.client.admin.pause("orders", [0])
        await s.client.admin.resume("orders", [0])
        await s.client.admin.elect_leader("orders", 0, "n1")
        await s.becomes(lambda: s.leader("orders") == "n1", what="n1 leads")
        await s.client.publish("orders", b"record", key=b"0")
        await s.client.admin.purge("orders", 0, keys=[b"0"])
        waiting = asyncio.create_task(anext(aiter(s.client.consume("orders", start="latest"))))
        await asyncio.sleep(0.1)
        await s.client.admin.delete_stream("orders")
        waiting.cancel()

    await _leaves_nothing(s, work)


@script(controllers=1)
async def script_idle_streams_come_and_go(s: Stage) -> None:
    """Given streams that are idle for some seconds and are then deleted, the memory of the nodes does not grow."""

    async def work(number: int) -> None:
        await s.create("orders", leader="n2")
        await s.publish("orders", 1)
        await s.shows(lambda: s.total("partitions_quiet"), 2, what="quiet replicas")
        await asyncio.sleep(2)
        await s.client.admin.delete_stream("orders")

    await _leaves_nothing(s, work)


@script()
async def script_node_collects_the_garbage_of_closed_partitions(s: Stage) -> None:
    """Given a node that closes many partitions, it collects their garbage. A node that stops does not: its process ends anyway."""
    calls = Counter[str]()

    def count(call: str) -> Callable[..., None]:
        return lambda *_: calls.update([f"{call} of {process.name}" if (process := s.world.scheduler.process) else call])

    calls_of = {name: count(name) for name in ("collect", "freeze", "unfreeze")}
    setattr(memory, "gc", SimpleNamespace(**calls_of))  # noqa: B010  # it is no export of that module
    memory.OPENED, memory.CLOSED = 4, 8
    await s.create("orders", partitions=10)
    await s.becomes(lambda: calls["freeze of n2"] == 2, what="n2 exempts the objects of eight partitions")
    s.expect(calls["unfreeze of n2"], 0, "full collections until now")
    await s.client.admin.delete_stream("orders")
    await s.becomes(lambda: calls["unfreeze of n2"] == 1, what="n2 collects the garbage of eight partitions")
    s.expect((calls["collect of n2"], calls["freeze of n2"]), (3, 3), "collections, and exemptions after each")
    await s.create("orders", partitions=10)
    await s.shows(lambda: s.isr("orders", 9), s.names)
    before = calls["unfreeze of n2"]
    await s.stop("n2")
    s.expect(calls["unfreeze of n2"], before, "full collections after the stop")


@script(nodes=4)
async def script_replicas_come_and_go(s: Stage) -> None:
    """Given a partition that moves from node to node, the memory of the nodes does not grow."""
    await s.create("orders", replicas=3, segment_bytes=4096)
    await s.publish("orders", 10, value=b"x" * 1000)

    async def work(number: int) -> None:
        stream = await s.client.admin.stream("orders")
        replicas = [s.names[(number + place) % 4] for place in range(3)]
        await s.client.admin.reassign(stream, 0, replicas)
        await s.shows(lambda: s.isr("orders"), sorted(replicas))
        await s.client.admin.elect_leader("orders", 0, replicas[number % 3])
        await s.becomes(lambda: s.leader("orders") == replicas[number % 3], what="the new leader")
        await s.publish("orders", 2)

    await _leaves_nothing(s, work)


@script()
async def script_connections_come_and_go(s: Stage) -> None:
    """Given connections of a leader that are lost again and again, the memory of the nodes does not grow."""
    await s.create("orders", leader="n2", failover_standby=True)
    await s.create("jobs", leader="n1")

    async def work(number: int) -> None:
        await s.publish("jobs", 2)
        for purpose in ("ingest", "standby", "reads", "replication"):
            s.world.nats.refuse(f"liftpy-n2-{purpose}")
            await asyncio.sleep(0.1)
            s.world.nats.refuse("")
            await asyncio.sleep(0.3)
        await s.shows(lambda: s.isr("orders"), s.names)
        await s.publish("orders", 2)
        for leader in ("n1", "n2"):
            await s.shows(lambda: s.isr("orders"), s.names)
            await s.client.admin.elect_leader("orders", 0, leader)
            await s.becomes(lambda: s.leader("orders") == leader, what=f"{leader} leads")  # noqa: B023

    await _leaves_nothing(s, work)


@script()
async def script_readers_come_and_go(s: Stage) -> None:
    """Given groups, queues and readers that join, wait, leave or vanish, the memory of the nodes does not grow."""
    await s.create("orders", partitions=2)
    await s.publish("orders", 10, partition=0)
    await s.publish("orders", 10, partition=1)

    async def work(number: int) -> None:
        await s.publish("orders", 2, partition=number % 2)
        async with s.connected() as client:
            waiting = [
                asyncio.create_task(anext(aiter(client.consume("orders", partition, start="latest")))) for partition in range(2)
            ]
            await asyncio.sleep(0.1)
            async with client.group("readers", ["orders"]) as group:
                part = await group.take()
                if part is not None:
                    group.finished(part)
                await group.commit()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    await _leaves_nothing(s, work)


@script(workers=2)
async def script_requests_between_processes_come_and_go(s: Stage) -> None:
    """Given nodes with two processes, what one process asks the other leaves nothing behind."""
    await s.create("orders", partitions=4)

    async def work(number: int) -> None:
        leader = s.names[number % 3]
        await s.client.admin.elect_leader("orders", 3, leader)
        await s.becomes(lambda: s.leader("orders", 3) == leader, what=f"{leader} leads")
        await s.publish("orders", 1, partition=3)
        for node in s.names:
            await s.status(node)
            await s.metrics(node)

    await _leaves_nothing(s, work)
