"""Test JetStream headers: supported ones are honored, others are rejected before an append, in the order of JetStream's checks."""

from __future__ import annotations

import json
from typing import Any

from liftpy.config import AckPolicy, Codec
from liftpy.core.base.ids import PartitionKey
from liftpy.core.publish import jetstream_headers
from liftpy.core.publish.acks import PendingAcks, Publishers
from liftpy.core.publish.message_decoder import MessageDecoder
from liftpy.core.replication.effects import RejectReason
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import parse_batch
from liftpy.core.wire.subjects import InboxRule
from tests.each import each
from tests.unit.publish.test_ingest import Bench, turn

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
    assert (columns.unfit, columns.unfit_after_sequence) == ({}, {})


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
