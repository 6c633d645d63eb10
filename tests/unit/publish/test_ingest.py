"""Test the way from arrival to batch: messages of a turn share a batch, within limits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from liftpy.config import AckPolicy
from liftpy.core.publish.memory_budget import NodePublishMemory
from liftpy.core.replication.events import PublishesReceived
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import parse_batch
from liftpy.core.wire.rejections import RejectReason
from tests.unit.publish.ingest_bench import Bench, FakeBus, turn


async def test_ingest_stores_messages_of_one_socket_read_as_one_batch() -> None:
    bench = Bench()
    for number in range(5):
        bench.publish(b"%d" % number)
    await turn()
    bench.publish(b"later")
    await turn()
    assert bench.counts() == [5, 1]
    assert parse_batch(bench.batches[0]).values() == [b"0", b"1", b"2", b"3", b"4"]


async def test_ingest_is_subscribed_only_after_the_server_confirms_its_current_subscription() -> None:
    bench = Bench()
    (first,) = bench.bus.unheard
    bench.ingest.stop()
    bench.ingest._shell = bench.bus = FakeBus()
    bench.ingest.start()
    first()
    assert not bench.ingest.is_subscribed, "that was the subscription before"
    bench.bus.unheard[0]()
    assert bench.ingest.is_subscribed
    bench.ingest.leave()
    bench.ingest.resubscribe()
    assert not bench.ingest.is_subscribed


async def test_ingest_rejects_a_message_larger_than_any_batch() -> None:
    bench = Bench(batch_max_bytes=64 << 20, ingest_queue_bytes=256 << 20)
    bench.bus.max_payload = 64 << 20
    bench.publish(b"small")
    bench.publish(b"x" * (64 << 20), b"_INBOX.a")
    bench.publish(b"small too")
    await turn()
    assert bench.counts() == [1, 1]
    assert b'"err_code": 10054' in bench.bus.lines[0]
    assert b"the maximum is 67108864" in bench.bus.lines[0]


async def test_ingest_stores_the_largest_allowed_message_alone() -> None:
    bench = Bench()
    key = b"NATS/1.0\r\nLift-Key: " + b"k" * 60_000 + b"\r\n\r\n"
    bench.publish(b"x" * (1024 * 1024 - len(key)), headers=key)
    bench.publish(b"y" * (1024 * 1024))
    await turn()
    assert bench.counts() == [1, 1]
    assert len(bench.batches[0]) > 1024 * 1024


async def test_ingest_that_may_not_reject_drops_excess_publishes_without_an_answer() -> None:
    bench = Bench(may_reject=False, ingest_queue_records=16)
    for _ in range(20):
        bench.publish(b"x", b"_INBOX.a")
    bench.publish(b"x" * (1024 * 1024), b"_INBOX.a")
    await turn()
    assert bench.bus.lines == []
    assert bench.ingest.counters.overloaded == 5


async def test_ingest_answers_a_publish_rejected_twice_only_once() -> None:
    bench = Bench(append=False)
    bench.publish(b"a", b"_INBOX.a")
    await turn()
    bench.publish(b"b", b"_INBOX.b")
    await turn()
    bench.ingest.drop(bench.tokens[0])
    bench.ingest.reject(bench.tokens[1], RejectReason.BELOW_MIN_ISR, "n1", 1)
    bench.ingest.reject(bench.tokens[1], RejectReason.BELOW_MIN_ISR, "n1", 1)
    assert len(bench.bus.lines) == 1
    assert bench.ingest.counters.rejected == 1


async def test_ingest_that_unsubscribed_stores_messages_in_flight_and_resubscribes_once() -> None:
    bench = Bench()
    bench.ingest.resubscribe()
    assert (bench.bus.listened, bench.ingest.is_idle) == (1, True), "it has not left"
    bench.ingest.leave()
    bench.publish(b"late", reply=b"_INBOX.a")
    assert not bench.ingest.is_idle
    await turn()
    assert bench.counts() == [1]
    assert not bench.ingest.is_idle, "its publisher waits"
    bench.acks.release(AckPolicy.ALL, 0, 1, 0)
    assert bench.ingest.is_idle
    bench.ingest.resubscribe()
    bench.ingest.resubscribe()
    assert (bench.bus.left, bench.bus.closed, bench.bus.listened) == (1, 1, 2)
    bench.publish(b"again")
    await turn()
    assert bench.counts() == [1, 1]
    bench.ingest.leave()
    bench.ingest.stop()
    bench.ingest.resubscribe()
    assert bench.bus.listened == 2, "it has stopped"


def _answers(bench: Bench) -> list[dict[str, Any]]:
    return [json.loads(line.split(b"\r\n")[1]) for line in bench.bus.lines]


@pytest.mark.parametrize("wanted", [b"9" * 20, b"9" * 5000, b"-1", b"1e3", b"\xd9\xa1", b"0x10", b"1 2"])
async def test_ingest_rejects_an_invalid_expected_sequence(wanted: bytes) -> None:
    bench = Bench()
    bench.publish(b"before", b"_INBOX.a")
    bench.publish(b"odd", b"_INBOX.b", b"NATS/1.0\r\nNats-Expected-Last-Sequence: %b\r\n\r\n" % wanted)
    bench.publish(b"after", b"_INBOX.c")
    await turn()
    assert [value for batch in bench.batches for value in parse_batch(batch).values()] == [b"before", b"after"]
    assert [answer["error"]["err_code"] for answer in _answers(bench)] == [10071]
    assert not bench.bus.failed


async def test_ingest_stores_tombstones_empty_values_and_empty_keys_as_different_records() -> None:
    bench = Bench()
    for message in (
        client_pb2.Message(offset=-1, key=b"a", value=b""),
        client_pb2.Message(offset=-1, key=b"a", tombstone=True),
        client_pb2.Message(offset=-1, keyed=True, value=b"v"),
        client_pb2.Message(offset=-1, value=b"v"),
    ):
        bench.publish(frames.encode(message))
    bench.publish(b"", headers=b"NATS/1.0\r\nLift-Key: b\r\nLift-Tombstone: 1\r\n\r\n")
    bench.publish(b"", headers=b"NATS/1.0\r\nLift-Key:\r\n\r\n")
    await turn()
    batch = parse_batch(bench.batches[0])
    assert batch.values() == [b"", None, b"v", b"v", None, b""]
    assert batch.keys() == [b"a", b"a", b"", None, b"b", b""]


class Holding(Bench):
    """An Ingest whose replica takes nothing at once."""

    def __init__(self, **config: Any) -> None:
        super().__init__(append=False, **config)
        self.events: list[PublishesReceived] = []
        self.replica.is_busy = True
        self.ingest._feed = self.events.append
        self.drops: list[tuple[str, int]] = []
        self.ingest.counters.on_drop = lambda reason, count: self.drops.append((reason, count))


async def test_ingest_with_a_busy_leader_puts_publishes_with_and_without_reply_into_separate_batches() -> None:
    bench = Holding()
    for number in range(7):
        bench.publish(b"%d" % number, b"_INBOX.%d" % number if number in (2, 3, 6) else b"")
    await turn()
    assert [(event.record_count, event.is_plain) for event in bench.events] == [(2, True), (2, False), (2, True), (1, False)]
    kept = [pending.publishers.replies for pending in bench.ingest._tokens.values()]
    assert kept == [[b"", b""], [b"_INBOX.2", b"_INBOX.3"], [b"", b""], [b"_INBOX.6"]], "in their order"


async def test_ingest_with_a_busy_leader_passes_a_conditional_publish_on_in_its_own_batch() -> None:
    bench = Holding()
    bench.publish(b"0", b"_INBOX.0")
    bench.publish(b"1", b"_INBOX.1", b"NATS/1.0\r\nNats-Expected-Last-Sequence: 1\r\n\r\n")
    bench.publish(b"2", b"_INBOX.2", b"NATS/1.0\r\nNats-Expected-Last-Sequence: 0\r\n\r\n")
    await turn()
    assert [event.conditional for event in bench.events] == [False, True]
    assert len(bench.bus.lines) == 1, "one of them was wrong at once"


async def test_ingest_drop_counts_publishes_by_reason_and_sends_no_answer() -> None:
    bench = Holding()
    for payload, reply in ((b"a", b""), (b"b", b""), (b"c", b"_INBOX.c"), (b"d", b"_INBOX.d")):
        bench.publish(payload, reply)
        await turn()
    first, second, third, fourth = (event.token for event in bench.events)
    bench.ingest.drop(first, RejectReason.BELOW_MIN_ISR)
    bench.ingest.drop(second)
    bench.ingest.drop(third, RejectReason.OVERLOADED)
    bench.ingest.reject(fourth, RejectReason.OVERLOADED, "", 0)
    assert bench.ingest.counters.dropped == {"below_min_isr": 1}
    assert bench.drops == [("below_min_isr", 1)]
    assert [answer["error"]["code"] for answer in _answers(bench)] == [429]
    assert bench.ingest.is_idle


async def test_ingest_at_the_limit_of_unacked_publishers_still_stores_publishes_without_reply() -> None:
    bench = Bench(ingest_queue_records=16)
    for number in range(16):
        bench.publish(b"x", b"_INBOX.%d" % number)
    await turn()
    for number in range(6):
        bench.publish(b"%d" % number, b"_INBOX.n" if number % 2 else b"")
    await turn()
    assert sum(bench.counts()) == 16 + 3
    assert bench.ingest.counters.overloaded == 3
    assert not bench.ingest.counters.dropped


# ---- limits, counters and drops --------------------------------------------------------------------------------------------
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
