"""An operator deletes the oldest records: the log start moves on every replica, also on one that was down.

Shows D26.
"""

from __future__ import annotations

from liftpy.config import StreamConfig
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.scripts.stage import STREAM, Stage

KILLS = ("retention does not stop at HW",)


def truncate(s: Stage, offset: int) -> None:
    """``liftpy stream delete-records``."""
    request = pb.TruncateBefore(stream=STREAM, uid=s.cluster.key.uid, partition=0, offset=offset)
    response = s.command(pb.ControlRequest(truncateBefore=request))
    assert response.error == pb.ControlResponse.OK, response.detail


def begins(s: Stage, node: str) -> int:
    return s.replica(node).log.log_start_offset


def begins_after_retention(s: Stage, node: str) -> int:
    """Run housekeeping once. Records go when a stored state covers their producers and message ids [A16]."""
    s.replica(node).apply_retention(0)
    return begins(s, node)


def test_delete_records_moves_the_log_start_on_all_replicas() -> None:
    with Stage() as s:
        s.publish(12)
        s.settle()
        away = s.followers[0]
        s.crash(away)
        truncate(s, 7)
        here = [node for node in s.partition.replicas if node != away]
        s.until(lambda: [begins(s, node) for node in here] == [7, 7])
        assert s.ids(s.leader) == list(range(8, 13))
        s.start(away)
        s.until(lambda: s.cluster.replica(away) is not None)
        s.settle()
        s.until(lambda: begins_after_retention(s, away) == 7)  # it knew of no HW when it opened its log
        old = s.leader
        s.crash(old)
        s.wait_for_leader(*s.followers)
        s.publish(2)
        truncate(s, 3)  # it never goes back
        s.start(old)
        s.until(lambda: len(s.isr) == 3)
        s.settle()
        s.until(lambda: begins_after_retention(s, old) == 7)
        assert {begins(s, node) for node in s.partition.replicas} == {7}
        assert len(s.ids(s.leader)) == 7


def test_delete_records_makes_a_far_behind_replica_begin_at_the_leaders_log_start() -> None:
    """Its old records are all below the leader's log start, and it fetches nothing below."""
    with Stage() as s:
        s.publish(3)
        s.settle()
        away = s.followers[0]
        s.crash(away)
        s.publish(9)
        s.settle()
        truncate(s, 10)
        s.until(lambda: begins(s, s.leader) == 10)
        s.start(away)
        s.until(lambda: len(s.isr) == 3)
        s.settle()
        assert (begins(s, away), s.ids(away)) == (10, [11, 12])


def test_retention_deletes_only_committed_records() -> None:
    """The leader has more records than the stream keeps, and no follower fetched them."""
    with Stage(stream=StreamConfig(segment_bytes=4096, retention_records=10), reader=False) as s:
        s.publish(5)
        s.settle()
        leader, high_watermark = s.leader, s.hw(s.leader)
        s.isolate(*s.followers)
        for _ in range(40):
            s.send(records=50)
        s.until(lambda: len(s.replica(leader).log.segments) > 2)
        s.replica(leader).apply_retention(0)
        assert s.hw(leader) == high_watermark
        assert begins(s, leader) <= high_watermark + 1
