"""Test which parts of a publish are in the batch, the event, the counters and the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from liftpy.config import AckPolicy
from liftpy.core.publish.memory_budget import NodePublishMemory
from liftpy.core.replication.effects import RejectReason
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import parse_batch
from tests.unit.publish.test_ingest import Bench, Holding, turn

OVERHEAD = 24
"""What a message counts for beside its bytes."""
KEYED = b"NATS/1.0\r\nLift-Key: k\r\n\r\n"


def message(**fields: Any) -> bytes:
    return frames.encode(client_pb2.Message(**{"offset": -1, **fields}))


async def test_envelope_reply_subject_is_stored_in_a_column() -> None:
    bench = Bench()
    bench.publish(message(value=b"a"))
    bench.publish(message(value=b"b", replySubject="answers.1"))
    bench.publish(b"c")
    await turn()
    batch = parse_batch(bench.batches[0])
    assert batch.replies() == [None, "answers.1", None]
    assert batch.values() == [b"a", b"b", b"c"]


async def test_ingest_counts_stored_records_bytes_and_batches() -> None:
    bench = Bench(batch_max_records=2)
    for _ in range(5):
        bench.publish(b"x" * 100)
    await turn()
    counters = bench.ingest.counters
    assert (counters.records, counters.batches) == (5, 3)
    assert counters.size_bytes == sum(map(len, bench.batches)) > 500
    assert (counters.overloaded, counters.rejected, counters.dropped) == (0, 0, {})


@pytest.mark.parametrize(("count", "batches"), [(1, [1]), (4, [4]), (5, [4, 1]), (8, [4, 4]), (9, [4, 4, 1])])
async def test_ingest_batch_has_at_most_the_allowed_records(count: int, batches: list[int]) -> None:
    bench = Bench(batch_max_records=4)
    for number in range(count):
        bench.publish(b"%d" % number, b"_INBOX.%d" % number)
    await turn()
    assert bench.counts() == batches
    values = [value for batch in bench.batches for value in parse_batch(batch).values()]
    assert values == [b"%d" % number for number in range(count)]
    bench.acks.release(AckPolicy.ALL, count, 1, 0)
    said = [line.split(b"\r\n") for line in bench.bus.lines]
    assert [line[0].split()[1] for line in said] == [b"_INBOX.%d" % number for number in range(count)]
    assert [json.loads(line[1]) for line in said] == [{"stream": "s", "seq": number + 1} for number in range(count)]


@pytest.mark.parametrize("headers", [b"", KEYED])
async def test_ingest_batch_has_at_most_the_allowed_bytes(headers: bytes) -> None:
    """Subject, payload, headers and the overhead of a record count."""
    room = 4096 * 2
    size = room // 4
    payload = b"x" * (size - OVERHEAD - len(b"ev") - len(headers))
    bench = Bench(batch_max_bytes=room)
    for _ in range(4):
        bench.publish(payload, headers=headers)
    await turn()
    assert bench.counts() == [4]
    for _ in range(3):
        bench.publish(payload, headers=headers)
    bench.publish(payload + b"x", headers=headers)
    await turn()
    assert bench.counts() == [4, 3, 1]
    for _ in range(9):
        bench.publish(payload, headers=headers)
    await turn()
    assert bench.counts()[3:] == [4, 4, 1], "also where they are more than fit into one"


@pytest.mark.parametrize(("replicated", "max_payload"), [(1 << 20, 4096 + 8192), (4096 + 8192, 1 << 20)])
async def test_ingest_batch_size_limit_is_the_lower_of_fetch_size_and_max_payload(replicated: int, max_payload: int) -> None:
    bench = Bench(replication_max_bytes=replicated, batch_max_bytes=1 << 20)
    bench.bus.max_payload = max_payload
    assert bench.ingest._batch_bytes == 8192
    bench.bus.max_payload = 4096
    assert bench.ingest._batch_bytes == 4096, "one page at least"


async def test_ingest_queue_above_its_byte_limit_rejects_and_accepts_again_when_empty() -> None:
    cost = OVERHEAD + 2 + 1000 + len(KEYED)
    bench = Bench(ingest_queue_bytes=3 * cost)
    for _ in range(2):  # the second time shows that nothing of the first one is left
        for _ in range(4):
            bench.publish(b"x" * 1000, headers=KEYED)
        await turn()
    assert sum(bench.counts()) == 6
    assert bench.ingest.counters.dropped == {"overloaded": 2}


async def test_ingest_accepts_as_many_unacked_publishers_as_its_limit_until_acks_are_sent() -> None:
    bench = Bench(ingest_queue_records=16)
    for count in (15, 1, 1):
        for _ in range(count):
            bench.publish(b"x", b"_INBOX.a")
        await turn()
    assert bench.counts() == [15, 1]
    assert (bench.acks.count, bench.ingest.counters.overloaded) == (16, 1)
    bench.acks.release(AckPolicy.ALL, 15, 1, 0)
    bench.publish(b"x", b"_INBOX.a")
    await turn()
    assert bench.counts() == [15, 1, 1]


async def test_ingest_append_event_has_record_counts_and_conditional_flag_of_the_batch() -> None:
    bench = Holding()
    bench.replica.is_busy = False
    bench.ingest.wall_ns = lambda: 77
    bench.publish(b"a")
    bench.publish(b"b", b"_INBOX.b")
    bench.publish(b"c")
    await turn()
    bench.publish(b"d", b"_INBOX.d", b"NATS/1.0\r\nNats-Expected-Last-Sequence: 0\r\n\r\n")
    await turn()
    first, second = bench.events
    assert (first.token, first.record_count, first.plain_count, first.conditional, first.received_wall_ns) == (
        1,
        3,
        2,
        False,
        77,
    )
    assert (second.token, second.record_count, second.plain_count, second.conditional) == (2, 1, 0, True)
    assert first.size_bytes == bench.ingest._tokens[1].body.size_bytes >= len(b"abc")


async def test_ingest_rejections_are_counted_by_reason_and_reply() -> None:
    bench = Holding()
    bench.replica.is_busy = False
    for _ in range(2):
        for reply in (b"", b"_INBOX.a", b""):
            bench.publish(b"x", reply)
        await turn()
    first, second = (event.token for event in bench.events)
    bench.ingest.reject(first, RejectReason.NO_SPACE, "n2", 3)
    assert (bench.ingest.counters.rejected, bench.ingest.counters.overloaded) == (1, 0)
    assert bench.drops == [("no_space", 2)]
    bench.ingest.reject(second, RejectReason.OVERLOADED, "n2", 3)
    assert (bench.ingest.counters.rejected, bench.ingest.counters.overloaded) == (1, 3)
    assert bench.ingest.counters.dropped == {"no_space": 2, "overloaded": 2}
    assert len(bench.bus.lines) == 2


async def test_ingest_batch_dropped_as_overloaded_counts_each_of_its_records() -> None:
    bench = Holding()
    bench.replica.is_busy = False
    for reply in (b"", b"_INBOX.a"):
        bench.publish(b"x", reply)
    await turn()
    bench.ingest.drop(bench.events[0].token, RejectReason.OVERLOADED)
    assert bench.ingest.counters.overloaded == 2
    assert bench.drops == [("overloaded", 1)]


async def test_ingest_stop_releases_the_memory_of_its_queue() -> None:
    cost = OVERHEAD + 2 + 1000
    bench = Bench(ingest_queue_records=16, ingest_queue_bytes=16 * cost)
    for _ in range(16):
        bench.publish(b"x" * 1000)
    bench.ingest.stop()
    bench.ingest.start()
    for _ in range(16):
        bench.publish(b"y" * 1000)
    await turn()
    assert [value[:1] for batch in bench.batches for value in parse_batch(batch).values() if value] == [b"y"] * 16
    assert not bench.ingest.counters.dropped


async def test_ingest_that_resubscribes_closes_its_former_subscription() -> None:
    bench = Bench()
    closed: list[int] = []

    class Heard:
        def leave(self) -> None:
            """What is on its way still comes."""

        def close(self) -> None:
            closed.append(1)

    bench.ingest._listener = Heard()  # type: ignore[assignment]
    bench.ingest.leave()
    assert closed == []
    bench.ingest.resubscribe()
    assert closed == [1]
    assert bench.ingest._listener is bench.bus
    bench.publish(b"again")
    await turn()
    assert bench.counts() == [1]


async def test_ingest_with_a_full_queue_answers_an_envelope_with_a_negative_ack_envelope() -> None:
    bench = Bench(ingest_queue_records=16)
    for _ in range(16):
        bench.publish(b"x")
    bench.publish(message(value=b"v", ackInbox="_INBOX.e", correlationId="c9"))
    bench.publish(b"y", b"_INBOX.y")
    bench.publish(b"z")
    await turn()
    enveloped, plain = bench.bus.lines
    ack = frames.decode(enveloped.split(b"\r\n", 1)[1][:-2], client_pb2.Ack)
    assert (ack.ackError, ack.correlationId) == (client_pb2.Ack.OVERLOADED, "c9")
    assert json.loads(plain.split(b"\r\n")[1])["error"]["code"] == 429
    assert bench.ingest.counters.overloaded == 3
    assert bench.ingest.counters.dropped == {"overloaded": 1}, "who waited has an answer"


async def test_ingest_counts_messages_dropped_by_its_connection_as_overflow() -> None:
    bench = Bench()
    told: list[Any] = []
    bench.ingest.counters.on_drop = lambda *what: told.append(what)
    bench.ingest._record_dropped(3)
    bench.ingest._record_dropped(2)
    assert bench.ingest.counters.dropped == {"ingest_overflow": 5}
    assert told == [("ingest_overflow", 3), ("ingest_overflow", 2)]
    assert (bench.ingest.counters.overloaded, bench.ingest.counters.rejected) == (0, 0)


async def test_publish_above_the_node_memory_limit_is_rejected_or_dropped_if_it_has_no_reply() -> None:
    bench = Bench()
    node = bench.memory
    node.limit_bytes = 1000
    bench.publish(b"taken", b"_INBOX.a")
    await turn()
    node.update(NodePublishMemory(uncommitted=1000))
    bench.publish(b"refused", b"_INBOX.b")
    bench.publish(b"dropped")
    await turn()
    assert bench.counts() == [1]
    [line] = [line for line in bench.bus.lines if b"_INBOX.b" in line]
    assert json.loads(line.split(b"\r\n")[1])["error"]["code"] == 429
    assert (bench.ingest.counters.refused, bench.ingest.counters.dropped) == ({"overloaded": 1}, {"overloaded": 1})
    node.update(NodePublishMemory())
    bench.publish(b"taken again", b"_INBOX.c")
    await turn()
    assert bench.counts() == [1, 1]
