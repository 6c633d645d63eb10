"""Test ActiveController: a cluster that runs on its proposals loses a leader, elects one and takes it back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster_driver import MS, Error
from election_driver import Cluster

from liftpy.config import ReplicationConfig
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.controller.active_controller import ActiveController
from liftpy.core.metadata.controller.quorum_member import leader_to_ask_first
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb


class Led:
    """A metadata leader, and nodes that send heartbeats while they are alive."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.duties = ActiveController(ReplicationConfig())
        self.now_ns = 0
        self.alive = set("abc")
        self.duties.lead(self.image, 0, 1)

    @property
    def image(self) -> ClusterImage:
        return self.cluster.fsm.image

    def heartbeat(self, node: str) -> pb.ControlResponse | None:
        beat = pb.Heartbeat(nodeId=node, incarnation=self.cluster.incarnation(node))
        request = pb.ControlRequest(operationId=b"h" * 16, heartbeat=beat)
        return self.duties.answer(request, self.image, self.now_ns, self.now_ns)

    def tick(self) -> None:
        self.now_ns += 50 * MS
        for node in sorted(self.alive):
            self.heartbeat(node)
        for request in self.duties.take_due(self.now_ns):
            kind = request.WhichOneof("request")
            assert kind is not None
            self.cluster.ask(**{kind: getattr(request, kind)})
            self.duties.image_changed(self.image, self.now_ns)

    def run_until(self, holds: Callable[[], bool]) -> int:
        """Advance the virtual time in milliseconds until ``holds`` is true."""
        for waited in range(0, 10_000, 50):
            if holds():
                return waited
            self.tick()
        raise AssertionError("it never came about")


def test_metadata_leader_asks_a_drained_leader_to_resign_before_it_moves_leaderships() -> None:
    led = Led()
    while led.cluster.now != (PartitionStatus.ONLINE, "a", ""):
        led.tick()
    for name in ("more", "still"):
        assert led.cluster.create(name, partitions=3).error == Error.OK
    led.duties.image_changed(led.image, led.now_ns)
    assert led.cluster.ask(setNode=pb.SetNode(nodeId="a", leaving=True)).error == Error.OK
    led.duties.image_changed(led.image, led.now_ns)
    led.now_ns += 1000 * MS
    asked = [
        leader_to_ask_first(led.image, request) for request in led.duties.take_due(led.now_ns) if "electLeader" in str(request)
    ]
    assert len(asked) == led.image.leader_counts["a"] > 1
    assert all(found is not None and found[0] == "a" for found in asked)


def test_silent_leader_and_silent_candidate_are_fenced_and_replaced() -> None:
    led = Led()
    for _ in range(100):
        led.tick()
    assert led.cluster.now == (PartitionStatus.ONLINE, "a", "")
    led.alive.discard("a")
    waited = led.run_until(lambda: led.cluster.now[2] == "b")
    assert 2000 <= waited <= 2400
    epoch = led.cluster.partition().leader_epoch
    led.alive.discard("b")
    led.run_until(lambda: led.cluster.now[2] == "c")
    assert led.cluster.partition().leader_epoch > epoch
    led.cluster.promote()
    led.duties.image_changed(led.image, led.now_ns)
    led.alive = set("abc")
    led.run_until(lambda: led.image.live_nodes() == ["a", "b", "c"])
    assert led.cluster.now == (PartitionStatus.ONLINE, "c", "")
    assert led.heartbeat("a").error == Error.OK  # type: ignore[union-attr]


@pytest.mark.parametrize("linearizable", [False, True])
def test_metadata_leader_answers_heartbeats_and_reads_without_log_entries(linearizable: bool) -> None:
    led = Led()
    answered = led.heartbeat("a")
    assert answered is not None
    assert (answered.error, answered.index, answered.operationId) == (Error.OK, led.image.index, b"h" * 16)
    describing = pb.ControlRequest(describeCluster=pb.DescribeCluster(), linearizable=linearizable)
    described = led.duties.answer(describing, led.image, 0, 0)
    assert (described is None) == linearizable
    for logged in (
        pb.ControlRequest(barrier=pb.Barrier()),
        pb.ControlRequest(createStream=pb.CreateStream(name="more", subject="shop.more")),
    ):
        assert led.duties.answer(logged, led.image, 0, 0) is None
    progress = pb.ControlRequest(reportPromotion=pb.ReportPromotion(stream="orders"))
    assert led.duties.answer(progress, led.image, 0, 0) is not None


def test_metadata_leader_after_resigning_makes_no_proposals() -> None:
    led = Led()
    led.duties.resign()
    assert led.duties.take_due(10**15) == []
    assert led.duties.next_deadline_ns() is None
    assert led.heartbeat("a").error == Error.NOT_METADATA_LEADER  # type: ignore[union-attr]
