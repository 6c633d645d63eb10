"""The wall clocks of nodes are an hour off.

Leases, sessions and timeouts use the monotonic clock of each node. No timer compares the clocks of two nodes. The wall clock only
sets the timestamp of a batch and the age of records for retention (``test_retention_with_a_wrong_clock.py``).

So no leader is deposed and no follower waits. A leader change makes timestamps jump by two hours. Offsets do not jump. The wall clock
of the metadata leader decides nothing either: an entry whose time is years ahead does not add up two reports about a leader.

Shows D1, D15, D22, L1, R3.
"""

from __future__ import annotations

import itertools

import pytest

from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.batch import split_batches
from tests.scripts.stage import Stage
from tests.simulation.replica.clock import S


@pytest.mark.parametrize("hours", [1, -1])
def test_wall_clock_an_hour_off_changes_no_election_or_isr(hours: int) -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        epoch = s.leader_epoch
        s.publish(2)
        s.wall_clock(a, 3600 * hours)
        s.wall_clock(b, -3600 * hours)
        s.publish(2)
        s.always(lambda: s.leader_epoch == epoch and s.isr == {a, b, c}, 10)
        took_s = s.now_s
        s.crash(a)
        s.wait_for_leader(b, c)
        assert s.now_s - took_s < 5
        if s.leader != b:
            s.move_leader(b)
        s.publish(2)
        s.start(a)
        s.until(lambda: s.isr == {a, b, c})
        s.settle()
        log = s.replica(c).log
        batches = split_batches(memoryview(b"".join(log.read(0, 1 << 20).chunks)))
        jumps = [
            round((two.header.timestamp_ns - one.header.timestamp_ns) / S / 3600) for one, two in itertools.pairwise(batches)
        ]
        assert jumps == [0, hours, 0, -2 * hours, 0]
        assert [batch.base_offset for batch in batches] == list(range(6))


def test_wall_clock_jump_on_the_leader_changes_neither_leader_nor_isr() -> None:
    with Stage() as s:
        a = s.leader
        epoch = s.leader_epoch
        for offset_s in (0, 3600, -3600, 0):
            s.wall_clock(a, offset_s)
            s.publish(1)
            s.run(3)
        assert (s.leader, s.leader_epoch) == (a, epoch)
        assert s.ids(a) == [1, 2, 3, 4]


@pytest.mark.parametrize("off_s", [10 * 365 * 86_400, -60])
def test_silent_leader_reports_a_minute_apart_trigger_no_election_despite_a_wrong_clock(off_s: int) -> None:
    with Stage(idle_polls_before_quiet=10) as s:  # a follower that sleeps is out of the ISR before it reports
        a, b, c = s.leader, *s.followers
        epoch = s.leader_epoch
        s.publish(1)
        for follower in (b, c):
            before = s.counted("reportLeader OK")
            s.cut(a, follower)
            s.until(lambda before=before: s.counted("reportLeader OK") > before)
            s.mend(a, follower)
            s.run(60)
            s.cluster.group.wall_offset_ns += off_s * S
            s.command(pb.ControlRequest(drainNode=pb.DrainNode(nodeId="nobody")))
            s.cluster.group.wall_offset_ns -= off_s * S * (off_s > 0)
        assert (s.leader, s.leader_epoch) == (a, epoch)
