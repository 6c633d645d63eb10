"""Duties of the metadata leader besides ordering the log. Pure.

The duties are sessions, election timers, failure reports, preferred leaders, streams that wait for nodes, and moves of
replicas. The surrounding code (the shell) does all input and output:

- It reports when this node becomes or stops being metadata leader, and passes each new image.
- It calls ``answer`` for each request before the request is logged.
- It proposes the requests that ``take_due`` returns, and sends the questions of ``failure_reports.take_leader_checks`` over NATS.

The state of this module is lost when the metadata leader changes. State that must survive is in the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from google.protobuf.message import Message

from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.core.metadata.controller.admission import SESSIONS, Rejection, SessionFacts, first_rejection
from liftpy.core.metadata.controller.election_triggers import (
    ElectionTimers,
    FailureReports,
    PreferredLeaders,
)
from liftpy.core.metadata.controller.feature_levels import ReportedLevels
from liftpy.core.metadata.controller.reassignment import ReassignmentPlanner
from liftpy.core.metadata.controller.record_builder import Rules
from liftpy.core.metadata.controller.request_batcher import answer_of, batch_of
from liftpy.core.metadata.controller.state_machine import answer_without_log
from liftpy.core.metadata.controller.streams import UnplacedStreams
from liftpy.core.metadata.describe import describe, describe_stream
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.metadata.request_limits import MAX_REQUESTS, SENT_TOGETHER
from liftpy.core.metadata.sessions import DEFAULT_CONFIRMED_WITHIN_S, NodeSessions
from liftpy.core.wire._pb import cluster_pb2 as pb

_FIELD_OF = {
    field.message_type.name: field.name
    for field in pb.ControlRequest.DESCRIPTOR.oneofs_by_name["request"].fields
    if field.message_type
}
"""Name of a message -> field of ControlRequest that contains it."""


def control_request(message: Message) -> pb.ControlRequest:
    """Return a control request that contains ``message``. The code that proposes it sets operation id and time."""
    request = pb.ControlRequest()
    getattr(request, _FIELD_OF[message.DESCRIPTOR.name]).CopyFrom(message)
    return request


def merge_answers(here: pb.ControlResponse, logged: pb.ControlResponse) -> pb.ControlResponse:
    """Combine the two parts of the answer to a batch into one answer.

    ``here``: items that the metadata leader answered itself. ``logged``: items that the log entry answered.
    """
    if logged.HasField("batch"):
        logged.batch.answers.extend(here.batch.answers)
    return logged


class ActiveController:
    """The duties of one controller while it is the metadata leader, such as sessions and election timers.

    On other controllers the object does nothing. Times are monotonic.
    """

    def __init__(
        self, config: ReplicationConfig, rules: Rules | None = None, confirmed_within_s: float = DEFAULT_CONFIRMED_WITHIN_S
    ) -> None:
        self._rules = rules or Rules()
        self._confirmed_within_ns = round(confirmed_within_s * NS_PER_S)
        self._in_log: set[bytes] = set()
        """Ids of operations that are in the log but are not applied yet."""
        self._answered: Counter[str] = Counter()
        self.sessions = NodeSessions(config, confirmed_within_s)
        self._timers = ElectionTimers(config)
        self.failure_reports = FailureReports()
        self.preferred = PreferredLeaders(config.preferred_leader_interval_s)
        self._waiting = UnplacedStreams()
        self._moving = ReassignmentPlanner(config)
        self.levels = ReportedLevels()
        """Feature levels that the nodes support."""
        self._image = ClusterImage()
        self._leading = False

    @property
    def counters(self) -> dict[str, int]:
        """Number of questions to reported leaders, and of requests that were answered without a log entry, by kind."""
        return {**self.failure_reports.counters, **self._answered, **self._moving.counters}

    def lead(self, image: ClusterImage, now_ns: int, term: int) -> None:
        """Start the duties of the metadata leader in the Raft term ``term``. ``image`` must contain all committed entries."""
        self._leading = True
        self._image = image
        self._in_log.clear()
        self.levels.clear()
        self.failure_reports.lead(term)
        self.preferred.lead(now_ns)
        self._waiting.lead(image, now_ns)
        self._moving.lead(image, now_ns)
        self.sessions.lead(image, now_ns)
        self._timers.lead(image, now_ns)

    def resign(self) -> None:
        self._leading = False
        self.failure_reports.resign()
        self.preferred.resign()
        self._waiting.resign()
        self._moving.resign()
        self.sessions.resign()
        self._timers.resign()

    def image_changed(self, image: ClusterImage, now_ns: int) -> None:
        self._image = image
        self._in_log -= {done for done in self._in_log if image.operations.get(done) is not None}
        self.levels.image_changed(image)
        self.sessions.image_changed(image, now_ns)
        self._timers.image_changed(image, now_ns)
        self._waiting.image_changed(image, now_ns)
        self._moving.image_changed(image, now_ns)

    def answer(
        self, request: pb.ControlRequest, image: ClusterImage, now_ns: int, confirmed_ns: int
    ) -> pb.ControlResponse | None:
        """Return the answer to a request that does not need the log. None: the request must be proposed.

        Heartbeats, progress of candidates and descriptions that need not be linearizable are answered here. Requests that
        would change nothing, or replace a running node, are rejected here. ``confirmed_ns``: time at which a majority last
        confirmed that this controller leads.
        """
        response = self._answer(request, image, now_ns, confirmed_ns)
        if response is None:
            response = self._forecast(request, image, now_ns, confirmed_ns)
        return response

    def _answer(
        self, request: pb.ControlRequest, image: ClusterImage, now_ns: int, confirmed_ns: int
    ) -> pb.ControlResponse | None:
        if not self._leading:
            return pb.ControlResponse(operationId=request.operationId, error=pb.ControlResponse.NOT_METADATA_LEADER)
        match request.WhichOneof("request"):
            case "heartbeat":
                beat = request.heartbeat
                lease = self.sessions.heartbeat(beat.nodeId, beat.incarnation, now_ns, confirmed_ns)
                self.levels.record_heartbeat(beat, image)
                response = pb.ControlResponse(error=lease.error, detail=lease.detail, leaseMs=lease.lease_ms)
            case "reportPromotion" if not request.reportPromotion.finished:
                self._timers.progress(request.reportPromotion, now_ns)
                response = pb.ControlResponse()
            case "leaveIsr":
                self._moving.storage_failed(request.leaveIsr, image, now_ns)
                return None
            case "reportLeader" if self._add_leader_report(request.reportLeader, image, now_ns):
                response = pb.ControlResponse(detail="the leader is asked first")
            case "registerNode" | "removeNode" if rejection := self._rejection(request, image, now_ns):
                assert rejection.response is not None
                response = rejection.response
            case "describeCluster" if not request.linearizable:
                response = describe(image, request.describeCluster)
            case "describeStream" if not request.linearizable:
                response = describe_stream(image, request.describeStream)
            case _:
                return None
        response.operationId, response.index = request.operationId, image.index
        return response

    def _add_leader_report(self, report: pb.ReportLeader, image: ClusterImage, now_ns: int) -> bool:
        """Add a follower's report that its leader is silent.

        Return whether the report must wait until the metadata leader has asked the reported leader.
        """
        self._timers.note_report(report, now_ns)
        return self.failure_reports.add(report, image, now_ns)

    def split_batch(
        self, request: pb.ControlRequest, image: ClusterImage, now_ns: int, confirmed_ns: int
    ) -> tuple[pb.ControlResponse, pb.ControlRequest | None]:
        """Answer the requests of a batch that need no log entry. Return these answers, and a batch of the others for the log.

        The smaller batch has the operation id of the original batch. It is None if all requests are answered.
        ``confirmed_ns``: time at which a majority last confirmed that this controller leads.
        """
        here = pb.ControlResponse(operationId=request.operationId, index=image.index)
        here.batch.SetInParent()
        rest = pb.ControlRequest(operationId=request.operationId, sender=request.sender)
        for item in request.batch.requests[:MAX_REQUESTS]:
            answer = self._answer(item.request, image, now_ns, confirmed_ns)
            if answer is None:
                rest.batch.requests.append(item)
            else:
                here.batch.answers.append(answer_of(item.number, answer))
        if not rest.HasField("batch"):
            return here, None
        forecast = self._forecast(rest, image, now_ns, confirmed_ns)
        return (here, rest) if forecast is None else (merge_answers(here, forecast), None)

    def _rejection(self, request: pb.ControlRequest, image: ClusterImage, now_ns: int) -> Rejection | None:
        if image.operations.get(request.operationId) is not None or self.is_logged(request.operationId):
            return None  # it was decided before: a repeated request gets the same answer
        rejection = first_rejection(SESSIONS, SessionFacts(request, image, self.sessions, now_ns))
        if rejection is not None and rejection.counter:
            self._answered[rejection.counter] += 1
        return rejection

    def _forecast(
        self, request: pb.ControlRequest, image: ClusterImage, now_ns: int, confirmed_ns: int
    ) -> pb.ControlResponse | None:
        """Return the answer to a request that changes nothing in ``image``. None: the request must be logged.

        ``confirmed_ns``: time at which a majority last confirmed that this controller leads.
        """
        if not (self._leading and self.is_confirmed(now_ns, confirmed_ns)) or self.is_logged(request.operationId):
            return None
        response = answer_without_log(image, request, image.time_ns, self._rules)
        if response is not None:
            self._answered["control requests that change nothing"] += 1
            response.operationId, response.index = request.operationId, image.index
        return response

    def is_confirmed(self, now_ns: int, confirmed_ns: int) -> bool:
        """Return whether this controller is certainly the only metadata leader now.

        ``confirmed_ns``: time at which a majority last confirmed that it leads.
        """
        return now_ns - confirmed_ns <= self._confirmed_within_ns

    def is_logged(self, operation_id: bytes) -> bool:
        """Return whether the log may contain an entry of this operation that is not applied yet."""
        return operation_id in self._in_log

    def record_logged(self, operation_id: bytes) -> bool:
        """Record that an entry of the operation is in the log, so that repeated requests wait for its result.

        Return whether this was the first call for the operation.
        """
        is_first = operation_id not in self._in_log
        self._in_log.add(operation_id)
        return is_first

    def record_not_logged(self, operation_id: bytes) -> None:
        """Record that the log has no entry of the operation, so that a repeated request is logged."""
        self._in_log.discard(operation_id)

    def overdue(self, now_ns: int) -> list[str]:
        """Return the nodes whose heartbeats are late.

        The caller probes each node on NATS and calls ``sessions.record_no_responders`` for a node without responders.
        """
        return self.sessions.overdue(now_ns) if self._leading else []

    def take_due(self, now_ns: int) -> list[pb.ControlRequest]:
        """Return the requests that the metadata leader proposes now. Changes of partitions are combined into batches.

        A planned transfer is a request of its own, because its leader is asked first (``leader_to_ask_first``).
        """
        preferred, waiting, moving = (
            self.preferred.take_due(self._image, now_ns),
            self._waiting.take_due(now_ns),
            self._moving.take_due(now_ns),
        )
        transfers = [message for message in moving if isinstance(message, pb.ElectLeader)]
        alone: Sequence[Message] = (*self.sessions.take_due(now_ns), *preferred, *waiting, *transfers)
        copies = [message for message in moving if not isinstance(message, pb.ElectLeader)]
        many: Sequence[Message] = (*self._timers.take_due(now_ns), *self.failure_reports.take_due(now_ns), *copies)
        requests = [control_request(message) for message in many]
        batches = [batch_of(requests[first : first + SENT_TOGETHER]) for first in range(0, len(requests), SENT_TOGETHER)]
        return [*(control_request(message) for message in alone), *batches]

    def next_deadline_ns(self) -> int | None:
        """Return the monotonic time at which ``take_due`` must be called at the latest. None: only an event can make a request due."""
        machines = (self.sessions, self._timers, self.failure_reports, self.preferred, self._waiting, self._moving)
        deadlines = [machine.next_deadline_ns() for machine in machines]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)
