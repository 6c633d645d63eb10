"""Test the memory limit of a node's deduplication state: an id without memory is rejected, never forgotten."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.publish.dedup_window import RecentIds, StoredId, size_of
from liftpy.core.publish.last_per_subject import LastPerSubject
from liftpy.core.publish.log_state import LogState
from liftpy.core.publish.log_state_part import NewBatch, NodeStateMemory, ProducerSequences, Share
from liftpy.core.publish.producer_state import (
    STATE_BYTES,
    TAIL_BYTES,
    Claim,
    Finding,
    ProducerGrant,
    ProducerRegistry,
    ProducerRequest,
    Producers,
)
from liftpy.core.wire.batch import parse_batch
from liftpy.core.wire.rejections import RejectReason
from tests.batches import build_batch
from tests.unit.publish.ingest_bench import turn
from tests.unit.publish.test_duplicates import Bench as DuplicatesBench
from tests.unit.publish.unlogged import empty_log

WINDOW = 120
COLUMNS = parse_batch(build_batch([b"v"])).columns
BATCH_BYTES = 296


def take(part: Any, offset: int, *, time: int = 1000, message_id: bytes = b"", producer: int = 0, subject: str = "") -> None:
    sequences = ProducerSequences(producer, 0, 0, COLUMNS) if producer else None
    stored = build_batch([b"v"], base_offset=offset, subjects=[subject]) if subject else b""
    whole = part._add_batch if isinstance(part, LogState) else part.add_batch
    whole(NewBatch(offset, offset, time, 1, {offset: message_id} if message_id else {}, sequences, stored))


def an_id(number: int) -> bytes:
    return b"%030d" % number


ONE = BATCH_BYTES + size_of([an_id(0)])


def test_dedup_memory_share_moved_to_another_node_counts_against_the_limit_of_that_node() -> None:
    node, other = NodeStateMemory(1000), NodeStateMemory(1000)
    share, beside = Share(node, "ids", 600, "partition_message_id_bytes"), Share(node, "subjects")
    share.hold(300)
    beside.hold(200)
    share.hold(250)
    assert (node.size_bytes, node.by_kind) == (450, {"ids": 250, "subjects": 200})
    share.join(other)
    assert (node.size_bytes, node.by_kind["ids"], other.size_bytes, other.by_kind) == (200, 0, 250, {"ids": 250})
    share.beside().hold(50)
    assert (share.size_bytes, other.size_bytes, other.by_kind["ids"]) == (250, 300, 300)
    share.count_rejections(3)
    assert (other.refused, node.refused) == ({"ids": 3}, {})


def test_dedup_memory_share_of_a_leader_is_limited_to_seven_eighths_of_the_node() -> None:
    node = NodeStateMemory(800)
    share, neighbour = Share(node, "ids", 400, "partition_message_id_bytes"), Share(node, "ids")
    assert (share.lacks(350), share.lacks(351), share.has_room(350)) == ("", "partition_message_id_bytes", True)
    assert share.lacks(300, 51) == "partition_message_id_bytes", "what is in hand goes into it"
    neighbour.hold(400)
    assert (share.lacks(300), share.lacks(301), share.has_room(301)) == ("", "node_dedup_state_bytes", False)
    assert (share.fits(400), share.fits(401)) == (True, False)
    neighbour.hold(500)
    assert (share.fits(300), share.fits(301)) == (True, False), "what belongs to something known has the rest"


def test_dedup_memory_share_that_grows_above_the_node_limit_frees_at_most_the_bytes_it_grew_by() -> None:
    node = NodeStateMemory(1000)
    share, neighbour = Share(node, "ids", 400), Share(node, "ids")
    share.hold(450)
    assert share.excess_bytes(10) == 50, "of its own bound all"
    share.hold(300)
    neighbour.hold(900)
    assert (share.excess_bytes(10), share.excess_bytes(0), share.excess_bytes(500)) == (10, 0, 200)
    neighbour.hold(100)
    assert share.excess_bytes(10) == 0


# ---- message ids -------------------------------------------------------------------------------------------------------------
def ids(node: NodeStateMemory, now_ns: Callable[[], int] = lambda: 10**9, room: int = 1 << 20) -> RecentIds:
    made = RecentIds(WINDOW, room, now_ns, node)
    made.begin(0)
    return made


def test_node_with_full_dedup_memory_evicts_message_ids_of_the_partition_that_grows() -> None:
    node = NodeStateMemory(10 * ONE)
    one, other = ids(node), ids(node)
    for offset in range(6):
        take(one, offset, message_id=an_id(offset))
    one.committed(5)
    for offset in range(9):
        take(other, offset, message_id=an_id(offset))
        other.committed(offset)
        assert node.size_bytes <= node.bound_bytes
    assert (len(one), one.evicted_count, one.is_whole) == (6, 0, True)
    assert (len(other), other.evicted_count, other.is_whole) == (4, 5, False)
    assert other.find(an_id(8), 1000) == StoredId(8, 8)
    one.begin(None)
    assert node.size_bytes == other.size_bytes == 4 * ONE


def test_dedup_window_with_an_evicted_id_rejects_new_ids_until_the_window_has_passed() -> None:
    node, now = NodeStateMemory(ONE), [10**9]
    made = ids(node, lambda: now[0])
    take(made, 0, message_id=b"a", time=1000)
    made.committed(0)
    assert not made.is_blind(0)
    take(made, 1, message_id=b"b", time=1010)
    assert (made.find(b"a", 1010), made.is_blind(1010)) == (None, True)
    node.bound_bytes = 1 << 30
    assert "went for want of room" in made.lacks([b"c"], 1010)
    assert made.is_blind(1000 + WINDOW), "by this node's clock it is as fresh as ever"
    now[0] += WINDOW
    assert made.is_blind(999 + WINDOW), "by log time it is within the window"
    assert (made.is_blind(1000 + WINDOW), made.is_whole) == (False, False)
    take(made, 2, time=1000 + WINDOW)
    made.committed(2)
    assert made.is_whole
    made.begin(0)
    take(made, 0, message_id=b"a", time=1)
    assert made.is_whole, "who begins anew lacks nothing"


def test_dedup_window_that_evicts_only_expired_ids_stays_complete() -> None:
    """The clock of the log jumped, so this id stayed longer than the window."""
    node, made = NodeStateMemory(ONE), ids(NodeStateMemory())
    made.share.join(node)
    take(made, 0, message_id=b"a", time=1000)
    take(made, 1, time=1000 + WINDOW)
    made.committed(1)
    assert len(made) == 1
    take(made, 2, message_id=b"b", time=1000 + WINDOW)
    assert (len(made), made.evicted_count, made.is_whole) == (1, 1, True)


def test_dedup_window_of_an_idle_log_expires_ids_by_the_wall_clock() -> None:
    now = [10**9]
    made = ids(NodeStateMemory(), lambda: now[0], room=8 * ONE)
    for offset in range(7):
        take(made, offset, message_id=an_id(offset), time=1000)
    made.committed(6)
    assert made.lacks([an_id(9)], 1000) == "the message ids of the last 1.2e-07 s fill what partition_message_id_bytes allows"
    assert made.lacks([an_id(9)], 1000 + WINDOW), "they are still fresh here"
    now[0] += WINDOW
    assert made.lacks([an_id(9)], 999 + WINDOW)
    assert made.lacks([an_id(9)], 1000 + WINDOW) == ""
    assert (len(made), made.evicted_count, made.is_whole) == (0, 0, True)
    made.reserve_ids([an_id(n) for n in range(30)])
    assert made.lacks([], 5000), "what is in hand counts"
    made.release_ids([an_id(n) for n in range(30)])
    assert made.lacks([], 5000) == ""
    without = RecentIds(0, 4096, lambda: 0)
    assert without.lacks([an_id(n) for n in range(1000)], 0) == "", "without a window none is kept"


# ---- producers ---------------------------------------------------------------------------------------------------------------
def test_node_with_full_dedup_memory_rejects_new_producers_and_accepts_known_producers() -> None:
    node = NodeStateMemory(8 * STATE_BYTES)
    producers = Producers(0, 100, 0, node)
    registry = ProducerRegistry(producers)
    assert isinstance(registry.ask(ProducerRequest(1, 7)), ProducerGrant)
    take(producers, 0, producer=1)
    producers.committed(0)
    given_bytes = node.size_bytes - STATE_BYTES
    assert given_bytes > 0
    neighbour = Share(node, "ids")
    neighbour.hold(7 * STATE_BYTES - node.size_bytes)
    assert producers.is_full
    assert registry.ask(ProducerRequest(2, 7)) is Finding.FULL
    assert len(registry) == 1
    claim = Claim(1, 0, 1, 1, instance=7)
    assert registry.check_batch(claim, COLUMNS).finding is Finding.APPEND
    unfit = registry.why_not(Finding.FULL)
    assert (unfit.reason, "node_dedup_state_bytes" in unfit.detail, node.refused) == (
        RejectReason.OVERLOADED,
        True,
        {"producers": 1},
    )
    neighbour.hold(node.bound_bytes - TAIL_BYTES - STATE_BYTES - given_bytes + 1)
    assert registry.check_batch(claim, COLUMNS).finding is Finding.FULL, "not even what is above HW has room"
    assert registry.check_batch(claim, COLUMNS).next_sequence == 1
    assert registry.check_batch(Claim(1, 0, 0, 1, instance=7), COLUMNS).finding is Finding.DUPLICATE
    neighbour.hold(0)
    registry.begin()
    assert node.size_bytes == STATE_BYTES


def test_producer_evicted_for_memory_is_rejected_as_unknown_until_its_expiry() -> None:
    node = NodeStateMemory(2 * STATE_BYTES + TAIL_BYTES)
    producers = Producers(100, 10, 0, node)
    registry = ProducerRegistry(producers)
    for offset, producer in enumerate((1, 2, 3)):
        take(producers, offset, producer=producer, time=1000 + offset)
        producers.committed(offset)
        assert node.size_bytes <= node.bound_bytes
    assert (producers.state_of(1), len(producers), producers.evicted_count, producers.is_whole) == (None, 2, 1, False)
    assert not producers.can_be_whole
    node.bound_bytes = 1 << 20
    assert producers.can_be_whole, "its log would tell"
    assert registry.ask(ProducerRequest(1, 7)) is Finding.FULL
    assert "can't be told from a new one" in registry.why_not(Finding.FULL).detail
    take(producers, 3, producer=2, time=1099)
    producers.committed(3)
    assert not producers.is_whole
    take(producers, 4, producer=2, time=1100)
    producers.committed(4)
    assert (producers.is_whole, producers.can_be_whole) == (True, False)
    assert isinstance(registry.ask(ProducerRequest(1, 7)), ProducerGrant)


def test_producer_evicted_for_memory_expires_while_all_other_producers_are_silent() -> None:
    """Log time would not go on: a leader that rejects all unknown producers appends nothing."""
    now_ns = 5
    producers = Producers(100, 1, 0, None, lambda: now_ns)
    registry = ProducerRegistry(producers)
    for offset, producer in enumerate((1, 2)):
        take(producers, offset, producer=producer, time=1000)
        producers.committed(offset)
    producers.max_count = 10
    now_ns = 104
    assert registry.ask(ProducerRequest(1, 7)) is Finding.FULL
    now_ns = 105
    assert isinstance(registry.ask(ProducerRequest(1, 7)), ProducerGrant)


def test_producer_state_without_expiry_is_incomplete_after_an_eviction_until_rebuilt() -> None:
    producers = Producers(0, 1)
    for offset, producer in enumerate((1, 2)):
        take(producers, offset, producer=producer, time=offset * 10**18)
        producers.committed(offset)
    assert (producers.is_whole, producers.can_be_whole) == (False, False)
    producers.begin(0)
    assert producers.is_whole


# ---- subjects ----------------------------------------------------------------------------------------------------------------
def test_subject_index_over_the_node_memory_limit_is_dropped_until_memory_is_free() -> None:
    node = NodeStateMemory(20_000)
    subjects, neighbour = LastPerSubject(False, 1 << 20, empty_log(), node=node), Share(node, "ids")
    subjects.want(0)
    neighbour.hold(15_000)
    for offset in range(100):
        take(subjects, offset, subject=f"s.{offset}")
        subjects.committed(offset)
        assert node.size_bytes <= node.bound_bytes
    assert (subjects.state, subjects.size_bytes, node.size_bytes) == ("full", 0, 15_000)
    neighbour.hold(10_000)
    assert subjects.state == "full", "it would not be enough for long"
    neighbour.hold(6_000)
    assert (subjects.state, subjects.wanted) == ("off", False)
    node.bound_bytes = 1 << 20
    subjects.want(100)
    assert subjects.wanted


# ---- the state of a partition ------------------------------------------------------------------------------------------------
def a_state(node: NodeStateMemory | None) -> LogState:
    log: Any = SimpleNamespace(
        log_start_offset=0,
        log_end_offset=0,
        high_watermark=-1,
        durable_end_offset=100,
        epochs=SimpleNamespace(epoch_at=lambda _: 1),
    )
    return LogState(log, WINDOW, 1 << 20, lambda: 10**9, node=node)


@pytest.mark.parametrize("kind", ["ids", "producers"])
def test_state_file_of_an_incomplete_state_is_not_written(kind: str) -> None:
    """A node that started with it would store a duplicate."""
    state = a_state(NodeStateMemory())
    for offset in range(2):
        take(state, offset, message_id=b"%d" % offset, producer=offset + 1)
    state.committed(1)
    assert state.snapshot("s-u/0") is not None
    small = NodeStateMemory(1)
    getattr(state, kind).share.join(small)
    take(state, 2, message_id=b"2", producer=3)
    state.committed(2)
    assert state.snapshot("s-u/0") is None


def test_log_state_moved_to_another_node_frees_its_dedup_memory_on_the_first() -> None:
    node, state = NodeStateMemory(), a_state(None)
    take(state, 0, message_id=an_id(0))
    state.join(node)
    take(state, 1, message_id=an_id(1))
    assert node.by_kind["ids"] == node.size_bytes == 2 * ONE
    state.join(NodeStateMemory())
    assert node.size_bytes == 0


# ---- publishes whose ids exceed the limit ----------------------------------------------------------------------------------
class Bench(DuplicatesBench):
    """Whose node has room for ``count`` batches with one id of one byte."""

    def __init__(self, count: int, **more: Any) -> None:
        super().__init__(**more)
        self.node = NodeStateMemory()
        self.log_state.join(self.node)
        self.node.bound_bytes = (count * (296 + size_of([b"a"])) * 8 + 6) // 7

    def error(self, inbox: str) -> dict[str, Any]:
        line = next(line for line in self.bus.lines if line.split()[1] == inbox.encode())
        found: dict[str, Any] = json.loads(line.split(b"\r\n")[1])["error"]
        return found


async def test_message_id_over_the_dedup_memory_limit_is_rejected_with_503() -> None:
    bench = Bench(2)
    for name in "ab":
        bench.send(b"v", name, b"_INBOX.%s" % name.encode())
        await turn()
    bench.send(b"1", "c", b"_INBOX.c")
    bench.send(b"2", "", b"_INBOX.plain")
    bench.send(b"3", "a", b"_INBOX.again")
    bench.send(b"4", "d")
    bench.send(b"5")
    await turn()
    bench.commit()
    assert bench.values() == [b"v", b"v", b"2", b"5"]
    assert bench.answers() == {"_INBOX.a": 1, "_INBOX.b": 2, "_INBOX.c": 10023, "_INBOX.plain": 3, "_INBOX.again": "1D"}
    said = "the message ids of the last 120 s fill what node_dedup_state_bytes allows"
    assert bench.error("_INBOX.c") == {"code": 503, "err_code": 10023, "description": said}
    counters = bench.ingest.counters
    assert (counters.overloaded, counters.dropped, bench.node.refused) == (2, {"overloaded": 1}, {"ids": 2})


async def test_dedup_memory_counts_message_ids_in_flight_until_stored_or_rejected() -> None:
    bench = Bench(1, append=False)
    bench.send(b"v", "a", b"_INBOX.a")
    await turn()
    held_bytes = bench.node.size_bytes
    bench.send(b"v", "b", b"_INBOX.b")
    await turn()
    assert bench.answers() == {"_INBOX.b": 10023}
    assert held_bytes == size_of([b"a"])
    bench.release()
    assert (bench.node.size_bytes, bench.log_state.ids.pending.size_bytes) == (296 + held_bytes, 0)
    bench.node.bound_bytes *= 4
    bench.send(b"v", "c", b"_INBOX.c")
    await turn()
    assert bench.log_state.ids.pending.size_bytes == held_bytes
    bench.ingest.drop(bench.held[0].token)
    assert bench.log_state.ids.pending.size_bytes == 0
    bench.send(b"v", "d")
    await turn()
    bench.ingest.stop()
    assert bench.node.size_bytes == 296 + held_bytes, "what is not in the log is forgotten"


async def test_publish_with_a_message_id_that_may_be_evicted_is_dropped_without_an_answer() -> None:
    """A record that may be stored is never rejected [A2]."""
    bench = Bench(2)
    bench.node.bound_bytes = 296 + size_of([b"a"])
    for offset, name in enumerate((b"a", b"b")):  # as a follower does
        bench.log_state.appended(NewBatch(offset, offset, time.time_ns(), 1, {offset: name}), 0)
        bench.end = offset + 1
    bench.node.bound_bytes = 1 << 20
    bench.send(b"v", "a", b"_INBOX.a")
    bench.send(b"v", "b", b"_INBOX.b")
    bench.send(b"w", "", b"_INBOX.plain")
    await turn()
    bench.commit()
    assert bench.answers() == {"_INBOX.b": "2D", "_INBOX.plain": 3}
    assert bench.ingest.counters.dropped == {"message_ids_lost": 1}
