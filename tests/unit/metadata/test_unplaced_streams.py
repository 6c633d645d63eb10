"""Test streams without enough nodes: they wait, say for what, and are placed later."""

from __future__ import annotations

from cluster_driver import Driver, Error
from election_driver import Cluster

from liftpy.config import ReplicationConfig
from liftpy.core.base.partition import PartitionStatus
from liftpy.core.metadata.codec import decode_snapshot, encode_snapshot
from liftpy.core.metadata.controller.active_controller import ActiveController
from liftpy.core.metadata.controller.state_machine import answer_without_log
from liftpy.core.metadata.controller.streams import AGAIN_AFTER_NS, AT_ONCE, CHECK_EVERY_NS, NO_ROOM, why_it_waits
from liftpy.core.metadata.image import INSUFFICIENT_NODES
from liftpy.core.metadata.placement import POLICIES
from liftpy.core.metadata.placement.policies import HASHES_PER_STEP
from liftpy.core.metadata.records import replay_all
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.each import each
from tests.unit.metadata.image_checks import check_image


def why(driver: Driver, name: str) -> str:
    return why_it_waits(driver.fsm.image, driver.fsm.image.streams[name])


def place(driver: Driver, name: str = "orders") -> pb.ControlResponse:
    return driver.ask(placeStream=pb.PlaceStream(name=name, uid=driver.fsm.image.streams[name].uid))


@each("policy", POLICIES)
@each("nodes", [(), ("a",)])
def test_create_stream_with_too_few_nodes_is_unplaced_until_nodes_register(policy: str, nodes: tuple[str, ...]) -> None:
    driver = Driver()
    for node in nodes:
        driver.register(node, rack=node)
    made = driver.create(partitions=4, replicationFactor=3, placement=policy)
    assert made.error == Error.OK
    assert made.detail.startswith(f"{INSUFFICIENT_NODES}: not enough nodes: {3 - len(nodes)} more needed")
    assert (made.stream.waiting, len(made.stream.partitions)) == (4, 0)
    for node in "abc"[len(nodes) :]:
        assert place(driver).error == Error.NOT_ENOUGH_NODES
        driver.register(node, rack=node)
    before = driver.fsm.image
    assert before.counters.placement_index == 0
    assert why_it_waits(before, before.streams["orders"]) == NO_ROOM  # or rather: it is about to be placed
    assert place(driver).error == Error.OK
    image, stream = driver.fsm.image, driver.fsm.image.streams["orders"]
    assert (stream.waiting, len(stream.partitions), image.waiting) == (0, 4, frozenset())
    assert all(p.status is PartitionStatus.ONLINE and len(p.replicas) == 3 for p in stream.partitions)
    assert image.counters.placement_index == (4 if POLICIES[policy].uses_start else 0)
    check_image(image)
    assert replay_all(before, driver.fsm.last_records).streams == image.streams
    assert place(driver).error == Error.OK, "it is placed once"
    assert driver.fsm.image.streams["orders"] == stream
    driver.delete("orders")
    check_image(driver.fsm.image)


def test_unplaced_stream_reserves_its_subjects_until_it_is_deleted() -> None:
    driver = Driver(("a",))
    driver.create(partitions=3, replicationFactor=2)
    image = driver.fsm.image
    assert decode_snapshot(encode_snapshot(image)).streams == image.streams
    assert decode_snapshot(encode_snapshot(image)).waiting == {"orders"}
    assert driver.create("other", "shop.orders.2").error == Error.INVALID
    assert driver.create("fourth", "shop.orders.3").error == Error.OK
    driver.delete("orders")
    assert driver.fsm.image.waiting == frozenset()
    assert driver.create("other", "shop.orders.2").error == Error.OK


def test_place_stream_with_another_uid_returns_not_found() -> None:
    driver = Driver(("a",))
    driver.create(replicationFactor=2)
    driver.register("b")
    assert driver.ask(placeStream=pb.PlaceStream(name="orders", uid="000009-0")).error == Error.NOT_FOUND
    assert driver.fsm.image.waiting


def test_create_stream_with_rack_strict_is_unplaced_until_enough_nodes_and_racks_register() -> None:
    driver = Driver()
    driver.register("a", rack="x")
    driver.create(replicationFactor=2, placement="rack-strict")
    assert why(driver, "orders") == "not enough nodes: 1 more needed"
    driver.register("b", rack="x")
    assert "2 replicas need as many racks, there are 1" in why(driver, "orders")
    assert place(driver).error == Error.NOT_ENOUGH_NODES
    driver.ask(setNode=pb.SetNode(nodeId="b", rack="y"))
    assert place(driver).error == Error.OK


