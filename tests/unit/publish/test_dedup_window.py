"""Test the dedup window: it is a bounded function of the log and of log time, after any truncation and replay [A3]."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy.config import NS_PER_S, Codec, StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.reading import ReadResult
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.publish import dedup_window
from liftpy.core.publish.dedup_window import MAX_ID_BYTES, RecentIds, StoredId
from liftpy.core.publish.log_state import LogState, headers_of
from liftpy.core.publish.log_state_part import NewBatch
from liftpy.core.wire.batch import build_filler, parse_batch
from liftpy.errors import CorruptionError, InvariantError
from tests.batches import build_batch
from tests.long import examples

WINDOW = 120
ROOM = 1 << 20
_years = itertools.count(0, 10**18)


def long_ago() -> int:
    """A monotonic clock by which everything was taken long ago: log time alone decides."""
    return next(_years)


def ids(window_ns: int = WINDOW, room: int = ROOM, now_ns: Callable[[], int] = long_ago) -> RecentIds:
    made = RecentIds(window_ns, room, now_ns)
    made.begin(0)
    return made


def take(
    made: RecentIds, base_offset: int, last_offset: int, timestamp_ns: int, ids: dict[int, bytes], *, empty: bool = False
) -> None:
    made.add_batch(NewBatch(base_offset, last_offset, timestamp_ns, 0 if empty else last_offset - base_offset + 1, ids))


def test_dedup_window_counts_the_memory_of_a_lookup_in_a_large_batch_until_the_batch_is_dropped() -> None:
    made = ids()
    names = [b"m%d" % number for number in range(1000)]
    take(made, 0, 999, 1000, dict(enumerate(names)))
    made.committed(999)
    before_bytes = made.size_bytes
    for _ in range(2):
        assert made.find(b"m500", 1000) == StoredId(500, 999)
    assert made.size_bytes == before_bytes + 8 * 1000
    take(made, 1000, 1000, 1000 + WINDOW, {})
    made.committed(1000)
    assert (len(made), made.size_bytes) == (0, 0)


def test_dedup_window_of_the_documented_example_expires_ids_at_the_documented_times() -> None:
    made = ids()
    take(made, 0, 9, 1000, {7: b"a"})
    made.committed(9)
    assert made.find(b"a", 1100) == StoredId(7, 9)
    assert made.find(b"a", 1119) == StoredId(7, 9)
    assert made.find(b"a", 1120) is None, "as old as the window"
    assert made.find(b"a", 0) == StoredId(7, 9), "a clock that is behind makes nothing older or newer"
    take(made, 10, 10, 1121, {})
    assert made.find(b"a", 1000) == StoredId(7, 9), "what may be cut makes nothing expire"
    made.truncate(10)
    assert made.find(b"a", 1000) == StoredId(7, 9)
    take(made, 10, 10, 1120, {})
    made.committed(10)
    assert made.find(b"a", 1000) is None
    assert (len(made), made.size_bytes) == (0, 0)


def test_dedup_window_after_a_clock_jump_expires_no_id_received_within_the_window() -> None:
    now = [500]
    made = ids(now_ns=lambda: now[0])
    take(made, 0, 0, 1000, {0: b"a"})
    made.committed(0)
    now[0] += WINDOW - 1
    assert made.find(b"a", 1_000_000) == StoredId(0, 0)
    take(made, 1, 1, 1_000_000, {})
    made.committed(1)
    assert made.find(b"a", 1_000_000) == StoredId(0, 0)
    now[0] += 1
    assert made.find(b"a", 1_000_000) is None
    assert made.size_bytes > 0
    made.committed(1)
    take(made, 2, 2, 0, {})
    made.committed(2)
    assert made.size_bytes == 0


def test_dedup_window_record_with_an_older_timestamp_counts_as_stored_at_the_newest_time() -> None:
    made = ids()
    take(made, 0, 0, 1000, {})
    take(made, 1, 1, 10, {1: b"a"})
    made.committed(1)
    assert made.find(b"a", 1119) == StoredId(1, 1), "it counts as stored at 1000"


def test_log_state_truncated_below_the_high_watermark_is_incomplete_until_replayed() -> None:
    log: Any = SimpleNamespace(log_start_offset=0, log_end_offset=0, high_watermark=-1)
    state = LogState(log, WINDOW, ROOM, long_ago)
    state.appended(NewBatch(0, 3, 5, 4, {3: b"a"}), 0)
    state.appended(NewBatch(4, 5, 5, 2, {4: b"b"}), 0)
    state.committed(3)
    log.high_watermark, log.log_end_offset = 3, 4
    state.log_was_truncated()
    assert state.is_complete
    assert (state.ids.find(b"a", 0), state.ids.find(b"b", 0)) == (StoredId(3, 3), None)
    log.log_end_offset = 3
    state.log_was_truncated()
    assert (state.end_offset, state.is_complete, state.ids.find(b"a", 0), state.ids.last_id) == (None, False, None, b"")


def test_log_state_append_with_an_offset_gap_raises() -> None:
    for offset in (3, 5):
        log: Any = SimpleNamespace(log_start_offset=0, log_end_offset=0, high_watermark=-1)
        state = LogState(log, WINDOW, ROOM, long_ago)
        state.appended(NewBatch(0, 3, 5, 4, {}), 0)
        with pytest.raises(InvariantError, match="A3"):
            state.appended(NewBatch(offset, offset, 5, 1, {}), 0)


def test_dedup_window_with_a_high_watermark_above_its_records_expires_ids_as_they_arrive() -> None:
    made = ids()
    made.committed(5)
    take(made, 0, 5, 1000, {0: b"a"})
    take(made, 6, 6, 2000, {})
    made.committed(4)
    assert made.find(b"a", 0) is not None
    made.committed(6)
    assert made.find(b"a", 0) is None


def test_dedup_window_above_its_memory_limit_drops_and_counts_the_oldest_ids() -> None:
    made = ids(room=4096)
    for offset in range(100):
        take(made, offset, offset, 5, {offset: b"%030d" % offset})
        made.committed(offset - 1)
        assert made.size_bytes <= 4096
    assert 5 < len(made) < 20
    assert made.evicted_count == 100 - len(made)
    assert made.find(b"%030d" % 99, 0) == StoredId(99, 99)
    assert made.find(b"%030d" % 0, 0) is None
    tail = ids(room=4096)
    for offset in range(100):
        take(tail, offset, offset, 5, {offset: b"%030d" % offset})
    assert tail.size_bytes <= 4096
    assert tail.evicted_count == 100 - len(tail) > 0
    tail.committed(99)
    assert tail.find(b"%030d" % 99, 0) == StoredId(99, 99)


def test_dedup_window_with_dropped_ids_is_restored_from_its_state_file() -> None:
    made = ids(room=4096)
    for offset in range(10):
        take(made, offset, offset, 5, {offset: b"%030d" % offset})
    made.committed(9)
    write = made.snapshot()
    for offset in range(10, 15):
        take(made, offset, offset, 5, {offset: b"%030d" % offset})
    assert made.find(b"%030d" % 0, 0) is None
    restored = ids(room=4096)
    restored.restore(b"".join(write()), 10)
    assert restored.find(b"%030d" % 0, 0) is None
    assert restored.find(b"%030d" % 9, 0) == StoredId(9, 9)


@pytest.mark.parametrize(("per_batch", "size"), [(1, 22), (1, 36), (100, 22), (4096, 36)])
def test_dedup_window_size_bytes_are_at_least_the_memory_used(per_batch: int, size: int) -> None:
    made, count = ids(room=1 << 30), 8192 * 2
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for base in range(0, count, per_batch):
        take(made, base, base + per_batch - 1, 5, {base + i: b"%0*d" % (size, base + i) for i in range(per_batch)})
    made.committed(count)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert used <= made.size_bytes <= 3 * used, (used / count, made.size_bytes / count)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_message_ids_of_a_batch_are_found_in_its_headers(codec: Codec) -> None:
    headers = [
        [("a", b"1"), ("Nats-Msg-Id", b"m0")], None, [("Nats-Msg-Id", b"")], [("nats-msg-id", b"x"), ("Nats-Msg-ID", b"x")],
        [("Nats-Msg-Id", b"m4"), ("Nats-Msg-Id", b"m4b")], [("Nats-Msg-Id", b"x" * (MAX_ID_BYTES + 1))],
        [("Nats-Msg-Id", b"x" * MAX_ID_BYTES)], [], [("Nats-Msg-IdX", b"x"), ("XNats-Msg-Id", b"y"), ("Nats-Msg-Id", b"m8")],
    ]  # fmt: skip
    batch = build_batch(
        [b"v"] * 9, headers=headers, base_offset=50, leader_epoch=1, timestamp_ns=1, codec=codec
    )  # fmt: skip
    assert headers_of(parse_batch(batch))[0] == {50: b"m0", 54: b"m4", 56: b"x" * MAX_ID_BYTES, 58: b"m8"}
    plain = build_batch([b"Nats-Msg-Id"] * 2, base_offset=0, leader_epoch=1, timestamp_ns=1, codec=codec)
    assert headers_of(parse_batch(plain))[0] == {}
    other = build_batch([b"Nats-Msg-Id"], headers=[[("a", b"Nats-Msg-Id")]], base_offset=0, leader_epoch=1, timestamp_ns=1)
    assert headers_of(parse_batch(other))[0] == {}
    gaps = build_batch(
        [b"a", b"b"],
        headers=[None, [("Nats-Msg-Id", b"m")]],
        base_offset=10,
        leader_epoch=1,
        timestamp_ns=1,
        offset_deltas=[3, 7],
    )
    assert headers_of(parse_batch(gaps))[0] == {17: b"m"}
    assert headers_of(parse_batch(build_filler(0, 9, 1, 1)))[0] == {}


# ---- against a model that keeps everything -------------------------------------------------------------------------------


@dataclass
class Naive:
    """All batches: (last offset, log time, ids by offset)."""

    batches: list[tuple[int, int, dict[int, bytes]]] = field(default_factory=list)
    high_watermark: int = -1

    @property
    def end(self) -> int:
        return self.batches[-1][0] + 1 if self.batches else 0

    def find(self, message_id: bytes, now: int) -> StoredId | None:
        committed = max((time for last, time, _ in self.batches if last <= self.high_watermark), default=0)
        for last, time, found in reversed(self.batches):
            for offset in sorted(found, reverse=True):
                if found[offset] == message_id:
                    return StoredId(offset, last) if time > max(committed, now) - WINDOW else None
        return None


NAMES = [b"a", b"b", b"c", b"d"]
STEPS = st.one_of(
    st.tuples(
        st.just("append"),
        st.lists(st.sampled_from([None, None, *NAMES]), min_size=1, max_size=4),
        st.sampled_from([0, 0, 0, 1, 30, 60, 119, 120, -100, 1000]),
    ),
    st.tuples(st.just("commit"), st.integers(0, 3)),
    st.tuples(st.just("cut"), st.integers(0, 3)),
    st.tuples(st.just("reopen"), st.integers(0, 2)),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_dedup_window_after_random_operations_equals_a_scan_of_the_log(steps: list[tuple[object, ...]]) -> None:
    """The window also restarts and replays only the records that it needs."""
    log, _ = Log.open(MemoryStorage(), StreamConfig(segment_bytes=4096))
    state, naive, now, epoch = LogState(log, WINDOW, ROOM, long_ago), Naive(), 10_000, 1
    for step in steps:
        match step:
            case ("append", list(names), int(passed)):
                now = max(now + passed, 1)
                found = {naive.end + i: name for i, name in enumerate(names) if name is not None}
                headers = [[("Nats-Msg-Id", name)] if name is not None else None for name in names]
                batch = build_batch(
                    [b"v" * 200] * len(names), headers=headers, base_offset=naive.end, leader_epoch=epoch, timestamp_ns=now
                )
                log.append(batch)
                state.fetched([parse_batch(batch)])
                before = naive.batches[-1][1] if naive.batches else 0
                naive.batches.append((naive.end + len(names) - 1, max(before, now), found))
            case ("commit", int(back)) if naive.batches:
                naive.high_watermark = max(naive.high_watermark, naive.batches[max(len(naive.batches) - 1 - back, 0)][0])
                log.raise_high_watermark(naive.high_watermark)
                state.committed(naive.high_watermark)
            case ("cut", int(back)):
                kept = [batch for batch in naive.batches[: len(naive.batches) - back] if True]
                end = kept[-1][0] + 1 if kept else 0
                if end > naive.high_watermark:
                    naive.batches = kept
                    log.truncate_to(end)
                    state.log_was_truncated()
            case ("reopen", int(slices)):
                state = LogState(log, WINDOW, ROOM, long_ago)
                for _ in range(slices):
                    state.replay(300)
            case _:
                continue
        if not state.is_complete and step[0] != "reopen":
            while not state.replay(1000):
                pass
        if state.is_complete:
            for name in NAMES:
                for at in (0, now, now + 60, now + 119, now + 120, now + 500):
                    assert state.ids.find(name, at) == naive.find(name, at), (name, at)
            last = naive.batches[-1][2].get(naive.end - 1, b"") if naive.batches else b""
            assert state.ids.last_id == last


def filled_log(count: int, step_s: int) -> Log:
    log, _ = Log.open(MemoryStorage(), StreamConfig(segment_bytes=65_536))
    for number in range(count):
        log.append(
            build_batch(
                [b"v" * 1000], headers=[[("Nats-Msg-Id", b"m%d" % number)]], base_offset=number, leader_epoch=1,
                timestamp_ns=(1000 + number * step_s) * NS_PER_S,
            )
        )  # fmt: skip
    log.flush()
    return log


def test_log_state_replay_reads_only_the_dedup_window_before_the_committed_end() -> None:
    log = filled_log(1000, step_s=1)
    log.raise_high_watermark(990)
    state = LogState(log, 120 * NS_PER_S, ROOM, long_ago)
    assert not state.is_complete
    slices = 0
    while not state.replay(20_000):
        slices += 1
    assert slices > 3
    assert state.replayed_bytes < 250 * 1200, "some way before the window, by the index"
    assert state.ids.find(b"m871", 0) == StoredId(871, 871)
    assert state.ids.find(b"m870", 0) is None
    assert state.ids.find(b"m999", 0) == StoredId(999, 999)
    assert state.replay(1)


def test_log_state_replay_skips_records_deleted_by_retention() -> None:
    log = filled_log(200, step_s=0)
    log.raise_high_watermark(199)
    state = LogState(log, 120 * NS_PER_S, ROOM, long_ago)
    state.replay(10_000)
    log.drop_prefix(100)
    while not state.replay(50_000):
        pass
    assert state.ids.find(b"m100", 0) == StoredId(100, 100)
    assert state.ids.find(b"m50", 0) is None


def test_log_state_after_a_log_reset_has_no_message_ids() -> None:
    log = filled_log(3, step_s=0)
    state = LogState(log, 120 * NS_PER_S, ROOM, long_ago)
    while not state.replay():
        pass
    log.reset(50)
    state.log_was_reset()
    assert state.is_complete
    assert state.ids.find(b"m1", 0) is None


def test_dedup_window_truncation_restores_no_id_that_expired_or_was_evicted() -> None:
    """The next publish of this id would fail."""
    one = ids()
    take(one, 0, 0, 1000, {0: b"a"})
    for why, room in (("by time", ROOM), ("for want of room", 2 * one.size_bytes - 1)):
        made = ids(room=room)
        take(made, 0, 0, 1000, {0: b"a"})
        made.committed(0)
        take(made, 1, 1, 1000 + (WINDOW if why == "by time" else 0), {})
        take(made, 2, 2, 1000 + WINDOW, {2: b"a"})
        made.committed(1)
        assert (made.find(b"a", 0), made.size_bytes) == (StoredId(2, 2), one.size_bytes), why
        made.truncate(2)
        assert (made.find(b"a", 0), len(made), made.size_bytes) == (None, 0, 0), why


def test_log_state_replay_starts_one_dedup_window_before_the_committed_end() -> None:
    log = filled_log(400, step_s=1)
    log.append(build_batch([b"v"], base_offset=400, leader_epoch=1, timestamp_ns=10**6 * NS_PER_S))
    log.raise_high_watermark(399)
    state = LogState(log, 300 * NS_PER_S, ROOM, long_ago)
    while not state.replay():
        pass
    log.truncate_to(400)
    state.log_was_truncated()
    assert (state.is_complete, state.ids.find(b"m100", 0), state.ids.find(b"m99", 0)) == (True, StoredId(100, 100), None)


def test_log_state_replay_without_readable_records_raises() -> None:
    log = filled_log(2, step_s=1)
    log.raise_high_watermark(1)
    state = LogState(log, NS_PER_S, ROOM, long_ago)
    assert state.replay()
    log.append(build_batch([b"v"], base_offset=2, leader_epoch=1, timestamp_ns=1))
    log.read = lambda *_, **__: ReadResult((), 0, 2)  # type: ignore[method-assign]
    with pytest.raises(CorruptionError, match="Cannot read offset 2 of a log that ends at 3"):
        state.replay()


def test_dedup_window_restore_with_falling_offsets_raises() -> None:
    def rows(*places: tuple[int, int]) -> bytes:
        taken = [dedup_window._BatchIds(last, 1, 0, b"", (b"id%d" % n,), (offset,)) for n, (last, offset) in enumerate(places)]
        return dedup_window._HEAD.pack(WINDOW, 1, 0) + b"".join(dedup_window._encode(taken))

    made = RecentIds(WINDOW, ROOM, long_ago)
    made.restore(rows((3, 3), (5, 4)), 10)
    assert (made.find(b"id0", 0), made.find(b"id1", 0)) == (StoredId(3, 3), StoredId(4, 5))
    for wrong in (rows((5, 3), (3, 4)), rows((3, 3), (5, 2)), rows((3, 3), (3, 4)), rows((3, 3), (5, 3))):
        with pytest.raises(CorruptionError, match="the saved message ids are inconsistent"):
            RecentIds(WINDOW, ROOM, long_ago).restore(wrong, 10)


class _CountedId(bytes):
    """A message id that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        _CountedId.compared += 1
        return bytes.__eq__(self, other)

    __hash__ = bytes.__hash__


@pytest.mark.parametrize("count", [3, 5000])
def test_dedup_window_finds_the_last_of_equal_ids_in_a_batch_without_comparing_all(count: int) -> None:
    """Publishers repeat all messages in flight after a failover, and most of them are in a few large batches."""
    made = ids()
    take(made, 0, count - 1, 1000, {offset: b"m%d" % (offset % (count - 1)) for offset in range(count)})
    _CountedId.compared = 0
    assert made.find(_CountedId(b"m0"), 1000) == StoredId(count - 1, count - 1)
    assert made.find(_CountedId(b"m1"), 1000) == StoredId(1, count - 1)
    assert _CountedId.compared < 20
    made.truncate(0)
    take(made, 0, 1, 1000, {1: b"m1"})
    assert made.find(b"m1", 1000) == StoredId(1, 1)
