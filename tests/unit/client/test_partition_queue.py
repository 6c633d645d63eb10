"""Test the partition queue of a producer with the rules of a leader, lost and repeated messages, and leader changes."""

from __future__ import annotations

import pytest

from liftpy.client.partition_queue import (
    BatchRejection,
    BatchResult,
    PartitionQueue,
    ProducerBatch,
)
from liftpy.core.publish.digest import RollingDigest
from liftpy.core.wire.batch import parse_batch


def new_queue(window: int = 3, batch_records: int = 2, batch_bytes: int = 1000, linger_s: float = 0.0) -> PartitionQueue:
    queue = PartitionQueue(
        7,
        window=window,
        batch_bytes=batch_bytes,
        batch_records=batch_records,
        attempt_s=1.0,
        linger_s=linger_s,
        new_ticket=list,
    )
    queue.begin(0, 0, RollingDigest())
    return queue


def fill(queue: PartitionQueue, *values: bytes) -> None:
    for value in values:
        ticket, index = queue.add(value, None, (), len(value), 0.0)
        assert index == len(ticket)
        ticket.append(value.decode())


def sent(queue: PartitionQueue, now: float) -> list[ProducerBatch]:
    found = []
    while (batch := queue.next_to_send(now)) is not None:
        found.append(batch)
    return found


def values_of(batch: ProducerBatch) -> list[bytes | None]:
    return parse_batch(batch.encoded).values()


def tokens(told: list[tuple[ProducerBatch, BatchResult]]) -> list[str]:
    return [token for batch, _ in told for token in batch.ticket]


def at(offset: int, known: int = 0) -> BatchResult:
    return BatchResult(offset, 1, known)


# ---- batches -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("batch_records", "batch_bytes"), [(10, 5), (3, 100), (1, 100), (10, 1), (2, 6)])
def test_producer_partition_queue_add_many_without_keys_builds_the_same_batches_as_add(
    batch_records: int, batch_bytes: int
) -> None:
    values = [b"aa", b"bbb", b"c", b"ddddddd", b"e", b"f", b"g", b"hh", b"i"]
    one, many = new_queue(99, batch_records, batch_bytes), new_queue(99, batch_records, batch_bytes)
    for value in values:
        one.add(value, None, (), len(value), 0.0)
    many.add_many(values[:3], None, [len(value) for value in values[:3]], 0.0)
    many.add_many(values[3:], None, [len(value) for value in values[3:]], 0.0)
    assert [(p.encoded, p.size_bytes) for p in sent(many, 0)] == [(p.encoded, p.size_bytes) for p in sent(one, 0)]


# ---- answers -----------------------------------------------------------------------------------------------------------------
def test_producer_partition_queue_with_acks_in_any_order_completes_records_in_order() -> None:
    queue = new_queue()
    fill(queue, b"a", b"b", b"c", b"d", b"e")
    sent(queue, 0)
    assert queue.acked(2, at(2)) == []
    assert queue.acked(2, at(-1, 1)) == []
    assert queue.acked(99, at(2)) == []
    told = queue.acked(0, at(0))
    assert (tokens(told), [answer.offset for _, answer in told]) == (["a", "b", "c", "d"], [0, 2])
    assert queue.tickets
    assert tokens(queue.acked(4, at(4))) == ["e"]
    assert not queue.tickets


def test_producer_partition_queue_without_a_producer_epoch_sends_nothing() -> None:
    queue = PartitionQueue(7, window=3, batch_bytes=1000, batch_records=2, attempt_s=1.0, new_ticket=list)
    fill(queue, b"a")
    assert (queue.asks, sent(queue, 0), queue.wake_at()) == (True, [], None)
    queue.begin(0, 0, RollingDigest())
    assert len(sent(queue, 0)) == 1
    assert queue.refused(99, 1, BatchRejection.FINAL, 1.0)
    assert not queue.refused(0, 1, BatchRejection.FINAL, 1.0)


def test_producer_partition_queue_with_a_new_epoch_repeats_its_unanswered_batches_in_that_epoch() -> None:
    queue = new_queue()
    fill(queue, b"a", b"b", b"c")
    sent(queue, 0)
    queue.begin_new_epoch(5)
    repeated = [parse_batch(batch.encoded) for batch in sent(queue, 0)]
    assert [(batch.header.producer_epoch, batch.header.base_sequence, batch.values()) for batch in repeated] == [
        (5, 0, [b"a", b"b"]), (5, 2, [b"c"]),
    ]  # fmt: skip


def test_producer_partition_queue_fails_when_the_leader_lost_stored_records() -> None:
    queue = new_queue(window=1)
    fill(queue, b"a", b"b", b"c", b"d", b"e")
    sent(queue, 0)
    queue.acked(0, at(0))
    sent(queue, 0)
    assert queue.refused(2, 1, BatchRejection.OUT_OF_ORDER, 1.0, due=2), "a gap before it that another attempt fills"
    sent(queue, 9.0)
    assert not queue.refused(2, 2, BatchRejection.OUT_OF_ORDER, 9.0, due=1), "what was stored is gone"
    assert not queue.refused(2, 2, BatchRejection.FINAL, 9.0)
    assert queue.tickets == [(["c", "d"], 2), (["e"], 0)]


def test_producer_partition_queue_sends_a_partial_batch_after_the_linger_time() -> None:
    queue = new_queue(linger_s=0.5)
    fill(queue, b"a")
    assert (sent(queue, 0.49), queue.wake_at()) == ([], 0.5)
    assert [values_of(p) for p in sent(queue, 0.5)] == [[b"a"]]
    fill(queue, b"b", b"c", b"d")
    assert not queue.next_record_begins_batch
    assert [values_of(p) for p in sent(queue, 0.1)] == [[b"b", b"c"]]
    queue.hurry()
    assert queue.wake_at() == 0.0
    assert [values_of(p) for p in sent(queue, 0.1)] == [[b"d"]]
    assert queue.next_record_begins_batch
    queue.acked(0, at(0))
    fill(queue, b"e")
    assert sent(queue, 0.1) == [], "who was in a hurry has gone"
    assert queue.wake_at() == 0.5


def test_producer_partition_queue_after_a_reconnect_resends_one_batch_several_times_per_second() -> None:
    queue = new_queue()
    fill(queue, b"a", b"b", b"c")
    first, second = sent(queue, 0)
    for now in (3.0, 8.0, 15.0):  # nobody answers: the pause grows
        queue.late(now)
        sent(queue, now + 1.0)
    queue.connection_renewed(20.0)
    assert queue.wake_at() == 20.0
    now, times = 20.0, []
    while now < 21.0:
        queue.late(now)
        times += [now for _ in sent(queue, now)]
        now = queue.wake_at() or 0.0
    assert len(times) > 2, "one batch at a time, and often"
    queue.acked(first.sequence, at(0))
    assert [p.sequence for p in sent(queue, now)] == [second.sequence]


def test_producer_partition_queue_over_quota_after_a_reconnect_still_waits_for_the_delay() -> None:
    queue = new_queue()
    fill(queue, b"a")
    (first,) = sent(queue, 0)
    queue.refused(first.sequence, 1, BatchRejection.AGAIN, 1.0, after_s=9.0)
    queue.connection_renewed(2.0)
    assert (sent(queue, 2.0), queue.wake_at()) == ([], 10.0)
