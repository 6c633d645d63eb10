"""Test how messages become columns of a batch, and which headers of JetStream are supported [A7]."""

from __future__ import annotations

import json
from typing import Any

import pytest

from liftpy.config import AckPolicy, Codec
from liftpy.core.base.ids import PartitionKey
from liftpy.core.publish import jetstream_headers
from liftpy.core.publish.acks import PendingAcks, Publishers
from liftpy.core.publish.message_decoder import MessageColumns, MessageDecoder
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import client_pb2, replication_pb2
from liftpy.core.wire.batch import parse_batch
from liftpy.core.wire.rejections import RejectReason
from liftpy.core.wire.subjects import InboxRule
from sidecar.transport.liveness import QUESTION
from tests.each import each
from tests.unit.publish.ingest_bench import Bench, turn

REPLY = b"_INBOX.p"
ROWS = [
    ("Nats-Batch-Id", 400, 10174, "atomic publish is disabled"),
    ("Nats-Batch-Sequence", 400, 10174, "atomic publish is disabled"),
    ("Nats-Batch-Commit", 400, 10174, "atomic publish is disabled"),
    ("Nats-Incr", 400, 10168, "message counters is disabled"),
    ("Nats-Expected-Stream", 400, 10060, "expected stream does not match"),
    ("Nats-TTL", 400, 10166, "per-message TTL is disabled"),
    ("Nats-Expected-Last-Sequence", 400, 10071, "wrong last sequence: 0"),
    ("Nats-Expected-Last-Subject-Sequence", 400, 10071, "wrong last sequence: 0"),
    ("Nats-Expected-Last-Subject-Sequence-Subject", 400, 10193, "missing sequence for expected last sequence per subject"),
    ("Nats-Schedule", 400, 10188, "message schedules is disabled"),
    ("Nats-Schedule-Target", 400, 10188, "message schedules is disabled"),
    ("Nats-Rollup", 500, 10111, "rollup not permitted"),
    ("Nats-Expected-Last-Msg-Id", 400, 10070, "wrong last msg ID: "),
]
"""In the order in which they are judged."""


def block(*names: str, **values: str) -> bytes:
    lines = [f"{name}: 99" for name in names] + [f"{name.replace('_', '-')}: {value}" for name, value in values.items()]
    return "\r\n".join(["NATS/1.0", *lines, "", ""]).encode()


async def answered(bench: Bench, headers: bytes, reply: bytes = REPLY) -> dict[str, Any]:
    bench.publish(b"v", reply, headers)
    await turn()
    bench.acks.release(AckPolicy.ALL, bench.end, 1, 0)
    line = bench.bus.lines.pop()
    assert not bench.bus.lines, "one answer each"
    assert line.startswith(b"PUB %b  " % reply)
    found: dict[str, Any] = json.loads(line.split(b"\r\n", 2)[1])
    return found


@each(("name", "code", "err_code", "text"), ROWS)
async def test_unsupported_jetstream_header_is_rejected_with_the_jetstream_error(
    name: str, code: int, err_code: int, text: str
) -> None:
    bench = Bench()
    error = {"code": code, "err_code": err_code, "description": text}
    assert await answered(bench, block(name)) == {"stream": "s", "seq": 0, "error": error}
    assert not bench.batches
    assert bench.ingest.counters.rejected == 1
    assert not bench.ingest.counters.dropped


@each("first", range(len(ROWS) - 1))
async def test_publish_with_several_unsupported_headers_gets_the_error_jetstream_checks_first(first: int) -> None:
    name, _, err_code, _ = ROWS[first]
    later = [row[0] for row in ROWS[first + 1 :]]
    assert (await answered(Bench(), block(*reversed(later), name)))["error"]["err_code"] == err_code


async def test_publish_with_correct_sequence_and_unsupported_header_is_rejected() -> None:
    bench = Bench()
    headers = block(Nats_Expected_Last_Sequence="0", Nats_Rollup="all")
    assert (await answered(bench, headers))["error"]["err_code"] == 10111
    assert not bench.batches


async def test_supported_jetstream_headers_are_stored_unchanged() -> None:
    bench = Bench()
    headers = block(Nats_Expected_Stream="s", Nats_Expected_Last_Sequence="0", Nats_Msg_Id="m1", nats_ttl="5s", Nats_Stream="x")
    assert await answered(bench, headers) == {"stream": "s", "seq": 1}
    (stored,) = parse_batch(bench.batches[0]).records()
    assert dict(stored.headers) == {
        "Nats-Expected-Stream": b"s",
        "Nats-Expected-Last-Sequence": b"0",
        "Nats-Msg-Id": b"m1",
        "nats-ttl": b"5s",
        "Nats-Stream": b"x",
    }


