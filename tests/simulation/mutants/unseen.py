"""Mutants that the simulator could not see once: each needed a fault, or a look at the end, that it did not have."""

from __future__ import annotations

from typing import Any

from liftpy.config import SessionTimes
from liftpy.core.log import segment
from liftpy.core.log.compaction import CompactionFilter
from liftpy.core.log.log import Log
from liftpy.core.log.recovery import OpenReport
from liftpy.core.metadata.sessions import LeaseAnswer, NodeSessions
from liftpy.core.publish.state_writer import StateWriter
from liftpy.core.replication import effects as do
from liftpy.core.replication.inflight_limits import InflightLimits
from liftpy.core.replication.leader import LeaderRole
from liftpy.core.replication.lease import REPLICATION, DataPath, Lease
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.rejections import RejectReason
from tests.simulation.mutants.bug import Mutant, Patches, method


def newest_batch_is_taken_for_torn() -> Patches:
    """A flip in the newest batch looks like a write that was cut short; that HW knows of it is not looked at."""
    return [
        method(OpenReport, "must_leave_isr", property(lambda self: bool(self.damage) or self.lost_flushed)),
        method(segment, "_is_complete", lambda tail, at: False),
    ]


def lease_as_long_as_the_session() -> Patches:
    """Right as long as all clocks run alike."""
    real = Lease.extend

    def heard(self: Lease, sent_ns: int, lease_ns: int, now_ns: int) -> bool:
        return real(self, sent_ns + (lease_ns or self._length_ns) // 3, lease_ns, now_ns)

    return [method(Lease, "extend", heard)]


def nodes_go_by_their_own_lease() -> Patches:
    """The image and the answers say another one."""
    real = Lease.extend
    return [method(Lease, "extend", lambda self, sent_ns, lease_ns, now_ns: real(self, sent_ns, 0, now_ns))]


def a_session_shrinks_below_what_was_granted() -> Patches:
    """A heartbeat that comes after a change counts by the shorter session alone."""
    real = NodeSessions.heartbeat

    def heartbeat(self: NodeSessions, node_id: str, incarnation: int, now_ns: int, confirmed_ns: int) -> LeaseAnswer:
        answer = real(self, node_id, incarnation, now_ns, confirmed_ns)
        if answer.granted:
            self._sessions[node_id].deadline_ns = now_ns + self._session_ns
        return answer

    return [method(NodeSessions, "heartbeat", heartbeat)]


def a_metadata_leader_begins_by_the_new_times() -> Patches:
    """Those before the change are forgotten by who leads next."""
    real = NodeSessions._use_times

    def go_by(self: NodeSessions, times: SessionTimes | None, now_ns: int) -> None:
        real(self, times, now_ns)
        self._longest_session_ns, self._longest_lease_ns = self._session_ns, self._lease_ns

    return [method(NodeSessions, "_use_times", go_by)]


def a_change_is_settled_at_once() -> Patches:
    """By who has only just heard of it."""

    def settle(self: NodeSessions, times: SessionTimes, now_ns: int) -> list:
        return [pb.SettleSessionTimes(change=times.change)]

    return [method(NodeSessions, "_settle", settle)]


def publishes_may_be_cut_off_for_ever() -> Patches:
    """Only the connection between nodes makes a leader give way."""
    real = DataPath.link_changed

    def link_changed(self: DataPath, link: str, is_up: bool, now_ns: int) -> bool | None:
        return real(self, link, is_up, now_ns) if link == REPLICATION else None

    return [method(DataPath, "link_changed", link_changed)]


def another_partitions_bound_counts() -> Patches:
    """What the node has uncommitted holds back a partition that has nothing uncommitted."""

    def may_append(self: InflightLimits) -> bool:
        within = self._node.unreplicated_bytes < self._config.node_unreplicated_bytes
        return within and self.uncommitted_bytes < self._config.unreplicated_bytes

    return [method(InflightLimits, "may_append", may_append)]


def compaction_keeps_the_oldest() -> Patches:
    real = CompactionFilter._is_newest

    def kept(self: CompactionFilter, batch: Any) -> Any:
        return ~real(self, batch) if len(self._latest) > 1 else real(self, batch)

    return [method(CompactionFilter, "_is_newest", kept)]


def retention_does_not_stop_at_hw() -> Patches:
    """Neither where it is decided nor in the nets below it: what the log has for whoever asks, and that no record goes before a state
    covers its producer."""
    real = Log.apply_retention

    def apply_retention(self: Log, *given: Any, **named: Any) -> bool:
        high, self.high_watermark = self.high_watermark, self.newest_offset
        try:
            return real(self, *given, **named)
        finally:
            self.high_watermark = high

    def may_drop(self: StateWriter, log_start_offset: int) -> bool:
        return True

    return [method(Log, "apply_retention", apply_retention), method(StateWriter, "may_drop", may_drop)]


def what_is_held_stays_held() -> Patches:
    """Once a bound was met, nothing is appended any more: what comes later waits behind what is held."""
    return [method(LeaderRole, "_append_delayed", lambda self, out: None)]


def who_asks_for_a_successor_takes_no_more() -> Patches:
    """It is to be relieved soon; that nobody may hear it, or nobody come, is not thought of."""
    real_look, real_take = LeaderRole._check_lag, LeaderRole.publishes_received

    def look(self: LeaderRole, late_ns: int, now_ns: int, out: list) -> None:
        real_look(self, late_ns, now_ns, out)
        if any(isinstance(effect, do.TransferLeadership | do.GiveUpLeadership) for effect in out):
            self.has_asked = True

    def take(self: LeaderRole, event: Any, now_ns: int, out: list) -> None:
        if getattr(self, "has_asked", False):
            out.append(do.DropPublishes(token=event.token, reason=RejectReason.NOT_LEADER))
        else:
            real_take(self, event, now_ns, out)

    return [method(LeaderRole, "_check_lag", look), method(LeaderRole, "publishes_received", take)]


MUTANTS = (
    Mutant("what is held stays held", "L10", what_is_held_stays_held, seed=1),
    Mutant("who asks for a successor takes no more", "L10", who_asks_for_a_successor_takes_no_more, "lasting-leaders", 10),
    Mutant("the newest batch is taken for torn", "S3; a flip in the last batch", newest_batch_is_taken_for_torn, "disks"),
    Mutant("lease as long as the session", "D22; clocks that drift", lease_as_long_as_the_session, "edges", 5),
    Mutant("nodes go by their own lease", "D22; level 5", nodes_go_by_their_own_lease, "times", 7),
    Mutant("a session shrinks", "D22; level 5", a_session_shrinks_below_what_was_granted, "times", 9),
    Mutant("a metadata leader begins by the new times", "D22; level 5", a_metadata_leader_begins_by_the_new_times, "times", 18),
    Mutant("a change is settled at once", "D22; level 5", a_change_is_settled_at_once, "times", 18),
    Mutant(
        "publishes may be cut off for ever", "L10; four connections", publishes_may_be_cut_off_for_ever, "lasting-leaders", 38
    ),
    Mutant("a node's bound stops every partition", "L10", another_partitions_bound_counts, "lasting-many"),
    Mutant("compaction keeps the oldest", "D5", compaction_keeps_the_oldest),
    Mutant("retention does not stop at HW", "D26; Kafka", retention_does_not_stop_at_hw, "edges"),
)
