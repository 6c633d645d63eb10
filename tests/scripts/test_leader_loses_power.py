"""The leader loses power with records that are not on its disk, and is back before anyone noticed.

Its log is shorter than it was, and the same offsets will be given again. If it went on in the same LeaderEpoch, two different
records would share (epoch, offset), and no comparison of epochs could ever tell them apart (KIP-966). So a process that
starts gets a new LeaderEpoch for what it leads; and a record that the leader has not flushed is not acknowledged, whoever else
has it. Where others have more than what came back, one of them leads.

Shows C1, D1, D5, D21.
"""

from __future__ import annotations

import pytest

from liftpy.config import AckPolicy
from tests.scripts.stage import Stage

KILLS = ("same epoch after a restart", "ack before flush on the leader")


@pytest.mark.parametrize("tail", ["lost", "torn", "kept"])
def test_leader_power_loss_with_immediate_restart_loses_no_acked_record(tail: str) -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        epoch = s.leader_epoch
        s.slow_disk(a, 800)
        sent = [s.send(), s.send(AckPolicy.LEADER)]
        s.until(lambda: s.position(b) == s.position(c) == 4)  # it is on theirs
        s.power_off(a, tail=tail)
        s.slow_disk(a, 1)
        s.start(a)
        s.until(lambda: s.leader_epoch > epoch)
        assert (s.wait_for_leader() == a) == (tail == "kept")
        s.publish(2)
        s.settle()
        assert s.outcomes(sent) == ["timed out", "timed out"]
        assert s.ids(a) == s.ids(b) == s.ids(c)
        assert s.ids(a)[:3] == [1, 2, 3]


def test_leader_power_loss_with_later_restart_truncates_unacked_records() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        s.slow_disk(a, 800)
        s.hold("data", "wake", sender=a)
        lost = s.send()
        s.until(lambda: s.end(a) == 4)
        s.power_off(a)
        s.wait_for_leader(b, c)
        s.publish(2)
        assert s.outcome(lost) == "timed out"
        s.slow_disk(a, 1)
        s.start(a)
        s.until(lambda: s.isr == {a, b, c})
        assert not set(lost.ids) & set(s.ids(a))