async def test_jetstream_fast_batch_publish_gets_an_error_on_its_reply_subject() -> None:
    bench = Bench()
    answer = await answered(bench, b"", b"_INBOX.p.1.2.$FI")
    assert answer["error"] == {"code": 400, "err_code": 10205, "description": "batch publish is disabled"}
    assert "error" not in await answered(bench, b"", b"_INBOX.p.$FI.x")
    bench.publish(b"v", b"other.$FI")
    await turn()
    assert not bench.bus.lines, "nobody is answered outside the inboxes"
    assert bench.ingest.counters.dropped == {"unsupported": 1}
    assert len(bench.batches) == 1


async def test_publish_with_the_largest_header_block_of_jetstream_is_accepted() -> None:
    bench = Bench()
    empty = b"NATS/1.0\r\na:\r\n\r\n"
    full = empty.replace(b"a:", b"a:" + b"x" * (65_535 - len(empty)))
    assert len(full) == jetstream_headers.MAX_BLOCK_BYTES
    assert (await answered(bench, full))["seq"] == 1
    refused = await answered(bench, full.replace(b"a:", b"a:x"))
    assert refused["error"] == {"code": 400, "err_code": 10097, "description": "header size exceeds maximum allowed of 64k"}


async def test_envelope_with_an_unsupported_header_gets_a_negative_ack_envelope() -> None:
    for within, beside in (([client_pb2.Header(name="Nats-TTL", value=b"5s")], b""), ([], block("Nats-TTL"))):
        bench = Bench()
        bench.publish(frames.encode(client_pb2.Message(offset=-1, value=b"v", headers=within)), REPLY, beside)
        await turn()
        (line,) = bench.bus.lines
        ack = frames.decode(line.split(b"\r\n", 1)[1][:-2], client_pb2.Ack)
        assert (ack.ackError, ack.detail) == (client_pb2.Ack.UNSUPPORTED, "per-message TTL is disabled")
        assert not bench.batches


def test_stream_without_acks_stores_unsupported_headers() -> None:
    reader = MessageDecoder(PartitionKey("s", "u1", 0), "ev", AckPolicy.NONE, InboxRule(("_INBOX.",)), Codec.NONE)
    columns = reader.read([(b"ev", b"_INBOX.a.$FI", b"v", block("Nats-TTL", "Nats-Rollup"))], 0)
    assert (columns.rejections, columns.rejections_after_sequence) == ({}, {})


def test_ack_to_a_jetstream_client_names_stream_and_partition() -> None:
    sent: list[bytes] = []

    class Bus:
        def send_lines(self, lines: list[bytes]) -> None:
            sent.extend(lines)

    acks = PendingAcks(Bus(), PartitionKey("s", "u1", 3), "ev.3")  # type: ignore[arg-type]
    acks.add(6, Publishers(AckPolicy.ALL, [REPLY]))
    acks.release(AckPolicy.ALL, 6, 1, 0)
    acks.reject(Publishers(AckPolicy.ALL, [REPLY]), jetstream_headers.Rejection(RejectReason.TOO_LARGE, ""))
    stored, refused = (json.loads(line.split(b"\r\n", 2)[1]) for line in sent)
    assert stored == {"stream": "s:3", "seq": 7}
    assert refused["stream"] == "s:3"
    for expected in ("s", "s:3", "s.3"):
        assert jetstream_headers.rejection_before_sequence([("Nats-Expected-Stream", expected.encode())], "s", 3) is None
    assert jetstream_headers.rejection_before_sequence([("Nats-Expected-Stream", b"s:2")], "s", 3) is not None


KEY = PartitionKey("s", "u1", 0)
INBOXES = InboxRule(("_INBOX.",))
HEADERS = b"NATS/1.0\r\nA: 1\r\nA:2\r\nLift-Key: k\r\nLift-Ack: leader\r\n\r\n"


def read(*messages: tuple[bytes, bytes, bytes, bytes]) -> tuple[MessageColumns, MessageDecoder]:
    reader = MessageDecoder(KEY, "ev", AckPolicy.ALL, INBOXES)
    return reader.read(list(messages), 77), reader


def header(name: str, value: bytes) -> client_pb2.Header:
    return client_pb2.Header(name=name, value=value)


def message(**fields: object) -> bytes:
    return frames.encode(client_pb2.Message(**fields))  # type: ignore[arg-type]


