"""Test producers on the in-memory cluster: their state survives leader changes, restarts and deleted records."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import select
import signal
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from liftpy.client import Client, ProducerOptions
from liftpy.client.metadata_requests import MetadataRequests
from liftpy.client.partition_sender import RECORD_BYTES, Source
from liftpy.client.sync import SyncClient
from liftpy.config import StreamConfig
from liftpy.core.metadata.image import StreamImage
from liftpy.errors import ConfigError, LiftError, NoMajorityError, OutcomeUnknownError, PublishRejectedError, UnavailableError
from liftpy.testing.memory import memory_cluster
from liftpy.testing.memory.cluster import MemoryCluster

STANDBY = StreamConfig(failover_standby=True, min_isr=2)


async def another_leader(cluster: MemoryCluster, client: Client, how: str) -> None:
    """Give the leadership of ``s`` to another node: by a planned transfer or by a kill."""
    before = cluster.leader("s")
    if how == "kill":
        cluster.kill(before)
    else:
        (state,) = (await client.stream("s")).partitions
        await client.admin.elect_leader("s", 0, next(node for node in state.isr if node != before))
    cluster.leader("s", other_than=before)


@pytest.mark.parametrize("how", ["transfer", "kill"])
async def test_producer_on_a_stream_with_standby_stores_records_after_leader_changes(how: str) -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("s", "data.s", replicas=3, config=STANDBY)
        async with client.producer("s", id="p") as producer:
            await (await producer.send(b"0"))
            await another_leader(cluster, client, how)
            for number in range(1, 4):
                await (await producer.send(b"%d" % number))
        assert [r.value async for r in client.consume("s", until="end")] == [b"0", b"1", b"2", b"3"]


async def test_producer_of_a_stream_that_waits_for_nodes_raises_unavailable() -> None:
    async with memory_cluster(nodes=1) as cluster, cluster.client() as client:
        await client.create_stream("s", "data.s", replicas=2, ready_s=0)
        with pytest.raises(UnavailableError, match="has no replicas yet"):
            await client.producer("s")


@pytest.mark.parametrize("how", ["transfer", "kill"])
async def test_producer_fenced_by_a_newer_process_stays_fenced_after_leader_changes(how: str) -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("s", "data.s", replicas=3, config=STANDBY)
        old = await client.producer("s", id="p")
        await (await old.send(b"old"))
        async with client.producer("s", id="p") as new:
            await (await new.send(b"new 0"))
            await another_leader(cluster, client, how)
            await (await new.send(b"new 1"))
            with pytest.raises(PublishRejectedError) as caught:
                await (await old.send(b"late"))
            assert caught.value.reason == "PRODUCER_FENCED"
            await (await new.send(b"new 2"))
        await old.close()
        assert [r.value async for r in client.consume("s", until="end")] == [b"old", b"new 0", b"new 1", b"new 2"]


# ---- what outlives its records ---------------------------------------------------------------------------------------------
SHORT = StreamConfig(segment_bytes=4096, retention_records=5, min_isr=2)


def records_are_dropped(cluster: MemoryCluster, client: SyncClient, below: int) -> None:
    """Wait until the records of ``s`` below that offset are gone."""

    def dropped() -> bool:
        cluster.keep_house()
        return client.bounds("s").log_start_offset >= below

    cluster.wait_until(dropped, what=f"the log begins at {below} or above")


def lose_all_but_the_log(cluster: MemoryCluster) -> None:
    """Every process dies and comes back."""
    for node in cluster.nodes:
        cluster.kill(node)
    cluster.heal()


def lose_logs_and_lead_again(cluster: MemoryCluster) -> None:
    """The only node dies, and comes back with its identity and without its logs."""
    (node,) = cluster.nodes
    cluster.kill(node)
    cluster._call(cluster._nodes[node].storages.clear)
    cluster.heal()
    cluster.leader("s")


@pytest.mark.parametrize("how", ["retention", "truncation"])
@pytest.mark.parametrize("then", ["restart", "new replica", "restart while copying"])
def test_producer_state_and_message_ids_survive_deletion_of_their_records(how: str, then: str) -> None:
    config = SHORT if how == "retention" else dataclasses.replace(SHORT, retention_records=0)
    with memory_cluster() as cluster, cluster.sync_client() as client:
        nodes = cluster.nodes
        client.create_stream("s", "data.s", replicas=2, config=config)
        with client.producer("s", id="p") as producer:
            producer.send_many([b"%d" % n for n in range(30)])
        client.publish("s", b"with an id", msg_id="m")
        for _ in range(20):
            client.publish("s", bytes(1000))
        if how == "truncation":
            client.admin.truncate_before("s", 0, 45)
        records_are_dropped(cluster, client, 35)
        if then == "restart":
            lose_all_but_the_log(cluster)
        else:
            old = client.stream("s").partitions[0].replicas
            (new,) = set(nodes) - set(old)
            client.admin.reassign(client.stream("s"), 0, [new])
            if then != "new replica":
                cluster.kill(new)
                cluster.start(new)
            cluster.wait_until(lambda: client.stream("s").partitions[0].replicas == (new,), what="the replica has moved")
            for node in old:
                cluster.kill(node)
        cluster.leader("s")
        again = client.publish("s", b"with an id", msg_id="m")
        assert again is not None
        assert (again.offset, again.duplicate) == (30, True)
        with client.producer("s", id="p", options=ProducerOptions(begin="repeat")) as producer:
            producer.send_many([b"%d" % n for n in range(30)])
        with client.producer("s", id="p") as producer:
            assert producer.next_sequence() == 30
        assert {record.value for record in client.consume("s", until="end")} == {bytes(1000)}


# ---- the same partitions again ---------------------------------------------------------------------------------------------
REPEAT = ProducerOptions(begin="repeat")


async def values_in(client: Client, partitions: int) -> list[bytes | None]:
    """The values of all partitions of ``s``, sorted."""
    found = [r.value for p in range(partitions) async for r in client.consume("s", p, until="end")]
    return sorted(found, key=lambda value: value or b"")


@pytest.mark.parametrize("partitioner", ["key", "sticky", "round-robin"])
@pytest.mark.parametrize("many", [False, True])
async def test_producer_that_repeats_records_without_keys_stores_each_once(partitioner: Any, many: bool) -> None:
    """[A18]"""
    values = [b"%03d" % number for number in range(100)]
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await client.create_stream("s", "data.s", partitions=3)
        for round_number in range(8):
            count = 1 if round_number < 7 else len(values)  # a job that gets further at last
            async with client.producer("s", id="job", options=REPEAT, partitioner=partitioner) as producer:
                if many:
                    await producer.send_many(values[:count])
                else:
                    for value in values[:count]:
                        await producer.send(value)
        assert await values_in(client, 3) == values


@pytest.mark.parametrize(("first_begin", "keyed"), [("resume", True), ("repeat", True), ("repeat", False), ("anew", False)])
@pytest.mark.parametrize("partitioner", ["key", lambda key, count: len(key or b"") * 7 % count])
async def test_producer_that_repeats_after_partitions_were_added_chooses_the_same_partitions(
    first_begin: Any, partitioner: Any, keyed: bool
) -> None:
    values = [b"%03d" % number for number in range(200)]
    keys = [b"k" * (number % 23) for number in range(200)] if keyed else None
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await client.create_stream("s", "data.s", partitions=2)
        async with client.producer(
            "s", id="job", options=ProducerOptions(begin=first_begin), partitioner=partitioner
        ) as producer:
            await producer.send_many(values[:150], keys=keys and keys[:150])
        await client.admin.add_partitions("s", 4)
        async with client.producer("s", id="job", options=REPEAT, partitioner=partitioner) as producer:
            await producer.send_many(values, keys=keys)
            assert producer.used_partitions == 2
        assert await values_in(client, 4) == values


@pytest.mark.parametrize("partitioner", ["key", "sticky", "round-robin"])
async def test_producer_repeating_randomly_partitioned_records_is_rejected(partitioner: Any) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await client.create_stream("s", "data.s", partitions=3)
        async with client.producer("s", id="job", partitioner=partitioner) as producer:
            await producer.send_many([b"0", b"1"])
        async with client.producer("s", id="job", options=REPEAT, partitioner=partitioner) as producer:
            for send in (producer.send(b"0"), producer.send_many([b"0"])):
                with pytest.raises(PublishRejectedError, match="partition=") as caught:
                    await send
                assert caught.value.reason == "DIVERGED_PRODUCER"
        assert await values_in(client, 3) == [b"0", b"1"]


async def test_producer_repeating_records_sent_under_two_partition_counts_is_rejected() -> None:
    values = [b"%03d" % number for number in range(50)]
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await client.create_stream("s", "data.s", partitions=2)
        async with client.producer("s", id="job") as producer:
            await producer.send_many(values, keys=values)
        await client.admin.add_partitions("s", 4)
        async with client.producer("s", id="job") as producer:  # it resumes, and chooses among all four
            await producer.send_many([b"more"], keys=[b"more"])
        async with client.producer("s", id="job", options=REPEAT) as producer:
            with pytest.raises(PublishRejectedError, match="partition="):
                await producer.send_many(values, keys=values)
        assert await values_in(client, 4) == [*values, b"more"]


async def test_producer_that_repeats_deleted_records_chooses_the_same_partitions() -> None:
    values = [b"%03d" % number for number in range(60)]
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await client.create_stream("s", "data.s", partitions=2)
        async with client.producer("s", id="job", options=REPEAT) as producer:
            await producer.send_many(values)
        for partition in (0, 1):
            await client.admin.truncate_before("s", partition, 30)
        await client.admin.add_partitions("s", 4)
        (node,) = cluster.nodes
        cluster.kill(node)
        cluster.heal()
        async with client.producer("s", id="job", options=REPEAT) as producer:
            await producer.send_many([*values, b"more"])
        assert await values_in(client, 4) == [b"more"]


# ---- lost records ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def stale_metadata(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function. After its call, a controller that is behind describes only the first two partitions of a stream."""
    current = MetadataRequests.stream

    async def older(self: MetadataRequests, name: str, *, linearizable: bool = False) -> StreamImage:
        image = await current(self, name, linearizable=linearizable)
        return image if linearizable else dataclasses.replace(image, partitions=image.partitions[:2])

    return lambda: monkeypatch.setattr(MetadataRequests, "stream", older)


