"""Test AddPartitions, dry runs, manual placement, and settings of nodes."""

from __future__ import annotations

import pytest
from cluster_driver import Driver, Error

from liftpy.core.metadata.codec import decode_snapshot, encode_snapshot
from liftpy.core.metadata.feed import FeedProducer
from liftpy.core.metadata.image_delta import diff
from liftpy.core.metadata.placement import POLICIES
from liftpy.core.metadata.records import record_from_pb, replay_all
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.each import each
from tests.unit.metadata.image_checks import check_image, check_step

FIVE = ("0", "1", "2", "3", "4")


def add(driver: Driver, partitions: int = 0, name: str = "orders", **fields: object) -> pb.ControlResponse:
    return driver.ask(addPartitions=pb.AddPartitions(name=name, partitions=partitions, **fields))  # type: ignore[arg-type]


def replicas(driver: Driver, name: str = "orders") -> list[list[str]]:
    return [list(p.replicas) for p in driver.fsm.image.streams[name].partitions]


def racked() -> Driver:
    driver = Driver()
    for node in "abcdef":
        driver.register(node, rack=f"r{ord(node) % 3}")
    return driver


@pytest.mark.parametrize("policy", POLICIES)
def test_add_partitions_continues_the_placement_of_existing_partitions(policy: str) -> None:
    driver, whole = racked(), racked()
    for one in (driver, whole):
        one.create("before", partitions=5, placement="round-robin")
    driver.create(partitions=7, placement=policy)
    whole.create(partitions=20, placement=policy)
    before = driver.fsm.image
    answer = add(driver, 20)
    assert answer.error == Error.OK
    assert len(answer.stream.partitions) == 20
    image, stream = driver.fsm.image, driver.fsm.image.streams["orders"]
    assert stream.partitions[:7] == before.streams["orders"].partitions
    if policy != "least-loaded":
        assert replicas(driver) == replicas(whole)
    assert image.counters.placement_index == whole.fsm.image.counters.placement_index
    assert [change.new.partition for change in diff(before, image).partitions if change.new] == list(range(7, 20))
    check_image(image)
    check_step(before, image)
    assert decode_snapshot(encode_snapshot(image)).streams == image.streams
    assert len({p.leader_epoch for p in stream.partitions}) == 20


def test_added_partitions_reach_nodes_through_the_metadata_feed() -> None:
    driver = Driver(("a", "b", "c"))
    driver.create(partitions=2)
    follower, feed = driver.fsm.image, FeedProducer(driver.fsm.image.index)
    add(driver, 40)
    feed.entry_applied(driver.fsm.image.index, driver.fsm.last_records)
    for entry in feed.take_entries():
        follower = replay_all(follower, [record_from_pb(record) for record in entry.records])
    assert follower.streams == driver.fsm.image.streams
    check_image(follower)


@each(
    ("fields", "error", "says"),
    [
        ({"partitions": 1}, Error.INVALID, "has 2 partitions: they can become more, not fewer"),
        ({"partitions": 10_001}, Error.INVALID, "1..10000"),
        ({"partitions": 3, "name": "none"}, Error.NOT_FOUND, "no stream 'none'"),
        ({"partitions": 3, "uid": "000009-0"}, Error.NOT_FOUND, "is gone"),
        ({"partitions": 3, "placement": "astrology"}, Error.INVALID, "use one of round-robin"),
        ({"partitions": 3, "name": "rest"}, Error.INVALID, "one partition only"),
        ({"partitions": 3, "name": "near"}, Error.INVALID, "overlap"),
        ({"partitions": 3, "name": "waits"}, Error.NOT_ENOUGH_NODES, "waits for nodes"),
        ({"partitions": 3, "name": "hand"}, Error.INVALID, "assign its partitions 1 to 2"),
        (
            {"partitions": 4, "manual": [pb.ReplicaList(partition=2, replicas=["a", "b"])]},
            Error.INVALID,
            "assign its partitions 2 to 3",
        ),
        ({"manual": [pb.ReplicaList(partition=0, replicas=["a", "b"])]}, Error.INVALID, "must start with id 2"),
        ({"manual": [pb.ReplicaList(partition=2, replicas=["a"])]}, Error.INVALID, "the same number of node ids: 2"),
    ],
)
def test_add_partitions_with_invalid_arguments_is_rejected_with_the_reason(
    fields: dict[str, object], error: int, says: str
) -> None:
    driver = Driver(("a", "b"))
    driver.create(partitions=2)
    driver.create("rest", "rest.>")
    driver.create("near", "near.x")
    driver.create("nearer", "near.x.2")
    driver.create("waits", replicationFactor=3)
    driver.create("hand", manual=[pb.ReplicaList(replicas=["a"])])
    before = driver.fsm.image
    answer = add(driver, **fields)  # type: ignore[arg-type]
    assert answer.error == error
    assert says in answer.detail
    assert (driver.fsm.image.streams, driver.fsm.image.counters) == (before.streams, before.counters)


def test_add_partitions_with_manual_placement_sent_twice_adds_the_partitions_once() -> None:
    driver = Driver(("a", "b"))
    driver.create("hand", manual=[pb.ReplicaList(replicas=["b", "a"])])
    more = [pb.ReplicaList(partition=1, replicas=["a", "b"])]
    assert add(driver, 2, "hand", manual=more).error == Error.OK
    assert replicas(driver, "hand") == [["b", "a"], ["a", "b"]]
    again = add(driver, 2, "hand")
    assert (again.error, again.detail, len(again.stream.partitions)) == (Error.OK, "it has as many already", 2)
    assert add(driver, 3, "hand", placement="least-loaded").error == Error.OK
    assert driver.fsm.image.counters.placement_index == 0


