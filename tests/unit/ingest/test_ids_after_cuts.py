"""Message ids where several things meet: repeats, want of room, cuts; and what the derived state passes on to them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from liftpy.ingest.derived import DerivedState
from liftpy.ingest.recent_ids import Stored
from tests.unit.ingest.test_recent_ids import ROOM, WINDOW, ids, long_ago, take


def test_a_cut_brings_back_nothing_that_was_forgotten_meanwhile() -> None:
    """An id that stands nowhere any more would be an error for the next publisher that uses it."""
    one = ids()
    take(one, 0, 0, 1000, {0: b"a"})
    for why, room in (("by time", ROOM), ("for want of room", 2 * one.size_bytes - 1)):
        made = ids(room=room)
        take(made, 0, 0, 1000, {0: b"a"})
        made.committed(0)
        take(made, 1, 1, 1000 + (WINDOW if why == "by time" else 0), {})
        take(made, 2, 2, 1000 + WINDOW, {2: b"a"})
        made.committed(1)
        assert (made.find(b"a", 0), made.size_bytes) == (Stored(2, 2), one.size_bytes), why
        made.cut(2)
        assert (made.find(b"a", 0), len(made), made.size_bytes) == (None, 0, 0), why


def test_hw_that_has_risen_lets_what_is_older_than_the_window_go() -> None:
    log: Any = SimpleNamespace(log_start_offset=0, log_end_offset=0, high_watermark=-1)
    state = DerivedState(log, WINDOW, ROOM, long_ago)
    state.appended(0, 1, 1000, {0: b"a"}, b"")
    state.appended(1, 1, 1000 + WINDOW, {1: b"b"}, b"")
    state.committed(0)
    assert (state.ids.find(b"a", 0), len(state.ids)) == (Stored(0, 0), 2)
    state.committed(1)
    assert (state.ids.find(b"a", 0), state.ids.find(b"b", 0), len(state.ids)) == (None, Stored(1, 1), 1)
