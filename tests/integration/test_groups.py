"""Consumer groups on real processes: the coordinators in the nodes, members in clients of their own."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from liftpy.client import GroupOptions, GroupRejectedError, QueueOptions, connect
from liftpy.client.group import Group
from liftpy.core.base.ids import PartitionKey
from liftpy.core.groups.commands import partition_of
from liftpy.core.wire.batch import Record
from liftpy.core.wire.subjects import GROUPS_STREAM
from tests.integration.conftest import Bench

pytestmark = pytest.mark.processes

PARTITIONS = 4
Seen = Counter[tuple[int, int]]


@pytest.fixture
def coordinated(bench: Bench) -> Bench:
    """The shared cluster: its nodes run the coordinators, as soon as somebody needs them."""
    return bench


async def feed(bench: Bench, stream: str, count: int) -> None:
    """``count`` more records into each partition."""
    for partition in range(PARTITIONS):
        async with bench.client.publisher(stream, partition) as publisher:
            for number in range(count):
                await publisher.send(b"%d" % number)


async def work(group: Group, seen: Seen, *, finish: bool = True) -> None:
    """Take parts and count their records, as soon as they are finished (``finish``) or given."""
    async for part in group.batches():
        seen.update((part.key.partition, offset) for offset in part.slice.offsets().tolist())
        if finish:
            await group.commit()


def held(group: Group) -> set[int]:
    """Which partitions it reads."""
    return {key.partition for key in group.owned}


async def test_group_with_a_dead_member_delivers_each_record_to_the_remaining_member(
    coordinated: Bench, stream_name: str
) -> None:
    """Two members share four partitions; one dies without a word; the other goes on where it had committed [G1, G5]."""
    stream_name += "-shared"  # no other test's stream begins so
    await coordinated.create(stream_name, partitions=PARTITIONS)
    await feed(coordinated, stream_name, 10)
    options = GroupOptions(session_s=3.0, auto_commit_s=0)
    first, second = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    gained: list[PartitionKey] = []
    revoked: list[PartitionKey] = []
    nats = coordinated.cluster.nats_url
    async with connect(nats) as one, connect(nats) as two:
        later = GroupOptions(session_s=3.0, auto_commit_s=3600)  # it commits when a partition moves, and at the end
        a = await one.group("shared", [stream_name], options=later, on_assigned=gained.extend, on_revoked=revoked.extend)
        working = asyncio.create_task(work(a, first, finish=False))
        await coordinated.until(lambda: _true(len(first) == 40), "one member reads all")
        b = await two.group("shared", [f"{stream_name[:-3]}*"], options=options)
        other = asyncio.create_task(work(b, second))
        await coordinated.until(lambda: _true(len(held(a)) == len(held(b)) == 2), "two members share")
        assert not held(a) & held(b)
        assert len(gained) == 4, "nothing moves twice"
        assert {key.partition for key in revoked} == held(b), "what does not move never stops"
        await feed(coordinated, stream_name, 10)
        await coordinated.until(lambda: _true(len(first) + len(second) == 80), "both read")
        assert set((first + second).values()) == {1}
        assert {p for p, _ in second} == held(b)

        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        await two.close()  # no goodbye: it is gone
        await feed(coordinated, stream_name, 10)
        await coordinated.until(lambda: _true(len(held(a)) == PARTITIONS), "its partitions are taken over")
        await coordinated.until(lambda: _true(len(first + second) == 120), "nothing is skipped")
        assert set((first + second).values()) == {1}, "nothing that was committed comes again"
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await a.close()


async def test_group_redelivers_records_that_a_closed_member_did_not_finish(coordinated: Bench, stream_name: str) -> None:
    """At least once: the part in hand is not committed by a close. A second process with one instance id ends the first [G2]."""
    await coordinated.create(stream_name, partitions=PARTITIONS)
    await feed(coordinated, stream_name, 3)
    async with connect(coordinated.cluster.nats_url) as client:
        async with client.group("once", [stream_name]) as group:
            finished = await anext(group.batches())
            in_hand = await anext(group.batches())
        seen: Seen = Counter()
        group = await client.group("once", [stream_name], instance="till-1")
        working = asyncio.create_task(work(group, seen))
        await coordinated.until(lambda: _true({p for p, _ in seen} >= {in_hand.key.partition}), "it comes again")
        assert (finished.key.partition, finished.slice.last_offset) not in seen, "what was finished does not"

        async with client.group("once", [stream_name], instance="till-1"):
            with pytest.raises(GroupRejectedError):
                await asyncio.wait_for(working, 10)
        await group.close()


async def _true(fact: bool) -> bool:
    return fact


async def test_queue_redelivers_only_unacked_records_after_its_coordinator_moved(coordinated: Bench, stream_name: str) -> None:
    """Acknowledged is never given again, what was not is, wherever the coordinator leads [Q1, Q2, Q4]."""
    client, name = coordinated.client, stream_name
    await coordinated.create(name)
    async with client.publisher(name) as publisher:
        for number in range(40):
            await publisher.send(b"%d" % number)
    async with client.queue(name, name, options=QueueOptions(ack_wait_s=3)) as gone, client.queue(name, name) as queue:
        taken = await gone.take(20, timeout_s=30)
        await gone.ack(taken[::2])
        stream = await client.stream(GROUPS_STREAM)
        number = partition_of(name, len(stream.partitions))
        led = stream.partitions[number]
        await client.admin.elect_leader(GROUPS_STREAM, number, next(node for node in led.isr if node != led.leader))
        found: set[bytes] = set()
        async with asyncio.timeout(60):
            while len(found) < 30:
                jobs = await queue.take(100)
                values = {job.record.value or b"" for job in jobs}
                assert not found & values, "acknowledged records came again"
                await queue.ack(jobs)
                found |= values
        assert not found & {job.record.value for job in taken[::2]}
        assert {job.record.value for job in taken[1::2]} < found
        assert await queue.take(10, timeout_s=0.5) == []


async def test_group_that_writes_a_stream_stores_each_record_once_despite_a_member_takeover(
    coordinated: Bench, stream_name: str
) -> None:
    """Two processes of one static member, one after the other: the second begins while the first copies, and the target's leader moves
    meanwhile."""
    client, made = coordinated.client, f"{stream_name}-made"
    await coordinated.create(stream_name, partitions=PARTITIONS)
    await coordinated.create(made, partitions=2)

    def copy(record: Record) -> list[tuple[bytes, bytes]]:
        return [(record.value or b"", b"%d.%s" % (place_of[record.value or b""], record.value or b""))]

    rounds, place_of = 4, {b"%d" % n: n % PARTITIONS for n in range(400)}

    async def more(number: int) -> None:
        for partition in range(PARTITIONS):
            async with client.publisher(stream_name, partition) as publisher:
                for n in range(100 * number + partition, 100 * number + 100, PARTITIONS):
                    await publisher.send(b"%d" % n)

    async def copied(least: int) -> bool:
        return sum([(await client.bounds(made, number)).high_watermark + 1 for number in range(2)]) >= least

    async with connect(coordinated.cluster.nats_url) as one, connect(coordinated.cluster.nats_url) as two:
        first = await one.group(stream_name, [stream_name], instance="till-1")
        copying = asyncio.create_task(first.into(made, copy))
        await more(0)
        await coordinated.until(lambda: copied(1), "the first copies")
        async with two.group(stream_name, [stream_name], instance="till-1") as second:
            going_on = asyncio.create_task(second.into(made, copy))
            for number in range(1, rounds):
                led = (await client.stream(made)).partitions[number % 2]
                await client.admin.elect_leader(made, number % 2, next(node for node in led.isr if node != led.leader))
                await more(number)
            with pytest.raises(GroupRejectedError):
                await asyncio.wait_for(copying, 20)
            await coordinated.until(lambda: copied(100 * rounds), "all is copied")
            going_on.cancel()
            await asyncio.wait([going_on])
        await first.close()
    found = [[record.value or b"" async for record in client.consume(made, number, until="end")] for number in range(2)]
    assert Counter(value for values in found for value in values) == Counter(b"%d.%s" % (p, v) for v, p in place_of.items())
    for values in found:
        for place in range(PARTITIONS):
            numbers = [int(value[2:]) for value in values if value.startswith(b"%d." % place)]
            assert numbers == sorted(numbers), "in the order of their partition"
