"""Test retries, cancellation and flush of a producer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from liftpy.client.encode_publish import Address
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.errors import OutcomeUnknownError, ProtocolError, PublishRejectedError
from tests.unit.client.producer_wire import Wire, a_producer

_Ack = client_pb2.Ack


async def test_producer_open_rejected_as_overloaded_is_retried_after_a_lookup() -> None:
    wire, found = Wire(), list[int]()

    async def find(partition: int, newest: bool) -> Address:
        found.append(partition)
        return Address("ev.0", "u1")

    through, refuses = wire.through, [_Ack.OVERLOADED]

    def refused(subject: str, payload: bytes, reply: str) -> list[tuple[str, bytes]]:
        if refuses:
            return [(reply, frames.encode(_Ack(stream="s", streamUid="u1", ackError=refuses.pop())))]
        return through(subject, payload, reply)

    wire.through = refused  # type: ignore[method-assign]
    async with await a_producer(wire, find=find) as p:
        await p.send(b"a")
    assert (wire.values(), wire.asked, found) == ([b"a"], 2, [0])


async def test_producer_resends_its_batches_once_per_reconnect() -> None:
    wire = Wire()
    p = await a_producer(wire, attempt_s=60.0)
    wire.commits = False
    await p.send(b"a")
    while wire.published < 1:
        await asyncio.sleep(0)
    for count in (2, 3):
        renewed, wire.reconnected = wire.reconnected, asyncio.get_running_loop().create_future()
        renewed.set_result(None)
        for _ in range(50):
            await asyncio.sleep(0)
        assert wire.published == count
    await p.close()


async def test_producer_batch_above_max_payload_fails_the_producer() -> None:
    wire = Wire()
    p = await a_producer(wire)

    async def publish(*_: Any, **__: Any) -> None:
        raise ProtocolError("more than this server takes")

    wire.publish = publish  # type: ignore[method-assign]
    receipt = await p.send(b"a")
    with pytest.raises(PublishRejectedError) as caught:
        await asyncio.wait_for(p.flush(), 20)
    assert caught.value.reason == "TOO_LARGE"
    with pytest.raises(PublishRejectedError, match="more than this server takes"):
        await receipt
    await p.close()


async def test_producer_record_rejected_after_an_unanswered_attempt_raises_outcome_unknown() -> None:
    wire = Wire()
    p = await a_producer(wire, attempt_s=0.05)
    losses = [True]
    wire.loses = lambda: bool(losses and losses.pop())

    def refused(ack: Any) -> Any:
        ack.ackError = _Ack.READ_ONLY
        return ack

    wire.answers_as = refused
    receipt = await p.send(b"a")
    with pytest.raises(PublishRejectedError, match="READ_ONLY"):
        await asyncio.wait_for(p.flush(), 20)
    with pytest.raises(OutcomeUnknownError, match="were sent, but not acknowledged"):
        await receipt
    await p.close()


async def test_producer_flush_does_not_wait_for_the_linger_time() -> None:
    wire = Wire()
    async with await a_producer(wire, linger_s=60.0) as p:
        await p.send(b"a")
        await asyncio.wait_for(p.flush(), 20)
        assert wire.values() == [b"a"]


async def test_producer_send_that_is_cancelled_stores_nothing() -> None:
    """The application may repeat a send after a timeout."""
    wire = Wire()
    p = await a_producer(wire, batch_records=1)
    taken, cancelled = [], 0
    for number in range(6):
        sending = asyncio.create_task(p.send(b"%d" % number))
        await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait({sending})
        cancelled += sending.cancelled()
        taken += [] if sending.cancelled() else [b"%d" % number]
    await p.flush()
    assert wire.values() == taken
    assert cancelled
    await p.close()
