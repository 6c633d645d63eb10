"""An attacker sends a LeaderNotice in the name of a leader.

What arrives on a notify subject has been asked for by nobody: whoever may publish there, or has found a way to, speaks in the leader's
name. It may wake a follower. It must not make it drop the log that it holds for others, nor show its readers what is not committed.

Shows R1, D16, D26.
"""

from __future__ import annotations

import pytest

from liftpy.config import StreamConfig
from tests.scripts.stage import Stage

KILLS = ("a notice raises HW", "a notice moves the log start")


@pytest.mark.parametrize("log_start", [10, 1 << 60])
@pytest.mark.parametrize("stream", [StreamConfig(), StreamConfig(retention_records=5)])
def test_forged_leader_notice_of_a_log_start_deletes_no_record(log_start: int, stream: StreamConfig) -> None:
    with Stage(stream=stream) as s:
        b = s.followers[0]
        s.publish(50)
        s.settle()
        s.forge_notice(b, high_watermark=s.hw(b), log_start_offset=log_start)
        s.always(lambda: s.replica(b).log.log_start_offset == 0, 2.0)
        assert len(s.ids(b)) == 50


def test_forged_leader_notice_of_a_high_watermark_shows_no_uncommitted_record() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(5)
        s.settle()
        s.isolate(c)
        s.send()
        s.until(lambda: s.replica(b).log.flushed_end_offset == 6)
        s.forge_notice(b, high_watermark=99)
        s.always(lambda: s.hw(b) == 4, 0.2)
        assert s.end(a) == 6


def test_forged_leader_notice_makes_an_idle_follower_only_send_a_fetch() -> None:
    """The follower believes only the answer of the leader."""
    with Stage(max_idle_wait_s=1.9) as s:
        b = s.followers[0]
        s.publish(5)
        s.settle()
        s.until(lambda: s.phase(b) == "FOLLOWER_IDLE")
        fetches = s.counted("fetch answered")
        s.forge_notice(b, high_watermark=99)
        s.until(lambda: s.counted("fetch answered") > fetches, within_s=0.2)
        assert s.hw(b) == 4
