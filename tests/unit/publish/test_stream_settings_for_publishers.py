"""Test the settings max_message_bytes and optimistic_concurrency of a stream."""

from __future__ import annotations

from liftpy.config import StreamConfig
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import parse_batch
from tests.unit.publish.ingest_bench import Bench, turn
from tests.unit.publish.test_message_columns import REPLY, answered, block


def bench(**settings: object) -> Bench:
    made = Bench()
    made.ingest.settings_changed(StreamConfig(**settings))  # type: ignore[arg-type]
    return made


async def test_max_message_bytes_limit_applies_to_payload_plus_header_block() -> None:
    headers = block(k="v")
    small = bench(max_message_bytes=1 + len(headers))
    assert await answered(small, headers) == {"stream": "s", "seq": 1}
    text = f"message size exceeds maximum allowed: {1 + len(headers)} bytes, this stream accepts {len(headers)}. Send smaller messages."
    smaller = bench(max_message_bytes=len(headers))
    error = {"code": 400, "err_code": 10054, "description": text}
    assert (await answered(smaller, headers))["error"] == error
    assert smaller.batches == []
    smaller.ingest.settings_changed(StreamConfig())
    assert "error" not in await answered(smaller, headers)


async def test_message_above_max_message_bytes_is_rejected_and_its_neighbors_are_stored() -> None:
    small = bench(max_message_bytes=2)
    for payload in (b"a", b"12", b"123", b"b"):
        small.publish(payload)
    await turn()
    assert [value for batch in small.batches for value in parse_batch(batch).values()] == [b"a", b"12", b"b"]
    assert small.ingest.counters.dropped == {"too_large": 1}


async def test_duplicate_above_a_lowered_max_message_bytes_is_acked() -> None:
    small = bench()
    assert await answered(small, block(Nats_Msg_Id="m")) == {"stream": "s", "seq": 1}
    small.ingest.settings_changed(StreamConfig(max_message_bytes=1, optimistic_concurrency=True))
    assert await answered(small, block(Nats_Msg_Id="m")) == {"stream": "s", "seq": 1, "duplicate": True}
    assert (await answered(small, block(Nats_Msg_Id="n")))["error"]["err_code"] == 10071, "the offset is judged first"
    late = block(Nats_Msg_Id="n", Nats_Expected_Last_Sequence="7")
    assert (await answered(small, late))["error"]["description"] == "wrong last sequence: 1"
    right = block(Nats_Msg_Id="n", Nats_Expected_Last_Sequence="1")
    assert (await answered(small, right))["error"]["err_code"] == 10054


async def test_optimistic_concurrency_rejects_messages_without_an_expected_sequence() -> None:
    asked = bench(optimistic_concurrency=True)
    asked.publish(b"first", REPLY, block(Nats_Expected_Last_Sequence="0"))
    asked.publish(b"none", REPLY)
    asked.publish(b"plain")
    asked.publish(b"second", REPLY, block(Nats_Expected_Last_Sequence="1"))
    envelope = client_pb2.Message(offset=2, value=b"third", ackPolicy=client_pb2.ALL)
    asked.publish(frames.encode(envelope), REPLY)
    await turn()
    assert [value for batch in asked.batches for value in parse_batch(batch).values()] == [b"first", b"second", b"third"]
    assert asked.ingest.counters.dropped == {"incorrect_offset": 1}
    (refused,) = asked.bus.lines
    asked.publish(b"of its subject", REPLY, block(Nats_Expected_Last_Subject_Sequence="99"))
    await turn()
    assert b'"wrong last sequence: 0"' in asked.bus.lines.pop(), "the last of its subject is named: that is judged"
    assert b"Nats-Expected-Last-Sequence" in refused
