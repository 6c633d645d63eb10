"""What the metadata leader does besides ordering the log, behind one door: sessions, election clocks, accused leaders, preferred
leaders. Pure.

The shell tells it when this node gains and loses the leadership of the group, feeds it every new image, asks ``answer``
about each request before it goes into the log, proposes what ``due`` returns, and puts ``questions`` on the bus. Nothing here
is kept over a change of the metadata leader; what matters is in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from liftpy.cluster.accusations import Accusations, Question, Said
from liftpy.cluster.batches import MAX_REQUESTS, SENT_TOGETHER, answer_of, batch_of
from liftpy.cluster.election_timers import ElectionTimers
from liftpy.cluster.image import ClusterImage
from liftpy.cluster.pages import describe, describe_stream
from liftpy.cluster.preferred import PreferredLeaders
from liftpy.cluster.session import DEFAULT_CONFIRMED_WITHIN_S, Sessions
from liftpy.config import ReplicationConfig
from liftpy.wire._pb import cluster_pb2 as pb

Proposable = pb.FenceNode | pb.UnfenceNode | pb.ConcludeElection | pb.PassOver | pb.ElectLeader | pb.ReportLeader


def control_request(message: Proposable) -> pb.ControlRequest:
    """The request that holds ``message``; operation id and time are set by who proposes it."""
    match message:
        case pb.FenceNode():
            return pb.ControlRequest(fenceNode=message)
        case pb.UnfenceNode():
            return pb.ControlRequest(unfenceNode=message)
        case pb.ConcludeElection():
            return pb.ControlRequest(concludeElection=message)
        case pb.PassOver():
            return pb.ControlRequest(passOver=message)
        case pb.ElectLeader():
            return pb.ControlRequest(electLeader=message)
        case pb.ReportLeader():
            return pb.ControlRequest(reportLeader=message)
    assert_never(message)


def joined(here: pb.ControlResponse, logged: pb.ControlResponse) -> pb.ControlResponse:
    """The answer to a batch of which ``here`` was answered by the metadata leader, and the rest decided in the log."""
    if logged.HasField("batch"):
        logged.batch.answers.extend(here.batch.answers)
    return logged


class MetadataDuties:
    """Sessions and election clocks of one controller; idle unless it leads the group. ``now_ns`` is monotonic."""

    def __init__(self, config: ReplicationConfig, confirmed_within_s: float = DEFAULT_CONFIRMED_WITHIN_S) -> None:
        self._sessions = Sessions(config, confirmed_within_s)
        self._timers = ElectionTimers(config)
        self._accusations = Accusations()
        self._preferred = PreferredLeaders(config.preferred_leaders_every)
        self._image = ClusterImage()
        self._leading = False

    @property
    def counters(self) -> dict[str, int]:
        """What came of the questions to accused leaders."""
        return dict(self._accusations.counters)

    def lead(self, image: ClusterImage, now_ns: int, term: int) -> None:
        """This controller leads the group in ``term``, and ``image`` holds everything that was committed before."""
        self._leading = True
        self._image = image
        self._accusations.lead(term)
        self._preferred.lead(now_ns)
        self._sessions.lead(image, now_ns)
        self._timers.lead(image, now_ns)

    def resign(self) -> None:
        """This controller does not lead the group any more."""
        self._leading = False
        self._accusations.resign()
        self._preferred.resign()
        self._sessions.resign()
        self._timers.resign()

    def image_changed(self, image: ClusterImage, now_ns: int) -> None:
        """An entry was applied."""
        self._image = image
        self._sessions.image_changed(image, now_ns)
        self._timers.image_changed(image, now_ns)

    def answer(
        self, request: pb.ControlRequest, image: ClusterImage, now_ns: int, confirmed_ns: int
    ) -> pb.ControlResponse | None:
        """The answer to a request that is not for the log, or None: it has to be proposed.

        ``confirmed_ns``: when a majority last confirmed that this controller leads. Heartbeats, progress of candidates, and
        a description that need not be linearizable are answered here.
        """
        if not self._leading:
            return pb.ControlResponse(operationId=request.operationId, error=pb.ControlResponse.NOT_METADATA_LEADER)
        match request.WhichOneof("request"):
            case "heartbeat":
                beat = request.heartbeat
                lease = self._sessions.heartbeat(beat.nodeId, beat.incarnation, now_ns, confirmed_ns)
                response = pb.ControlResponse(error=lease.error, detail=lease.detail)
            case "reportPromotion" if not request.reportPromotion.finished:
                self._timers.progress(request.reportPromotion, now_ns)
                response = pb.ControlResponse()
            case "reportLeader" if self._reported(request.reportLeader, image, now_ns):
                response = pb.ControlResponse(detail="the leader is asked first")
            case "describeCluster" if not request.linearizable:
                response = describe(image, request.describeCluster)
            case "describeStream" if not request.linearizable:
                response = describe_stream(image, request.describeStream)
            case _:
                return None
        response.operationId, response.index = request.operationId, image.index
        return response

    def _reported(self, report: pb.ReportLeader, image: ClusterImage, now_ns: int) -> bool:
        """Whether the report is kept back, until its leader was asked."""
        self._timers.told(report, now_ns)
        return self._accusations.reported(report, image, now_ns)

    def divide(
        self, request: pb.ControlRequest, image: ClusterImage, now_ns: int, confirmed_ns: int
    ) -> tuple[pb.ControlResponse, pb.ControlRequest | None]:
        """A batch: what is answered here, and the rest of it for the log, under the same operation id; None: nothing is left."""
        here = pb.ControlResponse(operationId=request.operationId, index=image.index)
        here.batch.SetInParent()
        rest = pb.ControlRequest(operationId=request.operationId, sender=request.sender)
        for item in request.batch.requests[:MAX_REQUESTS]:
            answer = self.answer(item.request, image, now_ns, confirmed_ns)
            if answer is None:
                rest.batch.requests.append(item)
            else:
                here.batch.answers.append(answer_of(item.number, answer))
        return here, rest if rest.HasField("batch") else None

    def overdue(self, now_ns: int) -> list[str]:
        """Nodes whose heartbeats are late; ask for them on the bus, and say ``gone`` when nobody is there."""
        return self._sessions.overdue(now_ns) if self._leading else []

    def gone(self, node_id: str) -> None:
        """Nobody listens for this node."""
        self._sessions.gone(node_id)

    def questions(self) -> list[Question]:
        """What to ask nodes over the bus now, each once."""
        return self._accusations.questions()

    def testified(self, question: Question, testimony: Said) -> None:
        """What came of a question; silence need not be told."""
        self._accusations.testified(question, testimony)

    def due(self, now_ns: int) -> list[pb.ControlRequest]:
        """What to propose now; what concerns single partitions in batches, however many there are."""
        alone: Sequence[Proposable] = (*self._sessions.due(now_ns), *self._preferred.due(self._image, now_ns))
        many: Sequence[Proposable] = (*self._timers.due(now_ns), *self._accusations.due(now_ns))
        requests = [control_request(message) for message in many]
        batches = [batch_of(requests[first : first + SENT_TOGETHER]) for first in range(0, len(requests), SENT_TOGETHER)]
        return [*(control_request(message) for message in alone), *batches]

    def next_deadline_ns(self) -> int | None:
        """When ``due`` has to be asked again at the latest, or None: not before something else happens."""
        machines = (self._sessions, self._timers, self._accusations, self._preferred)
        deadlines = [machine.next_deadline_ns() for machine in machines]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)
