"""Test the choice of the partition, and invalid records and options."""

from __future__ import annotations

import random
from typing import Any

import pytest

from liftpy.client.partition_sender import ProducerOptions
from liftpy.core.wire.partitioner import murmur2, partition_of, partitions_of
from liftpy.errors import ConfigError
from tests.each import each
from tests.unit.client.producer_wire import Wire, a_producer


# ---- partitions --------------------------------------------------------------------------------------------------------------------
async def test_producer_sends_equal_keys_to_one_partition_and_alternates_batches_without_key() -> None:
    wire = Wire(partitions=3)
    async with await a_producer(wire) as p:
        keys = [b"key-%d" % n for n in range(40)]
        for key in keys[:20]:
            await p.send(key, key=key)
        await p.send_many(keys[20:], keys=keys[20:])
        await p.flush()
        for partition in range(3):
            assert wire.values(partition) == [key for key in keys if partition_of(key, 3) == partition]
        assert p.partitions == 3
        before = [len(wire.values(partition)) for partition in range(3)]
        for n in range(6):
            await p.send(b"%d" % n)
            await p.flush()
        await p.send_many([b"x"] * 2)
        await p.send_many([b"y"] * 2, keys=[None, b"k"])
    assert sum(len(wire.values(partition)) for partition in range(3)) == sum(before) + 10
    assert all(len(wire.values(partition)) - count >= 2 for partition, count in enumerate(before)), "one after the other"


async def test_producer_with_a_partitioner_option_sends_to_its_partition() -> None:
    wire = Wire(partitions=3)
    async with await a_producer(wire, "a", "round-robin") as p:
        await p.send_many([b"%d" % n for n in range(6)], keys=[b"same"] * 6)
        for _ in range(3):
            await p.send(b"n", key=b"same")
    assert [len(wire.values(partition)) for partition in range(3)] == [3, 3, 3]
    async with await a_producer(wire, "b", lambda key, count: len(key or b"") % count) as p:
        await p.send_many([b"one"], keys=[b"1"])
        await p.send(b"two", key=b"22")
    assert (wire.values(1)[-1], wire.values(2)[-1]) == (b"one", b"two")
    async with await a_producer(wire, "c", "sticky") as p:
        await p.send_many([b"%d" % n for n in range(6)], keys=[b"%d" % n for n in range(6)])
    assert sorted(len(wire.values(partition)) for partition in range(3))[-1] >= 9


@each("length", range(10))
def test_partitioner_of_a_key_list_equals_the_partitioner_of_each_key(length: int) -> None:
    rng = random.Random(length)
    keys = [rng.randbytes(length) for _ in range(9)] + [rng.randbytes(n) for n in range(23)]
    assert (
        partitions_of(keys, 7).tolist()
        == [(murmur2(key) & 0x7FFF_FFFF) % 7 for key in keys]
        == [partition_of(key, 7) for key in keys]
    )


# ---- what is no record ---------------------------------------------------------------------------------------------------------------
async def test_producer_with_invalid_records_or_options_raises_config_error() -> None:
    wire = Wire()
    async with await a_producer(wire) as p:
        wrong: list[tuple[Any, str]] = [
            (p.send("text"), "Invalid value or key of type str. Values and keys must be bytes or None."),  # type: ignore[arg-type]
            (p.send(b"", key="text"), "of type str"),  # type: ignore[arg-type]
            (p.send_many([b"", "x"]), "of type str"),  # type: ignore[list-item]
            (p.send_many([b""], keys=["x"]), "of type str"),  # type: ignore[list-item]
            (
                p.send_many([b""], keys=[]),
                "The numbers of keys and values differ: 0 keys for 1 values. Pass one key per value.",
            ),
            (p.send(b"", headers={"Lift-Key": "x"}), "reserved"),
            (p.send(b"", headers={"Nats-Expected-Last-Sequence": "1"}), "header 'Nats-Expected-Last-Sequence'"),
            (p.send(b"", partition=1), "no partition 1. Its partitions are 0 to 0"),
            (p.send_many([b""], partition=-1), "partition = -1"),
        ]
        for attempt, text in wrong:
            with pytest.raises(ConfigError, match=text):
                await attempt
        with pytest.raises(ConfigError, match="no partition 5"):
            p.next_sequence(5)
        assert await (await p.send_many([])) == []
    assert wire.values() == []
    assert p.unanswered == (0, 0)
    for options, text in (
        ({"window": 6}, "window = 6 is outside 1..5. Choose a value in this range."),
        ({"begin": "later"}, "resume, repeat or anew"),
    ):
        with pytest.raises(ConfigError, match=text):
            ProducerOptions(**options)  # type: ignore[arg-type]
    for name, partitioner in (("", "key"), ("x" * 256, "key"), ("p", "odd")):
        with pytest.raises(ConfigError):
            await a_producer(wire, name, partitioner)  # type: ignore[arg-type]


async def test_producer_partitioner_that_raises_uses_no_buffer_space() -> None:
    def how(key: bytes | None, count: int) -> int:
        if key == b"bad":
            raise LookupError
        return 5 if key == b"outside" else 0

    wire = Wire(partitions=2)
    async with await a_producer(wire, "a", how) as made:
        for keys, error in (([b"k", b"bad"], LookupError), ([b"outside"], ConfigError)):
            with pytest.raises(error):
                await made.send_many([b"v"] * len(keys), keys=keys)
            assert made.unanswered == (0, 0)
        await (await made.send_many([b"v"], keys=[b"k"]))
