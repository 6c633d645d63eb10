"""Test the memory budget of publishes, and the limit of the age of queued publishes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from liftpy.config import NS_PER_S
from liftpy.core.publish.memory_budget import (
    LEAST_LIMIT_BYTES,
    READERS_SHARE,
    STANDBY_SHARE,
    AckDelay,
    MemoryBudget,
    NodePublishMemory,
    QueueDelay,
    limit_of,
)
from liftpy.errors import ConfigError
from sidecar.runtime.memory import memory_bytes
from sidecar.runtime.settings import NodeSettings

MS = NS_PER_S // 1000


class Node:
    """Takes ``takes`` messages a ms, or refuses ``refuses``; all that came in one ms has the same age. Looks once in a ms."""

    def __init__(self, late_s: float = 1.0, takes: int = 10, refuses: int = 100) -> None:
        self.room = MemoryBudget(late_s=late_s)
        self.rates = {False: takes, True: refuses}
        self.now_ms = self.arrived = self.done = 0
        self.told: dict[bool, list[int]] = {False: [], True: []}
        """Refused? -> ms that each ms's oldest had waited."""
        self.counts = {False: 0, True: 0}
        self._came: list[tuple[int, int]] = []

    def run(self, ms: int, per_ms: Callable[[int], int]) -> None:
        for step in range(ms):
            self.now_ms += 1
            if coming := per_ms(step):
                self.arrived += coming
                self._came.append((self.arrived, self.now_ms))
            self.room.update_wait(self.arrived, self.done, self.now_ms * MS)
            no, did = self.room.is_late, min(self.rates[self.room.is_late], self.arrived - self.done)
            if did:
                self.told[no].append(self.now_ms - self._came[0][1])
            self.counts[no] += did
            self.done += did
            while self._came and self._came[0][0] <= self.done:
                self._came.pop(0)


def test_queue_age_limit_during_a_short_burst_rejects_no_publish() -> None:
    node = Node()
    node.run(2000, lambda step: 9_900 if step == 0 else 0)
    assert (node.counts, max(node.told[False])) == ({False: 9_900, True: 0}, 989)
    node.run(3000, lambda step: 9_900 if step == 0 else 0)
    assert node.counts[True] == 0, "and so is the next one"


