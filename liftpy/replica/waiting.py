"""WaitingRole and its kin: replicas that hold their log and serve what is committed, but neither lead nor follow."""

from __future__ import annotations

from liftpy.partition import PartitionStatus
from liftpy.replica.effects import GiveUpLeadership, LeaveIsr, RejectPublishes, RejectReason
from liftpy.replica.events import Deadline, PublishesReceived
from liftpy.replica.follower import report_leader
from liftpy.replica.phases import RoleName, Waiting
from liftpy.replica.role import Effects, ReplicaRole, Shared, nanoseconds


class WaitingRole(ReplicaRole):
    """There is no leader, or this node is no replica, or the metadata does not show this process yet.

    In an election it tells its position once, if it may be the candidate, so that the best one can be chosen.
    """

    name = RoleName.WAITING

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared, Waiting[shared.state.status.name] if shared.state.epoch else Waiting.NO_METADATA)

    def enter(self, now_ns: int, out: Effects) -> None:
        """Tell the position if there is an election."""
        super().enter(now_ns, out)
        state = self.shared.state
        if (
            state.status is PartitionStatus.ELECTION
            and self.shared.node_id in (self.shared.held.isr | self.shared.held.may_lead)
            and self.shared.node_id != state.leader
        ):
            out.append(report_leader(self.shared))


class FailedRole(ReplicaRole):
    """The log refused for good. Nothing is appended, acknowledged or served; another replica must take over [S4, S8].

    At once: a leader gives the leadership up, a follower leaves the ISR, so that nobody finds out by a time-out. What it asks for
    may be lost, so it asks again until the metadata shows it.
    """

    name = RoleName.FAILED

    def __init__(self, shared: Shared, reason: str, speaks_until_lease_ends: bool) -> None:
        super().__init__(shared, Waiting.STORAGE_FAILED)
        self._reason = reason
        self._speaks_until_lease_ends = speaks_until_lease_ends  # it led and has no space: publishers can be told

    @property
    def shown_phase(self) -> str:
        """Why it failed, for people."""
        return self._reason

    def enter(self, now_ns: int, out: Effects) -> None:
        """Make way."""
        super().enter(now_ns, out)
        self._make_way(now_ns, out)

    def partition_changed(self, epoch_rose: bool, now_ns: int, out: Effects) -> None:
        """It may have been made the leader meanwhile."""
        if epoch_rose:
            self._make_way(now_ns, out)

    def deadline_reached(self, kind: Deadline, late_ns: int, now_ns: int, out: Effects) -> None:
        """Ask again."""
        self._make_way(now_ns, out)

    def _make_way(self, now_ns: int, out: Effects) -> None:
        state, node_id = self.shared.state, self.shared.node_id
        if state.status is not PartitionStatus.ONLINE or node_id not in state.isr:
            return
        if state.leader == node_id:
            out.append(GiveUpLeadership(leader_epoch=state.leader_epoch, reason=self._reason))
        else:
            out.append(LeaveIsr(reason=self._reason))
        again_ns = now_ns + nanoseconds(self.shared.config.max_leader_timeout_s)
        self.shared.deadlines.set(Deadline.ISR_CHANGE, again_ns, out)

    def publishes_received(self, event: PublishesReceived, now_ns: int, out: Effects) -> None:
        """Refuse for lack of space while the lease lasts, then be silent."""
        state = self.shared.state
        still_leads = (state.leader, state.leader_epoch) == (self.shared.node_id, self.leader_epoch)
        if self._speaks_until_lease_ends and still_leads and self.shared.lease.is_current(now_ns):
            out.append(RejectPublishes(token=event.token, reason=RejectReason.NO_SPACE))
        else:
            super().publishes_received(event, now_ns, out)


class StoppedRole(ReplicaRole):
    """The node stops; whatever still arrives is not acted on."""

    name = RoleName.STOPPED