def test_add_partitions_reserves_the_subjects_of_the_new_partitions() -> None:
    driver = Driver(("a",))
    driver.create(partitions=2)
    add(driver, 4)
    assert driver.create("third", "shop.orders.3").error == Error.INVALID
    driver.delete("orders")
    assert driver.create("third", "shop.orders.3").error == Error.OK


@pytest.mark.parametrize("policy", [*POLICIES, "manual"])
def test_create_stream_dry_run_returns_the_placement_and_changes_nothing(policy: str) -> None:
    driver = racked()
    driver.fence("f")
    driver.create("before", partitions=5)
    by_hand = [pb.ReplicaList(partition=n, replicas=["a", "b", "c"]) for n in range(6)]
    fields: dict[str, object] = {"manual": by_hand} if policy == "manual" else {"placement": policy}
    before = driver.fsm.image
    plan = driver.create(partitions=6, replicationFactor=3, dryRun=True, **fields).plan
    now = driver.fsm.image
    assert (now.streams, now.counters, len(now.operations)) == (before.streams, before.counters, len(before.operations))
    driver.create(partitions=6, replicationFactor=3, **fields)
    ids = [node.nodeId for node in plan.nodes]
    assert [[ids[at] for at in plan.replicas[n : n + 3]] for n in range(0, 18, 3)] == replicas(driver)
    assert [(node.replicas, node.leaders) for node in plan.nodes] == [
        (before.replica_counts.get(node, 0), before.leader_counts.get(node, 0)) for node in ids
    ]
    assert [node.nodeId for node in plan.nodes if node.fenced] == ["f"]
    if policy != "manual":
        more = add(driver, 9, dryRun=True).plan
        before = driver.fsm.image
        assert before == driver.fsm.image
        add(driver, 9)
        assert [[ids[at] for at in more.replicas[n : n + 3]] for n in range(0, 9, 3)] == replicas(driver)[6:]
        assert more.firstPartition == 6


def test_create_stream_dry_run_of_an_invalid_request_is_rejected() -> None:
    driver = Driver(("a",))
    driver.create()
    assert driver.create(dryRun=True).error == Error.EXISTS
    assert driver.create("x", "shop.orders", dryRun=True).error == Error.INVALID
    assert driver.create("x", placement="astrology", dryRun=True).error == Error.INVALID


def test_create_stream_that_fails_or_is_a_dry_run_does_not_advance_the_round_robin_start() -> None:
    driver = Driver(FIVE)
    driver.create("first", partitions=9, replicationFactor=3)
    driver.create("dry", partitions=4, dryRun=True)
    driver.create("first", partitions=4)
    driver.create("huge", partitions=10_001)
    driver.create("waits", partitions=3, replicationFactor=6)
    driver.create("weighed", partitions=3, placement="rendezvous")
    driver.create("second", partitions=2, replicationFactor=3, placement="rack")
    assert replicas(driver, "second") == [["4", "1", "2"], ["0", "3", "4"]]


def test_node_weight_and_rack_set_by_an_operator_survive_restarts_until_reset() -> None:
    driver = Driver()
    driver.register("a", rack="x", weight=2.0)

    def facts() -> tuple[float, str]:
        node = driver.fsm.image.nodes["a"]
        return node.weight, node.rack

    def start() -> None:
        previous = driver.incarnation("a")
        driver.register("a", previousIncarnation=previous, flushedAlways=True, rack="x", weight=2.0)

    assert facts() == (2.0, "x")
    assert driver.ask(setNode=pb.SetNode(nodeId="a", weight=0)).node.weight == 0
    start()
    assert facts() == (0.0, "x")
    driver.ask(setNode=pb.SetNode(nodeId="a", rack="y"))
    start()
    assert facts() == (0.0, "y")
    driver.ask(setNode=pb.SetNode(nodeId="a", weightAsItSays=True))
    start()
    assert facts() == (2.0, "y")
    driver.ask(setNode=pb.SetNode(nodeId="a", rackAsItSays=True))
    start()
    assert facts() == (2.0, "x")


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), 1e7])
def test_set_node_with_an_invalid_weight_or_rack_is_rejected(weight: float) -> None:
    driver = Driver(("a",))
    assert driver.ask(setNode=pb.SetNode(nodeId="a", weight=weight)).error == Error.INVALID
    assert driver.register("b", weight=weight).error == Error.INVALID
    assert driver.ask(setNode=pb.SetNode(nodeId="a", rack="no rack")).error == Error.INVALID
    assert driver.ask(setNode=pb.SetNode(nodeId="z", weight=1)).error == Error.NOT_FOUND


def test_node_with_weight_zero_gets_no_replicas_and_the_default_weight_is_one() -> None:
    driver = Driver(("a",))
    driver.register("b", weight=0)
    assert {node.node_id: node.weight for node in driver.fsm.image.nodes.values()} == {"a": 1.0, "b": 0.0}
    driver.create(partitions=9, replicationFactor=1, placement="rendezvous")
    assert {node for partition in replicas(driver) for node in partition} == {"a"}
