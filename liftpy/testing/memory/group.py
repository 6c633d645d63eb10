"""The metadata group of a cluster in memory: one log, the shipped ``ClusterFsm`` and ``ActiveController``, and no Raft underneath.

Requests of operators and clients come in by the subjects of the protocol, through the shipped doors and bounds; those of nodes by a
call. Every decision is applied at once; the nodes are shown the new image in the loop's next turn.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import partial

from liftpy.config import ReplicationConfig
from liftpy.core.metadata.controller.active_controller import ActiveController, joined
from liftpy.core.metadata.controller.admission import WITHOUT_LIMITS, Arrival, RequestAcl, first_rejection, sender_of
from liftpy.core.metadata.controller.feature_negotiation import begin_at, levels_answer
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.describe import cut_stream, page_bytes
from liftpy.core.metadata.features import SPOKEN
from liftpy.core.metadata.forwarding import error_response
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import InboxRule, Subjects
from liftpy.testing.memory.nats import Bus

_ID_BYTES = 16
_NO_CONTROLLERS = "a cluster in memory has no controllers that could be changed"


class MemoryGroup:
    """``changed(image)`` is called at each change, ``leader()`` names the node that passes for the metadata leader."""

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        config: ReplicationConfig,
        changed: Callable[[ClusterImage], None],
        leader: Callable[[], str],
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self._inboxes = InboxRule(subjects.inbox_prefixes)
        self._config = config
        self._changed = changed
        self._leader = leader
        self._fsm = ClusterFsm(subjects.namespace, elections=True)
        self._duties = ActiveController(config, self._fsm.rules)
        self._index = 0
        self.changed_index = 0
        """Index of the newest image that nodes need. Later entries have changed nothing."""
        birth = begin_at(SPOKEN.most, self._fsm.rules, config.session_times)
        birth.operationId, self._index = secrets.token_bytes(_ID_BYTES), 1
        self._fsm.apply(birth.SerializeToString(), self._index)
        self._duties.lead(self._fsm.image, time.monotonic_ns(), 1)
        bus.listen(subjects.info(), partial(self._received, RequestAcl.INFO))
        for subject in subjects.control_admin_all():
            bus.listen(subject, partial(self._received, RequestAcl.ADMIN))

    @property
    def image(self) -> ClusterImage:
        """Image after the last decision."""
        return self._fsm.image

    def tick(self, beats: dict[str, int], absent: list[str]) -> list[str]:
        """Advance time.

        ``beats``: incarnations of running nodes. ``absent``: the others. Return the nodes whose leases are renewed.
        """
        now_ns = time.monotonic_ns()
        granted = []
        for node_id, incarnation in beats.items():
            beat = pb.ControlRequest(heartbeat=pb.Heartbeat(nodeId=node_id, incarnation=incarnation))
            SPOKEN.tell(beat.heartbeat)
            answer = self._duties.answer(beat, self.image, now_ns, now_ns)
            if answer is not None and answer.error == pb.ControlResponse.OK:
                granted.append(node_id)
        for node_id in absent:
            self._duties.gone(node_id)
        for request in self._duties.due(now_ns):
            self.apply(request)
        for question in self._duties.questions():
            del question  # who leads here answers, or is known to be gone: nobody has to be asked
        return granted

    def decide(self, request: pb.ControlRequest) -> pb.ControlResponse:
        """Return the decision of the metadata leader."""
        now_ns, image = time.monotonic_ns(), self.image
        if request.HasField("changeControllers"):
            response = error_response(request, pb.ControlResponse.INVALID, _NO_CONTROLLERS)
        elif request.HasField("batch"):
            here, rest = self._duties.divide(request, image, now_ns, now_ns)
            response = here if rest is None else joined(here, self.apply(rest))
        else:
            if request.HasField("setFeatureLevel"):
                answer = levels_answer(request, image, self._duties.levels, {}, self._fsm.rules, self._config.session_times)
            else:
                answer = self._duties.answer(request, image, now_ns, now_ns)
            response = self.apply(request) if answer is None else answer
        if response.HasField("cluster"):
            response.cluster.metadataLeader = self._leader()
        response.metadataLeader = self._leader()
        return response

    def apply(self, request: pb.ControlRequest) -> pb.ControlResponse:
        """Apply a request as a log entry."""
        self._index += 1
        request.operationId = request.operationId or secrets.token_bytes(_ID_BYTES)
        request.timeNs = time.time_ns()
        response = pb.ControlResponse.FromString(self._fsm.apply(request.SerializeToString(), self._index))
        if self._fsm.last_records:
            self._duties.image_changed(self.image, time.monotonic_ns())
            self.changed_index = self.image.index
            self._changed(self.image)
        return response

    # ---- who asks by the bus -------------------------------------------------------------------------------------------
    def _received(self, acl: RequestAcl, subject: bytes, reply: bytes, payload: bytes, block: bytes) -> None:
        arrival = Arrival(
            acl=acl,
            sender=sender_of(acl, subject.decode(), self._subjects.namespace),
            payload=payload,
            is_reply_allowed=self._inboxes.allows(reply),
            max_payload_bytes=self._bus.max_payload,
            inbox_prefixes=self._subjects.inbox_prefixes,
            config=self._config,
        )
        rejection = first_rejection(WITHOUT_LIMITS, arrival)
        response = self.decide(arrival.request) if rejection is None else rejection.response
        if response is not None:
            cut_stream(response, page_bytes(0, self._bus.max_payload))
            self._bus.send(reply, (frames.sealed(response),))
