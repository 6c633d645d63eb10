"""Test message ids after repeats, evictions and truncations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import NS_PER_S
from liftpy.core.log.reading import ReadResult
from liftpy.core.publish import dedup_window
from liftpy.core.publish.dedup_window import RecentIds, StoredId
from liftpy.core.publish.log_state import LogState
from liftpy.core.wire.batch import build_batch
from liftpy.errors import CorruptionError
from tests.unit.publish.test_dedup_window import ROOM, WINDOW, filled_log, ids, long_ago, take


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
        made.cut(2)
        assert (made.find(b"a", 0), len(made), made.size_bytes) == (None, 0, 0), why


def test_dedup_window_high_watermark_advance_drops_expired_ids() -> None:
    log: Any = SimpleNamespace(log_start_offset=0, log_end_offset=0, high_watermark=-1)
    state = LogState(log, WINDOW, ROOM, long_ago)
    state.appended(0, 1, 1000, {0: b"a"}, b"")
    state.appended(1, 1, 1000 + WINDOW, {1: b"b"}, b"")
    state.committed(0)
    assert (state.ids.find(b"a", 0), len(state.ids)) == (StoredId(0, 0), 2)
    state.committed(1)
    assert (state.ids.find(b"a", 0), state.ids.find(b"b", 0), len(state.ids)) == (None, StoredId(1, 1), 1)


def test_log_state_replay_starts_one_dedup_window_before_the_committed_end() -> None:
    log = filled_log(400, step_s=1)
    log.append(build_batch([b"v"], base_offset=400, leader_epoch=1, timestamp_ns=10**6 * NS_PER_S))
    log.raise_high_watermark(399)
    state = LogState(log, 300 * NS_PER_S, ROOM, long_ago)
    while not state.replay():
        pass
    log.truncate_to(400)
    state.cut()
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
