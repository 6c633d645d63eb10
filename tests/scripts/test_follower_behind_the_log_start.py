"""A follower is behind the leader's log start.

While c was away, retention deleted what c needs next. There is nothing to fetch at c's end, and c must not simply go on at
the leader's start: its log would have a hole that no reader sees. It throws its log away and starts afresh, empty, at the
leader's log start; everything below was committed and has expired.

Shows D15, D26, R8.
"""

from __future__ import annotations

import pytest

from liftpy.config import StreamConfig
from tests.scripts.stage import Stage

KILLS = ("gap accepted",)


@pytest.mark.parametrize("restarted", [True, False])
def test_follower_behind_the_log_start_begins_at_the_leaders_log_start(restarted: bool) -> None:
    with Stage(stream=StreamConfig(segment_bytes=4096)) as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        s.crash(c) if restarted else s.isolate(c)
        s.until(lambda: s.isr == {a, b})
        s.publish(40, records=5)
        s.drop_prefix(a, 150)
        start = s.replica(a).log.log_start_offset
        assert 3 < start <= 150
        s.publish(1)
        s.start(c) if restarted else s.reconnect(c)
        s.until(lambda: s.isr == {a, b, c})
        s.settle()
        assert s.counted("fresh start") >= 1
        assert s.replica(c).log.log_start_offset == start
        assert s.ids(c) == s.ids(a)
        assert s.epochs(c) == s.epochs(a)


def test_follower_with_part_of_the_leaders_log_continues_at_its_end() -> None:
    """Its log end is above the leader's log start."""
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(10)
        s.settle()
        s.isolate(c)
        s.until(lambda: s.isr == {a, b})
        s.publish(10)
        s.drop_prefix(a, 5)
        s.reconnect(c)
        s.until(lambda: s.isr == {a, b, c})
        s.settle()
        assert s.counted("fresh start") == 0
        assert s.end(c) == 20


def test_follower_of_a_leader_that_deleted_all_records_begins_at_its_end() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(5)
        s.isolate(c)
        s.until(lambda: s.isr == {a, b})
        s.publish(5)
        s.drop_prefix(a, 10)
        s.reconnect(c)
        s.until(lambda: s.isr == {a, b, c})
        s.publish(1)
        s.settle()
        assert s.replica(c).log.log_start_offset == s.replica(a).log.log_start_offset
