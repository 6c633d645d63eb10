"""Test the order and completeness of records in the synchronous consumer when an application changes its way of reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from liftpy.client.batch_view import BatchSlice
from liftpy.client.sync import SyncClient, SyncConsumer
from liftpy.errors import ConfigError, CorruptionError
from liftpy.testing.memory import memory_cluster
from tests.each import each

RECORDS = 10


@pytest.fixture(scope="module")
def client() -> Iterator[SyncClient]:
    with memory_cluster() as cluster, cluster.sync_client() as client:
        client.create_stream("orders", "shop.orders")
        with client.producer("orders") as producer:
            for half in range(2):
                producer.send_many([b"%d" % number for number in range(5 * half, 5 * half + 5)])
                producer.flush()
        yield client


def offsets(records: Iterator[Any]) -> list[int]:
    return [record.offset for record in records]


WAYS: dict[str, Callable[[SyncConsumer], list[int]]] = {
    "loop": lambda consumer: offsets(iter(consumer)),
    "records": lambda consumer: offsets(consumer.records()),
    "getone": lambda consumer: offsets(iter(consumer.getone, None)),
    "getmany": lambda consumer: offsets(iter(consumer.getmany(3) + consumer.getmany(100) + consumer.getmany(100))),
    "batches": lambda consumer: [offset for piece in consumer.batches() for offset in piece.offsets().tolist()],
}


@each("way", WAYS)
def test_sync_consumer_after_an_interrupted_loop_continues_after_the_last_record(client: SyncClient, way: str) -> None:
    consumer = client.consume("orders", until="end")
    assert offsets(islice(consumer, 2)) == [0, 1]
    assert (consumer.position().offset, consumer.lag()) == (2, RECORDS - 2)
    assert WAYS[way](consumer) == list(range(2, RECORDS))
    assert (consumer.position().offset, consumer.lag()) == (RECORDS, 0)


def test_sync_consumer_backwards_after_an_interrupted_loop_continues_below_the_last_record(client: SyncClient) -> None:
    consumer = client.consume("orders", backwards=True)
    assert offsets(islice(consumer, 7)) == [9, 8, 7, 6, 5, 4, 3]
    assert offsets(iter(consumer.getmany(1))) == [2]
    assert offsets(iter(consumer)) == [1, 0]


def test_sync_consumer_seek_inside_a_loop_ends_the_loop(client: SyncClient) -> None:
    consumer = client.consume("orders", until="end")
    seen = []

    def read() -> None:
        for record in consumer:
            seen.append(record.offset)
            if record.offset == 1:
                consumer.seek(8)

    with pytest.raises(ConfigError, match="already read by"):
        read()
    assert seen == [0, 1]
    assert offsets(iter(consumer)) == [8, 9]


def test_sync_consumer_at_a_corrupt_batch_raises_and_keeps_its_position(
    client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, real = client.consume("orders", until="end"), BatchSlice.records

    def records(piece: BatchSlice) -> Iterator[Any]:
        if piece.first_offset == 5:
            raise CorruptionError("it does not decompress")
        return real(piece)

    monkeypatch.setattr(BatchSlice, "records", records)
    good = offsets(islice(consumer, 5))
    with pytest.raises(CorruptionError):
        next(iter(consumer))
    assert (good, consumer.position().offset) == ([0, 1, 2, 3, 4], 5)
    monkeypatch.undo()
    assert offsets(iter(consumer)) == [5, 6, 7, 8, 9]