@pytest.mark.parametrize("numbers", [range(20), (5, 6, 7)])
async def test_producer_that_repeats_records_stores_each_once_if_a_controller_does_not_know_all_partitions(
    numbers: Iterable[int], stale_metadata: Callable[[], None]
) -> None:
    """The keys 5, 6 and 7 lie in partitions that the controller does not describe."""
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("s", "data.s", partitions=4)
        values = [b"%d" % number for number in numbers]
        for _ in range(2):
            async with client.producer("s", id="p", options=REPEAT) as producer:
                await producer.send_many(values, keys=values)
            stale_metadata()
        read = [r.value for place in range(4) async for r in client.consume("s", place, until="end")]
        assert sorted(read) == sorted(values)


async def test_producer_with_a_source_stores_each_result_once_if_a_controller_does_not_know_all_partitions(
    stale_metadata: Callable[[], None],
) -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("source", "data.source")
        await client.create_stream("s", "data.s", partitions=4)
        values = [b"5", b"6", b"7"]
        for _ in range(2):
            async with client.producer("s", id="p", source=Source("source")) as producer:
                await producer.send_many(values, keys=values, positions=range(3))
            stale_metadata()
        read = [r.value for place in range(4) async for r in client.consume("s", place, until="end")]
        assert sorted(read) == sorted(values)


