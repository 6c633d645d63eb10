"""Drive a cluster in which the metadata leader moves replicas and the test decides how fast partition leaders copy."""

from __future__ import annotations

from collections.abc import Callable

from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.controller.reassignment import PLAN_EVERY_NS, ReassignmentPlanner
from liftpy.core.metadata.image import ClusterImage, StreamImage
from liftpy.core.replication.leader import removable_replica
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.unit.metadata.cluster_driver import Driver
from tests.unit.metadata.image_checks import check_image, check_step

GRACE_S = 300.0


class Moved:
    """Drive a cluster. ``step`` is one check of the planner and its results."""

    def __init__(self, nodes: str = "abcd", *, racks: str = "", **config: float) -> None:
        self.driver = Driver(elections=True)
        for number, node in enumerate(nodes):
            self.driver.register(node, rack=racks[number] if racks else "")
        self.config = ReplicationConfig(replacement_grace_s=GRACE_S, **config)  # type: ignore[arg-type]
        self.moving = ReassignmentPlanner(self.config)
        self.now_ns = 0
        self.moving.lead(self.image, 0)
        self.copies = True
        """Whether learners catch up."""
        self.asked: list[str] = []
        """Kinds of the requests that were proposed, in order."""
        self.most_copies = 0

    @property
    def image(self) -> ClusterImage:
        return self.driver.fsm.image

    def elect_a_new_metadata_leader(self) -> None:
        self.moving.resign()
        self.moving = ReassignmentPlanner(self.config)
        self.moving.lead(self.image, self.now_ns)

    def held(self, node: str) -> int:
        return self.image.replica_counts.get(node, 0)

    def partitions(self) -> list[tuple[StreamImage, PartitionState]]:
        streams = self.image.streams
        return [(streams[name], partition) for name in sorted(streams) for partition in streams[name].partitions]

    def targets(self) -> dict[int, tuple[str, ...]]:
        return {p.partition: p.target for _, p in self.partitions() if p.target}

    def look(self) -> list[str]:
        """Apply the proposals of one check and return them."""
        self.now_ns += PLAN_EVERY_NS
        self.moving.image_changed(self.image, self.now_ns)
        kinds = []
        for message in self.moving.take_due(self.now_ns):
            kind = {pb.BeginCopy: "beginCopy", pb.Reassign: "reassign", pb.ElectLeader: "electLeader"}[type(message)]
            before = self.image
            answer = self.driver.ask(**{kind: message})
            assert answer.error == pb.ControlResponse.OK, (kind, message, answer)
            check_image(self.image)
            check_step(before, self.image)
            kinds.append(kind)
        self.asked += kinds
        self.most_copies = max(self.most_copies, sum(bool(p.joining) for _, p in self.partitions()))
        return kinds

    def step(self) -> list[str]:
        kinds = self.look()
        self.promote()
        self.serve()
        return kinds

    def promote(self) -> None:
        """Promote each candidate. Elections without a candidate end without waiting."""
        for stream, p in self.partitions():
            if p.status is PartitionStatus.ELECTION:
                self.driver.ask(
                    concludeElection=pb.ConcludeElection(
                        stream=stream.name, uid=stream.uid, partition=p.partition, epoch=p.epoch
                    )
                )
        for stream, p in self.partitions():
            if p.status is PartitionStatus.CANDIDATE_FOUND and self.image.is_live(p.candidate):
                self.driver.ask(
                    reportPromotion=pb.ReportPromotion(
                        stream=stream.name, uid=stream.uid, partition=p.partition, candidate=p.candidate,
                        candidateIncarnation=self.driver.incarnation(p.candidate), leaderEpoch=p.leader_epoch, epoch=p.epoch,
                        finished=True,
                    )
                )  # fmt: skip

    def serve(self) -> None:
        """Let leaders add learners and live replicas to the ISR, transfer leaderships, and evict replicas."""
        for stream, p in self.partitions():
            if p.status is not PartitionStatus.ONLINE:
                continue
            there = [n for n in p.holders if self.image.is_live(n) and (self.copies or n != p.joining)]
            if set(there) - set(p.isr):
                self._change(stream, p, [n for n in p.holders if n in there or n in p.isr])
            elif p.leaving and p.leaving == p.leader:
                toward = next(n for n in p.target if n in p.isr)
                self.driver.ask(
                    giveUpLeadership=pb.GiveUpLeadership(
                        stream=stream.name, uid=stream.uid, partition=p.partition, leader=p.leader, leaderEpoch=p.leader_epoch,
                        incarnation=self.driver.incarnation(p.leader), toward=toward,
                    )
                )  # fmt: skip
            elif p.leaving == removable_replica(p, frozenset(p.isr), p.min_isr(stream.config)) != "":
                self._change(stream, p, [n for n in p.isr if n != p.leaving], p.leaving)

    def _change(self, stream: StreamImage, p: PartitionState, isr: list[str], evicted: str = "") -> None:
        isr = [n for n in isr if self.image.is_live(n)]
        request = self.driver.isr_request(isr, stream.name, p.partition)
        request.evicted = evicted
        answer = self.driver.ask(changeIsr=request)
        assert answer.error == pb.ControlResponse.OK, answer

    def down(self, node: str) -> None:
        """Fence the node, elect other leaders, and remove the node from all ISRs."""
        self.driver.fence(node)
        self.promote()
        for stream, p in self.partitions():
            if p.status is PartitionStatus.ONLINE and node in p.isr:
                self._change(stream, p, [n for n in p.isr if n != node])

    def pass_time(self, seconds: float) -> None:
        self.now_ns += round(seconds * NS_PER_S)

    def until(self, holds: Callable[[], bool], looks: int = 2000) -> int:
        """Run steps until ``holds`` is true."""
        for count in range(looks):
            if holds():
                return count
            self.step()
        raise AssertionError("it never came about")
