"""Test publishes that name a stream, a uid or a partition, and reserved headers."""

from __future__ import annotations

from typing import Any

import pytest

from liftpy.config import AckPolicy
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from tests.batches import build_batch
from tests.unit.publish.batches import Bench

_Ack = client_pb2.Ack
Header = client_pb2.Header


class Publisher:
    """A publisher of single messages, whose records are appended and committed at once."""

    def __init__(self, policy: AckPolicy = AckPolicy.ALL, may_reject: bool = True) -> None:
        self.bench = Bench(policy)
        self.bench.replica.may_reject = may_reject

    @property
    def values(self) -> list[bytes | None]:
        return [value for batch in self.bench.batches for value in batch.values()]

    def publish(self, block: bytes = b"", **fields: Any) -> _Ack | None:
        """The ack of one envelope that was published with a reply."""
        return self.send(frames.encode(client_pb2.Message(offset=-1, ackPolicy=client_pb2.ALL, **fields)), block)

    def send(self, published: bytes, block: bytes = b"") -> _Ack | None:
        self.bench.arrive((b"_INBOX.a", published, block))
        acks = self.bench.commit()
        return acks[0] if acks else None


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
    publisher = Publisher()
    ack = publisher.publish(value=b"v", **address)
    assert ack is not None
    assert (ack.ackError, ack.stream, ack.partition, ack.streamUid, ack.offset) == (_Ack.OK, "s", 1, "u1", 0)
    assert publisher.values == [b"v"]


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
    publisher = Publisher()
    ack = publisher.publish(value=b"v", **address)
    assert ack is not None
    assert (ack.ackError, ack.stream, ack.partition, ack.streamUid) == (_Ack.WRONG_STREAM, "s", 1, "u1")
    assert "addressed to" in ack.detail
    assert publisher.values == []
    assert publisher.bench.ingest.counters.rejected == 1
    ours = publisher.publish(value=b"ours", stream="s", partition=1, streamUid="u1")
    assert ours is not None
    assert ours.offset == 0


async def test_publish_addressed_to_another_stream_is_rejected_even_without_a_lease() -> None:
    """Every node gives the same answer [A2]."""
    publisher = Publisher(may_reject=False)
    ack = publisher.publish(value=b"v", stream="other")
    assert ack is not None
    assert ack.ackError == _Ack.WRONG_STREAM
    assert publisher.publish(value=b"v", headers=[Header(name="Lift-Key")]) is None


async def test_stream_with_acks_disabled_ignores_the_target_stream_header_of_a_publish() -> None:
    """The subjects of the stream may cover those of other streams, to archive them."""
    publisher = Publisher(AckPolicy.NONE)
    assert publisher.publish(value=b"v", stream="other", streamUid="u9") is None
    assert publisher.values == [b"v"]


async def test_envelope_that_is_invalid_gets_a_negative_ack_in_an_envelope() -> None:
    publisher = Publisher()
    for message in (
        {"value": b"x", "tombstone": True},
        {"value": b"x", "headers": [Header(name=f"h{i}") for i in range(2000)]},
        {"value": b"x", "block": b"NATS/1.0\r\n" + b"a:1\r\n" * 2000 + b"\r\n"},
    ):
        ack = publisher.publish(**message)  # type: ignore[arg-type]
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
    publisher = Publisher()
    if is_batch and "headers" in fields:
        batch = build_batch([b"v"], headers=[[("Nats-Schedule-" + "x" * 60_000, b"")]])
        published = frames.batch_publish(client_pb2.BatchPublish(ackPolicy=client_pb2.ALL), batch)
    elif is_batch:
        published = frames.batch_publish(client_pb2.BatchPublish(ackPolicy=client_pb2.ALL, **fields), build_batch([b"v"]))
    else:
        published = frames.encode(client_pb2.Message(offset=-1, ackPolicy=client_pb2.ALL, **fields))
    ack = publisher.send(published)
    assert ack is not None
    assert ack.ByteSize() < 8192
    is_stored = "ackInbox" in fields
    assert (ack.ackError == _Ack.OK, len(publisher.values)) == (is_stored, is_stored)


async def test_ack_repeats_a_correlation_id_of_the_maximum_length() -> None:
    ack = Publisher().publish(value=b"v", correlationId="é" * 1024)
    assert ack is not None
    assert (ack.ackError, ack.correlationId) == (_Ack.OK, "é" * 1024)
