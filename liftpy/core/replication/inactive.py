"""Roles of a replica that neither leads nor follows: without a leader, after a failure of the log, and while the node stops."""

from __future__ import annotations

from liftpy.core.base.partition import PartitionStatus
from liftpy.core.replication.effects import (
    GiveUpLeadership,
    LeaveIsr,
    RejectPublishes,
)
from liftpy.core.replication.events import Deadline, PublishesReceived
from liftpy.core.replication.follower import report_leader
from liftpy.core.replication.phases import InactivePhase, RoleName
from liftpy.core.replication.role import Effects, ReplicaContext, ReplicaRole, nanoseconds
from liftpy.core.wire.rejections import RejectReason


class InactiveRole(ReplicaRole):
    """Role of a replica that has no leader to follow.

    An election runs, this node is no replica, or the metadata does not show this process yet. In an election, the replica
    reports its position once, so that the best candidate can be chosen.
    """

    name = RoleName.WAITING

    def __init__(self, shared: ReplicaContext) -> None:
        super().__init__(shared, InactivePhase[shared.state.status.name] if shared.state.epoch else InactivePhase.NO_METADATA)

    def enter(self, now_ns: int, out: Effects) -> None:
        super().enter(now_ns, out)
        state, metadata = self.shared.state, self.shared.metadata
        if (
            state.status is PartitionStatus.ELECTION
            and self.shared.node_id in metadata.isr | metadata.electable_replicas
            and self.shared.node_id != state.leader
        ):
            out.append(report_leader(self.shared))


class FailedRole(ReplicaRole):
    """Role after the log has failed. The replica appends, acks and serves nothing [S4, S8].

    It asks at once to give up the leadership, to leave the ISR, or to end the copy into this node. It repeats this until the
    metadata shows it.
    """

    name = RoleName.FAILED

    def __init__(self, shared: ReplicaContext, reason: str, may_reject_publishes: bool) -> None:
        super().__init__(shared, InactivePhase.STORAGE_FAILED)
        self._reason = reason
        self._may_reject_publishes = may_reject_publishes  # it led and has no space: publishers can get a rejection

    @property
    def shown_phase(self) -> str:
        return self._reason

    def enter(self, now_ns: int, out: Effects) -> None:
        super().enter(now_ns, out)
        self._request_removal(now_ns, out)

    def partition_changed(self, epoch_rose: bool, now_ns: int, out: Effects) -> None:
        if epoch_rose:
            self._request_removal(now_ns, out)

    def deadline_reached(self, kind: Deadline, late_ns: int, now_ns: int, out: Effects) -> None:
        self._request_removal(now_ns, out)

    def _request_removal(self, now_ns: int, out: Effects) -> None:
        state, node_id = self.shared.state, self.shared.node_id
        is_learner = node_id == state.joining and node_id not in state.isr
        if state.status is not PartitionStatus.ONLINE or not (node_id in state.isr or is_learner):
            return
        if state.leader == node_id:
            out.append(GiveUpLeadership(leader_epoch=state.leader_epoch, reason=self._reason))
        else:
            out.append(LeaveIsr(reason=self._reason, is_learner=is_learner))
        again_ns = now_ns + nanoseconds(self.shared.config.max_leader_timeout_s)
        self.shared.deadlines.set(Deadline.ISR_CHANGE, again_ns, out)

    def publishes_received(self, event: PublishesReceived, now_ns: int, out: Effects) -> None:
        """Reject publishes with NO_SPACE if the disk is full and this replica still leads with a lease. Otherwise drop them."""
        state = self.shared.state
        still_leads = (state.leader, state.leader_epoch) == (self.shared.node_id, self.leader_epoch)
        if self._may_reject_publishes and still_leads and self.shared.lease.is_current(now_ns):
            out.append(RejectPublishes(token=event.token, reason=RejectReason.NO_SPACE))
        else:
            super().publishes_received(event, now_ns, out)


class StoppedRole(ReplicaRole):
    """Role of a replica whose node stops. It ignores all events."""

    name = RoleName.STOPPED