def test_create_stream_dry_run_with_too_few_nodes_returns_the_number_of_missing_nodes() -> None:
    driver = Driver(("a",))
    answer = driver.create(replicationFactor=3, dryRun=True)
    assert answer.plan.waits == "not enough nodes: 2 more needed"
    assert not driver.fsm.image.streams


class Leading:
    """Provide an active controller and its log."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.duties = ActiveController(ReplicationConfig(), driver.fsm.rules)
        self.duties.lead(driver.fsm.image, 0, 1)
        self.now_ns = 0

    def due(self) -> list[str]:
        """Return the streams that the next check would place."""
        self.duties.image_changed(self.driver.fsm.image, self.now_ns)
        self.now_ns += CHECK_EVERY_NS
        for node in self.driver.fsm.image.nodes.values():
            self.duties.answer(heartbeat(node.node_id, node.incarnation), self.driver.fsm.image, self.now_ns, self.now_ns)
        found = [request.placeStream.name for request in self.duties.take_due(self.now_ns) if request.HasField("placeStream")]
        deadline = self.duties.next_deadline_ns()
        assert deadline is None or deadline > self.now_ns
        return found


def heartbeat(node: str, incarnation: int) -> pb.ControlRequest:
    return pb.ControlRequest(heartbeat=pb.Heartbeat(nodeId=node, incarnation=incarnation))


def test_metadata_leader_places_unplaced_streams_a_few_at_a_time() -> None:
    driver = Driver(("a",))
    for number in range(AT_ONCE + 3):
        driver.create(f"s{number:02}", replicationFactor=2 + number % 2)
    leading = Leading(driver)
    assert leading.due() == []
    driver.register("b")
    of_two = [f"s{number:02}" for number in range(0, AT_ONCE + 3, 2)]
    assert leading.due() == of_two
    assert leading.due() == [], "what is under way is not proposed again"
    place(driver, "s00")
    assert leading.due() == []
    driver.register("c")
    assert leading.due() == [f"s{number:02}" for number in range(1, AT_ONCE + 3, 2)]
    leading.now_ns += AGAIN_AFTER_NS
    first = leading.due()
    assert first == [f"s{number:02}" for number in range(1, AT_ONCE + 1)], (
        "what came to nothing is proposed again, a few at a time"
    )
    assert leading.due() == [f"s{number:02}" for number in range(AT_ONCE + 1, AT_ONCE + 3)]


def test_create_stream_with_manual_placement_on_dead_nodes_is_led_by_the_first_returning_node() -> None:
    cluster = Cluster(("a", "b", "c"))
    for node in "bc":
        cluster.fence(node)
    by_hand = [pb.ReplicaList(partition=0, replicas=["b", "a"]), pb.ReplicaList(partition=1, replicas=["c", "b"])]
    refused = cluster.create("hand", manual=by_hand)
    assert refused.error == Error.INVALID
    for said in ("id: b is not live", "id: c is not live", "entry 0", "entry 1"):
        assert said in refused.detail
    assert cluster.create("hand", manual=by_hand, allowOffline=True).error == Error.OK
    first, second = cluster.fsm.image.streams["hand"].partitions
    assert (first.leader, first.isr, first.replicas) == ("a", ("a",), ("b", "a"))
    assert (second.leader, second.isr, second.status) == ("", ("c", "b"), PartitionStatus.OFFLINE)
    check_image(cluster.fsm.image)
    cluster.unfence("b")
    status = cluster.fsm.image.streams["hand"].partitions[1].status
    assert status in (PartitionStatus.ELECTION, PartitionStatus.CANDIDATE_FOUND, PartitionStatus.ONLINE)


def test_create_stream_with_expensive_placement_is_logged_and_applied_in_steps() -> None:
    """An answer without a log entry must not take seconds."""
    driver = Driver()
    for number in range(100):
        driver.register(f"n{number:02}")
    create = pb.CreateStream(name="many", subject="many", partitions=300, replicationFactor=2, placement="rendezvous")
    request = pb.ControlRequest(operationId=b"0123456789abcdef", timeNs=driver.now_ns, createStream=create)
    assert answer_without_log(driver.fsm.image, request, 0, driver.fsm.rules) is None
    request.createStream.dryRun = True
    assert answer_without_log(driver.fsm.image, request, 0, driver.fsm.rules) is None
    entry, steps = request.SerializeToString(), 1
    while not driver.fsm.precompute(entry, driver.index + 1):
        steps += 1
    assert steps >= 300 * 100 // HASHES_PER_STEP
    plan = pb.ControlResponse.FromString(driver.fsm.apply(entry, driver.index + 1)).plan
    assert len(plan.replicas) == 600
    create.partitions, create.dryRun = 3, True
    assert answer_without_log(driver.fsm.image, pb.ControlRequest(createStream=create), 0, driver.fsm.rules) is not None
