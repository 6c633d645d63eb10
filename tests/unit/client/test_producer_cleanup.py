"""Test address lookups of a producer, and that it leaves no timers, callbacks, tasks or buffer space behind."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client.encode_publish import Address
from liftpy.client.partition_sender import RECORD_BYTES
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.errors import OutcomeUnknownError, ProtocolError, PublishRejectedError
from tests.unit.client.test_producer import Wire, a_producer

_Ack = client_pb2.Ack


@pytest.mark.parametrize(
    ("says", "doubts"),
    [
        ({"stream": "other"}, True),
        ({"ackError": _Ack.WRONG_STREAM}, True),
        ({"ackError": _Ack.NOT_LEADER, "streamUid": ""}, True),
        ({"ackError": _Ack.NOT_LEADER}, False),
        ({}, False),
    ],
)
async def test_producer_after_an_ack_of_another_stream_looks_up_the_address(says: dict[str, Any], doubts: bool) -> None:
    p = await a_producer(Wire())
    (course,) = p._courses
    told: list[bool] = []
    course.addressing.doubt = lambda: told.append(True)  # type: ignore[method-assign]
    ack = _Ack(**{"stream": "s", "streamUid": "u1"} | says)
    course.process_answer(0, 1, SimpleNamespace(data=frames.encode(ack), headers=None))
    assert told == [True] * doubts
    await p.close()


async def test_producer_open_rejected_as_overloaded_is_retried_after_a_lookup() -> None:
    wire, found = Wire(), list[int]()

    async def find(partition: int) -> Address:
        found.append(partition)
        return Address("ev.0", "u1")

    through, refuses = wire._through, [_Ack.OVERLOADED]

    def refused(subject: str, payload: bytes, reply: str) -> list[tuple[str, bytes]]:
        if refuses:
            return [(reply, frames.encode(_Ack(stream="s", streamUid="u1", ackError=refuses.pop())))]
        return through(subject, payload, reply)

    wire._through = refused  # type: ignore[method-assign]
    async with await a_producer(wire, find=find) as p:
        await p.send(b"a")
    assert (wire.values(), wire.asked, found) == ([b"a"], 2, [0])


async def test_producer_send_yields_to_the_event_loop_once_per_batch() -> None:
    wire, turns = Wire(), [0]
    p = await a_producer(wire, linger_s=60)

    async def count() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    before = turns[0]
    for n in range(50):
        await p.send(b"%d" % n)
    assert 1 <= turns[0] - before <= 5
    counting.cancel()
    await p.flush()
    await p.close()


async def test_producer_close_cancels_its_background_tasks() -> None:
    wire, asks = Wire(), asyncio.Event()

    async def find(partition: int) -> Address:
        asks.set()
        return await asyncio.get_running_loop().create_future()

    p = await a_producer(wire, find=find)
    wire.denied(True, "ev.0")  # it has failed, and its own tasks with it
    p._courses[0].addressing.doubt()
    await asks.wait()
    task = p._courses[0].addressing.task
    await p.close()
    assert task is not None
    assert [made.done() for made in (task, *p._tasks)] == [True, True]


async def test_producer_close_removes_its_client_callbacks() -> None:
    wire = Wire()
    p = await a_producer(wire, linger_s=60)
    await p.send(b"a")
    async with asyncio.timeout(30):
        await p.flush()
    assert (wire.values(), wire.unwatched) == ([b"a"], [])
    await p.close()
    assert (wire.unwatched, wire.left) == (["denials", "close"], 1)


async def test_producer_buffer_size_includes_headers() -> None:
    wire = Wire()
    p = await a_producer(wire, linger_s=60)
    await p.send(b"abc", key=b"de", headers={"name": "value", "n": "v"})
    assert p.unanswered == (1, 3 + 2 + RECORD_BYTES + (4 + 5 + RECORD_BYTES) + (1 + 1 + RECORD_BYTES))
    await p.flush()
    assert p.unanswered == (0, 0)
    await p.close()


@pytest.mark.parametrize("has_sent", [True, False])
async def test_producer_without_a_digest_sends_no_digest_to_the_next_leader(has_sent: bool) -> None:
    """The first leader read a compacted log and has no digest. The next leader has the digest of all records."""
    wire = Wire()
    async with await a_producer(wire) as p:
        await p.send_many([b"a", b"b"])
    producers = wire.nodes[0].ingest._derived.producers
    ((producer_id, whole),) = producers._states.items()
    producers._states[producer_id] = whole._replace(digest=None)
    async with await a_producer(wire) as p:
        state, digest = producers._states[producer_id], whole.digest
        if has_sent:
            await p.send(b"c")
            await p.flush()
            state = producers._states[producer_id]
            assert state.digest is None
            digest = digest.over(wire.nodes[0].batches[-1].columns, 0, 1)
        producers._states[producer_id] = state._replace(digest=digest)
        wire.another_leader()
        await p.send(b"d")
        await p.flush()
    assert wire.values() == [b"a", b"b", *([b"c"] if has_sent else []), b"d"]


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
