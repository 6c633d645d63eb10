"""Test a producer with the real ingest of nodes and lost messages: each record is stored once, in order, with an ack."""

from __future__ import annotations

import asyncio
import random
from itertools import chain
from typing import Any

import pytest

from liftpy.client.partition_sender import BATCH_BYTES, RECORD_BYTES, ManyAck
from liftpy.core.wire._pb import client_pb2
from liftpy.errors import (
    ClientClosedError,
    LiftError,
    NotAllowedError,
    OutcomeUnknownError,
    PublishRejectedError,
    UnavailableError,
)
from liftpy.nats.transport import NoRespondersError, RequestTimeoutError
from tests.unit.client.producer_wire import Wire, a_producer


@pytest.mark.parametrize("seed", range(6))
async def test_producer_with_lost_messages_and_leader_changes_stores_each_record_once(seed: int) -> None:
    rng = random.Random(seed)
    wire = Wire(partitions=2)
    given: list[list[bytes]] = [[], []]
    loses = [0.25]
    wire.loses = lambda: rng.random() < loses[0]
    p = await a_producer(wire, attempt_s=0.01, batch_records=3, linger_s=rng.choice((0.0, 0.001)))
    receipts = []
    for n in range(120):
        at = rng.randrange(2)
        given[at].append(b"%d" % n)
        receipts.append((at, n, await p.send(given[at][-1], partition=at)))
        if rng.random() < 0.05:
            wire.another_leader(rng.randrange(2))
        if rng.random() < 0.05:
            renewed, wire.reconnected = wire.reconnected, asyncio.get_running_loop().create_future()
            renewed.set_result(None)
        if rng.random() < 0.2:
            await asyncio.sleep(0)
    loses[0] = 0.1
    await p.flush()
    assert [wire.values(at) for at in range(2)] == given
    for at, n, receipt in receipts:
        assert wire.values(at)[(await receipt).offset] == b"%d" % n
    assert p.resends
    await p.close()


async def test_producer_after_a_leader_change_requests_one_new_epoch() -> None:
    wire = Wire()
    p = await a_producer(wire)
    wire.another_leader()
    await p.send(b"a")
    await p.flush()
    assert (wire.values(), wire.asked) == ([b"a"], 2)
    wire.another_leader()
    await p.send(b"b")
    await p.flush()
    assert (wire.values(), wire.asked) == ([b"a", b"b"], 2), "the log knows its epoch"
    await p.close()


async def test_producer_after_another_producer_with_its_id_stored_records_raises_diverged() -> None:
    wire = Wire()
    p = await a_producer(wire)
    wire.another_leader()
    async with await a_producer(wire) as other:
        await other.send(b"theirs")
    wire.another_leader()
    receipt = await p.send(b"mine")
    with pytest.raises(PublishRejectedError, match="DIVERGED_PRODUCER"):
        await p.flush()
    with pytest.raises(PublishRejectedError):
        await receipt
    await p.close()
    assert wire.values() == [b"theirs"]


async def test_producer_resuming_from_a_stale_leader_raises_diverged() -> None:
    wire = Wire()
    old = await a_producer(wire)
    await old.send(b"a")
    await old.flush()
    new = await a_producer(wire)
    wire.another_leader()
    await old.send(b"b")
    await old.flush()
    receipt = await new.send(b"c")
    with pytest.raises(PublishRejectedError, match="Another process has published"):
        await new.flush()
    with pytest.raises(LiftError):
        await receipt
    await new.close()
    await old.send(b"d")
    with pytest.raises(PublishRejectedError, match="FENCED"):
        await old.flush()
    await old.close()
    assert wire.values() == [b"a", b"b"]


