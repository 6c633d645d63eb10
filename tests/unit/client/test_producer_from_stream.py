"""Test a producer with a source: after a crash at any step, each source record counts once per target partition [A3]."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from liftpy.client.encode_publish import Address
from liftpy.client.partition_queue import BatchRejection, BatchResult, PartitionQueue
from liftpy.client.partition_sender import ProducerOptions, Source, name_for
from liftpy.client.producer import Producer
from liftpy.core.wire.batch import parse_batch
from liftpy.core.wire.partitioner import partition_of
from liftpy.core.wire.producer_note import ProducerNote, SourcePosition
from liftpy.errors import ConfigError, LiftError, PublishRejectedError
from tests.unit.client.producer_wire import PATIENT, Wire

COUNT = 120
READ = SourcePosition("source", 0, 0)


async def a_producer(wire: Wire, read: SourcePosition | None = READ, name: str = "group/0", **options: Any) -> Producer:
    async def found(partition: int) -> Address:
        return Address(f"ev.{partition}", "u1")

    addresses = [Address(f"ev.{partition}", "u1") for partition in range(len(wire.nodes))]
    made = Producer(wire, "s", name, addresses, ProducerOptions(**PATIENT | options), "key", found, read)  # type: ignore[arg-type]
    await made.open()
    return made


def made_from(position: int) -> list[tuple[bytes, bytes]]:
    """(key, value) of each record: none, one, or several, to any partitions."""
    return [(b"%d" % (position * 7 + n), b"%d.%d" % (position, n)) for n in range(position % 4)]


def positions_in(wire: Wire, partition: int) -> list[ProducerNote]:
    return [ProducerNote.decode(batch.columns.note or b"") for batch in wire.nodes[partition].batches]


@pytest.mark.parametrize("seed", range(4))
async def test_producer_with_a_source_stores_each_derived_record_once_despite_crashes(seed: int) -> None:
    rng, wire, killed = random.Random(seed), Wire(2), 0
    wire.loses = lambda: rng.random() < 0.2
    while True:
        p = await a_producer(wire, batch_records=rng.choice((1, 5, 100)), attempt_s=0.01)
        at, until = p.begin_after + 1, rng.randrange(1, COUNT) if killed < 6 else COUNT
        try:
            while at < min(COUNT, p.begin_after + 1 + until):
                several = range(at, min(at + rng.randrange(1, 9), COUNT))
                rows = [(n, key, value) for n in several for key, value in made_from(n)]
                if rows:
                    numbers, keys, values = zip(*rows, strict=True)
                    await p.send_many(values, keys=keys, positions=numbers)
                at = several.stop
            if at == COUNT:
                wire.loses = lambda: False
                await p.flush()
                break
            await asyncio.sleep(rng.random() * 0.01)
        except LiftError:
            pass
        await p.close()  # as if it were killed
        killed += 1
        if rng.random() < 0.3:
            wire.another_leader(rng.randrange(2))
    await p.close()
    assert killed
    for partition in range(2):
        expected = [value for n in range(COUNT) for key, value in made_from(n) if partition_of(key, 2) == partition]
        assert wire.values(partition) == expected
        last = [note.position.offset for note in positions_in(wire, partition) if note.position is not None]
        assert last == sorted(set(last))
        assert len(last) == len(wire.nodes[partition].batches)


async def test_producer_with_a_source_resumes_after_the_lowest_source_position_of_its_partitions() -> None:
    wire = Wire(2)
    async with await a_producer(wire) as p:
        assert p.begin_after == -1
        await p.send_many([b"a", b"b"], partition=0, positions=3)
        await p.send_many([b"c"], partition=1, positions=8)
    async with await a_producer(wire) as p:
        assert (p.begin_after, p.next_sequence(0), p.next_sequence(1)) == (3, 2, 1)
        acks = await (await p.send_many([b"x", b"d"], partition=1, positions=[7, 9]))
        assert [(ack.offset, ack.record_count) for ack in acks] == [(1, 1)]
        assert await (await p.send_many([b"e"], partition=0, positions=10)) != []
        assert p.unanswered == (0, 0)
    assert (wire.values(0), wire.values(1)) == ([b"a", b"b", b"e"], [b"c", b"d"])
    assert [note.name for note in positions_in(wire, 0)] == ["group/0"] * 2, "the first of each epoch says it"


async def test_producer_with_another_source_mode_or_an_older_generation_is_rejected() -> None:
    wire = Wire()
    async with await a_producer(wire, READ._replace(generation=5)) as p:
        await p.send_many([b"a"], positions=3)
    for read, reason in (
        (READ._replace(stream_uid="other"), "PRODUCER_CONFLICT"),
        (READ._replace(partition=2), "PRODUCER_CONFLICT"),
        (None, "PRODUCER_CONFLICT"),
        (READ._replace(generation=4), "PRODUCER_FENCED"),
    ):
        with pytest.raises(PublishRejectedError, match=reason):
            await a_producer(wire, read)
    async with await a_producer(wire, READ._replace(generation=5)) as p:
        assert p.begin_after == 3


async def test_producer_with_a_source_but_without_positions_raises_config_error() -> None:
    wire = Wire()
    with pytest.raises(ConfigError, match="resume"):
        await a_producer(wire, begin="anew")
    async with await a_producer(wire) as p:
        with pytest.raises(ConfigError, match="positions="):
            await p.send(b"a")
        with pytest.raises(ConfigError, match="Source and positions belong together"):
            await p.send_many([b"a"])
        with pytest.raises(ConfigError, match="2 positions for 1 values"):
            await p.send_many([b"a"], positions=[1, 2])
        with pytest.raises(ConfigError, match="positions must ascend"):
            await p.send_many([b"a", b"b"], positions=[2, 1])
        await p.send_many([b"a"], positions=4)
        with pytest.raises(ConfigError, match="in one call"):
            await p.send_many([b"b"], positions=4)
        assert await (await p.send_many([], positions=[])) == []
    async with await a_producer(wire, None, "another") as p:
        with pytest.raises(ConfigError, match="Source and positions belong together"):
            await p.send_many([b"a"], positions=4)
    with pytest.raises(ConfigError, match="needs an id"):
        name_for("", Source("orders"))
    assert name_for("", None) != name_for("", None)
    assert name_for("till", Source("orders")) == "till"


def test_producer_partition_queue_puts_records_of_one_source_position_into_one_batch() -> None:
    lane = PartitionQueue(7, window=9, batch_bytes=40, batch_records=4, attempt_s=1.0)
    lane.begin(0, 0, lane.unanswered[1], position=2)
    values = [b"%d" % n for n in range(14)]
    positions = [3, 3, 3, 4, 4, 5, 6, 6, 6, 6, 6, 6, 7, 8]
    shares = lane.add_many(values, None, [10] * 14, 0.0, positions)
    lane.add_many([b"14"], None, [10], 0.0, [9])
    lane.hurry()
    sent = list(iter(lambda: lane.next_to_send(0.0), None))
    assert [(parcel.position, parcel.record_count) for parcel in sent] == [(3, 3), (5, 3), (6, 6), (9, 3)]
    assert [value for parcel in sent for value in parse_batch(parcel.encoded).values()] == [*values, b"14"]
    assert [(first, count) for _, first, count in shares] == [(0, 3), (0, 3), (0, 6), (0, 2)]
    assert [parcel.names for parcel in sent] == [True, False, False, False]
    lane.acked(0, BatchResult(0, 1))
    assert lane.refused(3, 1, BatchRejection.UNKNOWN, 0.0)
    lane.begin_new_epoch(1)
    again = list(iter(lambda: lane.next_to_send(9.0), None))
    assert [parcel.names for parcel in again] == [True, False, False]