async def test_producer_that_repeats_records_waits_for_a_majority_of_controllers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("s", "data.s")
        current, failures = MetadataRequests.stream, [NoMajorityError("too few controllers")]

        async def failing(self: MetadataRequests, name: str, *, linearizable: bool = False) -> StreamImage:
            if failures:
                raise failures.pop()
            return await current(self, name, linearizable=linearizable)

        monkeypatch.setattr(MetadataRequests, "stream", failing)
        async with client.producer("s", id="p", options=REPEAT) as producer:
            await producer.send(b"0")
        failures += [NoMajorityError("too few controllers")] * 20
        with pytest.raises(NoMajorityError):
            await client.producer("s", id="p", options=dataclasses.replace(REPEAT, patience_s=0.6))


@pytest.mark.parametrize("begin", ["resume", "repeat", "anew"])
@pytest.mark.parametrize("others", [0, 80])
async def test_open_producer_whose_records_were_lost_raises_records_lost_error(begin: Any, others: int) -> None:
    """[A20]"""
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await client.create_stream("s", "data.s")
        producer = await client.producer("s", id="p", options=ProducerOptions(begin=begin))
        await producer.send_many([b"%d" % number for number in range(50)])
        await producer.flush()
        lose_logs_and_lead_again(cluster)
        for number in range(others):
            await client.publish("s", b"by another %d" % number)
        with pytest.raises(LiftError, match="lost records"):
            await (await producer.send(b"50"))
        assert getattr(producer.failure, "reason", "") == "RECORDS_LOST"
        await producer.close()
        async with client.producer("s", id="p") as producer:
            assert producer.next_sequence() == 0


@pytest.mark.parametrize("dropped", ["retention", "truncation"])
async def test_open_producer_whose_records_were_deleted_stores_further_records(dropped: str) -> None:
    config = dataclasses.replace(SHORT, min_isr=1, retention_records=5 if dropped == "retention" else 0)
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await client.create_stream("s", "data.s", config=config)
        async with client.producer("s", id="p") as producer:
            await producer.send_many([bytes(1000)] * 20)
            await producer.flush()
            if dropped == "truncation":
                await client.admin.truncate_before("s", 0, 20)
            cluster.keep_house()
            (node,) = cluster.nodes
            cluster.kill(node)
            cluster.heal()
            await (await producer.send(b"next"))
            assert producer.next_sequence() == 21


