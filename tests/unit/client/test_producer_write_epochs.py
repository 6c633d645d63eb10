"""Test repeated write epochs of a producer: after crashes at any step, each record is stored once [A4]."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

from liftpy.client.encode_publish import Address
from liftpy.client.partition_sender import ProducerOptions
from liftpy.client.producer import Producer
from liftpy.client.write_epoch import PlanChangedError, Repeat, Round, offset_in, partitions_in
from liftpy.core.wire.batch import ByteArray, HeaderArray, RecordColumns, add_header, body_of
from liftpy.core.wire.producer_note import SourcePosition
from liftpy.errors import ConfigError, LiftError, PublishRejectedError
from tests.batches import build_batch
from tests.unit.client.producer_wire import PATIENT, Wire, a_producer


async def in_round(wire: Wire, number: int, run: str = "query", part: int = 0, plan: int = 0, **options: Any) -> Producer:
    async def found(partition: int) -> Address:
        return Address(f"ev.{partition}", "u1")

    addresses = [Address(f"ev.{partition}", "u1") for partition in range(len(wire.nodes))]
    chosen = ProducerOptions(**PATIENT | options)
    name = f"{run}/{part}"
    made = Producer(wire, "s", name, addresses, chosen, "key", found, Round(run, part, number, plan))  # type: ignore[arg-type]
    await made.open()
    return made


def columns(*values: bytes | None) -> RecordColumns:
    return RecordColumns(ByteArray.of(values), ByteArray.of([None if value is None else value[:3] for value in values]))


def records(number: int, count: int) -> list[bytes]:
    return [b"%d-%d" % (number, n) for n in range(count)]


async def whole(producer: Producer, *values: bytes) -> None:
    async with producer:
        await producer.send_columns(columns(*values), partition=0)
        await producer.end_round()


# ---- columns ---------------------------------------------------------------------------------------------------------------
def test_record_columns_build_the_same_batch_as_single_records() -> None:
    values, keys = [b"one", None, b"", b"four"], [None, b"k", b"", None]
    pairs = [(("a", b"1"), ("b", b"")), (), (("a", b"2"),), ()]
    flat = [pair for own in pairs for pair in own]
    headers = HeaderArray(
        np.cumsum([0, *map(len, pairs)]),
        ByteArray.of([name.encode() for name, _ in flat]),
        ByteArray.of([value for _, value in flat]),
    )
    made = RecordColumns(ByteArray.of(values), ByteArray.of(keys), headers)
    for start in range(4):
        for end in range(start + 1, 5):
            wanted = build_batch(values[start:end], keys=keys[start:end], headers=pairs[start:end], producer_id=7)
            assert add_header(body_of(made.cut(start, end)), producer_id=7) == wanted
    assert made.sizes(16).tolist() == [16 + 3 + 2 * 16 + 3, 16 + 1, 16 + 16 + 2, 16 + 4]
    with pytest.raises(ConfigError, match="entries for 4 values"):
        RecordColumns(ByteArray.of(values), ByteArray.of(keys[:3]))


async def test_producer_send_columns_without_a_write_epoch_stores_all_records() -> None:
    wire = Wire()
    producer = await a_producer(wire, batch_records=40)
    async with producer:
        acks = await (await producer.send_columns(columns(*records(0, 100)), partition=0))
        await producer.send(b"last")
    assert [(ack.offset, ack.record_count) for ack in acks] == [(0, 40), (40, 40), (80, 20)]
    assert wire.values() == [*records(0, 100), b"last"]
    assert wire.nodes[0].batches[0].keys()[:2] == [b"0-0", b"0-1"]


# ---- rounds ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(6))
async def test_producer_write_epoch_repeated_after_a_crash_at_any_step_is_stored_once(seed: int) -> None:
    rng, wire, deaths = random.Random(seed), Wire(2), 0
    wire.loses = lambda: rng.random() < 0.2
    wanted: list[list[bytes]] = [[], []]
    for number in range(6):
        shares = [
            [b"%d/%d" % (place, n) for n in range(rng.choice((0, 1, 7, 60)))] for place in range(2)
        ]  # alike in all rounds
        while True:
            producer = await in_round(wire, number, batch_records=rng.choice((1, 5, 100)), attempt_s=0.01)
            dies = (not deaths or rng.random() < 0.6) and deaths < 20
            try:
                for place, values in enumerate(shares):
                    await producer.send_columns(columns(*values), partition=place)
                    if dies:
                        await asyncio.sleep(rng.random() * 0.01)
                if not dies:
                    await producer.end_round()
                    break
            except LiftError:
                pass
            finally:
                await producer.close()  # as if it were killed
            deaths += 1
            if rng.random() < 0.3:
                wire.another_leader(rng.randrange(2))
        for place, values in enumerate(shares):
            wanted[place] += values
    assert deaths
    assert [wire.values(0), wire.values(1)] == wanted


async def test_producer_write_epoch_with_a_lost_first_batch_stores_each_record_once() -> None:
    wire = Wire()
    await whole(await in_round(wire, 1), *records(1, 7))
    producer = await in_round(wire, 2, batch_records=5, attempt_s=0.01)
    lost = iter([True])
    wire.loses = lambda: next(lost, False)  # the round's first batch, and nothing else
    await whole(producer, *records(2, 7))
    assert wire.values() == [*records(1, 7), *records(2, 7)]


async def test_producer_write_epoch_in_two_processes_fences_the_older_and_stores_records_once() -> None:
    wire = Wire()
    values = records(3, 100)
    older = await in_round(wire, 3)
    await older.send_columns(columns(*values[:60]), partition=0)
    await older.flush()
    newer = await in_round(wire, 3)
    await older.send_columns(columns(*values[60:]), partition=0)
    with pytest.raises(LiftError, match="PRODUCER_FENCED"):
        await older.flush()
    await older.close()
    await whole(newer, *values)
    assert newer.left_out == 60
    late = await in_round(wire, 3)
    await whole(late, *values)
    assert late.left_out == 100
    assert wire.values() == values


async def test_producer_write_epoch_repeated_with_another_plan_stores_nothing() -> None:
    wire = Wire(2)
    late = await in_round(wire, 3, part=2, plan=8)  # is given its epoch before anything of the round is there
    await whole(await in_round(wire, 3, part=1, plan=7), *records(3, 5))
    with pytest.raises(PublishRejectedError, match="Start a new round"):
        await whole(late, *records(3, 6))
    for _ in range(2):
        for part in (0, 1, 2):
            with pytest.raises(PlanChangedError):
                await in_round(wire, 3, part=part, plan=8)
        wire.another_leader()
    await whole(await in_round(wire, 3, part=0, plan=8, run="another"), *records(3, 1))
    await whole(await in_round(wire, 3, part=0, plan=7), *records(3, 3))
    await whole(await in_round(wire, 4, part=0, plan=8), *records(4, 2))  # the next round may have another plan
    assert wire.values() == [*records(3, 5), *records(3, 1), *records(3, 3), *records(4, 2)]


async def test_producer_write_epoch_opened_on_two_leaders_is_stored_once() -> None:
    wire = Wire()
    values = records(3, 100)
    older = await in_round(wire, 3)
    wire.another_leader()
    newer = await in_round(wire, 3)
    wire.another_leader()
    await older.send_columns(columns(*values[:60]), partition=0)  # asks once more, and is the newest by that
    await older.flush()
    await newer.send_columns(columns(*values), partition=0)
    with pytest.raises(LiftError, match="PRODUCER_FENCED"):
        await newer.end_round()
    await newer.close()
    await whole(await in_round(wire, 3), *values)
    await older.close()
    assert wire.values() == values


async def test_producer_of_an_earlier_write_epoch_is_fenced() -> None:
    wire = Wire()
    earlier = await in_round(wire, 4)
    await whole(await in_round(wire, 5), *records(5, 10))
    wire.another_leader()
    await earlier.send_columns(columns(*records(4, 10)), partition=0)
    with pytest.raises(LiftError, match="PRODUCER_FENCED"):
        await earlier.end_round()
    await earlier.close()
    with pytest.raises(PublishRejectedError, match="PRODUCER_FENCED"):
        await in_round(wire, 4)
    assert wire.values() == records(5, 10)


@pytest.mark.parametrize(
    ("again", "why"),
    [
        ([b"3-0", b"other", b"3-2"], "other records are already stored"),
        ([b"3-0", b"3-1"], "3 records are already stored, but this attempt has 2"),
        ([b"3-1", b"3-0", b"3-2"], "other records are already stored"),
    ],
)
async def test_producer_write_epoch_repeated_with_other_records_raises_diverged(again: list[bytes], why: str) -> None:
    wire = Wire()
    await whole(await in_round(wire, 3), *records(3, 3))
    with pytest.raises(PublishRejectedError, match=why) as told:
        await whole(await in_round(wire, 3), *again)
    assert told.value.reason == "DIVERGED_PRODUCER"
    assert wire.values() == records(3, 3)


async def test_producer_write_epoch_repeated_after_added_partitions_uses_its_first_partition_count() -> None:
    wire = Wire(2)
    first = await in_round(wire, 1)
    assert first.round_partitions == 2
    await first.send_columns(columns(b"a"), partition=1)
    await first.flush()
    await first.close()
    more = Wire(3)
    more.nodes[:2] = wire.nodes
    again = await in_round(more, 1)
    assert (again.partitions, again.round_partitions) == (3, 2)
    await again.close()
    later = await in_round(more, 2)
    assert later.round_partitions == 3
    await later.close()


async def test_producer_with_a_write_epoch_rejects_single_records_and_invalid_epochs() -> None:
    wire = Wire()
    producer = await in_round(wire, 1)
    with pytest.raises(ConfigError, match="send_columns"):
        await producer.send(b"x")
    with pytest.raises(ConfigError, match="send_columns"):
        await producer.send_many([b"x"])
    names = ByteArray.of([b"Nats-Expected-Last-Sequence"])
    headers = HeaderArray(np.array([0, 1]), names, ByteArray.of([b"1"]))
    with pytest.raises(ConfigError, match="A producer does not support the header"):
        await producer.send_columns(RecordColumns(ByteArray.of([b"x"]), headers=headers), partition=0)
    with pytest.raises(PublishRejectedError, match="increase max_payload"):
        await producer.send_columns(columns(b"x" * wire.max_payload_bytes), partition=0)
    await producer.close()
    for run, part, number in (("", 0, 1), ("x" * 129, 0, 1), ("q", -1, 1), ("q", 0, -1), ("q", 0, 1 << 63)):
        with pytest.raises(ConfigError, match=r"Invalid (run|part|number) .* of a Round\. Use"):
            _ = Round(run, part, number).position
    for plan in (-1, 512):
        with pytest.raises(ConfigError, match=rf"Invalid plan = {plan} of a Round\. Use 0 to 511\."):
            _ = Round("q", 0, 1, plan).position


def test_write_epoch_position_encodes_the_partition_count_and_the_last_sequence() -> None:
    assert partitions_in(offset_in(300, (1 << 32) - 1)) == 300
    for plan in (0, 1, 511):
        position = SourcePosition("run", 0, offset_in(10_000, (1 << 32) - 1, plan))
        assert (position.plan, partitions_in(position.offset), position.offset < 1 << 63) == (plan, 10_000, True)
    assert offset_in(2, 5) > offset_in(2, 4)
    repeat = Repeat(stored=2, expected=None)
    repeat.leave_out(columns(b"a", b"b", b"c"), 0, 2)  # the leader does not know their digest
    assert repeat.remaining_skips == 0
