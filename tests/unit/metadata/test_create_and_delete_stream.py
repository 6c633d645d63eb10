"""Test requests that create and delete streams, and the partition budgets of nodes."""

from __future__ import annotations

import pytest
from cluster_driver import Driver, Error

from liftpy.config import AckPolicy, FlushMode
from liftpy.core.metadata.codec import decode_snapshot, encode_snapshot
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.each import each


@pytest.mark.parametrize(("nodes", "expected"), [(("a",), 1), (("a", "b"), 2), (("a", "b", "c", "d"), 3)])
def test_create_stream_with_replication_factor_zero_gets_three_replicas_or_one_per_live_node(
    nodes: tuple[str, ...], expected: int
) -> None:
    response = Driver(nodes).create()
    assert len(response.stream.partitions[0].replicas) == expected
    assert f"replication factor {expected}" in response.detail


@each(
    ("fields", "says"),
    [
        ({"name": "no dots.please"}, "stream name"),
        ({"name": ""}, "stream name"),
        ({"name": "raft"}, "protocol's own subjects"),
        ({"subject": "liftpy.control"}, "overlap"),
        ({"subject": ""}, "not a NATS subject"),
        ({"subject": "a..b"}, "not a NATS subject"),
        ({"subject": "a.>", "partitions": 2}, "one partition only"),
        ({"subject": "a" * 254, "partitions": 11}, "longer than"),
        ({"partitions": 10_001}, "1..10000"),
        ({"replicationFactor": 33}, "1..32"),
        ({"placement": "astrology"}, "use one of round-robin"),
        ({"config": pb.StreamConfig(ackPolicy="maybe")}, "use one of 'none', 'leader', 'all'"),
        ({"config": pb.StreamConfig(codec="zip")}, "use one of 'none', 'lz4', 'zstd'"),
        ({"config": pb.StreamConfig(flush="interval:0")}, "flush policy"),
        ({"config": pb.StreamConfig(segmentBytes=1)}, "segment_bytes = 1 is outside"),
        ({"config": pb.StreamConfig(retentionAgeS=float("nan"))}, "retention_age_s"),
    ],
)
def test_create_stream_with_invalid_arguments_returns_invalid_and_changes_nothing(fields: dict[str, object], says: str) -> None:
    driver = Driver(("a", "b", "c"))
    before = driver.fsm.image.counters
    response = driver.create(**fields)  # type: ignore[arg-type]
    assert response.error == Error.INVALID
    assert says in response.detail
    assert driver.fsm.image.counters == before
    assert not driver.fsm.image.streams


def test_create_stream_with_an_existing_name_is_rejected() -> None:
    driver = Driver(("a",))
    assert driver.create("one", "shop.>").error == Error.OK
    taken = driver.create("one", "elsewhere")
    assert taken.error == Error.EXISTS
    assert taken.stream.subject == "shop.>"


def test_create_stream_retry_returns_the_current_or_deleted_stream() -> None:
    driver = Driver(("a", "b", "c"))
    first = driver.create()
    driver.change_isr(["a", "b"])
    again = driver.ask(first.operationId, createStream=pb.CreateStream(name="orders", subject="shop.orders"))
    assert list(again.stream.partitions[0].isr) == ["a", "b"]
    driver.ask(deleteStream=pb.DeleteStream(name="orders"))
    driver.create()
    gone = driver.ask(first.operationId, createStream=pb.CreateStream(name="orders", subject="shop.orders"))
    assert gone.error == Error.OK
    assert gone.stream.uid == first.stream.uid
    assert not gone.stream.partitions


def test_delete_stream_with_the_uid_of_an_earlier_stream_returns_not_found() -> None:
    driver = Driver(("a",))
    uid = driver.create().stream.uid
    assert driver.ask(deleteStream=pb.DeleteStream(name="orders", uid="000009-0")).error == Error.NOT_FOUND
    assert driver.ask(deleteStream=pb.DeleteStream(name="orders", uid=uid)).error == Error.OK
    assert driver.ask(deleteStream=pb.DeleteStream(name="orders", uid=uid)).error == Error.NOT_FOUND
    second = driver.create().stream.uid
    assert second != uid
    assert driver.ask(deleteStream=pb.DeleteStream(name="orders", uid=uid)).error == Error.NOT_FOUND
    assert driver.fsm.image.streams["orders"].uid == second
    assert driver.ask(deleteStream=pb.DeleteStream(name="orders")).detail == second


def test_create_stream_stores_given_settings_and_defaults_for_the_others() -> None:
    driver = Driver(("a",))
    asked = pb.StreamConfig(ackPolicy="leader", flush="interval:20", retentionRecords=5, failoverStandby=True, dedupWindowS=0)
    driver.create(config=asked)
    config = driver.fsm.image.streams["orders"].config
    assert config.ack_policy is AckPolicy.LEADER
    assert config.flush.mode is FlushMode.INTERVAL
    assert (config.retention_records, config.failover_standby, config.dedup_window_s) == (5, True, 0.0)
    driver.create("plain")
    plain = driver.fsm.image.streams["plain"].config
    assert (plain.failover_standby, plain.dedup_window_s, plain.delete_retention_s) == (False, 120.0, 86_400.0)


def cluster(**budgets: int) -> Driver:
    driver = Driver()
    for node, budget in budgets.items():
        driver.register(node, partitionBudget=budget)
    return driver


def counts(driver: Driver) -> dict[str, int]:
    return dict(driver.fsm.image.replica_counts)


def test_create_stream_beyond_every_partition_budget_is_rejected() -> None:
    driver = cluster(n1=10, n2=10, n3=10)
    assert driver.create("a", partitions=10, replicationFactor=3).error == Error.OK
    refused = driver.create("b", partitions=1, replicationFactor=1)
    assert refused.error == Error.NOT_ENOUGH_NODES
    assert "n1 (10 of 10)" in refused.detail
    assert "limit" in refused.detail
    assert counts(driver) == {"n1": 10, "n2": 10, "n3": 10}
    driver.ask(deleteStream={"name": "a"})
    assert counts(driver) == {}
    assert driver.create("b").error == Error.OK


def test_create_stream_skips_a_node_at_its_partition_budget() -> None:
    driver = cluster(n1=2, n2=0, n3=0)
    for number in range(8):
        assert driver.create(f"s{number}", partitions=3, replicationFactor=1).error == Error.OK
    assert counts(driver)["n1"] <= 2
    assert sum(counts(driver).values()) == 24


def test_node_without_a_partition_budget_accepts_any_number_of_replicas() -> None:
    driver = cluster(n1=0)
    assert driver.create("a", partitions=500).error == Error.OK


def test_node_that_lowers_its_partition_budget_gets_no_more_replicas() -> None:
    driver = cluster(n1=100)
    driver.create("a", partitions=50)
    answer = driver.register("n1", previousIncarnation=driver.incarnation("n1"), flushedAlways=True, partitionBudget=20)
    assert "holds 50 partitions" in answer.detail
    assert driver.create("b").error == Error.NOT_ENOUGH_NODES


def test_replica_counts_of_nodes_are_restored_from_a_snapshot() -> None:
    driver = cluster(n1=100, n2=100, n3=100)
    driver.create("a", partitions=7, replicationFactor=2)
    driver.create("b", partitions=3, replicationFactor=3)
    copy = decode_snapshot(encode_snapshot(driver.fsm.image))
    assert copy.replica_counts == driver.fsm.image.replica_counts
    assert copy.nodes == driver.fsm.image.nodes
