"""A publisher sends invalid envelopes on the data subject.

The data subject belongs to applications, and anybody may publish anything there: the envelope's magic number with a header
that is too short, too long, of another version, of a wrong type, with a wrong CRC or a body that is no message. A publisher
that could stop the leader with one message would stop its successor too, which hears the same message. So whatever is no
envelope is stored as plain bytes, in its place, and its neighbours do not notice.

Shows A1, A4, A5, A6.
"""

from __future__ import annotations

import json

import pytest

from liftpy.config import AckPolicy
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import client_pb2, replication_pb2
from liftpy.core.wire.envelope import FastEnvelope
from tests.batches import build_batch
from tests.scripts.replication_bench import SUBJECT, ReplicationBench

MESSAGE = frames.encode(client_pb2.Message(value=b"in an envelope", key=b"k"))

POISON = {
    "the magic number alone": envelope.MAGIC,
    "cut in the header": MESSAGE[:6],
    "cut in the body": MESSAGE[:-3],
    "another version": MESSAGE[:4] + b"\x07" + MESSAGE[5:],
    "a header as long as the world": MESSAGE[:5] + b"\xff" + MESSAGE[6:],
    "a header shorter than itself": MESSAGE[:5] + b"\x01" + MESSAGE[6:],
    "a CRC that is wrong": envelope.MAGIC + b"\x00\x0c\x01" + MESSAGE[7:8] + b"\xde\xad\xbe\xef" + MESSAGE[8:],
    "a frame of the protocol": frames.encode(replication_pb2.ReplicationRequest(replicaID="n2", offset=3)),
    "an unknown type": MESSAGE[:7] + b"\xfe" + MESSAGE[8:],
    "a body that is no message": MESSAGE[:8] + b"\xff" * 40,
    "zeros": envelope.MAGIC + bytes(64),
}


@pytest.mark.parametrize("poison", POISON.values(), ids=POISON.keys())
async def test_envelope_with_invalid_content_is_stored_unchanged_between_its_neighbors(poison: bytes) -> None:
    bench = ReplicationBench()
    bench.publish(b"before", "p1")
    bench.publish(poison, "p2")
    bench.publish(MESSAGE, "p3")
    bench.publish(b"after", "p4")
    await bench.turn()
    bench.commit()
    assert bench.values() == [b"before", poison, b"in an envelope", b"after"]
    assert bench.ingest.reader.poison_envelopes == 1
    assert [bench.answers(inbox)[0]["seq"] for inbox in ("p1", "p2", "p4")] == [1, 2, 4]


async def test_hostile_headers_are_stored_or_rejected_without_an_exception() -> None:
    bench = ReplicationBench()
    blocks = [
        b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\n:\r\n\r\n", b"NATS/1.0\r\nno colon\r\n\r\n", b"\xff\xfe\r\n\xff: \xff\r\n\r\n",
        b"NATS/1.0\r\nNats-Expected-Last-Sequence: -1\r\n\r\n", b"NATS/1.0\r\nLift-Ack: everything\r\n\r\n",
        b"NATS/1.0\r\nNats-Expected-Last-Sequence: " + b"9" * 40 + b"\r\n\r\n",
    ]  # fmt: skip
    for number, block in enumerate(blocks):
        bench.publish(b"%d" % number, f"p{number}", block)
        await bench.turn()
    bench.publish(b"after", "last")
    await bench.turn()
    bench.commit()
    refused = [number for number, block in enumerate(blocks) if b"Expected" in block]
    assert bench.values() == [b"%d" % number for number in range(len(blocks)) if number not in refused] + [b"after"]
    for number in refused:
        assert "err_code" in bench.answers(f"p{number}")[0]["error"], "no such sequence can be: refused, not stored"
    assert len(bench.answers("last")) == 1


async def test_envelope_with_a_foreign_reply_subject_gets_no_ack() -> None:
    bench = ReplicationBench()
    evil = client_pb2.Message(value=b"v", ackInbox="liftpy.control", correlationId="c")
    bench.publish(frames.encode(evil))
    bench.publish(frames.encode(client_pb2.Message(value=b"w", ackInbox="_INBOX.x y\r\nPUB liftpy.control 0")))
    bench.bus.deliver("shop.orders", b"plain", "liftpy.orders.0.replicate")
    await bench.turn()
    bench.commit()
    assert bench.values() == [b"v", b"w", b"plain"]
    assert bench.bus.sent == []


@pytest.mark.parametrize(
    "payload",
    [
        FastEnvelope("orders", 0, "uid-1", AckPolicy.ALL, runs=True).envelope(b"v", b""),
        frames.encode(client_pb2.Message(value=b"v", correlationId="c", ackPolicy=client_pb2.ALL)),
        frames.batch_publish(client_pb2.BatchPublish(ackPolicy=client_pb2.ALL), build_batch([b"v"])),
        frames.encode(client_pb2.Message(value=b"v", stream="another")),
    ],
    ids=["fast", "message", "batch", "rejected"],
)
async def test_envelope_on_a_subject_that_is_not_utf_8_and_later_envelopes_get_their_acks(payload: bytes) -> None:
    bench = ReplicationBench()
    bench.bus.sinks[SUBJECT](b"shop.orders.\xff", b"_INBOX.p1", payload, b"")
    await bench.turn()
    bench.commit()
    bench.publish(frames.encode(client_pb2.Message(value=b"w", ackPolicy=client_pb2.ALL)), "p2")
    await bench.turn()
    bench.commit()
    first, second = (frames.decode(bench.bus.take(inbox)[0], client_pb2.Ack) for inbox in ("_INBOX.p1", "_INBOX.p2"))
    assert (first.msgSubject, second.msgSubject) == ("shop.orders.\ufffd", SUBJECT)
    assert bench.ingest.is_idle


async def test_ack_to_a_jetstream_client_is_one_json_line_for_any_record_content() -> None:
    bench = ReplicationBench()
    bench.publish(b'"}\r\n{"', "p")
    await bench.turn()
    bench.commit()
    (payload,) = bench.bus.take("_INBOX.p")
    assert json.loads(payload) == {"stream": "orders", "seq": 1}