def test_queue_age_limit_during_a_flood_shortens_the_queue_without_lowering_the_throughput() -> None:
    node = Node()
    node.run(10_000, lambda step: 30)
    first = next(ms for ms, waited in enumerate(node.told[False]) if waited == max(node.told[False]))
    assert max(node.told[False]) <= 1010
    assert max(node.told[False][first + 1 :]) <= 150, "an eighth, and what the looks are apart"
    assert sorted(node.told[True])[len(node.told[True]) // 2] <= 125
    assert node.counts[False] >= 0.77 * 10_000 * 10, "a refusal is a tenth of the work: with 30 in a ms 7.78 can be taken"


def test_queue_age_limit_after_a_flood_drains_the_queue_at_the_sustained_rate() -> None:
    node = Node()
    node.run(3000, lambda step: 30)
    node.run(1000, lambda step: 8)
    before = dict(node.counts)
    node.run(5000, lambda step: 8)
    assert (node.counts[True], node.room.is_late) == (before[True], False)
    assert max(node.told[False][-5000:]) < 10


@pytest.mark.parametrize(("calm_ms", "bound_ms"), [(0, 125), (8, 126), (1000, 250), (6992, 999), (7000, 1000), (60_000, 1000)])
def test_queue_age_limit_grows_back_after_a_flood(calm_ms: int, bound_ms: int) -> None:
    late = QueueDelay(1000 * MS)
    assert late.bound_ns(0) == 1000 * MS
    assert late.check(1001 * MS, 0)
    assert not late.check(0, 500 * MS)
    now_ns = (500 + calm_ms) * MS
    assert late.bound_ns(now_ns) == bound_ms * MS
    assert not late.check(bound_ms * MS, now_ns)
    assert late.check(bound_ms * MS + 1, now_ns)


def test_queue_age_limit_under_overload_rejects_until_the_age_is_half_of_the_short_limit() -> None:
    late = QueueDelay(1600 * MS)
    assert not late.check(1600 * MS, 0)
    assert late.check(1600 * MS + 1, 1 * MS)
    assert late.check(100 * MS + 1, 9000 * MS)
    assert not late.check(100 * MS, 9001 * MS)
    assert not late.check(200 * MS, 9001 * MS)
    assert late.check(200 * MS + 1, 9001 * MS)


def test_memory_budget_is_under_pressure_from_a_rejection_until_its_limit_recovers() -> None:
    room = MemoryBudget(late_s=1.0)
    room.update_wait(10, 0, 0)
    assert not room.is_pressed
    room.update_wait(10, 0, 1001 * MS)
    assert (room.is_late, room.is_pressed) == (True, True)
    room.update_wait(10, 10, 1002 * MS)
    assert (room.is_late, room.is_pressed, room.retry_after_ms) == (False, True, 500)
    room.update_wait(10, 10, 8001 * MS)
    assert room.is_pressed
    room.update_wait(10, 10, 8002 * MS)
    assert not room.is_pressed


def test_ack_delay_above_half_of_the_limit_counts_as_overload_until_below_a_quarter() -> None:
    made, late_ns = AckDelay(), 1000 * MS
    at_ns = 10_000 * MS
    waits = (0, 251, 500, 501, 251, 250, 251, 500, 501)
    seen = [made.check(at_ns - waited_ms * MS, at_ns, late_ns, is_pressed=True) for waited_ms in waits]
    assert seen == [False, False, False, True, True, False, False, False, True]
    assert made.check(at_ns - 251 * MS, at_ns, late_ns, is_pressed=False), "until a quarter, in any case"
    assert not made.check(0, at_ns, late_ns, is_pressed=True), "nobody waits"
    assert made.check(1, at_ns, late_ns, is_pressed=True)
    assert not made.check(1, at_ns, 0, is_pressed=True), "nothing is late"


def seen_in_a_calm(steps: Iterable[tuple[int, int]]) -> list[bool]:
    """Of (when, how long the oldest has waited), in ms, looked at by one, with a bound of a second."""
    made = AckDelay()
    return [made.check((at_ms - waited_ms) * MS, at_ms * MS, 1000 * MS, is_pressed=False) for at_ms, waited_ms in steps]


def test_ack_delay_without_memory_pressure_counts_as_overload_if_the_queue_advances_but_stays_old() -> None:
    steps = [(10_000 + 50 * step, 1001) for step in range(9)]
    assert seen_in_a_calm(steps) == [False] * 7 + [True] * 2, "it moved at 50 for the first time, and more than 250 later again"


def test_ack_delay_without_memory_pressure_is_no_overload_while_a_follower_is_dead() -> None:
    same = [(10_000 + 50 * step, 50 * step) for step in range(200)]
    assert not any(seen_in_a_calm(same)), "the oldest is the same one all the time"
    moved_first = [(9000 + 50 * step, 1001) for step in range(4)] + [
        (10_000 + 50 * step, 1851 + 50 * step) for step in range(200)
    ]
    assert not any(seen_in_a_calm(moved_first))


def test_ack_delay_without_memory_pressure_is_no_overload_while_a_backlog_drains() -> None:
    """A follower stopped for 3 s. Then the backlog needs 200 ms to become shorter than a second."""
    still = [(10_000 + 50 * step, 50 * step) for step in range(60)]
    drains = [(13_000 + 10 * step, 3000 - 100 * step) for step in range(21)]
    again = [(13_400 + 10 * step, 1001) for step in range(25)]
    assert not any(seen_in_a_calm([*still, *drains, *again])), "and it begins anew behind that"


def test_queue_age_limit_of_zero_never_rejects() -> None:
    late = QueueDelay(0)
    assert not late.check(3600 * NS_PER_S, 0)
    assert not late.check(0, NS_PER_S)


def test_memory_budget_retry_delay_after_a_rejection_is_at_least_half_a_second() -> None:
    node = MemoryBudget(late_s=1.0)
    node.waited_ns = 126 * MS
    assert node.retry_after_ms == 126
    node.is_late = True
    assert node.retry_after_ms == 500
    node.waited_ns = 700 * MS
    assert node.retry_after_ms == 700


MIB = 1 << 20


@pytest.mark.parametrize(
    ("held_mib", "is_limited", "takes"),
    [
        (0, False, [True, True, True]),
        (799, False, [True, True, True]),
        (900, True, [True, True, False]),
        (950, True, [True, False, False]),
        (999, True, [True, False, False]),
        (1000, True, [False, False, False]),
        (2000, True, [False, False, False]),
    ],
)
def test_memory_budget_near_its_limit_first_rejects_publishes_of_partitions_with_the_largest_queues(
    held_mib: int, is_limited: bool, takes: list[bool]
) -> None:
    node = MemoryBudget(1000 * MIB)
    node.update(NodePublishMemory(uncommitted=held_mib * MIB))
    assert node.is_limited is is_limited
    assert [node.takes(queued * MIB, 64 * MIB) or not node.is_limited for queued in (0, 20, 40)] == takes
    if held_mib == 900:
        assert node.takes(32 * MIB - 1, 64 * MIB)
        assert not node.takes(32 * MIB, 64 * MIB)


def test_memory_budget_below_80_percent_accepts_publishes_of_all_partitions_again() -> None:
    node = MemoryBudget(100)
    node.update(NodePublishMemory(held_back=100))
    assert node.open_part == 0
    node.update(NodePublishMemory(held_back=79))
    assert (node.is_limited, node.open_part) == (False, 1)


def test_memory_budget_counts_standby_and_reader_bytes_up_to_their_shares() -> None:
    node = MemoryBudget(1000)
    node.update(NodePublishMemory(unread=1, held_back=2, uncommitted=4, publishers=8, standby=16, readers=32))
    assert node.used_bytes == 63
    node.update(NodePublishMemory(standby=10**6, readers=10**6))
    assert node.used_bytes == round(1000 * STANDBY_SHARE) + round(1000 * READERS_SHARE)
    assert not node.is_limited, "they can't shut publishes out"
    nobody = MemoryBudget()
    nobody.update(NodePublishMemory(unread=1 << 60))
    assert not nobody.is_limited


def test_memory_limit_default_is_a_share_of_the_process_memory(tmp_path: Path) -> None:
    assert limit_of(0, 4000 * MIB) == 1000 * MIB
    assert limit_of(123, 4000 * MIB) == 123
    assert limit_of(0, 1) == LEAST_LIMIT_BYTES
    group, none = tmp_path / "memory.max", tmp_path / "absent"
    group.write_text("67108864\n")
    assert memory_bytes((none, group)) == 64 * MIB
    group.write_text("max\n")
    assert memory_bytes((group,)) == memory_bytes(()) > 64 * MIB


@pytest.mark.parametrize("wrong", [1, LEAST_LIMIT_BYTES - 1, -1])
def test_memory_limit_that_is_too_small_is_rejected(wrong: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="memory_limit_bytes"):
        NodeSettings("n1", tmp_path, memory_limit_bytes=wrong)


def test_memory_budget_age_of_unread_bytes_excludes_the_time_of_a_blocked_event_loop() -> None:
    node, s = MemoryBudget(late_s=1.0), NS_PER_S
    node.update_wait(100, 0, 10 * s)
    node.update_wait(100, 50, 11 * s)
    assert (node.waited_ns, node.is_late) == (s, False)
    node.update_wait(200, 99, 11 * s + s // 10)
    assert node.is_late
    node.update_wait(300, 150, 11 * s + s // 5)
    assert (node.waited_ns, node.is_late) == (s // 10, True)
    node.update_wait(300, 250, 11 * s + s // 4)
    assert (node.waited_ns, node.is_late) == (s // 20, False)
    node.update_wait(300, 299, 20 * s)
    assert (node.waited_ns, node.is_late) == (8 * s + 4 * s // 5, True)
    node.update_wait(900, 300, 90 * s)
    assert (node.waited_ns, node.is_late) == (0, False), "all that has come meanwhile is new"
    never = MemoryBudget()
    never.update_wait(1, 0, 0)
    never.update_wait(1, 0, 3600 * NS_PER_S)
    assert not never.is_late
