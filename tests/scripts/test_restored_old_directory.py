"""A node starts with an older copy of its data directory.

The copy says of itself all that the folder says: node id, folder id, an incarnation that was the registered one when the process
after it began, a clean stop. Its next process even is the start with the number that the group knows. Taken for complete, it stays
in the ISR without records that were acknowledged, and where it led it leads on, and the others cut what it does not have. What
gives it away is that it has not seen the process that registered last.

Shows S15, C7, C12, D1, D2, D24.
"""

from __future__ import annotations

import pytest

from liftpy.core.base.partition import PartitionStatus
from tests.scripts.stage import Stage

KILLS = ("a folder put back counts as complete",)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_restored_old_data_directory_after_a_full_stop_loses_no_acked_record(role: str, clean: bool) -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        node = a if role == "leader" else b
        s.publish(3)
        s.settle()
        s.crash(node)
        s.copy_disk(node, clean=clean)
        s.start(node)
        s.until(lambda: s.isr == {a, b, c} and s.cluster.leader() is not None)
        s.publish(20)
        s.settle()
        s.crash(a, b, c)
        s.put_back(node)
        s.start(node)
        s.until(lambda: node not in s.isr)
        s.start(a, b, c)
        s.until(lambda: s.isr == {a, b, c})
        s.settle()
        assert len(s.ids(node)) == 23


def test_restored_old_data_directory_removes_its_node_from_the_isr() -> None:
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.crash(c)
        s.copy_disk(c, clean=True)
        s.restart(c)
        s.publish(5)
        s.settle()
        s.crash(c)
        s.put_back(c)
        s.isolate(c)
        s.start(c)
        s.until(lambda: s.isr == {a, b}, within_s=1.0)
        s.reconnect(c)
        s.until(lambda: s.isr == {a, b, c})


def test_restored_old_data_directory_of_the_only_replica_leaves_the_partition_offline() -> None:
    with Stage(nodes=1, factor=1, min_isr=1, ends_whole=False) as s:
        (a,) = s.isr
        s.crash(a)
        s.copy_disk(a, clean=True)
        s.restart(a)
        s.until(lambda: s.cluster.leader() is not None)
        s.publish(5)
        s.crash(a)
        s.put_back(a)
        s.start(a)
        s.until(lambda: s.status is PartitionStatus.OFFLINE)
        s.always(lambda: s.status is PartitionStatus.OFFLINE, 10)


def test_node_killed_repeatedly_before_its_registration_stays_in_the_isr() -> None:
    """Some processes die before they learn that they are registered."""
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        s.publish(3)
        s.settle()
        for _ in range(5):
            lost = s.hold("registerNode answer", receiver=c)
            s.crash(c)
            s.start(c)
            s.until(lambda lost=lost: lost.count > 0)
            lost.drop()
        s.restart(c)
        s.always(lambda: s.isr == {a, b, c}, 1.0)


def test_node_whose_dead_process_registers_late_stays_in_the_isr() -> None:
    """The process that registered later knows the sender of the late request, so the directory is no copy."""
    with Stage() as s:
        a, b, c = s.leader, *s.followers
        late = s.hold("registerNode", sender=c, at_most=1)
        s.crash(c)
        s.start(c)
        s.until(lambda: late.count > 0)
        s.crash(c)
        s.restart(c)
        s.until(lambda: s.isr == {a, b, c})
        late.release()
        s.until(lambda: s.counted("registerNode STALE") > 0)
        s.always(lambda: s.isr == {a, b, c}, 1.0)
        assert s.counted("deposed by another registration") == 0
