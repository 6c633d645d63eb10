"""Test the read API of JetStream on a cluster in memory: answers, limits and errors."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from liftpy.client import Client
from liftpy.config import StreamConfig
from liftpy.core.publish.jetstream_headers import stream_of
from liftpy.testing.memory import memory_cluster
from sidecar.node import jetstream_reads
from sidecar.node.jetstream_protocol import JsAnswer
from sidecar.node.jetstream_reads import StatelessReads
from sidecar.runtime import tasks

NOW_NS = 1_795_460_166_626_926_151


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with memory_cluster() as cluster, cluster.client() as made:
        await made.create_stream("orders", "orders.*", partitions=2, config=StreamConfig(retention_records=1000))
        async with (
            await made.publisher("orders", subject="orders.a") as a,
            await made.publisher("orders", subject="orders.b") as b,
        ):
            for number in range(6):
                headers = {"A": "b"} if number == 1 else None
                await [a, b][number % 2].send(b"v%d" % number, key=b"k" if number == 2 else None, headers=headers)
                await asyncio.gather(a.flush(), b.flush())
        yield made


async def parts(client: Client, rest: str, **fields: Any) -> list[JsAnswer]:
    reads = StatelessReads(client, "liftpy", lambda: NOW_NS)
    return [part async for part in reads.answer(rest, json.dumps(fields).encode() if fields else b"")]


async def said(client: Client, rest: str, **fields: Any) -> dict[str, Any]:
    (part,) = await parts(client, rest, **fields)
    assert not part.headers
    return json.loads(part.payload)


def direct(part: JsAnswer) -> tuple[Any, ...]:
    """(status line or value, headers but for the time)."""
    first, *lines = part.headers.decode().rstrip().split("\r\n")
    found = dict(line.split(": ", 1) for line in lines)
    found.pop("Nats-Time-Stamp", "")
    return first.removeprefix("NATS/1.0 ") if first != "NATS/1.0" else part.payload, found


async def test_jetstream_stream_names_and_info_list_the_streams(client: Client) -> None:
    account = await said(client, "INFO")
    assert (account["streams"], account["api"]["level"] >= 1) == (2, True)
    assert (await said(client, "STREAM.NAMES"))["streams"] == ["orders", "orders:1"]
    page = await said(client, "STREAM.NAMES", offset=1)
    assert (page["total"], page["offset"], page["streams"]) == (2, 1, ["orders:1"])
    assert (await said(client, "STREAM.NAMES", subject="orders.x"))["streams"] == ["orders"]
    assert (await said(client, "STREAM.NAMES", subject="payments"))["streams"] == []
    full, empty = (await said(client, "STREAM.LIST"))["streams"]
    assert (full["state"]["messages"], full["state"]["first_seq"], full["state"]["last_seq"]) == (6, 1, 6)
    assert (empty["state"]["messages"], empty["state"]["last_ts"]) == (0, "0001-01-01T00:00:00Z")
    info = await said(client, "STREAM.INFO.orders")
    assert {name: info[name] for name in full if name != "ts"} == {name: full[name] for name in full if name != "ts"}
    assert (info["config"]["max_msgs"], info["config"]["subjects"], info["ts"]) == (
        1000, ["orders.*"], "2026-11-23T18:56:06.626926151Z",
    )  # fmt: skip
    assert (await said(client, "STREAM.INFO.orders:1"))["config"]["subjects"] == ["orders.*.1"]
    assert (await said(client, "CONSUMER.NAMES.orders"))["consumers"] == []
    for rest in ("STREAM.INFO.nobody", "STREAM.INFO.orders:2", "CONSUMER.LIST.nobody", "STREAM.MSG.GET.nobody"):
        fields = {"seq": 1} if "GET" in rest else {}
        assert (await said(client, rest, **fields))["error"]["err_code"] == 10059, rest


async def test_jetstream_get_returns_one_message(client: Client) -> None:
    async def get(**fields: Any) -> Any:
        message = (await said(client, "STREAM.MSG.GET.orders", **fields)).get("message")
        (other,) = await parts(client, "DIRECT.GET.orders", **fields)
        shown = direct(other)
        if message is None:
            assert shown == ("404 Message Not Found", {})
            return None
        assert (base64.b64decode(message["data"]), message["seq"]) == (shown[0], int(shown[1]["Nats-Sequence"]))
        assert (message["subject"], "orders") == (shown[1]["Nats-Subject"], shown[1]["Nats-Stream"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", message["time"])
        assert f"Nats-Time-Stamp: {message['time']}\r\n" in other.headers.decode()
        return message

    found = await get(seq=2)
    assert (found["subject"], found["seq"]) == ("orders.b", 2)
    assert base64.b64decode(found["hdrs"]) == b"NATS/1.0\r\nA: b\r\n\r\n"
    assert base64.b64decode((await get(seq=3))["hdrs"]) == b"NATS/1.0\r\nLift-Key: k\r\n\r\n"
    assert "hdrs" not in await get(seq=4)
    assert [(await get(last_by_subj=subject))["seq"] for subject in ("orders.a", "orders.b", "orders.*")] == [5, 6, 6]
    assert (await get(next_by_subj="orders.b"))["seq"] == 2
    assert (await get(seq=3, next_by_subj="orders.b"))["seq"] == 4
    assert (await get(start_time="2000-01-01T00:00:00Z"))["seq"] == 1
    assert (await get(start_time="2000-01-01T00:00:00Z", next_by_subj="orders.b"))["seq"] == 2
    for absent in (
        {"seq": 7},
        {"last_by_subj": "orders.c"},
        {"seq": 6, "next_by_subj": "orders.a"},
        {"start_time": "2100-01-01T00:00:00Z"},
    ):
        assert await get(**absent) is None
    (last,) = await parts(client, "DIRECT.GET.orders.orders.a")
    assert direct(last)[0] == b"v4"
    (none,) = await parts(client, "DIRECT.GET.orders:1", seq=1)
    assert direct(none) == ("404 Message Not Found", {})
    (nobody,) = await parts(client, "DIRECT.GET.nobody", seq=1)
    assert direct(nobody) == ("503 No Responders", {})


async def test_jetstream_get_leaves_out_headers_that_nats_clients_do_not_accept(client: Client) -> None:
    odd = [("a b", "1"), ("\u00e9", "2"), ("a:b", "3"), ("a\t", "4"), ("a\x00", "5"), ("line", "6\r\nA: 7")]
    good = [("A", "9"), ("a", "10"), ("Bytes", b"\xff")]
    async with client.publisher("orders", subject="orders.c") as publisher:
        await publisher.send(b"v", headers=[*odd, *good], key=b"k")
    expected = b"A: 9\r\na: 10\r\nBytes: \xff\r\n"
    message = (await said(client, "STREAM.MSG.GET.orders", last_by_subj="orders.*"))["message"]
    assert base64.b64decode(message["hdrs"]).startswith(b"NATS/1.0\r\n" + expected)
    (shown,) = await parts(client, "DIRECT.GET.orders", last_by_subj="orders.*")
    assert shown.headers.startswith(b"NATS/1.0\r\n" + expected)


async def test_jetstream_get_with_the_stream_and_sequence_of_an_ack_returns_the_message() -> None:
    async with memory_cluster() as cluster, cluster.client() as client, cluster.nats() as connection:
        await client.create_stream("pairs", "pairs", partitions=2)
        for number, subject in enumerate(("pairs", "pairs.1")):
            value = f"v{number}".encode()
            ack = json.loads((await connection.request(subject, value, timeout=20)).data)
            found = await said(client, f"STREAM.MSG.GET.{ack['stream']}", seq=ack["seq"])
            assert base64.b64decode(found["message"]["data"]) == value
            expects = {"Nats-Expected-Stream": ack["stream"]}
            again = json.loads((await connection.request(subject, value, timeout=20, headers=expects)).data)
            assert (again["stream"], again["seq"]) == (ack["stream"], 2)


async def test_jetstream_get_below_the_log_start_returns_not_found(client: Client) -> None:
    await client.admin.truncate_before("orders", 0, 2)
    for rest in ("STREAM.MSG.GET.orders", "DIRECT.GET.orders"):
        (gone,), (there,) = await parts(client, rest, seq=2), await parts(client, rest, seq=3)
        assert b"404" in gone.payload + gone.headers
        assert not there.headers.startswith(b"NATS/1.0 404")
        assert b'"error"' not in there.payload
    (first, *_) = await parts(client, "DIRECT.GET.orders", seq=1, batch=1)
    assert direct(first)[1]["Nats-Sequence"] == "3"
    for up_to in ({"up_to_seq": 2}, {"up_to_time": "2000-01-01T00:00:00Z"}):
        (below,) = await parts(client, "DIRECT.GET.orders", multi_last=["orders.>"], **up_to)
        assert direct(below) == ("404 Message Not Found", {})


async def create_large(client: Client) -> None:
    """Create the stream ``large`` with 20 records of 200 kB, so that a node reads it with many requests."""
    await client.create_stream("large", "large")
    async with client.publisher("large") as publisher:
        for _ in range(20):
            await publisher.send(b"v" * 200_000)


@pytest.mark.parametrize("fields", [{"seq": 13, "batch": 20}, {"seq": 13, "next_by_subj": "large"}])
async def test_jetstream_get_during_retention_returns_the_first_message_that_is_left(
    fields: dict[str, Any], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_large(client)
    bounds = client.bounds

    async def bounds_before_retention(*arguments: Any, **named: Any) -> Any:
        found = await bounds(*arguments, **named)
        await client.admin.truncate_before("large", 0, 15)
        return found

    monkeypatch.setattr(client, "bounds", bounds_before_retention)
    found = [direct(part)[1]["Nats-Sequence"] for part in await parts(client, "DIRECT.GET.large", **fields) if part.payload]
    assert found == [str(sequence) for sequence in range(15, 21)][: 6 if "batch" in fields else 1]
    await client.admin.truncate_before("large", 0, 14)
    assert (await said(client, "STREAM.INFO.large"))["state"]["first_ts"] > "2000"


async def test_jetstream_batch_during_retention_continues_after_the_deleted_messages(client: Client) -> None:
    await create_large(client)
    sequences = list[int]()
    async for part in StatelessReads(client, "liftpy").answer("DIRECT.GET.large", b'{"seq": 1, "batch": 20}'):
        status, headers = direct(part)
        if part.payload:
            sequences.append(int(headers["Nats-Sequence"]))
        if sequences == [1, 2]:
            await client.admin.truncate_before("large", 0, 17)
    assert sequences[-3:] == [18, 19, 20]
    assert (status, headers) == ("204 EOB", {"Nats-Num-Pending": "0", "Nats-Last-Sequence": "20"})


async def test_jetstream_batch_of_a_slow_log_ends_after_the_messages_that_were_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream_reads, "BATCH_PATIENCE_S", 0.5)
    async with memory_cluster() as cluster, cluster.client() as client:
        await create_large(client)
        sent = list[JsAnswer]()
        async for part in StatelessReads(client, "liftpy").answer("DIRECT.GET.large", b'{"seq": 1, "batch": 20}'):
            sent.append(part)
            if len(sent) == 2:
                for node in cluster.nodes:
                    cluster.kill(node)
        count = len(sent) - 1
        assert 2 <= count < 20
        pending = {"Nats-Num-Pending": str(20 - count), "Nats-Last-Sequence": str(count)}
        assert direct(sent[-1]) == ("204 EOB", pending)


async def test_jetstream_answers_count_keys_and_headers_as_size(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream_reads, "MAX_BYTES", 10_000)
    async with client.publisher("orders", subject="orders.c") as publisher:
        for number in range(8):
            more: dict[str, Any] = {"headers": {"A": "a" * 4000}} if number % 2 else {"key": b"k" * 4000}
            await publisher.send(b"", **more)
    found = [direct(part)[0] for part in await parts(client, "DIRECT.GET.orders", seq=7, batch=8)]
    assert found == [b"", b"", b"", "204 EOB"]
    monkeypatch.setattr(jetstream_reads, "MAX_BYTES", 3_000)
    found = [direct(part)[0] for part in await parts(client, "DIRECT.GET.orders", multi_last=["orders.c"])]
    assert found == ["413 Too Many Results"]


async def test_jetstream_direct_get_batch_returns_messages_and_an_end_of_batch_status(client: Client) -> None:
    async def batch(**fields: Any) -> list[tuple[Any, ...]]:
        found = [direct(part) for part in await parts(client, "DIRECT.GET.orders", **fields)]
        names = "Nats-Sequence", "Nats-Num-Pending", "Nats-Last-Sequence", "Nats-UpTo-Sequence"
        return [(value, *(headers.get(name, "-") for name in names)) for value, headers in found]

    assert await batch(seq=2, batch=2) == [
        (b"v1", "2", "4", "0", "-"),
        (b"v2", "3", "3", "2", "-"),
        ("204 EOB", "-", "3", "3", "-"),
    ]
    assert [row[0] for row in await batch(seq=5, batch=30)] == [b"v4", b"v5", "204 EOB"]
    assert [row[0] for row in await batch(seq=1, batch=30, max_bytes=3)] == [b"v0", b"v1", "204 EOB"]
    assert await batch(seq=1, batch=30, next_by_subj="orders.b") == [
        (b"v1", "2", "4", "0", "-"),
        (b"v3", "4", "2", "2", "-"),
        (b"v5", "6", "0", "4", "-"),
        ("204 EOB", "-", "0", "6", "-"),
    ]
    assert await batch(seq=7, batch=3) == [("404 Message Not Found", "-", "-", "-", "-")]
    both = [(b"v4", "5", "1", "0", "-"), (b"v5", "6", "0", "5", "-"), ("204 EOB", "-", "0", "6", "6")]
    assert await batch(multi_last=["orders.a", "orders.b"]) == both
    assert await batch(multi_last=["orders.*"]) == both
    assert [row[0] for row in await batch(multi_last=["orders.*"], up_to_seq=4)] == [b"v2", b"v3", "204 EOB"]
    assert [row[0] for row in await batch(multi_last=["orders.*"], batch=1)] == [b"v4", "204 EOB"]
    assert [row[0] for row in await batch(multi_last=["orders.*"], up_to_time="2100-01-01T00:00:00Z")] == [
        b"v4",
        b"v5",
        "204 EOB",
    ]
    for nothing in ({"multi_last": ["no.such"]}, {"multi_last": ["orders.*"], "up_to_time": "2000-01-01T00:00:00Z"}):
        assert await batch(**nothing) == [("404 Message Not Found", "-", "-", "-", "-")]


ODD_REQUESTS = [
    ("STREAM.MSG.GET.orders", {"last_by_subj": "\ud800"}, 400),
    ("STREAM.MSG.GET.orders", {"next_by_subj": "orders.\udfff", "seq": 1}, 400),
    ("STREAM.MSG.GET.orders", {"start_time": "9999-12-31T23:59:59Z"}, 404),
    ("STREAM.MSG.GET.orders", {"start_time": "2262-04-12T00:00:00Z"}, 404),
    ("STREAM.MSG.GET.orders", {"start_time": "0001-01-01T00:00:00Z"}, 200),
    ("STREAM.MSG.GET.orders", {"start_time": "0001-01-01T00:00:00+23:59"}, 200),
    ("STREAM.MSG.GET.orders", {"start_time": "1677-09-21T00:00:00Z"}, 200),
    ("STREAM.NAMES", {"subject": "\udfff"}, 400),
    ("STREAM.LIST", {"subject": "orders.\ud83d"}, 400),
    ("STREAM.INFO.orders", {"offset": "\ud800"}, 400),
    ("DIRECT.GET.orders", {"last_by_subj": "\ud800"}, 408),
    ("DIRECT.GET.orders", {"multi_last": ["orders.a", "\udc00"]}, 408),
    ("DIRECT.GET.orders", {"multi_last": ["orders.>"], "up_to_time": "9999-12-31T23:59:59Z"}, 200),
    ("DIRECT.GET.orders", {"multi_last": ["orders.>"], "up_to_time": "0001-01-01T00:00:00Z"}, 404),
    ("DIRECT.GET.orders", {"start_time": "9999-12-31T23:59:59.999999999Z", "batch": 2}, 404),
    ("DIRECT.GET.orders", {"start_time": "0001-01-01T00:00:00Z", "batch": 2}, 200),
    ("CONSUMER.MSG.NEXT.orders.c", {"batch": 1}, 503),
]


@pytest.mark.parametrize(("rest", "fields", "code"), ODD_REQUESTS)
async def test_jetstream_request_with_any_text_or_time_returns_the_status_code_of_jetstream(
    rest: str, fields: dict[str, Any], code: int, client: Client
) -> None:
    (first, *_) = await parts(client, rest, **fields)
    line = first.headers.partition(b"\r\n")[0].split()
    if len(line) > 1:
        assert int(line[1]) == code
        assert code == 200 or first.payload == b""
    else:
        problem = json.loads(first.payload).get("error", {}) if not first.headers else {}
        assert problem.get("code", 200) == code, problem


async def test_jetstream_stream_info_contains_the_configuration_of_the_stream(client: Client) -> None:
    await client.create_stream("newest", "newest.*", replicas=1, config=StreamConfig(max_per_subject=3))
    for name, replicas, per_subject in (("newest", 1, 3), ("orders", 3, -1)):
        config = (await said(client, f"STREAM.INFO.{name}", deleted_details=False))["config"]
        assert (config["num_replicas"], config["max_msgs_per_subject"]) == (replicas, per_subject)


async def test_jetstream_direct_get_beyond_a_limit_returns_an_error_status(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream_reads, "MAX_BYTES", 15)
    found = [direct(part)[0] for part in await parts(client, "DIRECT.GET.orders", multi_last=["orders.*"])]
    assert found == ["413 Too Many Results"]
    assert [direct(part)[0] for part in await parts(client, "DIRECT.GET.orders", seq=1, batch=9)] == [b"v0", b"v1", "204 EOB"]
    monkeypatch.setattr(jetstream_reads, "PATIENCE_S", 0.0)
    (late,) = await parts(client, "DIRECT.GET.orders", seq=1)
    assert direct(late)[0] == "408 Request Timeout"
    assert (await said(client, "STREAM.MSG.GET.orders", seq=1))["error"]["code"] == 503


async def test_jetstream_read_that_ends_early_closes_its_consumer(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = set[Any]()
    consume = client.consume

    def watched(*arguments: Any, **named: Any) -> AsyncIterator[Any]:
        async def records() -> AsyncIterator[Any]:
            token = object()
            reading.add(token)
            try:
                async for record in consume(*arguments, **named):
                    yield record
            finally:
                reading.discard(token)

        return records()

    monkeypatch.setattr(client, "consume", watched)
    requests: tuple[dict[str, Any], ...] = (
        {"seq": 1, "batch": 2},
        {"seq": 1, "batch": 9},
        {"multi_last": ["orders.*"]},
        {"seq": 1},
    )
    for fields in requests:
        assert await parts(client, "DIRECT.GET.orders", **fields)
        assert not reading, fields


async def test_jetstream_stream_list_names_partitions_without_leader_as_missing() -> None:
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("orders", "orders")
        await client.create_stream("alone", "alone", partitions=2, replicas=1)
        leader = cluster.leader("alone", 1)
        lost = [number for number in range(2) if cluster.leader("alone", number) == leader]
        cluster.kill(leader)

        async def is_without_leader() -> bool:
            partitions = (await client.stream("alone")).partitions
            return not any(partitions[number].leader for number in lost)

        async with asyncio.timeout(30):
            while not await is_without_leader():
                await asyncio.sleep(0.05)
        cluster.leader("orders")
        page = await said(client, "STREAM.LIST")
        missing = [stream_of("alone", number) for number in lost]
        assert page["missing"] == missing
        assert [one["config"]["name"] for one in page["streams"]] == [
            name for name in ("alone", "alone:1", "orders") if name not in missing
        ]
        assert page["total"] == 3


async def test_jetstream_stream_list_reads_a_limited_number_of_streams_at_a_time(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_stream("many", "many", partitions=12)
    monkeypatch.setattr(jetstream_reads, "STATES_AT_ONCE", 3)
    reads, running, most = StatelessReads(client, "liftpy"), 0, 0
    bounds = client.bounds

    async def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await bounds(*arguments, **named)
        finally:
            running -= 1

    monkeypatch.setattr(client, "bounds", counted)

    async def listed() -> int:
        (part,) = [part async for part in reads.answer("STREAM.LIST", b"")]
        return len(json.loads(part.payload)["streams"])

    assert await asyncio.gather(listed(), listed()) == [14, 14]
    assert most == 3


async def test_jetstream_newest_messages_of_too_many_subjects_return_the_status_of_nats_server() -> None:
    async with memory_cluster() as cluster, cluster.client() as client, cluster.nats() as connection:
        await client.create_stream("many", "many.*")
        for number in range(1024):
            await connection.publish(f"many.{number}", b"")
        await connection.request("many.0", b"", timeout=20)
        assert len(await parts(client, "DIRECT.GET.many", multi_last=["many.>"])) == 1025
        await connection.request("many.1024", b"", timeout=20)
        (answer,) = await parts(client, "DIRECT.GET.many", multi_last=["many.>"])
        assert direct(answer)[0] == "413 Too Many Results"


async def test_jetstream_newest_messages_of_many_requests_at_once_are_bounded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream_reads, "MAX_HELD_BYTES", 30)
    reads, body = StatelessReads(client, "liftpy"), b'{"multi_last": ["orders.*"]}'

    async def answered() -> list[Any]:
        return [direct(part)[0] async for part in reads.answer("DIRECT.GET.orders", body)]

    async with aclosing(reads.answer("DIRECT.GET.orders", body)) as slow:
        assert direct(await anext(slow))[0] == b"v4"
        assert await answered() == ["429 Too Many Requests"]
    assert await answered() == [b"v4", b"v5", "204 EOB"], "the first request holds nothing after its end"


@pytest.mark.parametrize("fields", [{"seq": 1, "batch": 500}, {"multi_last": ["orders.>"]}])
async def test_jetstream_answer_of_many_messages_lets_other_tasks_run(
    fields: dict[str, Any], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await client.publisher("orders", subject="orders.a") as publisher:
        await asyncio.gather(*[await publisher.send(b"") for _ in range(200)])
    monkeypatch.setattr(tasks, "ANSWER_SLICE_S", 0.0)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    seen = []
    async for _ in StatelessReads(client, "liftpy").answer("DIRECT.GET.orders", json.dumps(fields).encode()):
        seen.append(turns)
    counting.cancel()
    assert len(set(seen[:-1])) == len(seen) - 1, "other tasks run between two messages"
