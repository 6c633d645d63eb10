"""Asking: what a simulated replica asks of the metadata group, the counterpart of ``sidecar.partition.proposals``."""

from __future__ import annotations

from liftpy.cluster.codec import pause_to_pb
from liftpy.cluster.wishes import purge_report
from liftpy.ids import PartitionKey
from liftpy.log.log import Log
from liftpy.partition import PartitionState
from liftpy.replica import effects as do
from liftpy.replica import events as ev
from liftpy.testing.world import Life, World
from liftpy.wire._pb import cluster_pb2 as pb


class Asking:
    """The part of a ``SimReplica`` that carries these effects out."""

    process: Life
    cluster: World
    key: PartitionKey
    node_id: str

    log: Log
    state: PartitionState | None
    """As last heard of."""

    def feed(self, event: ev.Event) -> None:
        """One event for the replica."""
        raise NotImplementedError

    def propose_isr(self, effect: do.ProposeIsr) -> None:
        self.cluster.counters["out of the ISR: slow flushes"] += len(effect.slow)
        change = pb.ChangeIsr(
            stream=self.key.stream, uid=self.key.uid, partition=self.key.partition, leader=self.node_id,
            leaderEpoch=effect.leader_epoch, epoch=effect.epoch, isr=sorted(effect.isr),
            incarnations=dict(effect.incarnations), lost=sorted(effect.lost), evicted=effect.evicted,
        )  # fmt: skip

        def answered(response: pb.ControlResponse | None) -> None:
            accepted = None if response is None else response.error == pb.ControlResponse.OK
            self.feed(ev.IsrChangeAnswered(epoch=effect.epoch, accepted=accepted))

        self.process.propose(self.key, pb.ControlRequest(changeIsr=change), answered)

    def report_leader(self, effect: do.ReportLeader) -> None:
        report = pb.ReportLeader(
            stream=self.key.stream, uid=self.key.uid, partition=self.key.partition, witness=self.node_id,
            witnessIncarnation=self.process.incarnation, leader=effect.leader, leaderEpoch=effect.leader_epoch,
            lastEpoch=effect.last_epoch, newestOffset=effect.newest_offset, highWatermark=effect.high_watermark,
            leaderLacks=effect.leader_lacks,
        )  # fmt: skip
        self.process.propose(self.key, pb.ControlRequest(reportLeader=report), lambda response: None)

    def leave_isr(self, effect: do.LeaveIsr) -> None:
        self.cluster.counters["leaves the ISR itself"] += 1
        wish = pb.LeaveIsr(
            stream=self.key.stream, uid=self.key.uid, partition=self.key.partition, node=self.node_id,
            incarnation=self.process.incarnation, reason=effect.reason,
        )  # fmt: skip
        self.process.propose(self.key, pb.ControlRequest(leaveIsr=wish), lambda response: None)

    def give_up_leadership(self, effect: do.GiveUpLeadership) -> None:
        self.cluster.counters[f"gives up: {effect.reason}"] += 1
        self._ask_for_another_leader(effect.leader_epoch, effect.reason)

    def wake_partition(self, effect: do.WakePartition) -> None:
        self.cluster.counters["pauses ended by publishes" if effect.pause.until_publish else "pauses over"] += 1
        wish = pb.WakePartition(
            stream=self.key.stream, uid=self.key.uid, partition=self.key.partition, leader=self.node_id,
            leaderEpoch=effect.leader_epoch, pause=pause_to_pb(effect.pause), pauses=effect.pauses,
        )  # fmt: skip
        self.process.propose(self.key, pb.ControlRequest(wakePartition=wish), lambda response: None)

    def step_aside(self, effect: do.StepAside) -> None:
        why = [short for short in ("moves away", "gone past it") if short in effect.reason]
        self.cluster.counters[
            "steps aside: " + (f"it {why[0]}" if why == ["moves away"] else (why or ["slow flushes"])[0])
        ] += 1
        self._ask_for_another_leader(effect.leader_epoch, effect.reason, effect.toward)

    def _ask_for_another_leader(self, leader_epoch: int, reason: str, toward: str = "") -> None:
        wish = pb.GiveUpLeadership(
            stream=self.key.stream, uid=self.key.uid, partition=self.key.partition, leader=self.node_id,
            incarnation=self.process.incarnation, leaderEpoch=leader_epoch, reason=reason, toward=toward,
        )  # fmt: skip
        self.process.propose(self.key, pb.ControlRequest(giveUpLeadership=wish), lambda response: None)

    def report_promotion(self, effect: do.ReportPromotion) -> None:
        report = pb.ReportPromotion(
            stream=self.key.stream, uid=self.key.uid, partition=self.key.partition, candidate=self.node_id,
            candidateIncarnation=self.process.incarnation, leaderEpoch=effect.leader_epoch, epoch=effect.epoch,
            replayedEndOffset=effect.replayed_end_offset, newestOffset=effect.newest_offset, finished=effect.finished,
        )  # fmt: skip
        self.process.propose(self.key, pb.ControlRequest(reportPromotion=report), lambda response: None)

    def report_purged(self) -> None:
        """Which purges are done here, where the group does not know."""
        purged = self.log.cleaning.purged
        report = purge_report(self.key, self.state, self.node_id, self.process.incarnation, purged) if self.state else None
        if report is not None:
            self.process.propose(self.key, report, lambda response: None)
