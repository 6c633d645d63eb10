"""What applications rely on of consumer groups and cursors, on the cluster in memory and on a real one alike; as ``client_cases``."""

from __future__ import annotations

import asyncio

from liftpy.client import GroupOptions, GroupRejectedError
from liftpy.core.wire.batch import Record
from liftpy.errors import ConfigError
from tests.conformance.client_cases import Case, Place, refused

GROUP_CASES: list[Case] = []


def group_case(body: Case) -> Case:
    GROUP_CASES.append(body)
    return body


async def fed(place: Place, count: int, partitions: int = 2) -> None:
    """``count`` more records in each partition of the case's stream."""
    for partition in range(partitions):
        async with place.client.publisher(place.name, partition) as publisher:
            for number in range(count):
                await publisher.send(b"%d" % number, key=b"k%d" % (number % 2))


@group_case
async def members_share_the_partitions_and_go_on_from_what_was_committed(place: Place) -> None:
    name = place.name
    await place.client.create_stream(name, f"data.{name}", partitions=2)
    await fed(place, 5)
    seen: list[tuple[int, int]] = []
    async with place.client.group(name, [name]) as group:
        async for part in group.batches():
            seen += [(part.key.partition, offset) for offset in part.slice.offsets().tolist()]
            if len(seen) == 10:
                await group.commit()
                break
        async with place.connect() as other, other.group(name, [name]) as second:
            while {key.partition for key in group.owned} & {key.partition for key in second.owned} or not second.owned:
                await asyncio.sleep(0.01)
            assert len(group.owned) == len(second.owned) == 1
            await fed(place, 1)
            parts = [await anext(member.batches()) for member in (group, second)]
            assert sorted((part.key.partition, part.slice.last_offset) for part in parts) == [(0, 5), (1, 5)]
    assert sorted(seen) == [(p, n) for p in (0, 1) for n in range(5)]
    again: set[tuple[int, int]] = set()
    async with place.client.group(name, [name]) as group:  # neither had finished with what it was given last
        async for part in group.batches():
            again |= {(part.key.partition, offset) for offset in part.slice.offsets().tolist()}
            if len(again) == 2:
                break
    assert again == {(0, 5), (1, 5)}


@group_case
async def a_group_reads_only_what_fits(place: Place) -> None:
    name = place.name
    await place.client.create_stream(name, f"data.{name}")
    await fed(place, 6, 1)
    options = GroupOptions(keys=[b"k0"], auto_commit_s=0)
    async with place.client.group(name, [name], options=options) as group:
        seen: list[int] = []
        while seen != [0, 2, 4]:
            seen += (await anext(group.batches())).slice.offsets().tolist()
        await group.commit()
        await fed(place, 2, 1)  # the last one fits nobody
        assert (await anext(group.batches())).slice.offsets().tolist() == [6]
        await group.commit()
        while (await positions_of(place, name)) != {0: 8}:
            await group.commit()


async def positions_of(place: Place, group: str) -> dict[int, int]:
    return {key.partition: at for key, at in (await place.client.groups.describe(group)).positions.items()}


@group_case
async def groups_and_cursors_are_had_without_asyncio(place: Place) -> None:
    name = place.name
    await place.client.create_stream(name, f"data.{name}", partitions=2)
    await fed(place, 3)

    def work() -> None:
        with place.waiting() as client:
            gained: list[int] = []
            with client.group(name, [name], on_assigned=lambda keys: gained.extend(key.partition for key in keys)) as group:
                seen: list[tuple[int, int]] = []
                for part in group.batches():
                    seen += [(part.key.partition, offset) for offset in part.slice.offsets().tolist()]
                    if len(seen) == 6:
                        break
                group.commit()
                assert sorted(seen) == [(p, n) for p in (0, 1) for n in range(3)]
                assert sorted(key.partition for key in group.owned) == sorted(gained) == [0, 1]
                client.publish(name, b"in hand", partition=1)
                part = group.take()
                assert part is not None
                assert (part.key.partition, part.slice.values()) == (1, [b"in hand"])
                group.finished(part)
            assert (group.take(), list(group)) == (None, [])
            with client.cursor(f"{name}-c", name) as cursor:
                assert cursor.fetch(1) is None
                assert list(cursor.consume(1, start="new", until="end")) == []
                assert [record.offset for record in cursor.consume(1, until="end")] == [0, 1, 2, 3]
                assert [record.offset for record in cursor.consume(1, backwards=True)] == [3, 2, 1, 0]
                cursor.commit(2, 1)
            with client.cursor(f"{name}-c", name) as cursor:
                assert cursor.fetch(1) == 2
                assert [record.offset for record in cursor.consume(1, until="end")] == [2, 3]

    await asyncio.to_thread(work)
    assert await positions_of(place, name) == {0: 3, 1: 4}


@group_case
async def a_cursor_is_held_by_whoever_opened_it_last(place: Place) -> None:
    name = place.name
    await place.client.create_stream(name, f"data.{name}")
    await fed(place, 3, 1)
    async with place.client.cursor(name, name) as cursor:
        consumer = await cursor.consume(until="end")
        assert [record.offset async for record in consumer] == [0, 1, 2]
        await cursor.commit(await consumer.position())
        async with place.connect() as other, other.cursor(name, name) as later:
            assert await later.fetch() == 3
            async with refused(GroupRejectedError, "another"):
                await cursor.commit(3)
            async with refused(ConfigError, "cannot commit 2, because 3 is already committed"):
                await later.commit(2)


@group_case
async def what_each_record_yields_goes_into_another_stream_once(place: Place) -> None:
    name, made = place.name, f"{place.name}-made"
    await place.client.create_stream(name, f"data.{name}", partitions=2)
    await place.client.create_stream(made, f"data.{made}")

    def twice(record: Record) -> list[tuple[bytes | None, bytes | None]]:
        return [(record.key, record.value), (record.key, b"again")] if record.key == b"k1" else []

    for count in (10, 20):  # the second member goes on where the first was
        await fed(place, 10)
        async with place.client.group(name, [name]) as group:
            copying = asyncio.create_task(group.into(made, twice))
            while (await place.client.bounds(made)).high_watermark + 1 < 2 * count:
                await asyncio.sleep(0.01)
            copying.cancel()
            await asyncio.wait([copying])
    values = [record.value for record in await place.read(made)]
    assert len(values) == 40
    assert values[1::2] == [b"again"] * 20, "what one record yields stays together"
