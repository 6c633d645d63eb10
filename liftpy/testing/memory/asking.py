"""What a replica in memory asks of the metadata group, the counterpart of ``sidecar.partition.proposals``."""

from __future__ import annotations

from liftpy.cluster.codec import pause_to_pb
from liftpy.cluster.wishes import purge_report
from liftpy.ids import PartitionKey
from liftpy.log.log import Log
from liftpy.partition import PartitionState
from liftpy.replica import effects as do
from liftpy.replica import events as ev
from liftpy.testing.memory.home import Answered, HomeNode
from liftpy.wire._pb import cluster_pb2 as pb


def _nobody(response: pb.ControlResponse) -> None:
    pass


class MemoryAsking:
    """The part of a ``MemoryReplica`` that carries these effects out."""

    node: HomeNode
    node_id: str
    key: PartitionKey

    log: Log
    state: PartitionState | None
    """As last heard of."""

    def feed(self, event: ev.Event) -> None:
        """One event for the replica."""
        raise NotImplementedError

    def _ask(self, request: pb.ControlRequest, answered: Answered = _nobody) -> None:
        self.node.ask(request, answered)

    def propose_isr(self, effect: do.ProposeIsr) -> None:
        change = pb.ChangeIsr(
            stream=self.key.stream, uid=self.key.uid, partition=self.key.partition, leader=self.node_id,
            leaderEpoch=effect.leader_epoch, epoch=effect.epoch, isr=sorted(effect.isr),
            incarnations=dict(effect.incarnations), lost=sorted(effect.lost), evicted=effect.evicted,
        )  # fmt: skip

        def answered(response: pb.ControlResponse) -> None:
            accepted = response.error == pb.ControlResponse.OK
            self.feed(ev.IsrChangeAnswered(epoch=effect.epoch, accepted=accepted))

        self._ask(pb.ControlRequest(changeIsr=change), answered)

    def report_leader(self, effect: do.ReportLeader) -> None:
        report = pb.ReportLeader(
            stream=self.key.stream, uid=self.key.uid, partition=self.key.partition, witness=self.node_id,
            witnessIncarnation=self.node.incarnation, leader=effect.leader, leaderEpoch=effect.leader_epoch,
            lastEpoch=effect.last_epoch, newestOffset=effect.newest_offset, highWatermark=effect.high_watermark,
            leaderLacks=effect.leader_lacks,
        )  # fmt: skip
        self._ask(pb.ControlRequest(reportLeader=report))

    def leave_isr(self, effect: do.LeaveIsr) -> None:
        wish = pb.LeaveIsr(
            stream=self.key.stream, uid=self.key.uid, partition=self.key.partition, node=self.node_id,
            incarnation=self.node.incarnation, reason=effect.reason,
        )  # fmt: skip
        self._ask(pb.ControlRequest(leaveIsr=wish))

    def give_up_leadership(self, effect: do.GiveUpLeadership) -> None:
        self._another_leader(effect.leader_epoch, effect.reason)

    def wake_partition(self, effect: do.WakePartition) -> None:
        wish = pb.WakePartition(
            stream=self.key.stream, uid=self.key.uid, partition=self.key.partition, leader=self.node_id,
            leaderEpoch=effect.leader_epoch, pause=pause_to_pb(effect.pause), pauses=effect.pauses,
        )  # fmt: skip
        self._ask(pb.ControlRequest(wakePartition=wish))

    def step_aside(self, effect: do.StepAside) -> None:
        self._another_leader(effect.leader_epoch, effect.reason, effect.toward)

    def _another_leader(self, leader_epoch: int, reason: str, toward: str = "") -> None:
        wish = pb.GiveUpLeadership(
            stream=self.key.stream, uid=self.key.uid, partition=self.key.partition, leader=self.node_id,
            incarnation=self.node.incarnation, leaderEpoch=leader_epoch, reason=reason, toward=toward,
        )  # fmt: skip
        self._ask(pb.ControlRequest(giveUpLeadership=wish))

    def report_promotion(self, effect: do.ReportPromotion) -> None:
        report = pb.ReportPromotion(
            stream=self.key.stream, uid=self.key.uid, partition=self.key.partition, candidate=self.node_id,
            candidateIncarnation=self.node.incarnation, leaderEpoch=effect.leader_epoch, epoch=effect.epoch,
            replayedEndOffset=effect.replayed_end_offset, newestOffset=effect.newest_offset, finished=effect.finished,
        )  # fmt: skip
        self._ask(pb.ControlRequest(reportPromotion=report))

    def report_purged(self) -> None:
        """Which purges are done here, where the group does not know."""
        purged = self.log.cleaning.purged
        report = purge_report(self.key, self.state, self.node_id, self.node.incarnation, purged) if self.state else None
        if report is not None:
            self._ask(report)
