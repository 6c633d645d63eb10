"""Sends requests of replicas to the metadata group: ISR changes, reports of a silent leader, progress of a promotion.

Requests travel in batches, one at a time per node, and answers return as events. A late or repeated request changes
nothing, because the group decides by compare-and-set.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata.controller.nodes import MAX_REASON
from liftpy.core.metadata.controller.request_batcher import RequestBatcher, purge_report
from liftpy.core.replication import effects as do
from liftpy.core.replication.control_requests import Request, request_of
from liftpy.core.replication.events import Event, IsrChangeAnswered
from liftpy.core.services.sessions import ServiceEnded
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.nats.cancellation import end_tasks
from sidecar.metadata.group import MetadataGroup
from sidecar.runtime.logs import INFO_LOG_LIMIT
from sidecar.runtime.tasks import spawn

logger = logging.getLogger("liftpy.proposals")

_TIMEOUT_S = 5.0
_GATHER_S = 0.002
"""Time within which requests are sent together, in seconds."""


class Proposals:
    """Sends the requests of all replicas of a node to the metadata group. ``incarnation``: incarnation of the node's process.

    The methods return at once. A replica sees the result of its request in the next state of its partition in the image.
    """

    def __init__(self, group: MetadataGroup, node_id: str, incarnation: int) -> None:
        self._group = group
        self._node_id = node_id
        self._incarnation = incarnation
        self._batcher = RequestBatcher()
        self._sending: asyncio.Task[None] | None = None
        self._closed = False

    def propose_isr(self, key: PartitionKey, effect: do.ProposeIsr, feed: Callable[[Event], None]) -> None:
        """Request another ISR of the partition ``key``. ``feed`` gets the answer as IsrChangeAnswered."""
        for replica, took_ns in effect.slow:
            text = "slow replica removed from the ISR partition=%s replica=%s flush_seconds=%.3f: commits no longer wait for it"
            logger.warning(text, key, replica, took_ns / 1e9)

        def answered(response: pb.ControlResponse | None) -> None:
            accepted = None if response is None else response.error == pb.ControlResponse.OK
            if accepted:
                INFO_LOG_LIMIT.info(logger, "ISR changed partition=%s isr=%s", key, ", ".join(sorted(effect.isr)))
            else:
                INFO_LOG_LIMIT.info(
                    logger, "ISR not changed partition=%s reason=%s", key, "no answer" if response is None else response.detail
                )
            feed(IsrChangeAnswered(epoch=effect.epoch, accepted=accepted))

        self._queue(key, self._request(key, effect), answered)

    def send(self, key: PartitionKey, effect: Request) -> None:
        """Send a request without an answer. A report of a silent leader has none either, because the replica repeats it."""
        match effect:
            case do.ReportLeader(leader_lacks=True):
                text = "leader lacks committed records partition=%s leader=%s hw=%d"
                logger.error(text, key, effect.leader, effect.high_watermark)
            case do.LeaveIsr(is_learner=True):
                logger.warning("copy failed partition=%s reason=%s: requesting that another node copies it", key, effect.reason)
            case do.LeaveIsr():
                logger.warning("replica removed from the ISR partition=%s reason=%s", key, effect.reason)
            case do.GiveUpLeadership() | do.TransferLeadership():
                logger.warning("leadership given up partition=%s reason=%s", key, effect.reason)
            case do.WakePartition():
                INFO_LOG_LIMIT.info(logger, "pause ended partition=%s pause=%s", key, effect.pause.name)
        self._ask(key, self._request(key, effect))

    def report_purged(self, key: PartitionKey, state: PartitionState, purged: Collection[int]) -> None:
        """Report purges that this replica has carried out, unless ``state`` shows that the metadata group knows all of them.

        ``purged``: numbers of these purges. The next state of the partition shows the result.
        """
        request = purge_report(key, state, self._node_id, self._incarnation, purged)
        if request is not None:
            self._ask(key, request)

    def report_service(self, key: PartitionKey, ended: ServiceEnded) -> None:
        report = pb.ReportService(
            stream=key.stream,
            uid=key.uid,
            partition=key.partition,
            node=self._node_id,
            incarnation=self._incarnation,
            service=ended.service,
            ending=ended.ending,
            reason=ended.reason[:MAX_REASON],
        )
        self._ask(key, pb.ControlRequest(reportService=report))

    def _request(self, key: PartitionKey, effect: Request) -> pb.ControlRequest:
        return request_of(effect, key, self._node_id, self._incarnation)

    def _ask(self, key: PartitionKey, request: pb.ControlRequest) -> None:
        def answered(response: pb.ControlResponse | None) -> None:
            if response is not None and response.error != pb.ControlResponse.OK:
                logger.debug(
                    "proposal rejected partition=%s request=%s reason=%s",
                    key,
                    request.WhichOneof("request"),
                    response.detail or response.error,
                )

        self._queue(key, request, answered)

    def _queue(
        self, key: PartitionKey, request: pb.ControlRequest, answered: Callable[[pb.ControlResponse | None], None]
    ) -> None:
        if self._closed:
            return
        self._batcher.put(key, request, answered)
        if self._sending is None or self._sending.done():
            self._sending = spawn(self._send(), "proposals")

    async def _send(self) -> None:
        await asyncio.sleep(_GATHER_S)
        while (batch := self._batcher.next_batch()) is not None:
            self._batcher.batch_answered(await self._group.propose(batch, _TIMEOUT_S))

    async def close(self) -> None:
        self._closed = True
        self._batcher.drop()
        await end_tasks([self._sending])
