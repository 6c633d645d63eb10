"""The cluster in memory does what a real one does: the cases of ``client_cases`` and ``group_cases``, which run on a real one in
``tests/integration/test_client_cases.py``; and what it has for itself."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from functools import partial
from itertools import count
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from liftpy.client import Client, ReadOptions
from liftpy.client.placement_plans import PlacementOptions
from liftpy.config import ReplicationConfig, StreamConfig
from liftpy.core.replication.replica import Replica
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2
from liftpy.errors import (
    ConfigError,
    LiftError,
    NotFoundError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    PublishRejectedError,
    UnavailableError,
)
from liftpy.service import Record, Service
from liftpy.testing.memory import MemoryCluster, memory_cluster
from tests.conformance import client_cases, group_cases
from tests.conformance.client_cases import CASES, Case, Place
from tests.conformance.group_cases import GROUP_CASES
from tests.conformance.queue_cases import QUEUE_CASES
from tests.conformance.quota_cases import QUOTA_CASES

_numbers = count(1)
TRACED = [
    client_cases.tombstones_empty_values_and_empty_keys_are_three_things,
    client_cases.a_message_id_is_stored_once,
    client_cases.a_publish_is_bound_to_the_last_offset,
    client_cases.each_ack_policy_tells_what_it_promises,
    client_cases.what_is_too_large_is_refused,
    client_cases.a_large_message_travels_whole,
    client_cases.a_producer_stores_each_record_once_and_fences_who_was_there,
    client_cases.consumers_begin_and_end_where_they_say,
    client_cases.only_what_fits_and_the_newest_first,
    client_cases.a_planned_range_is_the_same_from_every_replica,
    client_cases.several_streams_are_read_as_one,
    client_cases.truncated_records_are_an_error_and_no_silent_reset,
    group_cases.what_each_record_yields_goes_into_another_stream_once,
]


def _nodes_of(cluster: MemoryCluster) -> dict[str, Any]:
    return cluster._nodes


@pytest.mark.parametrize("body", [*CASES, *GROUP_CASES, *QUEUE_CASES, *QUOTA_CASES], ids=lambda body: body.__name__)
async def test_memory_cluster_passes_the_shared_client_test_cases(body: Case) -> None:
    async with memory_cluster() as cluster, cluster.client() as client, cluster.nats() as nc:
        await body(Place(client, nc, f"case{next(_numbers)}", cluster.client, cluster.sync_client))


@pytest.mark.parametrize("body", TRACED, ids=lambda body: body.__name__)
async def test_memory_cluster_with_tracing_passes_the_shared_client_test_cases(body: Case) -> None:
    """All but what compares headers to the last one."""
    made = TracerProvider(shutdown_on_exit=False)
    async with memory_cluster() as cluster, cluster.client(trace=made) as client, cluster.nats() as nc:
        client_of, sync_of = partial(cluster.client, trace=made), partial(cluster.sync_client, trace=made)
        await body(Place(client, nc, f"case{next(_numbers)}", client_of, sync_of))


# ---- what is its own -------------------------------------------------------------------------------------------------------
def test_memory_cluster_used_by_a_sync_client_accepts_publishes_after_killed_nodes() -> None:
    with memory_cluster() as cluster, cluster.sync_client() as client:
        client.create_stream("orders", "shop.orders", replicas=3, config=StreamConfig(min_isr=2))
        for number in range(3):
            client.publish("orders", b"before %d" % number)
        dead = cluster.kill_leader("orders")
        assert cluster.leader("orders", other_than=dead) != dead
        assert dead not in cluster.running
        client.publish("orders", b"between", msg_id="m")
        cluster.start(dead)
        again = client.publish("orders", b"between", msg_id="m")
        assert again is not None
        assert (again.offset, again.duplicate) == (3, True)
        cluster.wait_until(lambda: len(client.stream("orders").partitions[0].isr) == 3, what="all are in sync")
        for node in cluster.nodes:  # each in turn, so that what is read has been copied by all
            if cluster.leader("orders") == node:
                cluster.kill(node)
                cluster.leader("orders", other_than=node)
        wanted = [b"before 0", b"before 1", b"before 2", b"between"]
        assert [r.value for r in client.consume("orders", until="end")] == wanted
        cluster.heal()
        assert cluster.running == cluster.nodes


def test_memory_cluster_after_all_nodes_were_down_has_its_records_and_producers() -> None:
    with memory_cluster() as cluster, cluster.sync_client() as client:
        client.create_stream("orders", "shop.orders", partitions=3)
        with client.producer("orders", id="p") as producer:
            producer.send_many([b"%d" % n for n in range(100)], partition=1)
        client.publish("orders", b"first", msg_id="m")
        for node in cluster.nodes:
            cluster.kill(node)
        assert cluster.running == []
        cluster.heal()
        again = client.publish("orders", b"first", msg_id="m")
        assert again is not None
        assert again.duplicate
        assert [r.value for r in client.consume("orders", 1, until="end")] == [b"%d" % n for n in range(100)]
        with client.producer("orders", id="p") as producer:
            assert producer.next_sequence(1) == 100


async def test_memory_cluster_client_reconnects_after_a_nats_restart() -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await client.create_stream("orders", "shop.orders")
        reading = asyncio.create_task(_values(client, "orders", until=9))
        for number in range(10):
            if number % 4 == 3:
                cluster.restart_nats()
            await client.publish("orders", b"%d" % number)
        assert await reading == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize(("size_bytes", "reason"), [(1001, "TOO_LARGE"), (0, "INCORRECT_OFFSET")])
async def test_client_publish_whose_retry_is_rejected_raises_publish_rejected_error(size_bytes: int, reason: str) -> None:
    """The leader knows the message id: its rejection says that the first attempt was not stored either."""
    async with memory_cluster(1) as cluster, cluster.client() as client:
        await client.create_stream("orders", "shop.orders", config=StreamConfig(max_message_bytes=1000))
        async with client.publisher("orders") as publisher:
            await publisher.publish(b"first")
            coming = await publisher.send(bytes(size_bytes), msg_id="m", expected_last=None if size_bytes else 7)
            cluster.restart_nats()
            with pytest.raises(PublishRejectedError) as caught:
                await coming
        assert caught.value.reason == reason
        assert await _values(client, "orders", until="end") == [b"first"]


async def _values(client: Client, stream: str, **how: Any) -> list[bytes | None]:
    return [record.value async for record in client.consume(stream, **how)]


async def test_memory_cluster_keep_house_call_applies_retention_and_compaction() -> None:
    small = StreamConfig(segment_bytes=4096, retention_bytes=8192)
    latest = StreamConfig(segment_bytes=4096, compaction=True, dedup_window_s=0)
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("short", "data.short", config=small)
        await client.create_stream("latest", "data.latest", config=latest)
        for number in range(100):
            await client.publish("short", bytes(400))
            await client.publish("latest", b"%d" % number + bytes(400), key=b"k%d" % (number % 3))
        cluster.keep_house()
        assert (await client.bounds("short")).log_start_offset > 50
        with pytest.raises(OffsetOutOfRangeError):
            await _values(client, "short", start=3, until="end")
        left = await _values(client, "latest", until="end")
        assert 3 <= len(left) < 50
        assert left[-1] == b"99" + bytes(400)


async def test_memory_cluster_is_shared_by_nats_py_and_liftpy_clients_of_other_event_loops() -> None:
    async with memory_cluster(1) as cluster, cluster.nats() as nc:

        def in_a_thread() -> list[bytes | None]:
            with cluster.sync_client() as client:
                client.create_stream("orders", "shop.orders")
                seen.set()
                return [r.value for r in client.consume("orders", until=2)]

        seen = threading.Event()
        reading = asyncio.create_task(asyncio.to_thread(in_a_thread))
        assert await asyncio.to_thread(seen.wait, 60)
        for number in range(3):
            await nc.publish("shop.orders", b"%d" % number)
        assert await reading == [b"0", b"1", b"2"]


async def test_memory_cluster_followers_and_readers_send_long_poll_requests() -> None:
    patient = ReplicationConfig(
        max_idle_wait_s=300, max_lag_time_s=2000, max_leader_timeout_s=600, fetch_timeout_s=600, session_s=3000, lease_s=2000
    )
    async with memory_cluster(config=patient) as cluster, cluster.client() as client, asyncio.timeout(25):
        await client.create_stream("orders", "shop.orders", replicas=3)
        reading = aiter(client.consume("orders", options=ReadOptions(wait_s=30)))
        for number in range(20):  # the reader asks for the next one before it is there, most times
            coming = asyncio.create_task(anext(reading))
            await client.admin.describe_cluster()
            await client.publish("orders", b"%d" % number)
            assert (await coming).value == b"%d" % number
        cluster.kill_leader("orders")  # known at once: no session has to end
        await client.publish("orders", b"after")


async def test_memory_cluster_leader_accepts_publishes_after_requests_that_change_no_metadata() -> None:
    short = ReplicationConfig(lease_s=0.5, heartbeat_interval_s=0.1)
    async with memory_cluster(config=short) as cluster, cluster.client() as client:
        await client.create_stream("orders", "shop.orders")
        for _ in range(3):
            await client.admin.describe_cluster(linearizable=True)
        beats = 0.0
        while beats < 1:  # until any lease of before is over
            await asyncio.sleep(0.1)
            beats += 0.1
        await client.publish("orders", b"one", timeout_s=30)


async def test_memory_cluster_node_returns_to_the_isr_after_the_log_start_has_moved() -> None:
    small = StreamConfig(segment_bytes=4096, retention_bytes=8192)
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("short", "data.short", replicas=3, config=small)
        await client.publish("short", b"early")
        away = next(node for node in cluster.nodes if node != cluster.leader("short"))
        cluster.kill(away)
        for _ in range(100):
            await client.publish("short", bytes(400))
        cluster.keep_house()
        assert (await client.bounds("short")).log_start_offset > 50
        cluster.start(away)
        async with asyncio.timeout(60):
            while len((await client.stream("short")).partitions[0].isr) < 3:
                await asyncio.sleep(0.01)
        begin = (await client.bounds("short")).log_start_offset
        assert len(await _values(client, "short", until="end", options=ReadOptions(node=away))) == 101 - begin


async def test_memory_cluster_delete_records_request_frees_the_segments_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.partition.housekeeping.RETENTION_EVERY_S", 10.0**9)
    async with memory_cluster() as cluster, cluster.client() as client, asyncio.timeout(30):
        await client.create_stream("orders", "shop.orders", config=StreamConfig(segment_bytes=4096))
        for _ in range(30):
            await client.publish("orders", bytes(400))
        assert await client.admin.truncate_before("orders", 0, 20) == 20
        sizes = [0]
        while not sizes[0] or max(sizes) > 10_000:  # of the oldest of four segments nothing is left
            sizes = [r.log.size_bytes for node in _nodes_of(cluster).values() for r in node.process.partitions]
            await asyncio.sleep(0.01)


async def test_client_until_ready_returns_a_stream_that_waited_for_nodes_after_its_placement() -> None:
    async with memory_cluster(2) as cluster, cluster.client() as client, asyncio.timeout(60):
        (away,) = cluster.nodes[1:]
        cluster.kill(away)
        while len((await client.admin.describe_cluster()).image.live_nodes()) > 1:
            await asyncio.sleep(0.01)
        waits = await client.create_stream("orders", "shop.orders", replicas=2, ready_s=0)
        assert waits.partitions == ()
        ready = asyncio.create_task(client.admin.until_ready(waits, 30))
        cluster.start(away)
        assert sorted((await ready).partitions[0].replicas) == sorted(cluster.nodes)


async def test_memory_cluster_rejects_a_stream_whose_subject_overlaps_the_inboxes() -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        make = cluster_pb2.CreateStream(name="thief", subject="_INBOX.*.x", partitions=1)
        request = cluster_pb2.ControlRequest(createStream=make, operationId=bytes(16))
        answer = await client.transport.request("liftpy.control.admin", frames.seal(request), 30)
        response = frames.decode(answer, cluster_pb2.ControlResponse)
        assert response.error == cluster_pb2.ControlResponse.INVALID
        assert "overlaps with the inboxes" in response.detail
        assert await client.admin.list_streams() == []


class Counting(Service):
    """Counts what comes by key; every fifth is put out."""

    def on_start(self, snapshot: bytes | None) -> None:
        self.counts: dict[bytes, int] = {}

    def on_record(self, record: Record) -> None:
        key = record.key or b""
        count = self.counts[key] = self.counts.get(key, 0) + 1
        self.reply(record, b"%d" % count)
        if count % 5 == 0:
            self.emit(b"%d" % count, key=key)
        if record.value == b"later":
            self.set_timer("later", self.now_ns + 1)

    def on_timer(self, name: str) -> None:
        self.counts[b"timers"] = self.counts.get(b"timers", 0) + 1

    def on_query(self, query: bytes) -> bytes:
        return b"%d" % self.counts.get(query, 0)

    def take_snapshot(self) -> bytes:
        return repr(sorted(self.counts.items())).encode()


def test_memory_cluster_service_answers_calls_and_writes_its_output_stream() -> None:
    with memory_cluster() as cluster, cluster.sync_client() as client:
        with pytest.raises(NotFoundError):
            cluster.serve(Counting, "counting", "commands")
        client.create_stream("commands", "data.commands", replicas=3)
        with pytest.raises(NotFoundError, match="has no partition 3"):
            cluster.serve(Counting, "counting", "commands", partition=3)
        client.create_stream("results", "data.results")
        cluster.serve(Counting, "counting", "commands", output_stream="results", tick_interval_s=0.05)
        answers = [client.services.call("counting", "commands", b"x", key=b"a", timeout_s=30).value for _ in range(7)]
        assert answers == [b"%d" % n for n in range(1, 8)]
        cluster.kill_leader("commands")
        assert client.services.call("counting", "commands", b"later", key=b"b", timeout_s=30).value == b"1"
        assert client.services.query("counting", b"a", timeout_s=30).value == b"7"
        with client.publisher("commands") as publisher:
            for _ in range(300):  # more than are applied at a time
                publisher.send(b"x", key=b"c")
        assert client.services.query("counting", b"c", timeout_s=30).value == b"300"
        cluster.wait_until(
            lambda: client.services.query("counting", b"timers", timeout_s=30).value == b"1", what="the timer fires"
        )
        assert [(r.key, r.value) for r in client.consume("results", until=0)] == [(b"a", b"5")]


def test_memory_cluster_service_of_a_deleted_stream_answers_no_queries_of_its_successor() -> None:
    with memory_cluster() as cluster, cluster.sync_client() as client:
        for calls in (3, 1):
            client.create_stream("commands", "data.commands")
            cluster.serve(Counting, "counting", "commands")
            for _ in range(calls):
                client.services.call("counting", "commands", b"x", key=b"a", timeout_s=30)
            answers = [client.services.query("counting", b"a", timeout_s=30).value for _ in range(4)]
            assert answers == [b"%d" % calls] * 4
            cluster.delete_streams()
        with pytest.raises(UnavailableError):
            client.services.query("counting", b"a", at_least=0, timeout_s=0.5)


def test_memory_cluster_that_stops_right_after_serve_leaves_no_pending_tasks() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    class Noting(Counting):
        def on_start(self, snapshot: bytes | None) -> None:
            loops.append(asyncio.get_running_loop())
            super().on_start(snapshot)

    with memory_cluster() as cluster, cluster.sync_client() as client:
        client.create_stream("orders", "shop.orders")
        cluster.serve(Noting, "noting", "orders")
        cluster.stop()
        assert [task.get_name() for task in asyncio.all_tasks(loops[0])] == []


def test_partitioned_service_call_without_key_or_partition_raises_config_error() -> None:
    """A query without either asked partition 0, and answered 0 for what another partition counts. A command went there."""
    with memory_cluster() as cluster, cluster.sync_client() as client:
        client.create_stream("commands", "data.commands", partitions=4)
        for partition in range(4):
            cluster.serve(Counting, "counting", "commands", partition=partition)
        keys = [b"key %d" % n for n in range(8)]
        for key in keys:
            client.services.call("counting", "commands", b"x", key=key, timeout_s=30)
        found = [client.services.query("counting", key, key=key, timeout_s=30) for key in keys]
        assert [answer.value for answer in found] == [b"1"] * len(keys)
        assert len({answer.partition for answer in found}) > 1
        assert client.services.query("counting", keys[0], partition=found[0].partition, timeout_s=30).value == b"1"
        with pytest.raises(ConfigError, match="4 partitions"):
            client.services.query("counting", keys[0], timeout_s=30)
        with pytest.raises(ConfigError, match="4 partitions"):
            client.services.call("counting", "commands", b"x", timeout_s=30)


async def test_memory_cluster_group_assigns_partitions_to_all_members() -> None:
    async with memory_cluster() as cluster, cluster.client() as client, cluster.client() as other, asyncio.timeout(120):
        cluster.serve_groups()
        await client.create_stream("orders", "shop.orders", partitions=4)
        for number in range(40):
            await client.publish("orders", b"%d" % number, partition=number % 4)
        async with client.group("billing", ["orders"]) as one, other.group("billing", ["orders"]) as two:
            while not (len(one.owned) == len(two.owned) == 2):
                await asyncio.sleep(0.01)
            found: list[bytes | None] = []

            async def read(group: Any) -> None:
                async for part in group.batches():
                    found.extend(part.slice.values())
                    await group.commit()
                    if len(set(found)) == 40:
                        return

            reading = [asyncio.create_task(read(group)) for group in (one, two)]
            await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            for task in reading:
                task.cancel()
            await asyncio.wait(reading)
            assert set(found) == {b"%d" % n for n in range(40)}


async def test_memory_cluster_that_is_not_running_raises_config_error_and_leaves_no_thread() -> None:
    cluster = memory_cluster(1)
    with pytest.raises(ConfigError, match="does not run"):
        cluster.keep_house()
    with pytest.raises(ConfigError, match="does not run"):
        await cluster.client()
    with pytest.raises(ConfigError, match="1 to 16"):
        memory_cluster(0)
    with cluster:
        with pytest.raises(ConfigError, match="already running"):
            cluster.start_all()
        with pytest.raises(ConfigError, match=r"'n7' does not exist in this cluster\. Nodes: n1"):
            cluster.kill("n7")
        with pytest.raises(ConfigError, match="already running"):
            cluster.start("n1")
        with pytest.raises(ConfigError, match="Partition orders/0 does not exist"):
            cluster.leader("orders")
        client = await cluster.client()
    with pytest.raises(LiftError):
        await client.bounds("orders", options=ReadOptions(patience_s=0.1))
    await client.close()
    cluster.stop()
    before = set(threading.enumerate())
    for _ in range(20):
        with memory_cluster(1), contextlib.suppress(LiftError):
            pass
    assert set(threading.enumerate()) <= before


async def test_group_assignment_too_large_for_one_request_is_rejected_with_the_maximum() -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        nodes = tuple(cluster.nodes)
        assignment = tuple((number, nodes) for number in range(6000))
        with pytest.raises(ConfigError, match="add_partitions") as caught:
            await client.create_stream("s", "data.s", placement=PlacementOptions(assignment=assignment))
        (fitting,) = map(int, re.findall(r"one request holds at most (\d+)", str(caught.value)))
        plan = await client.admin.plan_stream("s", "data.s", placement=PlacementOptions(assignment=assignment[:fitting]))
        assert len(plan.replicas) == fitting > 1000
        await client.create_stream("s", "data.s", placement=PlacementOptions(assignment=assignment[:1]))
        with pytest.raises(ConfigError, match="add_partitions"):
            await client.admin.add_partitions("s", placement=PlacementOptions(assignment=assignment[1:]))
        assert len((await client.stream("s")).partitions) == 1


async def test_memory_node_with_a_damaged_log_restarts_and_has_all_records_again() -> None:
    config = StreamConfig(segment_bytes=4096, compaction=True)
    async with memory_cluster() as cluster, cluster.client() as client, asyncio.timeout(60):
        stream = await client.create_stream("orders", "shop.orders", config=config)
        for number in range(30):
            await client.publish("orders", bytes(400), key=b"%d" % number)
        damaged = _nodes_of(cluster)[cluster.leader("orders")]
        before, files = damaged.incarnation, damaged.storages[stream.key(0)].files
        files[next(name for name in files if name.endswith(".log"))].data[1000] ^= 0xFF
        cluster.keep_house()
        while damaged.incarnation == before or len((await client.stream("orders")).partitions[0].isr) < 3:
            await asyncio.sleep(0.01)
        read_there = ReadOptions(node=damaged.node_id)
        keys = [r.key async for r in client.consume("orders", start="earliest", until="end", options=read_there)]
        assert keys == [b"%d" % number for number in range(30)]


async def test_memory_node_with_an_internal_error_stops_and_another_node_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_cluster() as cluster, cluster.client() as client, asyncio.timeout(60):
        await client.create_stream("orders", "shop.orders")
        failing, step = cluster.leader("orders"), Replica.step

        def fail_there(self: Replica, event: Any, now_ns: int) -> Any:
            if self.node_id == failing:
                raise ValueError("planted")
            return step(self, event, now_ns)

        with monkeypatch.context() as patch:
            patch.setattr(Replica, "step", fail_there)
            await client.publish("orders", b"one")
        assert failing not in cluster.running
        assert await _values(client, "orders", until="end") == [b"one"]


def test_service_call_on_a_stream_of_two_services_returns_the_reply_of_the_named_service() -> None:
    class Greeting(Service):
        def on_record(self, record: Record) -> None:
            self.reply(record, b"hello")

        def take_snapshot(self) -> bytes:
            return b""

    with memory_cluster(1, max_payload=100_000) as cluster, cluster.sync_client() as client:
        client.create_stream("commands", "data.commands")
        client.create_stream("results", "data.results")
        cluster.serve(Counting, "counting", "commands", output_stream="results")
        cluster.serve(Greeting, "greeting", "commands")
        answers = [client.services.call(name, "commands", b"x", key=b"a").value for name in ("counting", "greeting") * 3]
        assert answers == [b"1", b"hello", b"3", b"hello", b"5", b"hello"]
        with pytest.raises(OutcomeUnknownError, match=r"Only (counting, greeting|greeting, counting) answered"):
            client.services.call("counts", "commands", b"x", key=b"b", timeout_s=0.3)
        with pytest.raises(PublishRejectedError, match="more than the NATS server accepts"):
            client.services.call("counting", "commands", bytes(100_001), key=b"a")
