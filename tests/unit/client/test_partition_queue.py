"""Test the partition queue of a producer with the rules of a leader, lost and repeated messages, and leader changes."""

from __future__ import annotations

import pytest

from liftpy.client.partition_queue import (
    FIRST_PAUSE_S,
    BatchRejection,
    BatchResult,
    PartitionQueue,
    ProducerBatch,
)
from liftpy.core.publish.digest import RollingDigest
from liftpy.core.wire.batch import parse_batch


def a_lane(window: int = 3, batch_records: int = 2, batch_bytes: int = 1000, linger_s: float = 0.0) -> PartitionQueue:
    lane = PartitionQueue(
        7,
        window=window,
        batch_bytes=batch_bytes,
        batch_records=batch_records,
        attempt_s=1.0,
        linger_s=linger_s,
        new_ticket=list,
    )
    lane.begin(0, 0, RollingDigest())
    return lane


def fill(lane: PartitionQueue, *values: bytes) -> None:
    for value in values:
        ticket, index = lane.add(value, None, (), len(value), 0.0)
        assert index == len(ticket)
        ticket.append(value.decode())


def sent(lane: PartitionQueue, now: float) -> list[ProducerBatch]:
    found = []
    while (batch := lane.next_to_send(now)) is not None:
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
    one, many = a_lane(99, batch_records, batch_bytes), a_lane(99, batch_records, batch_bytes)
    for value in values:
        one.add(value, None, (), len(value), 0.0)
    many.add_many(values[:3], None, [len(value) for value in values[:3]], 0.0)
    many.add_many(values[3:], None, [len(value) for value in values[3:]], 0.0)
    assert [(p.encoded, p.size_bytes) for p in sent(many, 0)] == [(p.encoded, p.size_bytes) for p in sent(one, 0)]


def test_producer_partition_queue_batch_contains_keys_headers_and_tombstones() -> None:
    lane = a_lane(batch_records=3)
    lane.add(None, b"k", (), 1, 0.0)
    lane.add(b"v", None, (("h", b"1"),), 1, 0.0)
    columns = parse_batch(sent(lane, 0)[0].encoded).columns
    assert columns.values.to_list() == [None, b"v"]
    assert columns.keys is not None
    assert columns.keys.to_list() == [b"k", None]
    assert columns.headers is not None
    assert columns.headers.to_list() == [(), (("h", b"1"),)]
    bare = a_lane()
    bare.add_many([b"v"], None, [1], 0.0)
    plain = parse_batch(sent(bare, 0)[0].encoded).columns
    assert (plain.keys, plain.headers) == (None, None)


def test_producer_partition_queue_batch_contains_records_with_and_without_keys() -> None:
    lane = a_lane(batch_records=4)
    lane.add(b"a", b"k", (), 1, 0.0)
    lane.add_many([b"b"], None, [1], 0.0)
    assert parse_batch(sent(lane, 0)[0].encoded).keys() == [b"k", None]
    lane.add_many([b"c"], [b"l"], [1], 0.0)
    lane.add(b"d", None, (), 1, 0.0)
    assert parse_batch(sent(lane, 0)[0].encoded).keys() == [b"l", None]


# ---- answers -----------------------------------------------------------------------------------------------------------------
def test_producer_partition_queue_with_acks_in_any_order_completes_records_in_order() -> None:
    lane = a_lane()
    fill(lane, b"a", b"b", b"c", b"d", b"e")
    sent(lane, 0)
    assert lane.acked(2, at(2)) == []
    assert lane.acked(2, at(-1, 1)) == []
    assert lane.acked(99, at(2)) == []
    told = lane.acked(0, at(0))
    assert (tokens(told), [answer.offset for _, answer in told]) == (["a", "b", "c", "d"], [0, 2])
    assert not lane.is_empty
    assert tokens(lane.acked(4, at(4))) == ["e"]
    assert lane.is_empty


def test_producer_partition_queue_resends_rejected_batches_after_a_delay() -> None:
    lane = a_lane()
    fill(lane, b"a", b"b", b"c", b"d", b"e")
    before = sent(lane, 0)
    lane.acked(4, at(4))
    assert lane.refused(0, 1, BatchRejection.AGAIN, 5.0)
    assert sent(lane, 5.0) == []
    assert lane.wake_at() == 5.0 + FIRST_PAUSE_S
    again = sent(lane, 5.0 + FIRST_PAUSE_S)
    assert again == before[:2]
    assert [p.attempt for p in again] == [2, 2]
    assert lane.sent_again == 2
    assert lane.refused(0, 1, BatchRejection.FINAL, 6.0), "the answer to an earlier attempt says nothing any more"
    assert lane.wake_at() == 5.0 + FIRST_PAUSE_S + 1.0
    assert tokens(lane.acked(0, at(0, 2))) == ["a", "b"]
    assert tokens(lane.acked(2, at(2, 2))) == ["c", "d", "e"]


