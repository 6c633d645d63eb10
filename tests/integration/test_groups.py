"""Consumer groups on real processes: the coordinators in the nodes, members in clients of their own."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter

import pytest

from liftpy.client import GroupOptions, GroupRejectedError, QueueOptions, connect
from liftpy.client.group import Group
from liftpy.core.base.ids import PartitionKey
from liftpy.core.groups.commands import partition_of
from liftpy.core.observe.app_rows import NO_MEMBERS
from liftpy.core.wire.batch import Record
from liftpy.core.wire.subjects import GROUPS_STREAM
from sidecar.cli.dashboard import ClusterSite
from tests import fork_server
from tests.integration.conftest import Bench, page_data

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


async def test_group_page_shows_members_positions_and_lag(coordinated: Bench, stream_name: str) -> None:
    await coordinated.create(stream_name, partitions=2)
    page, name = ClusterSite(coordinated.client, coordinated.cluster.namespace, ("127.0.0.1",)), f"page-{stream_name}"

    async def shows(members: int, lag: int, problem: str) -> bool:
        found = [row for row in (await page_data(page, "groups"))["page"]["rows"] if row["group"] == name]
        return [(row["members"], row["lag_records"], row["problem"]) for row in found] == [(members, lag, problem)]

    async with await coordinated.client.publisher(stream_name, 1) as publisher:
        await asyncio.gather(*[await publisher.send(b"%d" % number) for number in range(10)])
    async with coordinated.client.group(name, [stream_name], options=GroupOptions(auto_commit_s=0)) as group:
        async for _ in group.batches():
            await group.commit()
            break
        await coordinated.until(lambda: shows(1, 0, ""), "the page shows a group without lag")

        async def shows_positions() -> bool:
            detail = (await page_data(page, f"group/{name}"))["page"]
            at = {row["partition"]: (row["position"], row["end"]) for row in detail["positions"]}
            return [member["partitions"] for member in detail["members"]] == [2] and at.get(1) == (10, 10)

        await coordinated.until(shows_positions, "the page shows the member and the position of the group")
    async with await coordinated.client.publisher(stream_name, 1) as publisher:
        await (await publisher.send(b"more"))
    await coordinated.until(lambda: shows(0, 1, NO_MEMBERS), "the page shows a group that has lag and no members")


async def test_group_shares_partitions_and_loses_no_record(coordinated: Bench, stream_name: str) -> None:
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


async def test_group_redelivers_unfinished_records_and_rival_fences_member(coordinated: Bench, stream_name: str) -> None:
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


async def test_operators_list_groups_and_reset_positions(coordinated: Bench, stream_name: str) -> None:
    client, name = coordinated.client, stream_name
    await coordinated.create(name, partitions=2)

    async def run(*words: str) -> tuple[int, str, str]:
        command = [
            sys.executable,
            "-c",
            "from sidecar.cli.main import main; main()",
            *words,
            "--nats",
            coordinated.cluster.nats_url,
        ]
        done = await asyncio.to_thread(fork_server.run, command, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    for number in range(20):
        await client.publish(name, b"v", partition=number % 2)
    async with asyncio.timeout(60), client.group(f"g-{name}", [name]) as group:
        seen: Seen = Counter()
        async for part in group.batches():
            seen.update((part.key.partition, offset) for offset in part.slice.offsets().tolist())
            if len(seen) == 20:
                await group.commit()
                break
        described = await client.groups.describe(f"g-{name}")
        assert sorted(described.members[0].owned) == [(name, 0), (name, 1)]
        assert sorted(described.positions.values()) == [10, 10]
        code, _, err = await run("group", "reset", f"g-{name}", "--stream", name, "--to", "-3", "--yes")
        assert code, "it has a member"
        assert "GROUP_NOT_EMPTY" in err, err
    code, out, _ = await run("group", "list")
    assert code == 0
    assert f"g-{name}" in out
    for words, said in ((("--to", "-3", "--dry-run"), "nothing was done"), (("--to", "-3", "--partition", "1", "--yes"), "7")):
        code, out, err = await run("group", "reset", f"g-{name}", "--stream", name, *words)
        assert code == 0, err
        assert said in out
    shown = json.loads((await run("group", "show", f"g-{name}", "--json"))[1])
    assert [(at["partition"], at["position"], at["lag"]) for at in shown["positions"]] == [(0, 10, 0), (1, 7, 3)]
    assert (await run("group", "show", f"g-{name}"))[0] == 0
    for words, there in ((("--dry-run",), True), (("--yes",), False)):
        assert (await run("group", "delete", f"g-{name}", *words))[0] == 0
        assert (f"g-{name}" in [one.name for one in await client.groups.list()]) is there
    assert (await run("group", "show", f"g-{name}"))[0] == 1


async def test_queue_continues_after_worker_death_and_coordinator_move(coordinated: Bench, stream_name: str) -> None:
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


async def test_group_into_after_takeover_writes_each_record_once(coordinated: Bench, stream_name: str) -> None:
    """Two processes of one static member, one after the other: the second begins while the first copies, and the target's leader moves
    meanwhile. The long form: ``python -m tests.system.groups --into``."""
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
