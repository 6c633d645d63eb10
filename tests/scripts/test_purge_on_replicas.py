"""An operator purges a subject: every replica deletes its records, also one that was down.

Shows D5: what is left is the same everywhere, and nobody ends before a holder that is away has said that it holds none of them.
"""

from __future__ import annotations

from liftpy.config import StreamConfig
from liftpy.core.base.partition import Purge
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.scripts.stage import STREAM, Stage
from tests.simulation.replica.cluster import STREAM as NAME
from tests.simulation.replica.compaction_checks import held_ids


def purge(s: Stage, end_offset: int) -> None:
    """``liftpy stream purge``."""
    subjects = [s.replica(s.leader).subject]
    request = pb.PurgeRecords(stream=STREAM, uid=s.cluster.key.uid, partition=0, endOffset=end_offset, subjects=subjects)
    response = s.command(pb.ControlRequest(purgeRecords=request))
    assert response.error == pb.ControlResponse.OK, response.detail


def keep_house(s: Stage) -> None:
    """Housekeeping's next rounds, on all that run: the second one tells what the first one did."""
    for node in s.partition.replicas:
        if s.cluster.replica(node) is not None:
            s.replica(node).apply_retention(0)
    s.run(1.0)  # what was sealed is flushed
    for _ in range(2):
        for node in s.partition.replicas:
            if s.cluster.replica(node) is not None:
                s.replica(node).begin_compaction(0)
        s.run(1.0)


def held(s: Stage, node: str) -> list[int]:
    return list(held_ids(s.replica(node).log).values())


def pending(s: Stage) -> tuple[Purge, ...]:
    return s.cluster.group.partition(NAME, 0).purges


def test_purge_deletes_records_on_all_replicas_including_a_returning_one() -> None:
    with Stage(stream=StreamConfig(dedup_window_s=0.0)) as s:
        s.publish(6)
        s.settle()
        away = s.followers[0]
        s.crash(away)
        purge(s, 4)
        here = [node for node in s.partition.replicas if node != away]
        keep_house(s)
        assert [held(s, node) for node in here] == [[5, 6], [5, 6]]
        s.until(lambda: [said.node for said in s.cluster.group.partition(NAME, 0).purged] == here)
        assert len(pending(s)) == 1, "one holder is away"
        s.publish(2)
        s.start(away)
        s.until(lambda: len(s.isr) == 3)
        s.settle()
        keep_house(s)
        assert held(s, away) == [5, 6, 7, 8]
        assert pending(s) == ()
        s.crash(s.leader)
        s.wait_for_leader(*s.followers)
        assert held(s, s.leader) == [5, 6, 7, 8]


def test_replica_with_a_lost_disk_after_a_purge_copies_the_remaining_records() -> None:
    """The replica reported, lost its disk, and copies from a cleaned replica. Its report counts only while it is in sync."""
    with Stage(stream=StreamConfig(dedup_window_s=0.0)) as s:
        s.publish(6)
        s.settle()
        purge(s, 4)
        keep_house(s)
        assert pending(s) == ()
        lost = s.followers[0]
        s.crash(lost)
        s.publish(1)
        s.start(lost)
        s.until(lambda: len(s.isr) == 3)
        s.settle()
        assert held(s, lost) == [5, 6, 7]
