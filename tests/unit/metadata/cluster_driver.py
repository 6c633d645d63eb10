"""Drive a ClusterFsm like a metadata group: number the entries, add operation ids, and store the log."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from liftpy.core.base.partition import PartitionState
from liftpy.core.metadata.controller.state_machine import MAX_TIME_NS, answer_without_log
from liftpy.core.metadata.features import SUPPORTED_LEVELS
from liftpy.core.metadata.idempotency import OPERATION_ID_SIZE_BYTES
from liftpy.core.metadata.records import OperationDone
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.born import born_fsm

MS = 1_000_000
SECOND = 1000 * MS
_BY_THEMSELVES = ("createStream", "deleteStream", "registerNode", "fenceNode", "unfenceNode", "removeNode", "changeIsr")
Error = pb.ControlResponse


class Driver:
    def __init__(self, nodes: tuple[str, ...] = (), *, elections: bool = False) -> None:
        self.fsm = born_fsm(elections=elections)
        self.log: list[bytes] = []
        self.now_ns = 1_700_000_000_000 * MS
        for node in nodes:
            self.register(node)

    @property
    def index(self) -> int:
        return len(self.log)

    def ask(self, operation_id: bytes | None = None, **request: Any) -> pb.ControlResponse:
        self.now_ns += MS
        number = len(self.log) + 1
        message = pb.ControlRequest(
            operationId=number.to_bytes(16, "big") if operation_id is None else operation_id,
            timeNs=self.now_ns, sender="test", **request,
        )  # fmt: skip
        return self.apply(message.SerializeToString())

    def apply(self, entry: bytes) -> pb.ControlResponse:
        self.log.append(entry)
        foretold = self._foretold(entry)
        response = pb.ControlResponse.FromString(self.fsm.apply(entry, len(self.log)))
        self._compare(foretold, response)
        return response

    def _foretold(self, entry: bytes) -> tuple[pb.ControlRequest, pb.ControlResponse | None] | None:
        try:
            request = pb.ControlRequest.FromString(entry)
        except DecodeError:
            return None
        return request, answer_without_log(self.fsm.image, request, request.timeNs, self.fsm.rules)

    def _compare(
        self, foretold: tuple[pb.ControlRequest, pb.ControlResponse | None] | None, response: pb.ControlResponse
    ) -> None:
        """Whatever a test asks for: what is said to change nothing changes nothing and is answered so; and of what decides by itself
        alone (an election may be begun and found to be impossible) nothing else is."""
        if foretold is None or self.fsm.failure_count:
            return
        request, answer = foretold
        changed = [record for record in self.fsm.last_records if not isinstance(record, OperationDone)]
        if answer is not None:
            assert not changed, (request, answer)
            assert not request.operationId or _said(answer) == _said(response), request
        elif request.WhichOneof("request") in _BY_THEMSELVES and len(request.operationId) == OPERATION_ID_SIZE_BYTES:
            assert changed or request.timeNs >= MAX_TIME_NS, request

    def register(self, node: str, **fields: Any) -> pb.ControlResponse:
        request = pb.RegisterNode(nodeId=node, **fields)
        if not request.minLevel:
            SUPPORTED_LEVELS.write_to(request)
        return self.ask(registerNode=request)

    def restart(self, node: str, *, clean: bool = False, flushed: bool = True, emptied: bool = False) -> pb.ControlResponse:
        previous = 0 if emptied else self.incarnation(node)
        return self.register(node, previousIncarnation=previous, cleanStop=clean, flushedAlways=flushed)

    def create(self, name: str = "orders", subject: str | None = None, **fields: Any) -> pb.ControlResponse:
        subject = f"shop.{name}" if subject is None else subject
        return self.ask(createStream=pb.CreateStream(name=name, subject=subject, **fields))

    def fence(self, node: str) -> pb.ControlResponse:
        return self.ask(fenceNode=pb.FenceNode(nodeId=node, incarnation=self.incarnation(node)))

    def unfence(self, node: str) -> pb.ControlResponse:
        return self.ask(unfenceNode=pb.UnfenceNode(nodeId=node, incarnation=self.incarnation(node)))

    def incarnation(self, node: str) -> int:
        return self.fsm.image.nodes[node].incarnation

    def partition(self, name: str = "orders", number: int = 0) -> PartitionState:
        return self.fsm.image.streams[name].partitions[number]

    def isr_request(self, isr: list[str], name: str = "orders", number: int = 0) -> pb.ChangeIsr:
        """What a leader that knows the current state would ask."""
        partition = self.partition(name, number)
        return pb.ChangeIsr(
            stream=name, uid=self.fsm.image.streams[name].uid, partition=number, leader=partition.leader,
            leaderEpoch=partition.leader_epoch, epoch=partition.epoch, isr=isr,
            incarnations={node: self.incarnation(node) for node in isr},
        )  # fmt: skip

    def change_isr(self, isr: list[str], name: str = "orders", number: int = 0) -> pb.ControlResponse:
        return self.ask(changeIsr=self.isr_request(isr, name, number))

    def delete(self, name: str) -> pb.ControlResponse:
        return self.ask(deleteStream=pb.DeleteStream(name=name))


def _said(response: pb.ControlResponse) -> pb.ControlResponse:
    """Without what says where it was made."""
    copy = pb.ControlResponse()
    copy.CopyFrom(response)
    copy.operationId, copy.index = b"", 0
    return copy
