"""What replicas ask of the metadata group: ISR changes, reports of a silent leader, progress of a promotion.

Each is one background task with a deadline; the answer comes back as an event. The group decides by compare-and-set, so a
late or repeated request changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from liftpy.ids import PartitionKey
from liftpy.replica import effects as do
from liftpy.replica.events import Event, IsrChangeAnswered
from liftpy.wire._pb import cluster_pb2 as pb
from sidecar.ending import end_tasks
from sidecar.raft.group import Group
from sidecar.tasks import spawn

logger = logging.getLogger("liftpy.proposals")

_TIMEOUT_S = 5.0
_UNKNOWN = (pb.ControlResponse.UNKNOWN, pb.ControlResponse.UNAVAILABLE, pb.ControlResponse.OUTCOME_UNKNOWN)


class Proposals:
    """All of a node's partitions propose through here. ``incarnation``: of this node."""

    def __init__(self, group: Group, node_id: str, incarnation: int) -> None:
        self._group = group
        self._node_id = node_id
        self._incarnation = incarnation
        self._tasks: set[asyncio.Task[None]] = set()

    def propose_isr(self, key: PartitionKey, effect: do.ProposeIsr, feed: Callable[[Event], None]) -> None:
        """Ask for another ISR; the answer is IsrChangeAnswered."""
        self._spawn(self._propose_isr(key, effect, feed))

    async def _propose_isr(self, key: PartitionKey, effect: do.ProposeIsr, feed: Callable[[Event], None]) -> None:
        change = pb.ChangeIsr(
            stream=key.stream,
            uid=key.uid,
            partition=key.partition,
            leader=self._node_id,
            leaderEpoch=effect.leader_epoch,
            epoch=effect.epoch,
            isr=sorted(effect.isr),
            incarnations=dict(effect.incarnations),
            lost=sorted(effect.lost),
        )
        response = await self._group.propose(pb.ControlRequest(changeIsr=change), _TIMEOUT_S)
        if response.error == pb.ControlResponse.OK:
            logger.info("%s: ISR is now %s", key, ", ".join(sorted(effect.isr)))
            accepted: bool | None = True
        else:
            accepted = None if response.error in _UNKNOWN else False
            logger.info("%s: ISR change not made: %s", key, response.detail or response.error)
        feed(IsrChangeAnswered(effect.epoch, accepted))

    def report_leader(self, key: PartitionKey, effect: do.ReportLeader) -> None:
        """Tell that the leader can't be reached; there is no answer to wait for, the replica reports again."""
        report = pb.ReportLeader(
            stream=key.stream,
            uid=key.uid,
            partition=key.partition,
            witness=self._node_id,
            witnessIncarnation=self._incarnation,
            leader=effect.leader,
            leaderEpoch=effect.leader_epoch,
            lastEpoch=effect.last_epoch,
            newestOffset=effect.newest_offset,
            highWatermark=effect.high_watermark,
            leaderLacks=effect.leader_lacks,
        )
        if effect.leader_lacks:
            logger.error("%s: leader %s lacks committed records, up to offset %d", key, effect.leader, effect.high_watermark)
        self._spawn(self._send(key, pb.ControlRequest(reportLeader=report)))

    def leave_isr(self, key: PartitionKey, effect: do.LeaveIsr) -> None:
        """Ask to be taken out of the ISR; the answer is the next state of the partition."""
        logger.warning("%s: leaves the ISR: %s", key, effect.reason)
        wish = pb.LeaveIsr(
            stream=key.stream,
            uid=key.uid,
            partition=key.partition,
            node=self._node_id,
            incarnation=self._incarnation,
            reason=effect.reason,
        )
        self._spawn(self._send(key, pb.ControlRequest(leaveIsr=wish)))

    def give_up_leadership(self, key: PartitionKey, effect: do.GiveUpLeadership) -> None:
        """Ask for a successor; the answer is the next state of the partition."""
        logger.warning("%s: asks for another leader: %s", key, effect.reason)
        wish = pb.GiveUpLeadership(
            stream=key.stream,
            uid=key.uid,
            partition=key.partition,
            leader=self._node_id,
            incarnation=self._incarnation,
            leaderEpoch=effect.leader_epoch,
            reason=effect.reason,
        )
        self._spawn(self._send(key, pb.ControlRequest(giveUpLeadership=wish)))

    def report_promotion(self, key: PartitionKey, effect: do.ReportPromotion) -> None:
        """Tell how far the promotion is; the answer is the next state of the partition."""
        report = pb.ReportPromotion(
            stream=key.stream,
            uid=key.uid,
            partition=key.partition,
            candidate=self._node_id,
            candidateIncarnation=self._incarnation,
            leaderEpoch=effect.leader_epoch,
            epoch=effect.epoch,
            replayedEndOffset=effect.replayed_end_offset,
            newestOffset=effect.newest_offset,
            finished=effect.finished,
        )
        self._spawn(self._send(key, pb.ControlRequest(reportPromotion=report)))

    async def _send(self, key: PartitionKey, request: pb.ControlRequest) -> None:
        response = await self._group.propose(request, _TIMEOUT_S)
        if response.error != pb.ControlResponse.OK:
            logger.debug("%s: %s: %s", key, request.WhichOneof("request"), response.detail or response.error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = spawn(work, "a proposal")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Give up what is on its way."""
        await end_tasks(self._tasks)
