"""Test the offset watch: it reports new end offsets, limits its requests, and ends after other changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from liftpy.errors import UnavailableError
from liftpy.spark import catalog
from liftpy.spark.catalog import BoundsWatch
from liftpy.spark.planning import PartitionView
from tests.only_in import only_in
from tests.until import until

VIEW = PartitionView(
    stream="s", uid="u1", partition=0, replicas=("n1",), leader="n1", leader_epoch=3, log_start_offset=0, end_offset=10
)


class Leader:
    """A leader that answers when the test says so. ``asked`` has the end offsets of the requests."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answers: asyncio.Queue[PartitionView | Exception] = asyncio.Queue()

    async def ask(self, view: PartitionView, wait_s: float) -> PartitionView:
        assert wait_s == catalog.WAIT_S
        self.asked.append(view.end_offset)
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


def run(body: Callable[[BoundsWatch, Leader], Awaitable[None]], clock: Callable[[], float] | None = None) -> None:
    async def whole() -> None:
        leader = Leader()
        watch = BoundsWatch(leader.ask, clock) if clock else BoundsWatch(leader.ask)
        assert watch.views() is None, "nothing is known before it was seen"
        watch.follow({VIEW.key: VIEW})
        await body(watch, leader)
        watch.end()

    asyncio.run(whole())


def end_of(watch: BoundsWatch) -> int:
    views = watch.views()
    return -1 if views is None else views[VIEW.key].end_offset


def test_spark_offset_watch_reports_new_end_offsets_and_never_decreases() -> None:
    async def body(watch: BoundsWatch, leader: Leader) -> None:
        assert end_of(watch) == 10
        await until(lambda: leader.asked)
        leader.answers.put_nowait(replace(VIEW, end_offset=12))
        await until(lambda: end_of(watch) == 12)
        await until(lambda: leader.asked == [10, 12])
        leader.answers.put_nowait(replace(VIEW, end_offset=11))
        await until(lambda: len(leader.asked) == 3)
        assert end_of(watch) == 12
        assert leader.asked == [10, 12, 12]

    run(body)


@pytest.mark.parametrize(
    "answer",
    [
        UnavailableError("no leader"),
        ValueError("an answer that nobody expected"),
        replace(VIEW, end_offset=12, leader_epoch=4),
        replace(VIEW, end_offset=12, leader="n2"),
        replace(VIEW, end_offset=12, uid="u2"),
    ],
    ids=["error", "unexpected error", "epoch", "leader", "uid"],
)
def test_spark_offset_watch_with_an_unexpected_answer_ends_all_its_requests(answer: PartitionView | Exception) -> None:
    async def body(watch: BoundsWatch, leader: Leader) -> None:
        other = replace(VIEW, partition=1)
        watch.follow({VIEW.key: VIEW, other.key: other})
        await until(lambda: len(leader.asked) == 2)
        leader.answers.put_nowait(answer)
        await until(lambda: watch.views() is None)
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        watch.follow({VIEW.key: VIEW})
        assert end_of(watch) == 10

    run(body)


def test_spark_offset_watch_waits_between_requests_to_nodes_that_answer_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def body(watch: BoundsWatch, leader: Leader) -> None:
        async def pause(seconds: float) -> None:
            pauses.append(seconds)
            await asyncio.sleep(0)

        only_in(monkeypatch, catalog, "asyncio", sleep=pause)
        for end, wanted in ((10, catalog.POLL_S), (11, catalog.PAUSE_S)):
            pauses.clear()
            leader.answers.put_nowait(replace(VIEW, end_offset=end))
            for _ in range(100):
                await asyncio.sleep(0)
            assert pauses == [wanted]

    run(body)


def test_spark_offset_watch_of_an_ended_query_sends_no_requests() -> None:
    now = [0.0]

    async def body(watch: BoundsWatch, leader: Leader) -> None:
        await until(lambda: leader.asked)
        now[0] = catalog.UNWANTED_S + 1
        leader.answers.put_nowait(replace(VIEW, end_offset=12))
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        assert watch.views() is None
        assert leader.asked == [10]

    run(body, lambda: now[0])
