"""What workers of a queue rely on, on the cluster in memory and on a real one alike: cases as those of ``client_cases``."""

from __future__ import annotations

import asyncio

import pytest

from liftpy.client import Job, LeaseLostError, Queue, QueueOptions
from liftpy.errors import NotFoundError
from tests.conformance.client_cases import Case, Place

QUEUE_CASES: list[Case] = []


def case(body: Case) -> Case:
    QUEUE_CASES.append(body)
    return body


def numbers(jobs: list[Job]) -> list[int]:
    return [int(job.record.value or b"") for job in jobs]


async def filled(place: Place, keys: str) -> str:
    """A stream with a record for each character, its key; '-': none."""
    await place.client.create_stream(place.name, f"data.{place.name}")
    async with place.client.publisher(place.name) as publisher:
        for number, key in enumerate(keys):
            await publisher.send(b"%d" % number, key=None if key == "-" else key.encode())
    return place.name


async def taken(queue: Queue, count: int) -> list[Job]:
    """So many, in as many takes as it needs."""
    found: list[Job] = []
    async with asyncio.timeout(45):
        while len(found) < count:
            found += await queue.take(count - len(found))
    return found


@case
async def workers_share_the_records_and_what_is_done_stays_done(place: Place) -> None:
    name = await filled(place, "-" * 30)
    async with place.connect() as other, place.client.queue(name, name) as one, other.queue(name, name) as two:
        first, second = await taken(one, 10), await taken(two, 10)
        (queue,) = (await place.client.groups.describe(name)).queues
        assert sorted((out.first, out.records, out.deliveries) for out in queue.holders) == [(0, 10, 1), (10, 10, 1)]
        assert sorted(numbers([*first, *second])) == list(range(20))
        await one.ack(first)
        await asyncio.gather(*(job.ack() for job in second))
        rest = await taken(one, 10)
        assert sorted(numbers(rest)) == list(range(20, 30))
        await one.ack(rest)
        assert await two.take(5, timeout_s=0.0) == []
    (queue,) = (await place.client.groups.describe(name)).queues
    assert (queue.acknowledged_below, queue.out, queue.returned, queue.holders) == (30, 0, 0, ())


@case
async def what_is_given_back_or_forgotten_comes_again(place: Place) -> None:
    name = await filled(place, "--")
    options = QueueOptions(ack_wait_s=1.0)
    async with place.client.queue(name, name, options=options) as queue, place.connect() as client:
        back, forgotten = await taken(queue, 2)
        await back.nack()
        async with client.queue(name, name, options=QueueOptions(ack_wait_s=600)) as other:
            again = await taken(other, 2)
            assert sorted((job.record.offset, job.deliveries) for job in again) == [(0, 2), (1, 2)]
            with pytest.raises(LeaseLostError):
                await forgotten.nack()
            await other.ack(again)


@case
async def what_is_rejected_goes_to_the_dead_letters(place: Place) -> None:
    name = await filled(place, "ab")
    dead = f"{name}-dead"
    await place.client.create_stream(dead, f"data.{dead}")
    async with place.client.queue(name, name, options=QueueOptions(ack_wait_s=600, dead_letters=dead)) as queue:
        bad, good = await taken(queue, 2)
        await bad.reject("no such customer")
        await good.ack()
        async with asyncio.timeout(45):
            while not (buried := await place.read(dead)):
                assert await queue.take(1, timeout_s=0.1) == []
    assert [(record.value, record.key, record.header("Dead-Letter-Reason")) for record in buried] == [
        (b"0", b"a", b"no such customer")
    ]


@case
async def a_record_with_a_publish_condition_goes_to_the_dead_letters(place: Place) -> None:
    name, dead = place.name, f"{place.name}-dead"
    await place.client.create_stream(name, f"data.{name}")
    await place.client.create_stream(dead, f"data.{dead}")
    conditions = {"Nats-Expected-Stream": name, "Nats-Expected-Last-Sequence": "0", "colour": "red"}
    await place.client.publish(name, b"conditional", headers=conditions)
    await place.client.publish(dead, b"the sequence of this stream is another")
    async with place.client.queue(name, name, options=QueueOptions(ack_wait_s=600, dead_letters=dead)) as queue:
        await (await taken(queue, 1))[0].reject("bad")
        async with asyncio.timeout(45):
            while len(buried := await place.read(dead)) < 2:
                assert await queue.take(1, timeout_s=0.1) == []
    assert (buried[1].value, buried[1].header("colour")) == (b"conditional", b"red")


@case
async def of_a_key_one_record_is_out(place: Place) -> None:
    name = await filled(place, "aab-")
    async with place.client.queue(name, name, options=QueueOptions(order_by_key=True, ack_wait_s=600)) as queue:
        first = await taken(queue, 3)
        assert sorted(numbers(first)) == [0, 2, 3]
        assert await queue.take(5, timeout_s=0.0) == []
        await queue.ack(first)
        assert numbers(await taken(queue, 1)) == [1]


@case
async def queues_are_listed_described_and_deleted(place: Place) -> None:
    name = await filled(place, "---")
    async with place.client.queue(name, name) as queue:
        await queue.ack(await taken(queue, 3))
        assert name in [one.name for one in await place.client.queues.list()]
    (figures,) = await place.client.queues.describe(name)
    assert (figures.acknowledged_below, figures.out) == (3, 0)
    await place.client.queues.delete(name)
    assert name not in [one.name for one in await place.client.queues.list()]
    for gone in (place.client.queues.describe(name), place.client.queues.delete(name)):
        with pytest.raises(NotFoundError):
            await gone


@case
async def a_group_without_jobs_is_no_queue(place: Place) -> None:
    name = await filled(place, "-")
    async with place.client.group(name, [name]) as group, asyncio.timeout(45):
        await anext(group.batches())
        await group.commit()
    assert name not in [one.name for one in await place.client.queues.list()]
    with pytest.raises(NotFoundError, match="no work queue"):
        await place.client.queues.describe(name)
