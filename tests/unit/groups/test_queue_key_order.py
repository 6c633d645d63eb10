"""Test work queues with and without an order per key, against a model of single records [Q7]."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy.core.groups import commands
from liftpy.core.groups.queue import KEY_BYTES, PIECE_BYTES, WorkQueue
from liftpy.core.wire._pb import group_pb2 as pb
from tests.long import examples

S = 1_000_000_000


def take(
    queue: WorkQueue, keys: list[int], now_s: float = 0.0, count: int = 10, first: int = 0, **more: int
) -> list[pb.GrantedRange]:
    """Take records. ``keys`` are the keys of the records from ``first`` to the log end."""
    queue.expire(round(now_s * S))
    more = {"ackWaitMs": 10_000, "maxDeliveries": 3, "ordered": True, **more}
    asked = pb.TakeRecords(member="a", maxRecords=count, logEnd=first + len(keys), keysFrom=first, keys=keys, **more)
    return queue.lease_records(asked, round(now_s * S))


def settle(
    queue: WorkQueue, kind: pb.SettleKind, offset: int, lease: int, now_s: float = 0.0, **more: int
) -> list[tuple[int, int]]:
    return settle_ranges(queue, kind, [(offset, offset + 1, lease)], now_s, **more)


def settle_ranges(
    queue: WorkQueue, kind: pb.SettleKind, ranges: list[tuple[int, int, int]], now_s: float = 0.0, **more: int
) -> list[tuple[int, int]]:
    """Settle ``ranges`` (start, end, lease) with one settlement."""
    queue.expire(round(now_s * S))
    parts = [pb.RecordRange(start=start, end=end, lease=lease) for start, end, lease in ranges]
    return queue.settle(pb.Settlement(kind=kind, ranges=parts, **more), "a", round(now_s * S))


def offsets(parts: list[pb.GrantedRange]) -> list[int]:
    return [offset for part in parts for offset in range(part.start, part.end)]


def test_ordered_work_queue_take_without_the_keys_of_new_records_is_rejected() -> None:
    queue = WorkQueue("u", 5, ordered=True)
    assert take(queue, []) == take(queue, [1, 1], first=6) == [], "not those that are next"
    assert offsets(take(queue, [9] * 5 + [1, 1, 0, 0, 2])) == [5, 7, 8, 9]
    assert (queue.frontier, queue.view("s", 0).held) == (10, 1)


def test_ordered_work_queue_bounds_records_that_wait_for_their_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MAX_BLOCKED_RECORDS", 3)
    queue = WorkQueue("u", 0, ordered=True)
    keys = [1] * 6 + [0, 2]
    assert offsets(take(queue, keys)) == [0]
    assert (queue.frontier, queue.is_full, queue.size_bytes) == (4, False, 6 * PIECE_BYTES + 4 * KEY_BYTES)
    settle(queue, pb.SETTLE_ACK, 0, 1)
    assert offsets(take(queue, keys)) == [1], "and one more is looked at"
    settle(queue, pb.SETTLE_ACK, 1, 2)
    assert offsets(take(queue, keys)) == [2]
    settle(queue, pb.SETTLE_ACK, 2, 3)
    assert offsets(take(queue, keys)) == [3, 6, 7]
    monkeypatch.setattr(commands, "MAX_QUEUE_RANGES", 4)
    assert take(queue, [*keys, 0, 0, 0]) == []
    assert queue.is_full


def test_ordered_work_queue_with_pending_records_rejects_a_change_of_the_order() -> None:
    queue = WorkQueue("u", 0, ordered=True)
    assert queue.order(True)
    take(queue, [1])
    assert not queue.order(False)
    assert queue.ordered
    settle(queue, pb.SETTLE_ACK, 0, 1)
    assert queue.order(False)
    assert not queue.ordered


class Naive:
    """Model each record separately: its key, its redelivery time and its state."""

    def __init__(self, keys: list[int]) -> None:
        self.keys, self.seen = keys, 0
        self.due: dict[int, float] = {}
        self.out: dict[int, float] = {}
        self.done: set[int] = set()

    def is_first_of_key(self, offset: int) -> bool:
        key = self.keys[offset]
        return not key or all(other in self.done for other in range(offset) if self.keys[other] == key)

    def free(self, offset: int, now_s: float) -> bool:
        waits = offset in self.done or offset in self.out or self.due.get(offset, 0) > now_s
        return not waits and self.is_first_of_key(offset)

    def expire(self, now_s: float) -> None:
        for offset in [offset for offset, until in self.out.items() if until <= now_s]:
            self.due[offset] = self.out.pop(offset)

    def figures(self) -> tuple[int, int, int, int, int]:
        """Return the first offset that is not done, the end of the records seen, and how many of those are out, returned and held."""
        open_offsets = [offset for offset in range(self.seen) if offset not in self.done]
        waiting = [offset for offset in open_offsets if offset not in self.out]
        held = sum(not self.is_first_of_key(offset) for offset in waiting)
        return min(open_offsets, default=self.seen), self.seen, len(self.out), len(waiting) - held, held

    def take(self, now_s: float, end: int, count: int) -> list[int]:
        self.expire(now_s)
        ready = [offset for offset in range(self.seen) if self.free(offset, now_s)]
        given = sorted(ready, key=lambda offset: (self.due.get(offset, 0), offset))[:count]
        self.out.update(dict.fromkeys(given, now_s + 10))
        while self.seen < end and len(given) < count:
            if self.free(self.seen, now_s):
                given.append(self.seen)
                self.out[self.seen] = now_s + 10
            self.seen += 1
        return sorted(given)


steps = st.lists(
    st.tuples(
        st.sampled_from(("lease_records", "ack", "nack", "later", "extend", "snapshot")),
        st.integers(1, 6),
        st.sampled_from((0, 1, 3, 11)),
        st.lists(st.booleans(), min_size=1, max_size=5),
    ),
    max_size=60,
)


@settings(max_examples=examples(200), deadline=None)
@given(ordered=st.booleans(), keys=st.lists(st.integers(0, 3), min_size=1, max_size=40), history=steps)
def test_work_queue_after_random_operations_equals_a_model(
    ordered: bool, keys: list[int], history: list[tuple[str, int, int, list[bool]]]
) -> None:
    """Without the order per key, no record has a key. One settlement has several ranges, joined where the lease is the same."""
    keys = keys if ordered else [0] * len(keys)
    queue, naive, now_s, leases = WorkQueue("u", 0, ordered=ordered), Naive(keys), 0.0, dict[int, int]()
    for what, count, wait_s, chosen in history:
        now_s += wait_s
        if what == "lease_records":
            end = min(len(keys), naive.seen + count)
            begin = max(0, queue.frontier - wait_s)
            told = take(queue, keys[begin:end], now_s, count, begin, maxDeliveries=1000, ordered=ordered)
            assert offsets(told) == naive.take(now_s, end, count)
            leases.update({offset: part.lease for part in told for offset in range(part.start, part.end)})
        elif what == "snapshot":
            queue = WorkQueue.from_state(pb.QueueState.FromString(queue.state("s", 0).SerializeToString()))
        else:
            queue.expire(round(now_s * S))
            naive.expire(now_s)
            settled = [offset for place, offset in enumerate(sorted(naive.out)) if chosen[place % len(chosen)]]
            if not settled:
                continue
            kind = {"ack": pb.SETTLE_ACK, "extend": pb.SETTLE_EXTEND}.get(what, pb.SETTLE_NACK)
            ranges = joined([(offset, offset + 1, leases[offset]) for offset in settled])
            assert settle_ranges(queue, kind, ranges, now_s, delayMs=4000 if what == "later" else 0) == []
            for offset in settled:
                if what == "extend":
                    naive.out[offset] = now_s + 10
                    continue
                del naive.out[offset]
                if what == "ack":
                    naive.done.add(offset)
                else:
                    naive.due[offset] = now_s + (4 if what == "later" else 0)
        view = queue.view("s", 0)
        assert (view.acknowledgedBelow, view.takenBelow, view.out, view.returned, view.held) == naive.figures()


def joined(ranges: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Join neighbors that have the same lease."""
    found: list[tuple[int, int, int]] = []
    for start, end, lease in ranges:
        if found and found[-1][1:] == (start, lease):
            found[-1] = (found[-1][0], end, lease)
        else:
            found.append((start, end, lease))
    return found