def test_producer_partition_queue_without_a_producer_epoch_sends_nothing() -> None:
    lane = PartitionQueue(7, window=3, batch_bytes=1000, batch_records=2, attempt_s=1.0, new_ticket=list)
    fill(lane, b"a")
    assert (lane.asks, sent(lane, 0), lane.wake_at()) == (True, [], None)
    lane.begin(0, 0, RollingDigest())
    assert len(sent(lane, 0)) == 1
    assert lane.refused(99, 1, BatchRejection.FINAL, 1.0)
    assert not lane.refused(0, 1, BatchRejection.FINAL, 1.0)


def test_producer_partition_queue_fails_when_the_leader_lost_stored_records() -> None:
    lane = a_lane(window=1)
    fill(lane, b"a", b"b", b"c", b"d", b"e")
    sent(lane, 0)
    lane.acked(0, at(0))
    sent(lane, 0)
    assert lane.refused(2, 1, BatchRejection.OUT_OF_ORDER, 1.0, due=2), "a gap before it that another attempt fills"
    sent(lane, 9.0)
    assert not lane.refused(2, 2, BatchRejection.OUT_OF_ORDER, 9.0, due=1), "what was stored is gone"
    assert not lane.refused(2, 2, BatchRejection.FINAL, 9.0)
    assert lane.tickets == [(["c", "d"], 2), (["e"], 0)]


def test_producer_partition_queue_sends_a_partial_batch_after_the_linger_time() -> None:
    lane = a_lane(linger_s=0.5)
    fill(lane, b"a")
    assert (sent(lane, 0.49), lane.wake_at()) == ([], 0.5)
    assert [values_of(p) for p in sent(lane, 0.5)] == [[b"a"]]
    fill(lane, b"b", b"c", b"d")
    assert not lane.next_record_begins_batch
    assert [values_of(p) for p in sent(lane, 0.1)] == [[b"b", b"c"]]
    lane.hurry()
    assert lane.wake_at() == 0.0
    assert [values_of(p) for p in sent(lane, 0.1)] == [[b"d"]]
    assert lane.next_record_begins_batch
    lane.acked(0, at(0))
    fill(lane, b"e")
    assert sent(lane, 0.1) == [], "who was in a hurry has gone"
    assert lane.wake_at() == 0.5


def test_producer_partition_queue_unknown_to_the_leader_gets_a_new_epoch_and_resends_its_batches() -> None:
    lane = a_lane(window=2)
    fill(lane, b"a", b"b", b"c", b"d", b"e")
    lane.add_many([b"f"], None, [1], 0.0)
    before = sent(lane, 0)
    was = [(p.sequence, values_of(p), p.digest) for p in before]
    assert lane.refused(0, 1, BatchRejection.UNKNOWN, 1.0)
    assert lane.asks
    assert (sent(lane, 9.0), lane.wake_at()) == ([], None)
    assert lane.unanswered == (0, RollingDigest())
    lane.begin_new_epoch(5)
    assert not lane.asks
    again = sent(lane, 9.0)
    assert [(p.sequence, values_of(p), p.digest) for p in again] == was
    assert [parse_batch(p.encoded).header.producer_epoch for p in again] == [5, 5]
    for batch in again:
        lane.acked(batch.sequence, at(0))
    assert [parse_batch(p.encoded).header.producer_epoch for p in sent(lane, 9.0)] == [5]
    assert lane.unanswered[0] == 4


def test_producer_partition_queue_after_a_reconnect_resends_one_batch_several_times_per_second() -> None:
    lane = a_lane()
    fill(lane, b"a", b"b", b"c")
    first, second = sent(lane, 0)
    for now in (3.0, 8.0, 15.0):  # nobody answers: the pause grows
        lane.late(now)
        sent(lane, now + 1.0)
    lane.connection_renewed(20.0)
    assert lane.wake_at() == 20.0
    now, times = 20.0, []
    while now < 21.0:
        lane.late(now)
        times += [now for _ in sent(lane, now)]
        now = lane.wake_at() or 0.0
    assert len(times) > 2, "one batch at a time, and often"
    lane.acked(first.sequence, at(0))
    assert [p.sequence for p in sent(lane, now)] == [second.sequence]


def test_producer_partition_queue_over_quota_after_a_reconnect_still_waits_for_the_delay() -> None:
    lane = a_lane()
    fill(lane, b"a")
    (first,) = sent(lane, 0)
    lane.refused(first.sequence, 1, BatchRejection.AGAIN, 1.0, after_s=9.0)
    lane.connection_renewed(2.0)
    assert (sent(lane, 2.0), lane.wake_at()) == ([], 10.0)
