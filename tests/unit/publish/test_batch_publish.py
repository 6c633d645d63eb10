"""Test a batch built by its publisher: it is stored as one, at the expected offset, with one answer."""

from __future__ import annotations

import struct
from typing import Any

import crc32c
import pytest

from liftpy.config import AckPolicy, Codec, StreamConfig
from liftpy.core.publish.message_decoder import MAX_BATCH_RECORDS
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import parse_batch
from liftpy.core.wire.batch_columns import Columns
from liftpy.core.wire.rejections import RejectReason
from tests.batches import build_batch
from tests.each import each
from tests.unit.publish.batches import Bench, published

_Ack = client_pb2.Ack


THREE = build_batch([b"a", None, b""], keys=[b"k", b"", None], headers=[[("x", b"1"), ("x", b"2")], None, [("y", b"")]])
REPLY = b"_INBOX.a"


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
def test_batch_publish_is_stored_as_one_batch_with_the_leader_timestamps(codec: Codec) -> None:
    bench = Bench(codec=codec)
    bench.arrive((REPLY, published(THREE, correlationId="c"), b""))
    (batch,) = bench.batches
    assert batch.header.codec is codec
    assert [
        (r.offset, r.timestamp_ns, r.key, r.value, r.headers, r.subject, r.reply, r.leader_epoch) for r in batch.records()
    ] == [
        (0, 77, b"k", b"a", (("x", b"1"), ("x", b"2")), "ev.1", None, 3),
        (1, 77, b"", None, (), "ev.1", None, 3),
        (2, 77, None, b"", (("y", b""),), "ev.1", None, 3),
    ]
    assert (bench.events[0].record_count, bench.events[0].plain_count, bench.events[0].conditional) == (3, 0, False)
    assert bench.answers() == [], "nothing is acknowledged before it is committed"
    assert bench.acks.count == 1
    (ack,) = bench.commit()
    assert (ack.offset, ack.recordCount, ack.ackError, ack.correlationId, ack.streamUid) == (0, 3, _Ack.OK, "c", "u1")
    assert bench.acks.count == 0
    assert (bench.ingest.counters.records, bench.ingest.counters.batches) == (3, 1)


def test_batch_publish_record_size_counts_value_key_and_headers() -> None:
    headers = [None, [("name", b"12345"), ("n", b"")], None]
    batch = build_batch([b"a" * 9, b"12", b""], keys=[b"k", b"keykey", None], headers=headers)  # 10, 2 + 6 + 10, 0 bytes
    for most, taken in ((18, True), (17, False), (0, True)):
        bench = Bench()
        bench.ingest.settings_changed(StreamConfig(max_message_bytes=most))
        bench.arrive((REPLY, published(batch), b""))
        assert len(bench.batches) == taken
        if not taken:
            (ack,) = bench.answers()
            assert (ack.ackError, ack.detail) == (
                _Ack.TOO_LARGE,
                "message size exceeds maximum allowed: 18 bytes, this stream accepts 17. Send smaller messages.",
            )


def test_stream_with_optimistic_concurrency_rejects_a_batch_publish_without_an_expected_offset() -> None:
    bench = Bench()
    bench.ingest.settings_changed(StreamConfig(optimistic_concurrency=True))
    bench.arrive((REPLY, published(THREE), b""))
    (ack,) = bench.answers()
    assert (ack.ackError, bench.batches) == (_Ack.INCORRECT_OFFSET, [])
    bench.arrive((REPLY, published(THREE, expectedOffset=0), b""))
    assert len(bench.batches) == 1


def test_batch_publishes_and_single_messages_are_stored_in_arrival_order() -> None:
    bench = Bench()
    one = frames.encode(client_pb2.Message(offset=-1, value=b"one", ackPolicy=client_pb2.ALL))
    bench.arrive(
        (b"", b"plain", b""),
        (REPLY, published(THREE), b""),
        (REPLY, one, b""),
        (REPLY, published(THREE, expectedOffset=5), b""),
    )
    assert [r.value for batch in bench.batches for r in batch.records()] == [b"plain", b"a", None, b"", b"one", b"a", None, b""]
    assert [(ack.offset, ack.recordCount) for ack in bench.commit()] == [(1, 3), (4, 0), (5, 3)]


@pytest.mark.parametrize(("expected", "taken"), [(0, True), (1, False), (-1, False), (1 << 62, False)])
def test_batch_publish_with_an_expected_offset_is_stored_at_that_offset_or_rejected(expected: int, taken: bool) -> None:
    bench = Bench()
    bench.arrive((REPLY, published(THREE, expectedOffset=expected), b""))
    assert len(bench.batches) == taken
    if taken:
        assert bench.events[0].conditional
    else:
        (ack,) = bench.answers()
        assert (ack.ackError, ack.offset) == (_Ack.INCORRECT_OFFSET, -1)
        assert bench.ingest.counters.rejected == 3


