"""The metadata group of an in-memory cluster: a ``SingleLogGroup`` on the in-memory bus.

Requests of operators and clients arrive on the subjects of the protocol and pass the admission checks of the product.
Nodes call the group directly. Each decision is applied at once. The nodes get the new image in the next turn of the
event loop.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from liftpy.config import ReplicationConfig
from liftpy.core.metadata.controller.active_controller import ActiveController, merge_answers
from liftpy.core.metadata.controller.admission import WITHOUT_LIMITS, RequestContext, RequestSubject, first_rejection, sender_of
from liftpy.core.metadata.controller.feature_levels import begin_at, levels_answer
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.describe import cut_stream, page_bytes
from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.core.metadata.idempotency import error_response
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import InboxRule, Subjects
from liftpy.testing.memory.nats import Bus


class SingleLogGroup(ABC):
    """A metadata group with one log without Raft, and the duties of its metadata leader. Each entry is committed at once.

    The in-memory cluster and the simulator (``tests/simulation/replica/group.py``) extend it with their clock and their network.
    """

    def __init__(self, config: ReplicationConfig, namespace: str = "liftpy") -> None:
        self.fsm = ClusterFsm(namespace, elections=True)
        self.duties = ActiveController(config, self.fsm.rules)
        self._index = 0

    @abstractmethod
    def now_ns(self) -> int: ...

    @abstractmethod
    def time_ns(self) -> int:
        """Return the wall clock of the metadata leader, in nanoseconds since 1970."""

    @abstractmethod
    def new_operation_id(self) -> bytes: ...

    @abstractmethod
    def image_changed(self, before: ClusterImage) -> None:
        """Pass the new image to the leader's duties and to the nodes. ``before``: the image before the last entry."""

    @abstractmethod
    def response_received(self, request: pb.ControlRequest, response: pb.ControlResponse) -> None:
        """Called after each decision with the request and its response. The request may have changed nothing."""

    @property
    def image(self) -> ClusterImage:
        return self.fsm.image

    def decide(self, request: pb.ControlRequest) -> pb.ControlResponse:
        """Decide ``request`` as the metadata leader, with a log entry if needed. Return the answer."""
        now_ns = self.now_ns()
        if request.HasField("batch"):
            here, rest = self.duties.split_batch(request, self.image, now_ns, now_ns)
            if rest is not None:
                return merge_answers(here, self.apply(rest))
            response = here
        else:
            answer = self.answer(request, now_ns)
            if answer is None:
                return self.apply(request)
            response = answer
        self.response_received(request, response)
        return response

    def answer(self, request: pb.ControlRequest, now_ns: int) -> pb.ControlResponse | None:
        """Return the answer to a request that needs no log entry, or None if an entry is needed."""
        return self.duties.answer(request, self.image, now_ns, now_ns)

    def apply(self, request: pb.ControlRequest) -> pb.ControlResponse:
        """Append ``request`` to the log and apply it at once. Return the answer."""
        before = self.image
        self._index += 1
        request.operationId = request.operationId or self.new_operation_id()
        request.timeNs = self.time_ns()
        response = pb.ControlResponse.FromString(self.fsm.apply(request.SerializeToString(), self._index))
        self.response_received(request, response)
        if self.fsm.last_records:
            self.image_changed(before)
        return response

    def beat(self, node_id: str, incarnation: int) -> pb.ControlResponse:
        request = pb.ControlRequest(heartbeat=pb.Heartbeat(nodeId=node_id, incarnation=incarnation))
        SUPPORTED_LEVELS.write_to(request.heartbeat)
        now_ns = self.now_ns()
        response = self.duties.answer(request, self.image, now_ns, now_ns)
        assert response is not None
        return response

    def apply_due(self) -> None:
        for request in self.duties.take_due(self.now_ns()):
            self.apply(request)


_ID_BYTES = 16
_NO_CONTROLLERS = "a cluster in memory has no controllers that could be changed"


class MemoryGroup(SingleLogGroup):
    """Metadata group of an in-memory cluster.

    ``changed``: called with each new metadata image. ``leader``: returns the id of the node that acts as the metadata leader.
    """

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        config: ReplicationConfig,
        changed: Callable[[ClusterImage], None],
        leader: Callable[[], str],
    ) -> None:
        super().__init__(config, subjects.namespace)
        self._bus = bus
        self._subjects = subjects
        self._inboxes = InboxRule(subjects.inbox_prefixes)
        self._config = config
        self._changed = changed
        self._leader = leader
        self.changed_index = 0
        """Index of the newest image that nodes need. Later entries have changed nothing."""
        bootstrap = begin_at(SUPPORTED_LEVELS.most, self.fsm.rules, config.session_times)
        bootstrap.operationId, self._index = secrets.token_bytes(_ID_BYTES), 1
        self.fsm.apply(bootstrap.SerializeToString(), self._index)
        self.duties.lead(self.fsm.image, time.monotonic_ns(), 1)
        bus.listen(subjects.info(), partial(self._request_received, RequestSubject.INFO))
        for subject in subjects.control_admin_all():
            bus.listen(subject, partial(self._request_received, RequestSubject.ADMIN))

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def time_ns(self) -> int:
        return time.time_ns()

    def new_operation_id(self) -> bytes:
        return secrets.token_bytes(_ID_BYTES)

    def image_changed(self, before: ClusterImage) -> None:
        """Pass the new metadata image to the nodes. ``before``: the previous image."""
        self.duties.image_changed(self.image, self.now_ns())
        self.changed_index = self.image.index
        self._changed(self.image)

    def response_received(self, request: pb.ControlRequest, response: pb.ControlResponse) -> None:
        """Do nothing: an in-memory cluster does not count the responses of the metadata group."""

    def tick(self, beats: dict[str, int], absent: list[str]) -> list[str]:
        """Process a heartbeat of each running node, and make the decisions that are due. Return the nodes whose heartbeat was accepted.

        ``beats``: incarnation of each running node. ``absent``: ids of the stopped nodes.
        """
        granted = [
            node_id for node_id, incarnation in beats.items() if self.beat(node_id, incarnation).error == pb.ControlResponse.OK
        ]
        for node_id in absent:
            self.duties.sessions.record_no_responders(node_id)
        self.apply_due()
        # a leader in memory either answers or is known to be stopped, so no question is needed
        self.duties.failure_reports.take_leader_checks()
        return granted

    def decide(self, request: pb.ControlRequest) -> pb.ControlResponse:
        response = super().decide(request)
        if response.HasField("cluster"):
            response.cluster.metadataLeader = self._leader()
        response.metadataLeader = self._leader()
        return response

    def answer(self, request: pb.ControlRequest, now_ns: int) -> pb.ControlResponse | None:
        """Return the answer to a request that needs no log entry. None: it needs one.

        A request to change the controllers is rejected, because an in-memory cluster has none.
        """
        if request.HasField("changeControllers"):
            return error_response(request, pb.ControlResponse.INVALID, _NO_CONTROLLERS)
        if request.HasField("setFeatureLevel"):
            return levels_answer(request, self.image, self.duties.levels, {}, self.fsm.rules, self._config.session_times)
        return super().answer(request, now_ns)

    # ---- who asks by the bus -------------------------------------------------------------------------------------------
    def _request_received(
        self, subject_kind: RequestSubject, subject: bytes, reply: bytes, payload: bytes, block: bytes
    ) -> None:
        arrival = RequestContext(
            subject_kind=subject_kind,
            sender=sender_of(subject_kind, subject.decode(), self._subjects.namespace),
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
            self._bus.send(reply, (frames.seal(response),))
