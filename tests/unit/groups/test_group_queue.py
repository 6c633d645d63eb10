"""Test a work queue: record ranges, ack waits, dead letters and limits."""

from __future__ import annotations

import itertools
import time

import pytest

from liftpy.core.groups import commands
from liftpy.core.groups.queue import WorkQueue
from liftpy.core.wire._pb import group_pb2 as pb

S = 1_000_000_000


def take(
    queue: WorkQueue, now_s: float = 0.0, member: str = "a", count: int = 10, end: int = 100, **more: int
) -> list[tuple[int, int, int]]:
    command = pb.TakeRecords(member=member, stream="s", uid="u", maxRecords=count, logEnd=end, ackWaitMs=10_000, **more)
    queue.expire(round(now_s * S))
    return [(part.start, part.end, part.lease) for part in queue.lease_records(command, round(now_s * S))]


def settle(
    queue: WorkQueue, kind: pb.SettleKind, *ranges: tuple[int, int, int], now_s: float = 0.0, member: str = "a", **more: object
) -> list[tuple[int, int]]:
    parts = [pb.RecordRange(start=start, end=end, lease=lease) for start, end, lease in ranges]
    settlement = pb.Settlement(kind=kind, stream="s", uid="u", ranges=parts, **more)  # type: ignore[arg-type]
    queue.expire(round(now_s * S))
    return queue.settle(settlement, member, round(now_s * S))


def shown(queue: WorkQueue) -> str:
    return " ".join(f"{piece.kind.name}{piece.start}..{piece.end}" for piece in queue.pieces)


def test_work_queue_of_the_documented_example_delivers_the_documented_records() -> None:
    queue = WorkQueue("u", 0)
    assert take(queue) == [(0, 10, 1)]
    assert settle(queue, pb.SETTLE_ACK, (4, 6, 1)) == []
    assert shown(queue) == "OUT0..4 DONE4..6 OUT6..10"
    assert take(queue, 10.0, "b", 5) == [(0, 4, 2), (6, 7, 2)]
    assert shown(queue) == "OUT0..4 DONE4..6 OUT6..7 BACK7..10"
    assert settle(queue, pb.SETTLE_ACK, (0, 4, 2), now_s=11, member="b") == []
    assert queue.prefix == 6
    assert settle(queue, pb.SETTLE_ACK, (0, 6, 1), now_s=11) == [], "what is done is done"
    assert settle(queue, pb.SETTLE_NACK, (0, 6, 1), (6, 7, 1), (7, 9, 1), (90, 99, 1), now_s=11) == [
        (0, 6), (6, 7), (7, 9), (90, 99),
    ]  # fmt: skip


def test_work_queue_acknowledged_in_any_order_begins_at_its_first_record_without_ack() -> None:
    for order in itertools.permutations([(0, 2), (2, 3), (3, 4), (4, 6)]):
        queue = WorkQueue("u", 0)
        take(queue, count=6)
        for number, (start, end) in enumerate(order, 1):
            assert settle(queue, pb.SETTLE_ACK, (start, end, 1)) == []
            assert queue.prefix == min((first for first, _ in order[number:]), default=6), order


def test_work_queue_record_above_the_delivery_limit_is_delivered_once_as_a_dead_letter() -> None:
    queue = WorkQueue("u", 0)
    for number in (1, 2):
        assert take(queue, number, count=1, end=2, maxDeliveries=2) == [(0, 1, number)]
        settle(queue, pb.SETTLE_NACK, (0, 1, number), now_s=number)
    given = queue.lease_records(pb.TakeRecords(member="a", maxRecords=2, logEnd=2, maxDeliveries=2), 3 * S)
    assert [(part.start, part.dead, part.deliveries, part.reason) for part in given] == [
        (0, True, 2, "delivered 2 times"), (1, False, 1, ""),
    ]  # fmt: skip
    settle(queue, pb.SETTLE_REJECT, (1, 2, 3), now_s=3, reason="no such account")
    settle(queue, pb.SETTLE_RELEASE, (0, 1, 3), now_s=3)
    given = queue.lease_records(pb.TakeRecords(member="a", maxRecords=2, logEnd=2), 3 * S)
    assert [(part.start, part.dead, part.reason) for part in given] == [
        (0, True, "delivered 2 times"),
        (1, True, "no such account"),
    ]
    assert settle(queue, pb.SETTLE_ACK, (0, 2, 4), now_s=3) == []
    assert (queue.prefix, queue.pieces) == (2, ())


