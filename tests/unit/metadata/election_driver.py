"""Drive the elections of one stream: reports, promotions, passed-over candidates and results."""

from __future__ import annotations

from typing import Any

from cluster_driver import Driver

from liftpy.core.base.partition import PartitionStatus
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.unit.metadata.image_checks import check_image

OFFLINE, ONLINE = PartitionStatus.OFFLINE, PartitionStatus.ONLINE
ELECTION, CANDIDATE_FOUND = PartitionStatus.ELECTION, PartitionStatus.CANDIDATE_FOUND


class Cluster(Driver):
    """Three or more nodes, one stream ``orders`` of which the first node leads partition 0."""

    def __init__(self, nodes: str = "abc", **config: Any) -> None:
        super().__init__(tuple(nodes), elections=True)
        self.create(replicationFactor=len(nodes), config=pb.StreamConfig(**config))

    @property
    def now(self) -> tuple[PartitionStatus, str, str]:
        partition = self.partition()
        check_image(self.fsm.image)
        return partition.status, partition.leader, partition.candidate

    def about(self, **fields: Any) -> dict[str, Any]:
        return {"stream": "orders", "uid": self.fsm.image.streams["orders"].uid, "partition": 0, **fields}

    def report(self, witness: str, position: tuple[int, int] = (1, 10), **other: Any) -> pb.ControlResponse:
        partition = self.partition()
        fields = self.about(
            witness=witness, witnessIncarnation=self.incarnation(witness), leader=partition.leader,
            leaderEpoch=partition.leader_epoch, lastEpoch=position[0], newestOffset=position[1],
        )  # fmt: skip
        return self.ask(reportLeader=pb.ReportLeader(**(fields | other)))

    def restarts_and_leads_again(self) -> None:
        """Restart the process of the leader. All replicas report equal positions."""
        leader = self.partition().leader
        self.restart(leader)
        for node in self.partition().isr:
            self.report(node)
        self.promote()
        assert self.partition().leader == leader

    def promotion(self, **other: Any) -> pb.ReportPromotion:
        partition = self.partition()
        fields = self.about(
            candidate=partition.candidate, candidateIncarnation=self.incarnation(partition.candidate),
            leaderEpoch=partition.leader_epoch, epoch=partition.epoch, finished=True,
        )  # fmt: skip
        return pb.ReportPromotion(**(fields | other))

    def promote(self) -> pb.ControlResponse:
        return self.ask(reportPromotion=self.promotion())

    def pass_over(self) -> pb.ControlResponse:
        p = self.partition()
        return self.ask(passOver=pb.PassOver(**self.about(candidate=p.candidate, leaderEpoch=p.leader_epoch, epoch=p.epoch)))

    def conclude(self) -> pb.ControlResponse:
        return self.ask(concludeElection=pb.ConcludeElection(**self.about(epoch=self.partition().epoch)))

    def elect(self, node: str = "", *, unclean: bool = False) -> pb.ControlResponse:
        return self.ask(electLeader=pb.ElectLeader(**self.about(node=node, unclean=unclean)))
