"""The client library against a real cluster: three sidecar processes, a real nats-server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import pytest

from liftpy.client import Client, ProducerOptions, PublishOptions, ReadOptions, connect, positions_from
from liftpy.config import AckPolicy
from liftpy.errors import (
    AlreadyExistsError,
    ConfigError,
    LiftError,
    NotFoundError,
    OffsetOutOfRangeError,
    PublishRejectedError,
    UnavailableError,
)
from sidecar.dev.cluster import DevCluster
from tests.clients import reader
from tests.clients.__main__ import checked
from tests.clients.build import PROGRAMS, READER
from tests.clients.checks import CHECKS
from tests.clients.targets import Ours

pytestmark = pytest.mark.processes
_numbers = count()


@pytest.fixture(scope="module")
def dev() -> Iterator[DevCluster]:
    with DevCluster(3) as cluster:
        yield cluster


@pytest.fixture
async def client(dev: DevCluster) -> AsyncIterator[Client]:
    async with await connect(dev.nats_url, dev.namespace) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"stream{next(_numbers)}"


def payloads(start: int, end: int) -> list[bytes]:
    return [b"payload %d" % i for i in range(start, end)]


async def read(client: Client, stream: str, **how: Any) -> list[Any]:
    return [record async for record in client.consume(stream, **{"until": "end", **how})]


async def test_client_creates_lists_and_deletes_streams(client: Client, name: str) -> None:
    stream = await client.create_stream(name, f"data.{name}", partitions=2)
    assert (stream.name, stream.subject, len(stream.partitions)) == (name, f"data.{name}", 2)
    assert all(sorted(p.replicas) == ["n1", "n2", "n3"] == sorted(p.isr) for p in stream.partitions)
    assert name in [s.name for s in await client.admin.list_streams()]
    assert (await client.stream(name)).uid == stream.uid
    with pytest.raises(AlreadyExistsError):
        await client.create_stream(name, "data.other")
    waits = await client.create_stream(f"{name}x", f"data.{name}x", replicas=9, ready_s=0)
    assert (waits.waiting, waits.partitions) == (1, ())
    with pytest.raises(UnavailableError, match="insufficient-nodes"):
        await client.admin.until_ready(waits, 0.3)
    await client.admin.delete_stream(f"{name}x")
    with pytest.raises(NotFoundError):
        await client.admin.delete_stream(name, "another-uid")
    await client.admin.delete_stream(name, stream.uid)
    with pytest.raises(NotFoundError, match="no stream"):
        await client.stream(name)


async def test_acked_records_are_read_back_in_order(client: Client, name: str) -> None:
    await client.create_stream(name, f"data.{name}")
    async with client.publisher(name, options=PublishOptions(window=512)) as publisher:
        futures = [await publisher.send(p, key=b"k%d" % i, headers={"n": b"%d" % i}) for i, p in enumerate(payloads(0, 5000))]
    assert [f.result().offset for f in futures] == list(range(5000))
    records = await read(client, name)
    assert [r.value for r in records] == payloads(0, 5000)
    assert (records[17].key, records[17].headers, records[17].offset) == (b"k17", (("n", b"17"),), 17)
    assert all(r.subject in ("", f"data.{name}") for r in records)


@pytest.mark.parametrize("ack", [AckPolicy.ALL, AckPolicy.LEADER])
async def test_publish_ack_has_partition_and_offset(client: Client, name: str, ack: AckPolicy) -> None:
    stream = await client.create_stream(name, f"data.{name}", partitions=2)
    for partition in (0, 1):
        for offset in range(3):
            acked = await client.publish(name, b"x", partition=partition, ack=ack)
            assert acked is not None
            assert (acked.stream, acked.partition, acked.offset) == (name, partition, offset)
            assert acked.leader_epoch == stream.partitions[partition].leader_epoch


async def test_message_without_envelope_is_stored_with_its_headers_and_subject(
    client: Client, dev: DevCluster, name: str
) -> None:
    await client.create_stream(name, f"data.{name}.>")
    async with client.publisher(name, subject=f"data.{name}.a.b") as publisher:
        await publisher.post(b"plain", headers={"colour": b"red"})
        await publisher.publish(b"acked")
    records = await read(client, name)
    assert [(r.value, r.subject) for r in records] == [(b"plain", f"data.{name}.a.b"), (b"acked", f"data.{name}.a.b")]
    assert records[0].headers == (("colour", b"red"),)
    with pytest.raises(ConfigError, match=r"Name one subject \(subject=, --subject\)"):
        await client.publisher(name)


async def test_consume_reads_new_records_until_the_until_offset(client: Client, name: str) -> None:
    await client.create_stream(name, f"data.{name}")
    await client.publish(name, b"payload 0")
    following = asyncio.create_task(read(client, name, start="earliest", until=99))
    only_new = client.consume(name, start="new", until=99)
    await only_new.begin()
    async with client.publisher(name) as publisher:
        for payload in payloads(1, 150):
            await publisher.send(payload)
    assert [r.value for r in await following] == payloads(0, 100)
    assert [r.value async for r in only_new] == payloads(1, 100)
    assert [r.value for r in await read(client, name, start="latest")] == payloads(149, 150)
    assert [r.value for r in await read(client, name, start=140)] == payloads(140, 150)
    with pytest.raises(OffsetOutOfRangeError):
        await read(client, name, start=151)


async def test_read_range_returns_the_same_records_from_every_replica(client: Client, name: str) -> None:
    stream = await client.create_stream(name, f"data.{name}")
    async with client.publisher(name) as publisher:
        for payload in payloads(0, 3000):
            await publisher.send(payload)
    for node in stream.partitions[0].replicas:
        options = ReadOptions(node=node, max_bytes=8192)
        pieces = [p async for p in client.read_range(name, 0, 123, 2877, uid=stream.uid, options=options)]
        assert [v for p in pieces for v in p.values()] == payloads(123, 2877)
        assert [o for p in pieces for o in p.offsets().tolist()] == list(range(123, 2877))


async def test_consumer_of_a_deleted_and_recreated_stream_raises_not_found(client: Client, name: str) -> None:
    first = await client.create_stream(name, f"data.{name}")
    await client.publish(name, b"old")
    consumer = client.consume(name, options=ReadOptions(patience_s=10, wait_s=0.2))
    await consumer.begin()
    await client.admin.delete_stream(name)
    second = await client.create_stream(name, f"data.{name}")
    assert second.uid != first.uid
    await client.publish(name, b"new")
    with pytest.raises(NotFoundError, match="created again"):
        await anext(aiter(consumer))
    assert [r.value for r in await read(client, name)] == [b"new"]


async def test_client_publish_of_a_too_large_message_raises_publish_rejected_error(client: Client, name: str) -> None:
    await client.create_stream(name, f"data.{name}")
    with pytest.raises(PublishRejectedError) as caught:
        await client.publish(name, bytes(2 * 1024 * 1024))
    assert caught.value.reason == "TOO_LARGE"
    acked = await client.publish(name, b"fits")
    assert acked is not None
    assert acked.offset == 0


async def test_consumer_continues_at_another_replica_after_its_replica_was_killed(name: str) -> None:
    cluster = await asyncio.to_thread(DevCluster, 3)
    cluster.start()  # in the main thread: the children die with the thread that started them
    try:
        async with await connect(cluster.nats_url, cluster.namespace) as client:
            stream = await client.create_stream(name, f"data.{name}")
            leader = stream.partitions[0].leader
            async with client.publisher(name) as publisher:
                for payload in payloads(0, 2000):
                    await publisher.send(payload)
            victim = next(n for n in stream.partitions[0].replicas if n != leader)
            reader = client.consume(name, options=ReadOptions(max_bytes=4096, read_ahead=1, wait_s=0.5))
            reader._reader.node = victim
            records = aiter(reader)
            got = [(await anext(records)).value for _ in range(50)]
            await asyncio.to_thread(cluster.nodes[victim].kill)
            got += [(await anext(records)).value for _ in range(1950)]
            assert got == payloads(0, 2000)
            assert len({r.offset for r in await read(client, name)}) == 2000
    finally:
        cluster.stop()


async def test_describe_cluster_lists_nodes_and_streams(client: Client, name: str) -> None:
    await client.create_stream(name, f"data.{name}")
    state = await client.admin.describe_cluster(linearizable=True)
    assert sorted(state.image.nodes) == ["n1", "n2", "n3"] == state.image.live_nodes()
    assert state.metadata_leader in state.image.nodes
    assert sum(c.leader for c in state.controllers) == 1
    status = await client.admin.node_status(state.stream(name).partitions[0].leader)
    assert name in [p["stream"] for p in status["partitions"]]
    with pytest.raises(LiftError):
        await client.admin.node_status("nobody")


async def test_client_distinguishes_tombstones_empty_values_and_empty_keys(client: Client, name: str) -> None:
    await client.create_stream(name, f"data.{name}")
    await client.publish(name, b"", key=b"a")
    await client.publish(name, None, key=b"a")
    await client.publish(name, b"v", key=b"")
    await client.publish(name, None)
    async with client.publisher(name) as publisher:
        await publisher.post(None, key=b"posted")
    last = await client.publish(name, b"last")
    assert last is not None
    found = [(record.key, record.value) for record in await read(client, name)]
    assert found == [(b"a", b""), (b"a", None), (b"", b"v"), (None, None), (b"posted", None), (None, b"last")]


async def test_client_uses_a_cached_subject_only_while_its_stream_exists(client: Client, dev: DevCluster, name: str) -> None:
    subject = f"data.{name}"
    async with await connect(dev.nats_url, dev.namespace) as other, asyncio.timeout(60):
        await client.create_stream(name, subject)
        await client.publish(name, b"first")
        await other.admin.delete_stream(name)
        await other.create_stream(f"{name}b", subject)
        for ack in (AckPolicy.ALL, AckPolicy.LEADER):
            with pytest.raises(NotFoundError):
                await client.publish(name, b"of a stream that is gone", ack=ack)
        assert await read(other, f"{name}b") == []
        await other.create_stream(name, f"{subject}.again")
        acked = await client.publish(name, b"second", headers=[("h", "1"), ("g", b"2"), ("h", b"\xff")])
        assert acked is not None
        assert acked.offset == 0
    (record,) = await read(client, name)
    given, (id_name, message_id) = record.headers[:-1], record.headers[-1]
    assert (record.value, given) == (b"second", (("h", b"1"), ("g", b"2"), ("h", b"\xff")))
    assert (id_name, bool(message_id)) == ("Nats-Msg-Id", True), "so that it could be sent again"
    assert (record.header("h"), record.header_values("h"), record.header("x")) == (b"1", [b"1", b"\xff"], None)


async def test_jetstream_publisher_gets_the_acks_that_its_client_library_expects(client: Client, dev: DevCluster) -> None:
    """nats-py, with its own JetStream calls; the others: ``python -m tests.clients``."""
    found = await checked(Ours(dev.nats_url, client), PROGRAMS["nats-py"], many=2000)
    assert len(found) > len(CHECKS) - 3
    assert {check: wrong for check, wrong in found.items() if wrong} == {}


_SCRIPT = """
import sys
import liftpy
from liftpy.client import sync