def test_work_queue_redelivers_a_record_after_the_ack_wait_or_the_requested_delay() -> None:
    queue = WorkQueue("u", 0)
    assert queue.next_ready_ns() is None
    take(queue, count=4, end=4)
    assert queue.next_ready_ns() == 10 * S
    settle(queue, pb.SETTLE_EXTEND, (0, 2, 1), now_s=5)
    settle(queue, pb.SETTLE_NACK, (3, 4, 1), now_s=5, delayMs=2000)
    assert queue.next_ready_ns() == 7 * S
    assert take(queue, 6.9) == [(4, 14, 2)]
    assert take(queue, 7, count=1) == [(3, 4, 3)]
    assert take(queue, 10, count=20, end=14) == [(2, 3, 4)]
    assert take(queue, 15, count=20, end=14) == [(0, 2, 5)]
    assert settle(queue, pb.SETTLE_EXTEND, (0, 2, 5), now_s=25, member="a") == [(0, 2)], "too late"


def test_work_queue_limits_pending_records_per_queue_and_member() -> None:
    queue = WorkQueue("u", 0)
    bounds = {"maxAckPending": 15, "maxMemberPending": 8}
    assert take(queue, **bounds) == [(0, 8, 1)]
    assert take(queue, **bounds) == []
    assert take(queue, member="b", **bounds) == [(8, 15, 2)]
    assert take(queue, member="c", **bounds) == [], "[Q5]"
    settle(queue, pb.SETTLE_ACK, (0, 3, 1))
    assert take(queue, member="c", **bounds) == [(15, 18, 3)]


def test_work_queue_above_its_state_limit_delivers_no_new_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MAX_QUEUE_RANGES", 10)
    queue = WorkQueue("u", 0)
    take(queue, count=100, end=1000)
    for offset in range(0, 40, 2):
        settle(queue, pb.SETTLE_NACK, (offset, offset + 1, 1))
    assert take(queue, member="b", count=1000, end=1000)[-1][1] == 39, "what comes again is given, new records are not"
    settle(queue, pb.SETTLE_ACK, *[(offset, offset + 1, 1) for offset in range(1, 100, 2)])
    assert take(queue, member="c", end=1000) == []


def test_work_queue_take_and_ack_cost_does_not_grow_with_the_number_of_records() -> None:
    """By ranges: what a take and its acknowledgement cost does not grow with the records, only with the pieces."""
    steps = {}
    for count in (1, 10_000):
        queue, least = WorkQueue("u", 0), 1.0
        for number in range(1, 50):
            begin = time.perf_counter()
            ((start, end, lease),) = take(queue, count=count, end=1 << 40)
            settle(queue, pb.SETTLE_ACK, (start, end, lease))
            least = min(least, time.perf_counter() - begin)
            assert (queue.prefix, lease) == (number * count, number)
        steps[count] = least
    assert steps[10_000] < 20 * steps[1]


def test_work_queue_settlement_of_an_unknown_lease_costs_no_scan_of_its_pieces() -> None:
    """One command may contain 64 of them, each for the whole queue."""
    part = pb.RecordRange(start=0, end=10_000, lease=999)
    settlement = pb.Settlement(kind=pb.SETTLE_EXTEND, stream="s", uid="u", ranges=[part])
    steps = {}
    for count in (10, 5_000):
        queue, least = WorkQueue("u", 0), 1.0
        take(queue, count=2 * count, end=2 * count)
        settle(queue, pb.SETTLE_ACK, *((at, at + 1, 1) for at in range(1, 2 * count, 2)))
        for _ in range(50):
            begin = time.perf_counter()
            assert queue.settle(settlement, "a", 0, most_lost=1)[0] == (0, 1)
            least = min(least, time.perf_counter() - begin)
        steps[count] = least
    assert steps[5_000] < 20 * steps[10]