@pytest.mark.parametrize(
    "head", [{"stream": "t"}, {"streamUid": "u2"}, {"partition": 0}, {"stream": "t", "streamUid": "", "partition": 1}]
)
def test_batch_publish_addressed_to_another_stream_is_rejected(head: dict[str, Any]) -> None:
    bench = Bench()
    bench.arrive((REPLY, published(THREE, **head), b""))
    assert not bench.batches
    assert [ack.ackError for ack in bench.answers()] == [_Ack.WRONG_STREAM]


def test_batch_publish_without_a_valid_inbox_gets_no_ack() -> None:
    bench = Bench()
    bench.arrive((b"", published(THREE), b""), (b"data.secret", published(THREE, ackInbox="data.other"), b""))
    assert [event.plain_count for event in bench.events] == [3, 3]
    assert bench.commit() == []
    bench.arrive((b"data.secret", published(THREE, ackInbox="_INBOX.b"), b""))
    assert [event.plain_count for event in bench.events][2:] == [0]
    bench.acks.release(AckPolicy.ALL, 8, 3, 0)
    assert [line.split()[1] for line in bench.lines] == [b"_INBOX.b"]


def test_batch_publish_without_reply_that_is_dropped_counts_each_of_its_records() -> None:
    bench = Bench()
    bench.arrive((b"", published(THREE, expectedOffset=9), b""))
    assert bench.ingest.counters.dropped == {"incorrect_offset": 3}
    bench.ingest.reject(99, RejectReason.NOT_LEADER, "", 0)
    bench = Bench()
    bench.ingest._feed = lambda event: bench.ingest.drop(event.token, RejectReason.OVERLOADED)
    bench.arrive((b"", published(THREE), b""))
    assert bench.ingest.counters.dropped == {"overloaded": 3}
    assert bench.ingest.counters.overloaded == 3


