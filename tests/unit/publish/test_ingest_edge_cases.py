"""Test publishes at their limits: dropped ones, rejections and headers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from liftpy.config import AckPolicy, Codec
from liftpy.core.base.ids import PartitionKey
from liftpy.core.publish.memory_budget import NodePublishMemory
from liftpy.core.publish.message_decoder import InvalidBatchError, MessageDecoder, body_to_store
from liftpy.core.replication.effects import RejectReason
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import build_batch, parse_batch, seal
from liftpy.core.wire.subjects import DEFAULT_INBOX_PREFIXES, InboxRule
from tests.each import each
from tests.unit.publish.test_ingest import Bench, turn

HEADER = [client_pb2.Header(name="a", value=b"1")]


def reader(policy: AckPolicy = AckPolicy.ALL) -> MessageDecoder:
    return MessageDecoder(PartitionKey("s", "u1", 0), "ev", policy, InboxRule(DEFAULT_INBOX_PREFIXES))


def enveloped(**fields: Any) -> bytes:
    return frames.encode(client_pb2.Message(**{"offset": -1, **fields}))


def unfit(payload: bytes, block: bytes = b"") -> Any:
    columns = reader().read([(b"ev", b"_INBOX.1", payload, block)], 7)
    return columns.unfit[0].reason if columns.unfit else None


async def test_ingest_counts_messages_dropped_by_its_connection_as_overflow() -> None:
    bench = Bench()
    told: list[Any] = []
    bench.ingest.counters.on_drop = lambda *what: told.append(what)
    bench.ingest._record_dropped(3)
    bench.ingest._record_dropped(2)
    assert bench.ingest.counters.dropped == {"ingest_overflow": 5}
    assert told == [("ingest_overflow", 3), ("ingest_overflow", 2)]
    assert (bench.ingest.counters.overloaded, bench.ingest.counters.rejected) == (0, 0)


@each(
    ("fields", "block", "reason"),
    [
        ({"stream": "other"}, b"", RejectReason.WRONG_STREAM),
        ({"stream": "other", "headers": HEADER}, b"", RejectReason.WRONG_STREAM),
        ({"stream": "s", "streamUid": "u2", "headers": HEADER}, b"", RejectReason.WRONG_STREAM),
        ({"stream": "s", "partition": 1, "headers": HEADER}, b"", RejectReason.WRONG_STREAM),
        ({"stream": "other"}, b"NATS/1.0\r\nNats-Expected-Stream: s\r\n\r\n", RejectReason.WRONG_STREAM),
        ({"tombstone": True, "value": b"x", "headers": HEADER}, b"", RejectReason.MALFORMED),
        ({"headers": [client_pb2.Header(name="Lift-Key", value=b"k")]}, b"", RejectReason.MALFORMED),
        ({"headers": [client_pb2.Header(name="", value=b"k")]}, b"", RejectReason.MALFORMED),
        ({"headers": HEADER * 1025}, b"", RejectReason.TOO_LARGE),
        ({"headers": HEADER * 1024}, b"", None),
        ({"stream": "s", "streamUid": "u1", "headers": HEADER}, b"", None),
        ({"partition": 5}, b"", None),
    ],
)
def test_envelope_with_one_invalid_field_gets_the_reason_of_that_field(
    fields: dict[str, Any], block: bytes, reason: Any
) -> None:
    assert unfit(enveloped(**fields), block) is reason


def test_envelope_that_is_rejected_adds_no_key_offset_or_header_columns() -> None:
    columns = reader().read([(b"ev", b"_INBOX.1", enveloped(stream="other", value=b"v", key=b"k", offset=9), b"")], 7)
    assert (columns.keys, columns.expected, columns.headers) == (None, {}, None)
    envelopes = columns.publishers.envelopes
    assert envelopes is not None
    assert envelopes[0] is not None
    assert (envelopes[0].subject, envelopes[0].policy, envelopes[0].received_wall_ns) == ("ev", AckPolicy.LEADER, 7)


def test_stream_without_acks_stores_reply_subjects_and_sends_no_answers() -> None:
    columns = reader(AckPolicy.NONE).read(
        [(b"ev", b"_INBOX.1", b"a", b""), (b"ev", b"", b"b", b""), (b"ev", b"out.x", b"c", b"")], 7
    )
    assert columns.replies == ["_INBOX.1", None, None]
    assert list(columns.publishers.replies) == [b"", b"", b""]
    assert reader(AckPolicy.NONE).read([(b"ev", b"", b"a", b"")], 7).replies is None


@pytest.mark.parametrize(("size", "fits"), [(64 * 1024, True), (64 * 1024 + 1, False)])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_batch_publish_with_a_record_above_the_header_byte_limit_is_rejected(size: int, fits: bool, at: int) -> None:
    headers: list[Any] = [[], [], []]
    headers[at] = [("n" * 10, b"x" * (size - 10))]
    batch = memoryview(build_batch([b"a", b"b", b"c"], headers=headers))
    if fits:
        stored = parse_batch(seal(body_to_store(batch, "ev", Codec.NONE)[0], base_offset=0, leader_epoch=1))
        assert [len(record.headers) for record in stored.records()] == [int(n == at) for n in range(3)]
    else:
        with pytest.raises(InvalidBatchError, match="bytes of headers") as raised:
            body_to_store(batch, "ev", Codec.NONE)
        assert raised.value.reason is RejectReason.TOO_LARGE


@pytest.mark.parametrize(("count", "fits"), [(1024, True), (1025, False)])
@pytest.mark.parametrize("at", [0, 2])
def test_batch_publish_with_a_record_above_the_header_count_limit_is_rejected(count: int, fits: bool, at: int) -> None:
    headers: list[Any] = [[("h", b"1")] * 3] * 3
    headers[at] = [("h", b"1")] * count
    batch = memoryview(build_batch([b"a", b"b", b"c"], headers=headers))
    if fits:
        assert body_to_store(batch, "ev", Codec.NONE)[0].record_count == 3
    else:
        with pytest.raises(InvalidBatchError, match="more than 1024 headers"):
            body_to_store(batch, "ev", Codec.NONE)


async def test_ingest_stop_discards_messages_not_yet_stored() -> None:
    bench = Bench()
    assert (bench.ingest.open, bench.ingest.idle) == (True, True)
    bench.publish(b"a", b"_INBOX.1")
    assert not bench.ingest.idle
    await turn()
    assert bench.counts() == [1]
    bench.publish(b"b")
    bench.ingest.stop()
    await turn()
    assert (bench.counts(), bench.ingest.open, bench.ingest._raw_bytes, bench.ingest._tokens) == ([1], False, 0, {})
    bench.ingest.stop()


@pytest.mark.parametrize(
    "headers",
    [
        [[("xLi", b"1"), ("ft-Key", b"1")], [("x", b"1"), ("Lift-Key", b"1")]],
        [[("x", b"1"), ("x", b"1")], [("x", b"1"), ("x", b"1")], [("Lift-Key", b"1")]],
        [[("a", b"1")], [("Lift-Key", b"1")]],
        [[("Lift-Key", b"1")], [("a", b"1")]],
        [[], [("Lift-Key", b"1")]],
        [[("Aift-Key", b"1")], [("Lift-Key", b"1")]],
    ],
)
def test_batch_publish_with_a_reserved_header_on_any_record_is_rejected(headers: Any) -> None:
    batch = memoryview(build_batch([b"v"] * len(headers), headers=headers))
    with pytest.raises(InvalidBatchError, match="header name 'Lift-Key'"):
        body_to_store(batch, "ev", Codec.NONE)


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (b"NATS/1.0\r\nNats-Msg-Id: 1\r\na: " + b"x" * 65_535 + b"\r\n\r\n", RejectReason.TOO_LARGE),
        (b"NATS/1.0\r\nNats-Msg-Id: 1\r\n" + b"a: 1\r\n" * 1024 + b"\r\n", RejectReason.TOO_LARGE),
        (b"NATS/1.0\r\nNats-Msg-Id: 1\r\n" + b"a: 1\r\n" * 1023 + b"\r\n", None),
        (b"NATS/1.0\r\nNats-Msg-Id: 1\r\nLift-Tombstone: 1\r\n\r\n", RejectReason.MALFORMED),
        (b"NATS/1.0\r\nLift-Tombstone: 2\r\nNats-Msg-Id: 1\r\n\r\n", RejectReason.MALFORMED),
    ],
)
def test_header_that_is_invalid_is_rejected_with_its_reason_whichever_headers_surround_it(block: bytes, reason: Any) -> None:
    assert unfit(b"v", block) is reason


def test_message_decoder_returns_the_ack_policy_of_each_message() -> None:
    def asks(policy: bytes) -> bytes:
        return b"NATS/1.0\r\nLift-Ack: " + policy + b"\r\n\r\n"

    messages = [
        (b"ev", b"_INBOX.1", b"v", block) for block in (asks(b"leader"), b"", asks(b"none"), asks(b"all"), asks(b"odd"))
    ]
    columns = reader().read(messages, 7)
    assert columns.publishers.policies == [AckPolicy.LEADER, AckPolicy.ALL, AckPolicy.NONE, AckPolicy.ALL, AckPolicy.ALL]


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