def test_message_columns_have_headers_in_order_and_reserved_headers_as_columns() -> None:
    columns, _ = read((b"ev", b"", b"one", b""), (b"ev", b"_INBOX.a", b"two", HEADERS))
    assert columns.headers == [None, [("A", b"1"), ("A", b"2"), ("Lift-Key", b"k"), ("Lift-Ack", b"leader")]]
    assert columns.keys == [None, b"k"]
    assert columns.publishers.policies == [AckPolicy.ALL, AckPolicy.LEADER]


@pytest.mark.parametrize(
    "payload",
    [
        envelope.MAGIC,
        envelope.MAGIC + b"\x00\x08\x00\x00\xff\xff\xff",
        envelope.MAGIC + b"\x01\x08\x00\x00",
        envelope.MAGIC + b"\x00\xff\x00\x00",
        envelope.MAGIC + b"\x00\x0c\x01\x00\x00\x00\x00\x00abc",
        envelope.MAGIC + b"\x00\x08\x00\x02",
    ],
)
def test_message_columns_have_the_bytes_of_an_invalid_envelope_as_value(payload: bytes) -> None:
    columns, reader = read((b"ev", b"", payload, b""))
    assert columns.values == [payload]
    assert columns.publishers.envelopes is None
    assert reader.poison_envelopes == 1


def test_message_columns_have_only_reply_subjects_that_are_inboxes() -> None:
    columns, reader = read(
        (b"ev", b"orders.delete", b"a", b""),
        (b"ev", b"_INBOX.*.b", b"b", b""),
        (b"ev", b"", message(value=b"c", ackInbox="liftpy.control.admin"), b""),
        (b"ev", b"", message(value=b"d", ackInbox="_INBOX.ok"), b""),
        (b"ev", b"", message(value=b"e", ackInbox="_INBOX.x 5\r\nPUB evil"), b""),
    )
    assert columns.publishers.replies == [b"", b"", b"", b"_INBOX.ok", b""]
    assert reader.refused_replies == 2


PROTOCOL = frames.encode(replication_pb2.ReplicationRequest(replicaID="n2", offset=3))


@each(
    ("own", "subject"),
    [
        ("other.>", b"other.s.0.replicate"),
        ("*.s.*.replicate", b"other.s.0.replicate"),
        ("other.control", b"other.control"),
        ("other.control.*", b"other.control.admin"),
    ],
)
@each("payload", [PROTOCOL, QUESTION, PROTOCOL[:7] + b"\xfe", PROTOCOL[:4] + b"\x07" + PROTOCOL[5:]])
def test_envelope_of_another_cluster_is_stored_as_the_record_value_and_gets_no_answer(
    own: str, subject: bytes, payload: bytes
) -> None:
    """Its nodes would take the ack for the answer of their peer [A8]."""
    reader = MessageDecoder(KEY, own, AckPolicy.ALL, INBOXES)
    columns = reader.read([(subject, b"_INBOX.a", payload, b""), (subject, b"_INBOX.b", b"plain", b"")], 77)
    assert columns.values == [payload, b"plain"]
    assert columns.publishers.replies == [b"", b"_INBOX.b"]
    assert reader.protocol_frames == 1


def test_stream_without_acks_ignores_the_ack_policy_and_stores_the_reply_subject_of_a_message() -> None:
    reader = MessageDecoder(KEY, "ev", AckPolicy.NONE, INBOXES)
    enveloped = message(offset=-1, value=b"v", ackPolicy=client_pb2.ALL, ackInbox="_INBOX.c")
    columns = reader.read(
        [(b"ev", b"_INBOX.a", b"one", HEADERS), (b"ev", b"out.x", enveloped, b""), (b"ev", b"", b"x", b"")], 77
    )
    assert columns.values == [b"one", b"v", b"x"]
    assert columns.publishers.replies == [b"", b"", b""]
    assert columns.replies == ["_INBOX.a", None, None]
    assert reader.read([(b"ev", b"", b"a", b"")], 7).replies is None


HEADER = [header("a", b"1")]


def unfit(payload: bytes, block: bytes = b"") -> RejectReason | None:
    columns, _ = read((b"ev", b"_INBOX.1", payload, block))
    return columns.rejections[0].reason if columns.rejections else None


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
    assert unfit(message(offset=-1, **fields), block) is reason


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


def test_envelope_and_nats_headers_are_merged_and_rejected_if_reserved() -> None:
    payload = message(offset=-1, value=b"v", headers=[header("b", b"2")])
    (kept, refused) = (read((b"ev", b"", payload, b"NATS/1.0\r\n%b: 1\r\n\r\n" % name))[0] for name in (b"a", b"Lift-Key"))
    assert (kept.rejections, kept.headers) == ({}, [[("a", b"1"), ("b", b"2")]])
    assert refused.rejections