def test_batch_publish_with_nats_headers_is_rejected() -> None:
    bench = Bench()
    bench.arrive((REPLY, published(THREE), b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n"))
    assert [ack.ackError for ack in bench.answers()] == [_Ack.MALFORMED]


def _patched(batch: bytes, position: int, layout: str, value: int) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(layout, changed, position, value)
    struct.pack_into("<I", changed, 0, crc32c.crc32c(memoryview(changed)[4:]))
    return bytes(changed)


def _longer(batch: bytes) -> bytes:
    longer = batch + bytes(8)
    longer = _patched(longer, 8, "<I", len(longer))
    return _patched(longer, 56, "<I", len(longer) - 64)


NULLS = build_batch([b"ab", b"c"], keys=[b"k", b"l"])


@each(
    ("batch", "text"),
    [
        (b"", "0 bytes"),
        (THREE[:-1], "bytes"),
        (THREE + b"x", "but its batch has"),
        (THREE + THREE, "but its batch has"),
        (THREE[:70] + b"\xff" + THREE[71:], "CRC-32C"),
        (_longer(THREE), "has bytes behind its last"),
        (_patched(THREE, 6, "<B", 9), "version"),
        (_patched(NULLS, 64, "<I", 9), "end positions of a column"),
        (
            _patched(build_batch([b"ab", None, b"c"]), 64 + 8 + 4, "<I", 3),
            "a null value has bytes",
        ),  # behind a bitmap of 8 bytes
        (build_batch([b"a"], codec=Codec.LZ4), "must be uncompressed, must not"),
        (build_batch([b"a"], control=True), "not be a control batch"),
        (build_batch([b"a"], subjects=["other"]), "only values, keys and headers"),
        (build_batch([b"a"], replies=["_INBOX.x"]), "only values, keys and headers"),
        (build_batch([b"a"], timestamps_ns=[5]), "only values, keys and headers"),
        (build_batch([b"a"], offset_deltas=[4]), "only values, keys and headers"),
        (build_batch([b"a"], base_sequence=1), "no producer id"),
        (build_batch([b"a"], producer_epoch=1), "no producer id"),
        (build_batch([b"a", b"b"], headers=[[("Lift-Ack", b"all")], None]), "Invalid header name"),
        (build_batch([b"a", b"b"], headers=[[("x", b"")], [("lift-Key", b"k")]]), "Invalid header name"),
        (build_batch([b"a", b"b"], headers=[[("lift-Key", b"k")]] * 2), "Invalid header name"),
        (build_batch([b"a", b"b"], headers=[[("", b"k")], None]), "Invalid header name"),
        (build_batch([b"v"] * 2, headers=[[("xLi", b"1"), ("ft-Key", b"1")], [("x", b"1"), ("Lift-Key", b"1")]]), "'Lift-Key'"),
        (build_batch([b"v"] * 3, headers=[[("x", b"1"), ("x", b"1")]] * 2 + [[("Lift-Key", b"1")]]), "'Lift-Key'"),
        (build_batch([b"v"] * 2, headers=[[("Aift-Key", b"1")], [("Lift-Key", b"1")]]), "'Lift-Key'"),
    ],
)
def test_batch_publish_of_an_invalid_batch_is_rejected_with_the_reason(batch: bytes, text: str) -> None:
    bench = Bench()
    bench.arrive((REPLY, published(batch), b""))
    assert not bench.batches
    (ack,) = bench.answers()
    assert ack.ackError == _Ack.MALFORMED
    assert text in ack.detail


@pytest.mark.parametrize("name", ["Nats-Expected-Last-Sequence", "Nats-TTL", "Nats-Schedule-Target", "Nats-Expected-Stream"])
def test_batch_publish_with_unsupported_record_headers_is_rejected(name: str) -> None:
    bench = Bench()
    bench.arrive((REPLY, published(build_batch([b"a", b"b"], headers=[None, [(name, b"0")]])), b""))
    assert not bench.batches
    (ack,) = bench.answers()
    assert ack.ackError == _Ack.UNSUPPORTED
    assert repr(name) in ack.detail


@pytest.mark.parametrize(
    "batch",
    [
        build_batch([b""] * (MAX_BATCH_RECORDS + 1)),
        build_batch([b"a", b"b"], headers=[None, [("x", b"")] * 1025]),
        build_batch([b"a", b"b"], headers=[[("x", b"")] * 1025, [("x", b"")]]),
        build_batch([b"a", b"b"], headers=[[("x", b"y" * 65_536)], [("x", b"")]]),
        build_batch([b"a", b"b", b"c"], headers=[None, [("x", b"y" * 65_536)], None]),
        build_batch([b"a", b"b"], headers=[None, [("x", b"y" * 65_536)]]),
    ],
)
def test_batch_publish_above_a_size_limit_is_rejected_as_too_large(batch: bytes) -> None:
    bench = Bench()
    bench.arrive((REPLY, published(batch), b""))
    assert [ack.ackError for ack in bench.answers()] == [_Ack.TOO_LARGE]


@pytest.mark.parametrize(
    "batch",
    [
        build_batch([b""] * MAX_BATCH_RECORDS),
        build_batch([b"a", b"b"], headers=[None, [("x", b"")] * 1024]),
        build_batch([b"a"], headers=[[("x", b"y" * 65_535)]]),
        build_batch([b"a", b"b", b"c"], headers=[None, [("x", b"y" * 65_535)], None]),
        build_batch([b"a"], headers=[[("Lift-Output", b"u/0/1/0")]]),
    ],
)
def test_batch_publish_at_the_size_limit_is_stored(batch: bytes) -> None:
    bench = Bench()
    bench.arrive((REPLY, published(batch), b""))
    stored, sent = bench.batches[0].columns, parse_batch(batch).columns
    assert (bytes(stored.values.data), stored.values.ends.tolist()) == (bytes(sent.values.data), sent.values.ends.tolist())
    assert Columns.SUBJECTS in Columns(bench.batches[0].header.column_bits)


def test_stream_without_acks_stores_a_batch_publish_for_another_stream_as_the_record_value() -> None:
    bench = Bench(AckPolicy.NONE)
    other = published(THREE, streamUid="u9")
    bench.arrive((REPLY, other, b""), (REPLY, published(THREE), b""))
    assert [r.value for batch in bench.batches for r in batch.records()] == [other, b"a", None, b""]
    assert bench.commit() == []


@pytest.mark.parametrize("frame", [published(THREE)[:11], published(THREE)[:8] + b"\xff" * 4, published(THREE)[:13]])
def test_publish_that_starts_like_a_batch_but_is_invalid_is_stored_as_the_record_value(frame: bytes) -> None:
    bench = Bench()
    bench.arrive((b"", frame, b""))
    assert [r.value for r in bench.batches[0].records()] == [frame]
    assert bench.ingest.reader.poison_envelopes == 1


def test_batch_publish_with_an_expected_offset_is_passed_on_while_the_leader_queues_publishes() -> None:
    bench = Bench(takes=False)
    bench.arrive((REPLY, published(THREE, expectedOffset=0), b""))
    assert [event.conditional for event in bench.events] == [True], "the core says no: it does not wait"
