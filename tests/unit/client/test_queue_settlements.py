"""Test the settlements of a queue worker: they share requests, and each gets its own result."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, cast

import pytest

from liftpy.client.job_acks import Settlements, combine_settlements, is_in, ranges_of, settlement
from liftpy.core.base.ids import PartitionKey
from liftpy.core.groups import commands
from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.errors import UnavailableError

KEY, OTHER = PartitionKey("jobs", "u1", 0), PartitionKey("jobs", "u1", 1)


def ranges(some: Any) -> list[tuple[int, int, int]]:
    return [(one.start, one.end, one.lease) for one in some]


def told(kind: int, *parts: tuple[int, int, int], key: PartitionKey = KEY) -> pb.Settlement:
    return settlement(kind, key, [pb.RecordRange(start=s, end=e, lease=n) for s, e, n in parts])


def test_queue_settlement_of_adjacent_ranges_is_one_range_with_the_newest_lease() -> None:
    assert ranges(ranges_of([(3, 1), (1, 1), (2, 1), (5, 1), (6, 2)])) == [(1, 4, 1), (5, 6, 1), (6, 7, 2)]
    assert ranges(ranges_of([(1, 2), (1, 4), (1, 3), (2, 4)])) == [(1, 3, 4)]


def test_queue_settlement_joins_only_acks_of_the_same_partition() -> None:
    acks = [
        told(pb.SETTLE_ACK, (4, 5, 1)),
        told(pb.SETTLE_ACK, (1, 2, 1), key=OTHER),
        told(pb.SETTLE_ACK, (2, 4, 1), (7, 8, 2)),
    ]
    assert [(one.partition, ranges(one.ranges)) for one in combine_settlements(acks)] == [
        (0, [(2, 5, 1), (7, 8, 2)]),
        (1, [(1, 2, 1)]),
    ]
    mixed = [*acks, told(pb.SETTLE_NACK, (9, 10, 1))]
    assert combine_settlements(mixed) is mixed
    twice = [told(pb.SETTLE_ACK, (0, 5, 1)), told(pb.SETTLE_ACK, (3, 4, 2))]
    assert combine_settlements(twice) is twice, "one of the two leases is not the worker's any more"


async def test_queue_settlements_made_during_a_request_share_the_next_request() -> None:
    said: list[list[pb.Settlement]] = []
    go_on = asyncio.Event()

    async def say(some: list[pb.Settlement]) -> list[pb.LostRange]:
        said.append(some)
        await go_on.wait()
        if len(said) == 3:
            raise UnavailableError("nobody")
        return [pb.LostRange(stream="jobs", partition=0, start=2, end=3)]

    queue = Settlements("w", say)
    coming = [queue.settle([told(pb.SETTLE_ACK, (0, 1, 1))])]
    await asyncio.sleep(0)
    coming += [queue.settle([told(pb.SETTLE_ACK, (offset, offset + 1, 1))]) for offset in (1, 2, 3)]
    go_on.set()
    for lost in await asyncio.gather(*coming):
        assert [offset for offset in range(4) if is_in(KEY, offset, lost)] == [2]
        assert not is_in(OTHER, 2, lost)
    assert [[ranges(one.ranges) for one in some] for some in said] == [[[(0, 1, 1)]], [[(1, 4, 1)]]]
    with pytest.raises(UnavailableError):
        await queue.settle([told(pb.SETTLE_NACK, (0, 4, 1))])
    assert await queue.settle([]) == []
    await queue.wait_until_sent()


async def test_queue_settlement_is_sent_although_a_waiting_close_is_canceled() -> None:
    answer = asyncio.Event()

    async def say(some: list[pb.Settlement]) -> list[pb.LostRange]:
        await answer.wait()
        return []

    queue = Settlements("w", say)
    acking = queue.settle([told(pb.SETTLE_ACK, (0, 1, 1))])
    closing = asyncio.create_task(queue.wait_until_sent())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait((closing,))
    answer.set()
    assert await acking == []


async def test_queue_settlement_request_contains_at_most_max_settlements() -> None:
    said: list[int] = []

    async def say(some: list[pb.Settlement]) -> list[pb.LostRange]:
        said.append(len(some))
        return []

    queue = Settlements("w", say)
    many = [told(pb.SETTLE_NACK, (number, number + 1, 1)) for number in range(commands.MAX_SETTLEMENTS + 1)]
    await asyncio.gather(*(queue.settle([one]) for one in many), queue.settle(cast(Any, many)))
    assert max(said) <= commands.MAX_SETTLEMENTS
    assert sum(said) == 2 * len(many)


async def test_queue_settlements_of_more_records_than_a_command_may_change_are_sent_as_several_commands() -> None:
    """Each record may be a range of its queue: 10,000 are in each of three partitions."""
    said: list[int] = []

    async def say(some: list[pb.Settlement]) -> list[pb.LostRange]:
        said.append(sum(part.end - part.start for one in some for part in one.ranges))
        return []

    keys = [PartitionKey("jobs", "u1", number) for number in range(3)]
    await Settlements("w", say).settle([told(pb.SETTLE_ACK, (0, 10_000, 1), key=key) for key in keys])
    assert said == [20_000, 10_000]
    assert max(said) <= commands.MAX_SETTLED_RANGES


async def test_queue_settlement_failure_that_no_task_awaits_is_not_logged_as_an_error() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))

    async def say(some: list[pb.Settlement]) -> list[pb.LostRange]:
        raise UnavailableError("nobody")

    queue = Settlements("w", say)
    queue.settle([told(pb.SETTLE_RELEASE, (0, 1, 1))])
    await queue.wait_until_sent()
    gc.collect()
    assert reported == []


async def test_queue_settlement_unexpected_error_is_raised_in_every_waiting_task() -> None:
    async def say(some: list[pb.Settlement]) -> list[pb.LostRange]:
        raise LookupError("a defect")

    queue = Settlements("w", say)
    nack, ack = told(pb.SETTLE_NACK, *[(n, n + 1, 1) for n in range(0, 4000, 2)]), told(pb.SETTLE_ACK, (1, 2, 1))
    coming = [queue.settle([nack]), queue.settle([ack])]
    async with asyncio.timeout(20):
        for done in coming:
            with pytest.raises(LookupError):
                await done
    with pytest.raises(LookupError):
        await queue.wait_until_sent()