client = sync.connect(sys.argv[1])
config = liftpy.StreamConfig(retention_age_s=86400.5, min_isr=2)
for _ in range(2):
    client.create_stream("script", "data.script", config=config, exist_ok=True)
try:
    client.create_stream("script", "data.script", config=liftpy.StreamConfig(), exist_ok=True)
except liftpy.AlreadyExistsError as error:
    print(error)
print([client.publish("script", b"%d" % n, expected_last=n - 1, msg_id=f"m{n}").offset for n in range(3)])
try:
    client.publish("script", b"late", expected_last=1)
except liftpy.PublishRejectedError as error:
    print(error.reason)
with client.publisher("script") as publisher:
    for number in range(3, 200):
        publisher.send(b"%d" % number)
consumer = client.consume("script", until="end")
some = [record.offset for _, record in zip(range(50), consumer)]
rest = [record.offset for record in consumer]
print(some + rest == list(range(200)), client.bounds("script").high_watermark)
"""


async def test_script_that_does_not_close_its_client_exits_with_code_zero(dev: DevCluster) -> None:
    script = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SCRIPT, dev.nats_url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    said, errors = await asyncio.wait_for(script.communicate(), 60)
    assert (errors.decode(), script.returncode) == ("", 0)
    assert said.decode().splitlines() == [
        "Stream script already exists with other settings: its min_isr is 2, not 0; its retention_age_s is 86400.5, not 0.0. Choose another name, or change the stream with `liftpy stream alter`.",  # noqa: E501
        "[0, 1, 2]",
        "INCORRECT_OFFSET",
        "True 199",
    ]


async def test_producer_with_the_id_of_an_open_producer_continues_its_sequence_and_fences_it(client: Client, name: str) -> None:
    await client.create_stream(name, f"sub.{name}", partitions=2)
    keys = [b"key %d" % n for n in range(400)]
    async with client.producer(name, id="p") as first:
        acks = await (await first.send_many(payloads(0, 400), keys=keys))
        assert sum(ack.record_count for ack in acks) == 400
        async with client.producer(name, id="p") as second:
            assert sum(second.next_sequence(partition) for partition in range(2)) == 400
            ack = await (await second.send(b"more", partition=1))
            assert (ack.partition, ack.offset, ack.duplicate) == (1, second.next_sequence(1) - 1, False)
            await first.send(b"too late", partition=1)
            with pytest.raises(PublishRejectedError, match="PRODUCER_FENCED"):
                await first.flush()
    async with client.producer(name, id="p", options=ProducerOptions(begin="repeat")) as again:
        await again.send_many(payloads(0, 400), keys=keys)
    found = [await read(client, name, partition=partition) for partition in range(2)]
    values = sorted(record.value for record in [*found[0], *found[1]])
    assert values == sorted([*payloads(0, 400), b"more"])
    for records in found:
        sent = [record for record in records if record.key is not None]
        assert [record.key for record in sent] == sorted((record.key for record in sent), key=keys.index)


async def test_consume_backwards_with_filter_returns_matching_records_newest_first(client: Client, name: str) -> None:
    await client.create_stream(name, f"data.{name}.>")
    for country in ("eu", "us", "eu"):
        async with client.publisher(name, subject=f"data.{name}.{country}") as publisher:
            for number in range(40):
                await publisher.send(b"%d" % number, key=b"k%d" % (number % 4))
    everything = [(r.offset, r.subject, r.key) for r in await read(client, name)]
    assert [r.offset for r in await read(client, name, backwards=True)] == list(range(119, -1, -1))
    for how in ({"subjects": [f"data.{name}.us"]}, {"keys": [b"k1", b"k3"]}, {"subjects": ["*.*.eu"], "keys": [b"k2"]}):
        fitting = [
            offset
            for offset, subject, key in everything
            if (not how.get("subjects") or subject.endswith(how["subjects"][0][-2:]))
            and (not how.get("keys") or key in how["keys"])
        ]
        assert 0 < len(fitting) < 120
        assert [r.offset for r in await read(client, name, **how)] == fitting
        assert [r.offset for r in await read(client, name, backwards=True, **how)] == fitting[::-1]
    consumer = client.consume(name, start="-30", keys=[b"k1"])
    first = await consumer.getmany(3)
    stored = str(await consumer.position())
    rest = [r.offset async for r in client.consume(name, start=stored, until="end", keys=[b"k1"])]
    assert [*(r.offset for r in first), *rest] == [o for o, _, key in everything if key == b"k1" and o >= 90]


async def test_consume_many_reads_several_streams_in_one_iteration(client: Client, name: str) -> None:
    await client.create_stream(f"{name}-a", f"data.{name}.a", partitions=2)
    for partition in (0, 1):
        await client.publish(f"{name}-a", b"a%d" % partition, partition=partition)
    async with client.consume_many(f"{name}-*", until="end") as many:
        found = [(stream, partition, record.value) async for stream, partition, record in many]
        stored = await many.positions_text()
    assert sorted(found) == [(f"{name}-a", 0, b"a0"), (f"{name}-a", 1, b"a1")]
    await client.create_stream(f"{name}-b", f"data.{name}.b")
    await client.publish(f"{name}-b", b"b")
    async with client.consume_many(f"{name}-*", until="end", positions=positions_from(stored)) as many:
        assert [(stream, record.value) async for stream, _, record in many] == [(f"{name}-b", b"b")]


@pytest.mark.skipif(
    not READER.is_built, reason="it is not built: `python -m tests.clients.reader` does, and downloads what that needs"
)
async def test_go_reader_from_the_protocol_page_reads_the_same_records_as_the_client(dev: DevCluster, name: str) -> None:
    await reader.check(dev, name)
