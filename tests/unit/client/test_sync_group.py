"""Test groups, cursors and consumers of many partitions in the synchronous client, on a cluster in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from liftpy.client.sync import SyncClient
from liftpy.testing.memory import memory_cluster

VALUES = [b"%d" % number for number in range(20)]


@pytest.fixture
def client() -> Iterator[SyncClient]:
    with memory_cluster() as cluster, cluster.sync_client() as client:
        client.create_stream("orders", "shop.orders", partitions=2)
        with client.producer("orders", partitioner="round-robin") as producer:
            producer.send_many(VALUES)
        yield client


def test_sync_group_iteration_returns_each_record_of_its_streams_once(client: SyncClient) -> None:
    group = client.group("billing", ["orders"])
    seen: list[bytes | None] = []
    for record in group:
        assert record.stream == "orders"
        seen.append(record.value)
        if len(seen) == len(VALUES):
            break
    group.commit()
    assert sorted(value or b"" for value in seen) == sorted(VALUES)
    assert [(key.stream, key.partition) for key in group.owned] == [("orders", 0), ("orders", 1)]
    assert {group.generation_of(key) for key in group.owned} == {group.generation_of(group.owned[0])}
    group.close()
    assert list(group) == []
    assert group.counters == {}


def test_sync_consume_many_and_read_range_return_every_record(client: SyncClient) -> None:
    with client.consume_many("orders", until="end") as many:
        first = next(iter(many))
        positions = many.positions_text()
        rest = list(many)
        assert sorted(record.value or b"" for _, _, record in [first, *rest]) == sorted(VALUES)
        assert many.places == [("orders", 0), ("orders", 1)]
    assert f'"{first[1]}": ' in positions
    pieces = [piece for number in range(2) for piece in client.read_range("orders", number, 2, 5)]
    assert [offset for piece in pieces for offset in piece.offsets().tolist()] == [2, 3, 4, 2, 3, 4]


def test_sync_publisher_returns_receipts_of_its_messages(client: SyncClient) -> None:
    client.create_stream("bills", "shop.bills")
    with client.publisher("bills") as publisher:
        receipts = [publisher.send(value) for value in VALUES]
        assert [receipt.result(30).offset for receipt in receipts] == list(range(len(VALUES)))
        assert publisher.publish(b"last").offset == len(VALUES)
        publisher.post(b"without ack")
        assert publisher.in_flight == 0
