"""Test the lease that all replicas of a node share [D22]."""

from __future__ import annotations

from liftpy.config import AckPolicy, ReplicationConfig
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.lease import Lease
from liftpy.core.replication.replica import Replica
from tests.unit.replication.stepping import Stepped, state

LIVE = {"a": 1, "b": 1, "c": 1}
LEASE_NS = round(ReplicationConfig().lease_s * 1e9)


def acks(leader: Stepped) -> list[tuple[AckPolicy, int]]:
    return [(effect.policy, effect.through_offset) for effect in leader.out if isinstance(effect, do.SendAcks)]


def commit(leader: Stepped) -> list[tuple[AckPolicy, int]]:
    """Publish one record and commit it. Return the acks of the commit."""
    leader.publish()
    for follower in "bc":
        leader.fetch(follower, leader.replica.log.newest_offset)
    return acks(leader)


def test_leader_sends_no_ack_after_the_end_of_the_lease_although_no_event_reports_it() -> None:
    leader = Stepped("a").leads()
    leader.now_ns += LEASE_NS
    assert commit(leader) == []
    assert leader.replica.phase == "LEADER_READY", "nobody has told it"
    assert not leader.replica.serves(2, leader.now_ns)
    assert not leader.replica.may_answer_latest(leader.now_ns)
    assert not leader.replica.may_refuse_publishers(leader.now_ns)


def test_leader_with_an_unprocessed_metadata_change_keeps_only_the_lease_that_it_had() -> None:
    leader = Stepped("a").leads()
    before_ns = leader.lease.until_ns(leader.now_ns)
    leader.replica.announce_change(leader.now_ns)
    leader.now_ns = before_ns - 1
    leader.lease.extend(leader.now_ns, 0, leader.now_ns)
    assert leader.replica.serves(2, leader.now_ns)
    leader.now_ns = before_ns
    assert not leader.replica.serves(2, leader.now_ns)
    assert commit(leader) == []
    leader.step(ev.LeaseChanged())
    assert (acks(leader), leader.replica.phase) == ([], "LEADER_NO_LEASE")
    leader.step(ev.PartitionChanged(metadata=state(leader_epoch=2, epoch=2), incarnations=LIVE, announced=1))
    assert acks(leader) == [(AckPolicy.LEADER, 0), (AckPolicy.ALL, 0)]
    assert leader.replica.phase == "LEADER_READY"


def test_leader_that_processes_an_earlier_metadata_change_still_lacks_the_lease_of_the_newest_one() -> None:
    """The first change waits behind slow work while the node receives the second one."""
    leader = Stepped("a").leads()
    for _ in range(2):
        leader.replica.announce_change(leader.now_ns)
    leader.now_ns += LEASE_NS - 1
    leader.lease.extend(leader.now_ns, 0, leader.now_ns)
    leader.now_ns += 1
    leader.step(ev.PartitionChanged(metadata=state(leader_epoch=2, epoch=2), incarnations=LIVE, announced=1))
    assert not leader.replica.serves(2, leader.now_ns)
    leader.step(ev.PartitionChanged(metadata=state("b", leader_epoch=3, epoch=3), incarnations=LIVE, announced=2))
    assert leader.replica.role == "FOLLOWER"
    assert not leader.has(do.SendAcks)


def test_metadata_change_of_one_replica_does_not_hold_the_lease_of_another_replica_of_the_node() -> None:
    lease = Lease(LEASE_NS)
    one, other = (Replica("a", 1, ReplicationConfig(), lease=lease) for _ in range(2))
    now_ns = 10 * LEASE_NS
    lease.extend(now_ns, 0, now_ns)
    one.announce_change(now_ns)
    later_ns = now_ns + LEASE_NS - 1
    lease.extend(later_ns, 0, later_ns)
    assert [replica.snapshot(later_ns + 1).lease_is_current for replica in (one, other)] == [False, True]
