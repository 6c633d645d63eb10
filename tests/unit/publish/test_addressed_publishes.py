"""Test publishes that name a stream, a uid or a partition, and reserved headers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from liftpy.config import AckPolicy, Codec, ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.publish.acks import PendingAcks
from liftpy.core.publish.ingest import Ingest
from liftpy.core.replication.effects import AppendBatch
from liftpy.core.replication.events import PublishesReceived
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import Record, build_batch, parse_batch
from liftpy.core.wire.subjects import InboxRule
from tests.unit.publish.unlogged import FakeReplica, derived_state

_Ack = client_pb2.Ack
Header = client_pb2.Header


class Bench:
    """Partition 1 of the stream s, whose uid is u1; everything that is taken is appended and committed at once."""

    def __init__(self, policy: AckPolicy = AckPolicy.ALL, may_refuse: bool = True) -> None:
        self.records: list[Record] = []
        self.lines: list[bytes] = []
        self.sink: Any = None
        self.acks = PendingAcks(self, PartitionKey("s", "u1", 1), "ev.1")  # type: ignore[arg-type]
        self.ingest = Ingest(
            shell=self, subject="ev.1", config=ReplicationConfig(), policy=policy, codec=Codec.NONE,  # type: ignore[arg-type]
            inboxes=InboxRule(("_INBOX.",)), acks=self.acks, replica=FakeReplica(may_refuse), feed=self.append,  # type: ignore[arg-type]
            log=self, derived=derived_state(), now_ns=time.monotonic_ns, wall_ns=time.time_ns,  # type: ignore[arg-type]
        )  # fmt: skip
        self.ingest.start()

    max_payload = 1 << 20

    @property
    def log_end_offset(self) -> int:
        return len(self.records)

    def listen(self, subject: str, sink: Any, given_up: Any = None, refuser: Any = None) -> Any:
        self.sink = sink

    def call_after_read(self, callback: Any) -> None:
        asyncio.get_running_loop().call_soon(callback)

    def when_subscribed(self, heard: Any) -> None:
        heard()

    def send_lines(self, lines: list[bytes]) -> None:
        self.lines += lines

    def append(self, event: PublishesReceived) -> None:
        effect = AppendBatch(
            token=event.token, base_offset=len(self.records), leader_epoch=3, timestamp_ns=event.received_wall_ns
        )
        batch = self.ingest.seal(effect)
        self.ingest.appended(effect, batch)
        self.records += parse_batch(batch).records()
        self.acks.release(AckPolicy.ALL, len(self.records) - 1, 3, 0)

    def publish(self, block: bytes = b"", **fields: Any) -> _Ack | None:
        """The ack of one envelope that was published with a reply."""
        return self.send(frames.encode(client_pb2.Message(offset=-1, ackPolicy=client_pb2.ALL, **fields)), block)

    def send(self, published: bytes, block: bytes = b"") -> _Ack | None:
        self.sink(b"ev.1", b"_INBOX.a", published, block)
        self.ingest._drain()
        lines, self.lines = self.lines, []
        if not lines:
            return None
        body = lines[0].split(b"\r\n", 1)[1][:-2]
        assert body.startswith(envelope.MAGIC), body
        return frames.decode(body, _Ack)


@pytest.mark.parametrize(
    "address",
    [
        {},
        {"stream": "s"},  # an old publisher, which may not know the partition either
        {"stream": "s", "partition": 1},
        {"stream": "s", "partition": 1, "streamUid": "u1"},
        {"partition": 1, "streamUid": "u1"},
        {"partition": 2},  # without a stream it names nothing
    ],
)
async def test_publish_addressed_to_this_stream_is_stored_and_the_ack_names_the_stream(address: dict[str, Any]) -> None:
    bench = Bench()
    ack = bench.publish(value=b"v", **address)
    assert ack is not None
    assert (ack.ackError, ack.stream, ack.partition, ack.streamUid, ack.offset) == (_Ack.OK, "s", 1, "u1", 0)
    assert [record.value for record in bench.records] == [b"v"]


@pytest.mark.parametrize(
    "address",
    [
        {"stream": "other"},
        {"stream": "other", "partition": 1, "streamUid": "u1"},
        {"stream": "s", "partition": 1, "streamUid": "u0"},
        {"stream": "s", "partition": 2},
        {"stream": "s", "partition": 0, "streamUid": "u1"},
        {"partition": 1, "streamUid": "u0"},
        {"streamUid": "u1"},  # a publisher that knows the uid knows the partition
    ],
)
async def test_publish_addressed_to_another_stream_is_rejected_and_not_stored(address: dict[str, Any]) -> None:
    bench = Bench()
    ack = bench.publish(value=b"v", **address)
    assert ack is not None
    assert (ack.ackError, ack.stream, ack.partition, ack.streamUid) == (_Ack.WRONG_STREAM, "s", 1, "u1")
    assert "addressed to" in ack.detail
    assert bench.records == []
    assert bench.ingest.counters.rejected == 1
    ours = bench.publish(value=b"ours", stream="s", partition=1, streamUid="u1")
    assert ours is not None
    assert ours.offset == 0


async def test_publish_addressed_to_another_stream_is_rejected_even_without_a_lease() -> None:
    """Every node gives the same answer [A2]."""
    bench = Bench(may_refuse=False)
    ack = bench.publish(value=b"v", stream="other")
    assert ack is not None
    assert ack.ackError == _Ack.WRONG_STREAM
    assert bench.publish(value=b"v", headers=[Header(name="Lift-Key")]) is None


async def test_stream_with_acks_disabled_ignores_the_target_stream_header_of_a_publish() -> None:
    """The subjects of the stream may cover those of other streams, to archive them."""
    bench = Bench(AckPolicy.NONE)
    assert bench.publish(value=b"v", stream="other", streamUid="u9") is None
    assert [record.value for record in bench.records] == [b"v"]


async def test_envelope_headers_are_stored_in_order_with_repeated_names() -> None:
    bench = Bench()
    pairs = [("b", b"2"), ("a", b"\xff\r\n"), ("b", b" 1 ")]
    bench.publish(value=b"v", headers=[Header(name=n, value=v) for n, v in pairs])
    assert list(bench.records[0].headers) == pairs


@pytest.mark.parametrize("name", ["Lift-Key", "Lift-Ack", "Lift-Tombstone", "Lift-Whatever", "lift-key", ""])
async def test_envelope_with_reserved_header_names_is_rejected(name: str) -> None:
    bench = Bench()
    ack = bench.publish(value=b"", key=b"k", headers=[Header(name="x", value=b"y"), Header(name=name, value=b"1")])
    assert ack is not None
    assert ack.ackError == _Ack.MALFORMED
    assert repr(name) in ack.detail
    assert bench.records == []


async def test_envelope_with_reserved_nats_headers_is_rejected() -> None:
    bench = Bench()
    ack = bench.publish(b"NATS/1.0\r\nLift-Key: other\r\n\r\n", value=b"v", key=b"k")
    assert ack is not None
    assert ack.ackError == _Ack.MALFORMED
    traced = bench.publish(b"NATS/1.0\r\nTraceparent: 00-1\r\n\r\n", value=b"v", key=b"k")
    assert traced is not None
    assert traced.ackError == _Ack.OK


async def test_envelope_that_is_invalid_gets_a_negative_ack_in_an_envelope() -> None:
    bench = Bench()
    for message in (
        {"value": b"x", "tombstone": True},
        {"value": b"x", "headers": [Header(name=f"h{i}") for i in range(2000)]},
        {"value": b"x", "block": b"NATS/1.0\r\n" + b"a:1\r\n" * 2000 + b"\r\n"},
    ):
        ack = bench.publish(**message)  # type: ignore[arg-type]
        assert ack is not None
        assert ack.ackError in (_Ack.MALFORMED, _Ack.TOO_LARGE)


_ALMOST_MAX_PAYLOAD = "x" * (Bench.max_payload - 100)


@pytest.mark.parametrize(
    "fields",
    [
        {"correlationId": _ALMOST_MAX_PAYLOAD},
        {"correlationId": "é" * 1025},
        {"ackInbox": _ALMOST_MAX_PAYLOAD},
        {"stream": _ALMOST_MAX_PAYLOAD},
        {"stream": "s", "partition": 1, "streamUid": _ALMOST_MAX_PAYLOAD},
        {"headers": [Header(name="Lift-" + _ALMOST_MAX_PAYLOAD)]},
    ],
    ids=["correlation id", "not ASCII", "inbox", "stream", "uid", "header"],
)
@pytest.mark.parametrize("is_batch", [False, True], ids=["message", "batch"])
async def test_answer_to_a_publish_with_a_very_long_text_is_small(fields: dict[str, Any], is_batch: bool) -> None:
    """A NATS server closes the connection of a node that sends more than max_payload, and all publishes are lost with it."""
    bench = Bench()
    if is_batch and "headers" in fields:
        batch = build_batch([b"v"], headers=[[("Nats-Schedule-" + "x" * 60_000, b"")]])
        published = frames.batch_publish(client_pb2.BatchPublish(ackPolicy=client_pb2.ALL), batch)
    elif is_batch:
        published = frames.batch_publish(client_pb2.BatchPublish(ackPolicy=client_pb2.ALL, **fields), build_batch([b"v"]))
    else:
        published = frames.encode(client_pb2.Message(offset=-1, ackPolicy=client_pb2.ALL, **fields))
    ack = bench.send(published)
    assert ack is not None
    assert ack.ByteSize() < 8192
    is_stored = "ackInbox" in fields
    assert (ack.ackError == _Ack.OK, len(bench.records)) == (is_stored, is_stored)


async def test_ack_repeats_a_correlation_id_of_the_maximum_length() -> None:
    ack = Bench().publish(value=b"v", correlationId="é" * 1024)
    assert ack is not None
    assert (ack.ackError, ack.correlationId) == (_Ack.OK, "é" * 1024)
