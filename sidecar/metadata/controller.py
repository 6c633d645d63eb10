"""``MetadataController``: decides control requests on a controller, and appends log entries for them."""

from __future__ import annotations

import asyncio
import contextlib
import time

import nats.errors
from nats.aio.client import Client

from liftpy.config import NS_PER_S
from liftpy.core.metadata.controller.quorum_member import EntryOutcome, ProposedEntry, QuorumMember, leader_to_ask_first
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire._pb import replication_pb2
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import ProtocolError
from sidecar.metadata.member_log import MemberLog
from sidecar.quorum.driver import GroupDriver
from sidecar.quorum.library import MAX_APPEND_BYTES, outcome_of
from sidecar.runtime import clock

TRANSFER_REQUEST_TIMEOUT_S = 0.8
_MOST_QUESTIONS = 3
"""Maximum number of questions to a node that sends answers which cannot be decoded."""


class MetadataController:
    """Decides control requests on a controller. Only the metadata leader decides, the other controllers describe the cluster.

    Args:
        log: Log of this member.
        member: Decides what this member does.
        driver: Proposes entries to the group.
    """

    def __init__(
        self, connection: Client, subjects: Subjects, log: MemberLog, member: QuorumMember, driver: GroupDriver
    ) -> None:
        self._connection = connection
        self._subjects = subjects
        self._log = log
        self._member = member
        self._driver = driver

    @property
    def leads(self) -> bool:
        """True if this member believes that it is the metadata leader. Another member may have been elected since."""
        return self._log.leads

    @property
    def is_active(self) -> bool:
        """True if this member leads and has begun the duties of the metadata leader."""
        return self._member.is_active

    @property
    def controllers(self) -> ControllerList:
        """Controllers by the end of the log of this member, committed or not."""
        return self._log.core.controllers

    @property
    def image(self) -> ClusterImage:
        return self._log.image

    def answer_heartbeat(self, request: pb.ControlRequest) -> pb.ControlResponse | None:
        """As the active metadata leader, answer a heartbeat. None: this member is not the active leader."""
        if self._driver.stopped or not self._member.is_active:
            return None
        decided = self._member.request(request, 0, clock.now_ns())
        return None if isinstance(decided, ProposedEntry) else self._with_members(decided)

    def answer_without_leader(self, request: pb.ControlRequest) -> pb.ControlResponse | None:
        """Answer a request that needs no leader, such as a description of the cluster. None: the request needs the leader."""
        return self._with_members(self._member.answer_without_leader(request))

    async def decide(self, request: pb.ControlRequest, timeout_s: float) -> pb.ControlResponse | None:
        """If this member is the metadata leader, decide ``request`` within ``timeout_s`` seconds and return the answer.

        None: it does not lead.
        """
        if self._driver.stopped:
            return None
        decided = self._member.request(request, round(timeout_s * NS_PER_S), clock.now_ns())
        return self._with_members(await self.propose(decided) if isinstance(decided, ProposedEntry) else decided)

    async def propose(self, order: ProposedEntry) -> pb.ControlResponse:
        """Append the request of ``order`` to the log, wait until it is applied on this member, and return the answer."""
        leader_address = leader_to_ask_first(self._log.image, order.request)
        if leader_address is not None:
            await request_leadership_transfer(self._connection, self._subjects, *leader_address)
        entry = self._member.entry(order, time.time_ns(), MAX_APPEND_BYTES - 1)  # the library puts a byte in front
        if not isinstance(entry, bytes):
            return entry
        outcome, answer = EntryOutcome.UNKNOWN, None
        try:
            answer, reason = await asyncio.wait_for(
                self._driver.propose(entry, change=order.changes_controllers), order.timeout_ns / NS_PER_S
            )
            outcome = outcome_of(answer, reason)
        except TimeoutError:
            pass
        return self._member.proposal_ended(order, outcome, answer, clock.now_ns())

    def _with_members(self, response: pb.ControlResponse | None) -> pb.ControlResponse | None:
        if response is None:
            return None
        if response.HasField("cluster"):
            response.cluster.metadataLeader = self._log.leader_id
            del response.cluster.controllers[:]
            response.cluster.controllers.extend(self._log.status())
        response.metadataLeader = self._log.leader_id
        return response


async def request_leadership_transfer(
    connection: Client, subjects: Subjects, node_id: str, request: replication_pb2.StepAside
) -> None:
    """Request that the node ``node_id`` stops accepting publishes of a partition before its leadership is transferred.

    Wait for its answer for at most ``TRANSFER_REQUEST_TIMEOUT_S``. An answer about another leadership is ignored, and the request
    is repeated.
    """
    deadline = time.monotonic() + TRANSFER_REQUEST_TIMEOUT_S
    try:
        for _ in range(_MOST_QUESTIONS):
            left_s = deadline - time.monotonic()
            answer = await connection.request(subjects.notify(node_id), frames.seal(request), timeout=max(0.0, left_s))
            with contextlib.suppress(ProtocolError):
                if frames.decode(answer.data, replication_pb2.StepAside) == request:
                    return
    except (nats.errors.Error, TimeoutError, OSError):
        pass  # the node is suspended or has ended. It answers no publisher now
