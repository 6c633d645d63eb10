"""SingleLogGroup: a metadata group with one log without Raft, for clusters in one process. Pure.

It uses the state machine and the active controller of the product. Each entry is committed at once. The cluster in
memory (``liftpy/testing/memory/group.py``) and the simulator (``tests/sim/group.py``) extend this class with their
clock and their network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from liftpy.config import ReplicationConfig
from liftpy.core.metadata.controller.active_controller import ActiveController, merge_answers
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb


class SingleLogGroup(ABC):
    """A metadata group with one log, and the duties of its metadata leader."""

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
