"""Test the replica limit of a node: CreateStream avoids a full node, or is rejected with advice."""

from __future__ import annotations

from cluster_driver import Driver, Error

from liftpy.core.metadata.codec import decode_snapshot, encode_snapshot


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
