"""Test seeded histories of a control plane: nodes crash, lose data and fail to promote. At the end every partition has a leader.

The real state machine and the metadata leader's real duties, in virtual time; nodes are a few lines each. Every image is
checked; in the end L1 (a leader within 5 s wherever a complete replica is live) and L2 (ISR = live replicas) hold.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from cluster_driver import MS, Driver

from liftpy.config import CommitPolicy, ReplicationConfig
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.controller.active_controller import ActiveController
from liftpy.core.metadata.image import StreamImage
from liftpy.core.metadata.placement import POLICIES
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.born import registration
from tests.long import sampled
from tests.unit.metadata.image_checks import LeadershipHistory, check_image, check_step

TICK_NS = 50 * MS
NODES = ("a", "b", "c", "d")


@dataclass
class Process:
    incarnation: int = 0
    alive: bool = False
    folder: int = 0  # incarnation that the data folder holds
    clean: bool = False


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.orders = random.Random(seed + 1_000_000)
        self.made = 0
        self.driver = Driver(elections=True)
        self.duties = ActiveController(ReplicationConfig())
        self.now_ns = 0
        self.nodes = {name: Process() for name in NODES}
        self.history = LeadershipHistory()
        self.duties.lead(self.driver.fsm.image, 0, 1)
        for name in NODES:
            self.start(name)
        for number, policy in enumerate(("isr", "isr", "quorum")):
            config = pb.StreamConfig(commitPolicy=policy)
            self.ask(
                createStream=pb.CreateStream(
                    name=f"s{number}", subject=f"x.{number}", partitions=2, replicationFactor=3, config=config
                )
            )

    def ask(self, **request: object) -> pb.ControlResponse:
        before = self.driver.fsm.image
        response = self.driver.ask(**request)
        after = self.driver.fsm.image
        check_step(before, after)
        check_image(after)
        self.history.add_image(after)
        self.duties.image_changed(after, self.now_ns)
        return response

    # ---- faults ----------------------------------------------------------------------------------------------------------
    def start(self, name: str, *, emptied: bool = False, dies_at_once: bool = False) -> None:
        node = self.nodes[name]
        request = registration(
            nodeId=name, previousIncarnation=0 if emptied else node.folder, cleanStop=node.clean, flushedAlways=not emptied
        )
        node.incarnation = self.ask(registerNode=request).node.incarnation
        node.alive = not dies_at_once
        if not dies_at_once:
            node.folder, node.clean = node.incarnation, False

    def fault(self) -> None:
        name = self.rng.choice(NODES)
        node, dice = self.nodes[name], self.rng.random()
        if node.alive and dice < 0.03:
            node.alive = False
        elif not node.alive and dice < 0.12:
            self.start(name, emptied=self.rng.random() < 0.15, dies_at_once=self.rng.random() < 0.1)
        elif dice > 0.995:
            self.duties.resign()
            self.duties.lead(self.driver.fsm.image, self.now_ns, 2)
        elif node.alive and dice > 0.98:
            self.ask(drainNode=pb.DrainNode(nodeId=name, incarnation=node.incarnation))

    def order(self) -> None:
        """Send a random operator request: streams of any placement, more partitions, weights and racks."""
        dice, streams = self.orders.random(), sorted(self.driver.fsm.image.streams)
        policy = self.orders.choice(("", *POLICIES))
        name = self.orders.choice(streams)
        if dice < 0.02 and len(streams) < 8:
            factor, count = self.orders.randint(1, 4), self.orders.randint(1, 4)
            self.made += 1
            create = pb.CreateStream(
                name=f"t{self.made}", subject=f"y.{self.made}", partitions=count, replicationFactor=factor, placement=policy
            )
            self.ask(createStream=create)
        elif dice < 0.025:
            by_hand = [pb.ReplicaList(partition=n, replicas=self.orders.sample(NODES, 2)) for n in range(2)]
            self.made += 1
            create = pb.CreateStream(name=f"t{self.made}", subject=f"y.{self.made}", manual=by_hand, allowOffline=True)
            self.ask(createStream=create)
        elif dice < 0.035:
            kept = self.driver.fsm.image.streams[name].partitions
            count = len(kept) + self.orders.randint(1, 2)
            answer = self.ask(addPartitions=pb.AddPartitions(name=name, partitions=count, placement=policy))
            now = self.driver.fsm.image.streams[name]
            assert now.partitions[: len(kept)] == kept
            assert len(now.partitions) == (count if answer.error == pb.ControlResponse.OK else len(kept))
        elif dice < 0.045:
            node = self.orders.choice(NODES)
            self.ask(setNode=pb.SetNode(nodeId=node, weight=self.orders.choice((0, 1, 3)), rack=self.orders.choice(("x", "y"))))
        elif dice < 0.05 and name.startswith("t"):
            self.ask(deleteStream=pb.DeleteStream(name=name))

    # ---- what nodes do -----------------------------------------------------------------------------------------------------
    def tick(self, luck: float) -> None:
        self.now_ns += TICK_NS
        self.driver.now_ns += TICK_NS
        for name, node in self.nodes.items():
            if node.alive:
                self.heartbeat(name, node)
        for request in self.duties.take_due(self.now_ns):
            kind = request.WhichOneof("request")
            assert kind is not None
            self.ask(**{kind: getattr(request, kind)})
        streams = self.driver.fsm.image.streams
        for stream, number in [(s, n) for s in sorted(streams) for n in range(len(streams[s].partitions))]:
            for name, node in self.nodes.items():
                if node.alive and name in streams[stream].partitions[number].replicas and self.rng.random() < luck:
                    held = self.driver.fsm.image.streams[stream]
                    self.act(name, node, held, held.partitions[number])

    def heartbeat(self, name: str, node: Process) -> None:
        beat = pb.ControlRequest(heartbeat=pb.Heartbeat(nodeId=name, incarnation=node.incarnation))
        self.duties.answer(beat, self.driver.fsm.image, self.now_ns, self.now_ns)

    def act(self, name: str, node: Process, stream: StreamImage, partition: PartitionState) -> None:
        about = {"stream": stream.name, "uid": stream.uid, "partition": partition.partition}
        if partition.candidate == name:
            promotion = pb.ReportPromotion(
                **about, candidate=name, candidateIncarnation=node.incarnation, leaderEpoch=partition.leader_epoch,
                epoch=partition.epoch, finished=True,
            )  # fmt: skip
            self.ask(reportPromotion=promotion)
        elif partition.leader == name:
            self.lead(stream, partition)
        elif self.cannot_reach(partition):
            report = pb.ReportLeader(
                **about, witness=name, witnessIncarnation=node.incarnation, leader=partition.leader,
                leaderEpoch=partition.leader_epoch, lastEpoch=1, newestOffset=self.rng.randrange(100),
            )  # fmt: skip
            self.ask(reportLeader=report)

    def cannot_reach(self, partition: PartitionState) -> bool:
        if partition.status is PartitionStatus.ELECTION:
            return True
        return partition.status is PartitionStatus.ONLINE and not self.nodes[partition.leader].alive

    def lead(self, stream: StreamImage, partition: PartitionState) -> None:
        live = self.driver.fsm.image.is_live
        wanted = [n for n in partition.replicas if n == partition.leader or (self.nodes[n].alive and live(n))]
        if wanted != list(partition.isr):
            self.ask(changeIsr=self.driver.isr_request(wanted, stream.name, partition.partition))

    # ---- the end -------------------------------------------------------------------------------------------------------------
    def unfinished(self, whole: bool) -> list[PartitionState]:
        """Return partitions that should have a leader but have none, except those that need an unclean election."""
        found = []
        for stream in self.driver.fsm.image.streams.values():
            for p in stream.partitions:
                quorum = stream.config.commit_policy is CommitPolicy.QUORUM
                complete = [n for n in (p.replicas if quorum else p.isr) if n not in p.incomplete]
                enough = len(complete) >= 2 or p.last_leader in complete if quorum else bool(complete)
                under_way = p.status in (PartitionStatus.ELECTION, PartitionStatus.CANDIDATE_FOUND)
                if (not p.leader and enough) or (whole and (under_way or (p.leader and p.isr != p.replicas))):
                    found.append(p)
        return found

    def heal(self) -> None:
        for name, node in self.nodes.items():
            if not node.alive:
                self.start(name)

    def settle(self, whole: bool, limit_ns: int) -> None:
        deadline = self.now_ns + limit_ns
        while self.unfinished(whole) or self.driver.fsm.image.waiting:
            assert self.now_ns < deadline, (self.unfinished(whole), self.driver.fsm.image.waiting)
            self.tick(1.0)


@pytest.mark.parametrize("seed", sampled(range(20), 3))
def test_metadata_group_after_random_faults_elects_a_leader_for_every_complete_partition(seed: int) -> None:
    world = World(seed)
    for _ in range(400):
        world.fault()
        world.order()
        world.tick(luck=0.3)
    world.heal()
    for node in NODES:
        world.ask(setNode=pb.SetNode(nodeId=node, weight=1, rack=node))
    world.settle(whole=False, limit_ns=5000 * MS)
    assert not world.driver.fsm.image.waiting, "there are as many nodes and racks as anything waits for"
    world.settle(whole=True, limit_ns=30_000 * MS)
    # Without a command nothing else happens: what is Offline now waits for the operator [C10].
    assert world.driver.fsm.failure_count == 0
    for stream in world.driver.fsm.image.streams.values():
        for partition in stream.partitions:
            if not partition.leader:
                assert partition.status is PartitionStatus.OFFLINE
                elect = pb.ElectLeader(stream=stream.name, partition=partition.partition, unclean=True)
                world.ask(electLeader=elect)
    world.settle(whole=True, limit_ns=30_000 * MS)
    assert all(p.isr == p.replicas for s in world.driver.fsm.image.streams.values() for p in s.partitions)