# ---- the stream's limits ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("setting", "reason"), [({"max_message_bytes": 50}, "TOO_LARGE"), ({"optimistic_concurrency": True}, "INCORRECT_OFFSET")]
)
def test_producer_batch_with_stored_and_new_records_is_rejected_above_stream_limits(
    setting: dict[str, Any], reason: str
) -> None:
    known = [b"%d" % n for n in range(5)]
    with memory_cluster() as cluster, cluster.sync_client() as client:
        client.create_stream("s", "data.s")
        with client.producer("s", id="p") as producer:
            producer.send_many(known)
        client.admin.alter_stream("s", **setting)
        with client.producer("s", id="p", options=ProducerOptions(begin="repeat")) as producer:
            producer.send_many(known)
        with (
            pytest.raises(LiftError) as caught,
            client.producer("s", id="p", options=ProducerOptions(begin="repeat")) as producer,
        ):
            producer.send_many([*known, bytes(5000)])
        assert reason in f"{getattr(caught.value, 'reason', '')} {caught.value}"
        assert [record.value for record in client.consume("s", until="end")] == known


# ---- publishers ------------------------------------------------------------------------------------------------------------
async def test_publish_waits_until_enough_replicas_are_in_sync() -> None:
    async with memory_cluster(2) as cluster, cluster.client() as client:
        await client.create_stream("s", "data.s", replicas=2, config=StreamConfig(min_isr=2))
        await client.publish("s", b"before")
        dead = next(node for node in cluster.nodes if node != cluster.leader("s"))
        cluster.kill(dead)
        while len((await client.stream("s")).partitions[0].isr) > 1:
            await asyncio.sleep(0.02)
        publishing = asyncio.create_task(client.publish("s", b"after"))
        done, _ = await asyncio.wait({publishing}, timeout=0.3)
        assert not done, "rejected, and not sent again"
        cluster.start(dead)
        await publishing
        assert [record.value async for record in client.consume("s", until="end")] == [b"before", b"after"]


def test_client_used_in_a_forked_child_raises_an_error_that_names_the_fork() -> None:
    with memory_cluster(1) as cluster, cluster.sync_client() as client:
        client.create_stream("s", "data.s")
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            told = b"nothing"
            try:
                client.publish("s", b"from the child")
            except ConfigError as error:
                told = str(error).encode()
            finally:
                os.write(writing, told)
                os._exit(0)
        os.close(writing)
        ready, _, _ = select.select([reading], [], [], 10)
        if not ready:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert ready
        assert b"fork" in os.read(reading, 1000)


async def test_producer_over_quota_for_longer_than_its_patience_raises_outcome_unknown() -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client, asyncio.timeout(30):
        await client.create_stream("orders", "shop.orders", config=StreamConfig(quota_records_per_s=1))
        producer = await client.producer("orders", options=ProducerOptions(patience_s=0.5))
        await producer.send_many([b"v"] * 300)  # the quota is in debt for minutes after the first batch
        await producer.flush()
        await producer.send_many([b"v"] * 300)
        with pytest.raises(OutcomeUnknownError, match="QUOTA"):
            await producer.flush()
        await producer.close()


@pytest.mark.parametrize(("max_payload", "id"), [(16_384, "p" * 255), (4096, "p" * 255), (2048, "p")])
async def test_producer_with_a_small_max_payload_stores_records_that_fit(max_payload: int, id: str) -> None:
    async with memory_cluster(1, max_payload=max_payload) as cluster, cluster.client() as client:
        await client.create_stream("s", "data.s", partitions=2)
        async with client.producer("s", id=id) as producer:
            with pytest.raises(
                PublishRejectedError, match=rf"has room for (\d+) bytes \(max_payload is {max_payload}\)"
            ) as rejected:
                await producer.send(bytes(max_payload), key=b"k")
            found = re.search(r"has room for (\d+) bytes", str(rejected.value))
            room = int(found[1]) if found is not None else 0
            largest = b"x" * (room - RECORD_BYTES)
            assert len(largest) >= max_payload // 2
            for value in (largest, b"small", largest[:-1]):
                await producer.send(value, partition=0)
            await producer.send_many([b"m" * 100] * 200, partition=0)
        values = [record.value async for record in client.consume("s", until="end")]
        assert values == [largest, b"small", largest[:-1], *[b"m" * 100] * 200]
