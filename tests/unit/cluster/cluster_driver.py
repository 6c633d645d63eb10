"""Drives a ClusterFsm as a metadata group would: numbers its entries, gives operation ids, keeps the log."""

from __future__ import annotations

from typing import Any

from liftpy.cluster.fsm import ClusterFsm
from liftpy.cluster.image import PartitionImage
from liftpy.wire._pb import cluster_pb2 as pb

MS = 1_000_000
SECOND = 1000 * MS
Error = pb.ControlResponse


class Driver:
    def __init__(self, nodes: tuple[str, ...] = (), *, elections: bool = False) -> None:
        self.fsm = ClusterFsm(elections=elections)
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
        return pb.ControlResponse.FromString(self.fsm.apply(entry, len(self.log)))

    def register(self, node: str, **fields: Any) -> pb.ControlResponse:
        return self.ask(registerNode=pb.RegisterNode(nodeId=node, **fields))

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

    def partition(self, name: str = "orders", number: int = 0) -> PartitionImage:
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