async def test_producer_opened_with_begin_repeat_stores_equal_records_once() -> None:
    wire = Wire()
    async with await a_producer(wire) as p:
        await p.send_many([b"a", b"b", b"c"])
    async with await a_producer(wire, begin="repeat") as again:
        assert again.next_sequence() == 0
        receipts = [await again.send(value) for value in (b"a", b"b", b"c", b"d")]
        acks = [await receipt for receipt in receipts]
    assert [(ack.offset, ack.duplicate) for ack in acks] == [(-1, True), (-1, True), (-1, True), (3, False)]
    assert wire.values() == [b"a", b"b", b"c", b"d"]
    other = await a_producer(wire, begin="repeat")
    await other.send_many([b"a", b"b", b"X", b"d", b"e"])
    with pytest.raises(PublishRejectedError, match="DIVERGED_PRODUCER"):
        await other.flush()
    await other.close()
    assert wire.values() == [b"a", b"b", b"c", b"d"]
    many = await a_producer(wire, begin="repeat")
    assert await (await many.send_many([b"a", b"b", b"c", b"d", b"e"])) == [
        ManyAck(0, -1, 4, 3, True),
        ManyAck(0, 4, 1, 3, False),
    ]
    await many.close()


async def test_producer_opened_with_begin_anew_starts_at_sequence_zero() -> None:
    wire = Wire()
    async with await a_producer(wire) as p:
        await p.send_many([b"a", b"b"])
    async with await a_producer(wire, begin="anew") as again:
        assert again.next_sequence() == 0
        await again.send(b"a")
        await again.flush()
        await again.send(b"b")
    assert wire.values() == [b"a", b"b", b"a", b"b"]
    assert [batch.header.base_sequence for batch in wire.nodes[0].batches][-2:] == [0, 1]


async def test_producer_close_without_acks_fails_sent_records_with_outcome_unknown() -> None:
    wire = Wire()
    p = await a_producer(wire, window=1, attempt_s=600.0, patience_s=3600.0)
    wire.commits = False
    sent = await p.send(b"a")
    while not wire.published:
        await asyncio.sleep(0)
    kept = await p.send(b"b")
    await p.close()
    with pytest.raises(OutcomeUnknownError, match="were sent, but not acknowledged"):
        await sent
    with pytest.raises(ClientClosedError):
        await kept


# ---- bounds ----------------------------------------------------------------------------------------------------------------------
async def test_producer_block_that_ends_after_close_raises_no_error() -> None:
    wire = Wire()
    async with await a_producer(wire) as producer:
        await (await producer.send(b"a"))
        await producer.close()
    assert wire.values() == [b"a"]
    with pytest.raises(ClientClosedError, match="Open a new producer"):
        await producer.send(b"b")


