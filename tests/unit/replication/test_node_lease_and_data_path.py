"""Test the lease of a node and its data path: the order of heartbeats, images and connections."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest

from liftpy.config import AckPolicy, ReplicationConfig
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.lease import INGEST, INGEST_GRACE_NS, REPLICATION, DataPath, Lease
from liftpy.core.replication.replica import Replica
from liftpy.core.replication.role import NodeContext
from tests.long import examples
from tests.unit.replication.stepping import Stepped, state

LEASE_NS = round(ReplicationConfig().lease_s * 1e9)
STEPS = 60


class LeasedNode:
    """A node with one replica, whose events wait in a queue. The replica leads LeaderEpoch 2 until the image names b."""

    def __init__(self) -> None:
        self.leader = Stepped("a").opened()
        self.queue: deque[Callable[[], None]] = deque()
        self.epoch, self.leader_epoch, self.known = 2, 2, 0
        self.names_a = True
        self.must_update = True
        self.grants: list[tuple[int, int]] = []
        """(Epoch of the image, end of the lease) of each granted lease."""
        self.acked = self.committed = -1

    # ---- what happens to the node --------------------------------------------------------------------------------------
    def beat(self) -> None:
        """A heartbeat is answered that was sent some time ago."""
        lease, now_ns = self.leader.lease, self.leader.now_ns
        sent_ns = now_ns - LEASE_NS // 4
        self.grants.append((self.epoch, sent_ns + LEASE_NS))
        if lease.extend(sent_ns, 0, now_ns):
            self.queue.append(self.lease_changes)

    def pass_time(self) -> None:
        self.leader.now_ns += LEASE_NS // 2

    def timer_fires(self) -> None:
        """The timer for the end of the lease may be late, so it may also fire after the lease was extended."""
        self.queue.append(self.lease_changes)

    def change_image(self) -> None:
        self.epoch += 1
        self.leader.replica.announce_change(self.leader.now_ns)
        self.must_update = True

    def depose(self) -> None:
        if self.names_a:
            self.names_a, self.leader_epoch = False, self.leader_epoch + 1
            self.change_image()

    def elect(self) -> None:
        if not self.names_a:
            self.names_a, self.leader_epoch = True, self.leader_epoch + 1
            self.change_image()

    def update(self) -> None:
        """The node updates the replica with its newest image."""
        if not self.must_update:
            return
        self.must_update = False
        held = state(
            "a" if self.names_a else "b", epoch=self.epoch, leader_epoch=self.leader_epoch, leaderships=self.leader_epoch
        )
        announced, epoch = self.leader.replica.announced, self.epoch

        def changed() -> None:
            self.known = epoch
            self.step(ev.PartitionChanged(metadata=held, incarnations={"a": 1, "b": 1, "c": 1}, announced=announced))
            if self.leader.has(do.ReplayLog):
                self.acked = self.committed = -1  # a new leadership sends no acks for earlier records
                self.step(ev.ReplayFinished(end_offset=self.leader.replica.log.log_end_offset))

        self.queue.append(changed)

    def commit(self) -> None:
        """A record is published and committed, if the replica leads then."""
        self.queue.append(self.commit_now)

    def process(self) -> None:
        if self.queue:
            self.queue.popleft()()

    # ---- what the replica does -----------------------------------------------------------------------------------------
    def step(self, event: ev.Event) -> None:
        self.leader.step(event)
        self.check()

    def check(self) -> None:
        for effect in self.leader.out:
            if isinstance(effect, do.SendAcks):
                may_ack = any(epoch <= self.known and self.leader.now_ns < end_ns for epoch, end_ns in self.grants)
                assert may_ack, "an ack without a lease"
                if effect.policy is AckPolicy.ALL:
                    self.acked = max(self.acked, effect.through_offset)

    def lease_changes(self) -> None:
        self.step(ev.LeaseChanged())

    def commit_now(self) -> None:
        leader = self.leader
        if leader.replica.role != "LEADER" or leader.replica.phase not in ("LEADER_READY", "LEADER_NO_LEASE"):
            return
        leader.publish(flush=False)
        self.check()
        self.step(ev.LogFlushed(end_offset=leader.replica.log.log_end_offset))
        for follower in "bc":
            newest = leader.replica.log.newest_offset
            leader.fetch(follower, newest, leader.replica.log.epochs.entries[-1][0])
            self.check()
        self.committed = leader.replica.log.high_watermark

    @property
    def has_all(self) -> bool:
        """True if nothing waits for the lease: the leader shows that it has one, and all committed records are acknowledged."""
        return self.leader.replica.phase == "LEADER_READY" and self.acked == self.committed

    def drain(self) -> None:
        """Let the newest image and all events arrive."""
        self.update()
        while self.queue:
            self.process()
        opened = self.leader.replica.phase in ("LEADER_READY", "LEADER_NO_LEASE")
        if opened and self.leader.lease.is_current(self.leader.now_ns):
            assert self.has_all, "nothing wakes the leader although it has a lease"

    def end_waits(self) -> None:
        """Name a as the leader, and wait until no earlier leader has a lease. The lease of a ends in this time, too."""
        self.elect()
        self.drain()
        self.leader.now_ns += 2 * LEASE_NS
        if self.leader.replica.phase == "LEADER_INIT":
            self.step(ev.DeadlineReached(kind=ev.Deadline.PROMOTION))


@pytest.mark.parametrize("seed", range(examples(200)))
def test_leader_acks_only_with_its_lease_and_sends_all_acks_when_it_has_one_in_any_order(seed: int) -> None:
    draw, node = random.Random(seed), LeasedNode()
    actions = [
        *[node.beat] * 4, *[node.pass_time] * 2, node.timer_fires, *[node.change_image] * 2, node.depose, node.elect,
        *[node.update] * 2, *[node.commit] * 2, *[node.process] * 5,
    ]  # fmt: skip
    for _ in range(STEPS):
        draw.choice(actions)()
    node.drain()
    node.end_waits()
    node.commit_now()
    assert node.acked < node.committed
    node.beat()
    node.drain()
    assert node.has_all


def test_metadata_change_of_one_replica_does_not_hold_the_lease_of_another_replica_of_the_node() -> None:
    lease = Lease(LEASE_NS)
    one, other = (Replica(NodeContext("a", 1, ReplicationConfig(), lease)) for _ in range(2))
    now_ns = 10 * LEASE_NS
    lease.extend(now_ns, 0, now_ns)
    one.announce_change(now_ns)
    later_ns = now_ns + LEASE_NS - 1
    lease.extend(later_ns, 0, later_ns)
    assert [replica.snapshot(later_ns + 1).lease_is_current for replica in (one, other)] == [False, True]


def test_data_path_is_down_at_once_without_the_replication_connection() -> None:
    path = DataPath()
    assert path.link_changed(REPLICATION, False, 100) is False
    assert path.link_changed(REPLICATION, False, 200) is None
    assert path.link_changed(REPLICATION, True, 300) is True


def test_data_path_is_down_after_a_grace_time_without_the_ingest_connection() -> None:
    path = DataPath()
    assert path.link_changed(INGEST, False, 100) is None
    assert path.next_ns(100) == 100 + INGEST_GRACE_NS
    assert path.check_timeout(99 + INGEST_GRACE_NS) is None
    assert path.check_timeout(100 + INGEST_GRACE_NS) is False
    assert path.next_ns(100 + INGEST_GRACE_NS) is None
    assert path.link_changed(INGEST, True, 200 + INGEST_GRACE_NS) is True


def test_data_path_stays_up_when_the_ingest_connection_returns_within_the_grace_time() -> None:
    path = DataPath()
    for turn in range(100):
        at_ns = turn * INGEST_GRACE_NS
        assert path.link_changed(INGEST, False, at_ns) is None
        assert path.link_changed(INGEST, True, at_ns + INGEST_GRACE_NS - 1) is None
        assert path.next_ns(at_ns + INGEST_GRACE_NS - 1) is None


def test_data_path_is_up_only_with_the_replication_and_the_ingest_connection() -> None:
    path = DataPath()
    assert path.link_changed(INGEST, False, 0) is None
    assert path.link_changed(REPLICATION, False, 5) is False
    assert path.check_timeout(INGEST_GRACE_NS) is None
    assert path.link_changed(REPLICATION, True, INGEST_GRACE_NS) is None
    assert path.link_changed(INGEST, True, INGEST_GRACE_NS) is True