async def test_producer_send_with_a_full_buffer_waits_for_acks() -> None:
    wire = Wire()
    wire.commits = True
    p = await a_producer(wire, buffer_records=3, attempt_s=30.0)
    wire.commits = False
    for n in range(3):
        await p.send(b"%d" % n)
    waiting = asyncio.create_task(p.send(b"3"))
    more = asyncio.create_task(p.send(b"4"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not waiting.done()
    assert p.unanswered == (3, 3 * (1 + RECORD_BYTES))
    wire.commit(wire.nodes[0])
    wire.commits = True
    for line in wire.nodes[0].lines:
        wire.deliver(line.split()[1].decode(), line.partition(b"\r\n")[2][:-2])
    wire.nodes[0].lines = []
    await asyncio.gather(waiting, more)
    await p.flush()
    assert wire.values() == [b"0", b"1", b"2", b"3", b"4"]
    await p.close()


async def test_producer_close_fails_sends_that_wait_for_buffer_space() -> None:
    wire = Wire()
    p = await a_producer(wire, buffer_bytes=100, attempt_s=30.0)
    wire.commits = False
    await p.send(b"x" * 200)
    waiting = [asyncio.create_task(p.send(b"y" * 50)) for _ in range(3)]
    for _ in range(20):
        await asyncio.sleep(0)
    receipt_count = p.unanswered[0]
    await p.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert receipt_count == 1
    assert [type(result) for result in results] == [ClientClosedError] * 3


async def test_producer_send_many_is_split_by_buffer_and_message_size() -> None:
    wire = Wire()
    async with await a_producer(wire, buffer_records=10, buffer_bytes=2000, batch_bytes=300) as p:
        values = [b"v%d" % n * (1 + n % 9) for n in range(200)]
        receipt = await p.send_many(values, keys=[b"k%d" % n for n in range(200)])
        assert sum(piece.record_count for piece in await receipt) == 200
    assert wire.values() == values
    assert max(batch.header.size_bytes for batch in wire.nodes[0].batches) < 1000
    assert list(chain.from_iterable(batch.keys() for batch in wire.nodes[0].batches)) == [b"k%d" % n for n in range(200)]


async def test_producer_rejects_a_too_large_record_and_sends_the_other_records() -> None:
    wire = Wire()
    async with await a_producer(wire) as p:
        for attempt in (p.send(b"x" * wire.max_payload_bytes), p.send_many([b"x" * wire.max_payload_bytes])):
            with pytest.raises(PublishRejectedError) as raised:
                await attempt
            assert raised.value.reason == "TOO_LARGE"
        largest = wire.max_payload_bytes - BATCH_BYTES - RECORD_BYTES
        await p.send(b"y" * largest)
        await p.send_many([b"z"])
    assert [len(value or b"") for value in wire.values()] == [largest, 1]


async def test_producer_flush_without_acks_raises_outcome_unknown_after_patience_s() -> None:
    wire = Wire()
    p = await a_producer(wire, attempt_s=0.01, patience_s=0.05)
    wire.loses = lambda: True
    receipt = await p.send(b"a")
    with pytest.raises(OutcomeUnknownError, match=r"s/0 within 0\.05 s: no"):
        await p.flush()
    with pytest.raises(OutcomeUnknownError):
        await receipt
    await p.close()
    with pytest.raises(RequestTimeoutError):
        await a_producer(wire, patience_s=0.05)
    assert wire.left == 2, "one that could not be opened leaves nothing behind"


async def test_producer_timeout_error_contains_the_last_rejection() -> None:
    wire = Wire()
    p = await a_producer(wire, patience_s=0.05)

    def rejected(ack: Any) -> Any:
        ack.ackError = client_pb2.Ack.BELOW_MIN_ISR
        return ack

    wire.answers_as = rejected
    await p.send(b"a")
    with pytest.raises(OutcomeUnknownError, match="BELOW_MIN_ISR"):
        await p.flush()
    await p.close()


# ---- answers ---------------------------------------------------------------------------------------------------------------------
async def test_producer_retries_a_batch_after_a_connection_write_error() -> None:
    wire = Wire()
    p = await a_producer(wire)
    through, full = wire.publish, [UnavailableError("full"), NoRespondersError("none")]

    async def publish(subject: str, payload: bytes, reply: str = "", *, give_up_at: float) -> None:
        if full:
            raise full.pop()
        await through(subject, payload, reply, give_up_at=give_up_at)

    wire.publish = publish  # type: ignore[method-assign]
    await p.send(b"a")
    await p.flush()
    assert wire.values() == [b"a"]
    await p.close()


async def test_producer_send_after_a_permission_denial_raises_not_allowed() -> None:
    wire = Wire()
    p = await a_producer(wire)
    wire.denied(True, "elsewhere")
    wire.denied(False, "elsewhere")
    await p.send(b"a")
    await p.flush()
    wire.denied(True, "ev.0")
    with pytest.raises(NotAllowedError, match=r"publish on ev\.0"):
        await p.send(b"b")
    await p.close()
    p = await a_producer(wire)
    wire.denied(False, "_INBOX.me1.*")
    with pytest.raises(NotAllowedError, match="hear answers"):
        await p.send(b"b")
    await p.close()
    with pytest.raises(NotAllowedError, match="hear answers"):
        await p.send(b"c")
    p = await a_producer(wire)
    wire.closed()
    with pytest.raises(ClientClosedError):
        await p.send(b"b")
    await p.close()
    p = await a_producer(wire)
    wire.usable = False
    with pytest.raises(ClientClosedError):
        await p.send(b"b")
    await p.close()
