"""Test break, cancellation and errors at every await of a consumer: each record is returned once, and no task remains."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

import pytest

from liftpy.client.batch_view import BatchSlice
from liftpy.client.consumer import Consumer, PartitionReader, ReadOptions, read_range
from liftpy.client.iteration import Iteration
from liftpy.client.positions import Bounds
from liftpy.client.progress import ReadProgress
from liftpy.core.wire.batch import RecordBatch, parse_batch
from liftpy.errors import ClientClosedError, ConfigError, LiftError, UnavailableError
from tests.batches import build_batch
from tests.each import each

RECORDS, PER_BATCH, PER_ANSWER = 18, 2, 2


class Reader(PartitionReader):
    """A partition in memory. Each fetch takes several turns of the event loop. ``failing`` maps a fetch number to its error."""

    def __init__(self) -> None:
        self.stream, self.partition, self.options = "s", 0, ReadOptions(read_ahead=2)
        self._transport = self  # type: ignore[assignment]
        self.loop = asyncio.get_running_loop()
        self.fetches = 0
        self.failing: dict[int, BaseException] = {}
        self.close_callbacks: set[Callable[[], None]] = set()
        self.batches: list[RecordBatch] = []
        for base in range(0, RECORDS, PER_BATCH):
            values = [b"%d" % i for i in range(base, base + PER_BATCH)]
            self.batches.append(parse_batch(build_batch(values, base_offset=base, leader_epoch=1, timestamp_ns=0)))

    def must_be_usable(self) -> None:
        assert asyncio.get_running_loop() is self.loop

    def on_close(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.close_callbacks.add(callback)
        return lambda: self.close_callbacks.discard(callback)

    async def bounds(self, *_: Any, **__: Any) -> tuple[Bounds, int]:
        for _ in range(3):
            await asyncio.sleep(0)
        return Bounds("u", "n", "n", 1, 0, RECORDS - 1), 0

    async def fetch(self, progress: ReadProgress) -> list[BatchSlice]:
        self.fetches += 1
        for _ in range(self.fetches % 3):
            await asyncio.sleep(0)
        if self.fetches in self.failing:
            raise self.failing[self.fetches]
        first = progress.next_offset // PER_BATCH
        found = [BatchSlice.between(b, progress.next_offset, None) for b in self.batches[first : first + PER_ANSWER]]
        progress.next_offset = min(RECORDS, (first + PER_ANSWER) * PER_BATCH)
        return [piece for piece in found if piece]


class Stepping:
    """An awaitable that cancels its own task at wait number ``at``: immediately, or when the awaited result is ready."""

    def __init__(self, work: Coroutine[Any, Any, None], at: int, late: bool) -> None:
        self.work, self.at, self.late = work, at, late
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, None]:
        task = asyncio.current_task()
        assert task is not None
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                waited_for = self.work.throw(error) if error is not None else self.work.send(answer)
            except StopIteration:
                return
            self.waits += 1
            if self.waits == self.at:
                if self.late and waited_for is not None:
                    waited_for.add_done_callback(lambda _: task.cancel())
                else:
                    asyncio.get_running_loop().call_soon(task.cancel)
            answer = error = None
            try:
                answer = yield waited_for
            except BaseException as thrown:
                error = thrown


def take(got: list[int], item: Any) -> None:
    got += item.offsets().tolist() if isinstance(item, BatchSlice) else [item.offset]


async def read(consumer: Consumer, got: list[int], by_batch: bool, stop_at: int = 10**9, how: str = "") -> None:
    items: Iteration[Any] = consumer.batches() if by_batch else consumer.records()
    try:
        async for item in items:
            take(got, item)
            if len(got) >= stop_at:
                if how == "raise":
                    raise LookupError
                break
    finally:
        if how != "drop":
            await items.aclose()


async def nothing_left() -> None:
    """Wait until no task of a reader is left."""
    async with asyncio.timeout(30):
        while [task for task in asyncio.all_tasks() if task.get_name().startswith(("read ", "ending "))]:
            await asyncio.sleep(0)


@each("by_batch", [False, True])
@each("late", [False, True])
@each("how", ["", "drop"])
async def test_consumer_cancelled_at_any_await_returns_each_record_once(by_batch: bool, late: bool, how: str) -> None:
    at, met = 1, True
    while met:
        consumer, got = Consumer(Reader(), "earliest", "end"), list[int]()
        stepping = Stepping(read(consumer, got, by_batch, how=how), at, late)
        task = asyncio.create_task(_run(stepping))
        await asyncio.wait([task])
        met = stepping.waits >= at
        assert task.cancelled() == met or task.exception() is None
        await read(consumer, got, by_batch=not by_batch)
        assert got == list(range(RECORDS)), at
        await nothing_left()
        at += 1
    assert at > 6


@pytest.mark.parametrize("late", [False, True])
async def test_consumer_iteration_resumes_after_a_cancellation_at_any_await(late: bool) -> None:
    at, met = 1, True
    while met:
        items, got = aiter(Consumer(Reader(), "earliest", "end")), list[int]()

        async def go_on(items: Any = items, got: list[int] = got) -> None:
            async for item in items:
                take(got, item)

        stepping = Stepping(go_on(), at, late)
        await asyncio.wait([asyncio.create_task(_run(stepping))])
        met = stepping.waits >= at
        await go_on()
        assert got == list(range(RECORDS)), at
        at += 1
    await nothing_left()
    assert at > 6


async def _run(work: Awaitable[None]) -> None:
    await work


@pytest.mark.parametrize("how", ["break", "raise", "drop"])
async def test_consumer_iteration_left_after_any_record_resumes_at_the_next_record(how: str) -> None:
    for stop_at in range(1, RECORDS):
        consumer, got = Consumer(Reader(), "earliest", "end"), list[int]()
        for turn in range(3):  # records, batches, records; each goes on behind the last
            try:
                await read(consumer, got, by_batch=turn == 1, stop_at=min(stop_at * (turn + 1), RECORDS), how=how)
            except LookupError:
                assert how == "raise"
        await read(consumer, got, by_batch=False)
        assert got == list(range(RECORDS)), stop_at
    await nothing_left()


@pytest.mark.parametrize("same_iterator", [False, True])
@pytest.mark.parametrize("error", [UnavailableError("nobody"), ZeroDivisionError("a bug")])
async def test_consumer_raises_each_fetch_error_once_and_resumes_at_the_next_record(
    error: BaseException, same_iterator: bool
) -> None:
    for failing in range(1, 5):
        reader = Reader()
        reader.failing = {failing: error, failing + 1: error}
        consumer, got, told = Consumer(reader, "earliest", "end"), list[int](), 0
        items = aiter(consumer)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the bug's own report
        while True:
            try:
                got.append((await anext(items)).offset)
            except LiftError:
                told += 1
                items = items if same_iterator else aiter(consumer)
            except StopAsyncIteration:
                break
        assert (got, told) == (list(range(RECORDS)), 2)
    del items
    await nothing_left()


async def test_consumer_iteration_replaced_after_a_cancellation_raises_in_the_first_iterator() -> None:
    reader = Reader()
    consumer = Consumer(reader, "earliest", "end")
    first = aiter(consumer)
    assert (await anext(first)).offset == 0
    with pytest.raises(ConfigError, match="another iteration"):
        consumer.records()
    first.interrupted = True  # as after a cancelled wait
    second = consumer.records()
    assert (await anext(second)).offset == 1
    with pytest.raises(ConfigError, match="already read by another task"):
        await anext(first)
    assert (await anext(second)).offset == 2
    await second.aclose()
    await nothing_left()


async def test_consumer_iteration_used_by_two_tasks_raises_config_error() -> None:
    items = aiter(Consumer(Reader(), "earliest", "end"))
    first = asyncio.ensure_future(anext(items))
    await asyncio.sleep(0)
    with pytest.raises(ConfigError, match="already read by"):
        await anext(items)
    assert (await first).offset == 0
    await items.aclose()


@pytest.mark.parametrize("at", ["the beginning", "the end of the log"])
@pytest.mark.parametrize("how", ["aclose", "seek"])
async def test_consumer_close_or_seek_ends_a_wait_in_another_task(at: str, how: str) -> None:
    reader = Reader()
    gate = asyncio.Event()
    name = "bounds" if at == "the beginning" else "fetch"
    real = getattr(reader, name)

    async def gated(*given: Any, **named: Any) -> Any:
        await gate.wait()
        return await real(*given, **named)

    setattr(reader, name, gated)
    consumer = Consumer(reader, "earliest", "end")
    items = consumer.records()
    waiting = asyncio.create_task(anext(items, None))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    if how == "aclose":
        await items.aclose()
    else:
        going = asyncio.create_task(consumer.seek(3))
        await asyncio.sleep(0)
    gate.set()
    async with asyncio.timeout(20):
        assert await waiting is None
        if how == "seek":
            await going
            again = consumer.records()
            assert (await anext(again)).offset == 3
            await again.aclose()
    await nothing_left()


async def test_read_range_resumes_after_a_fetch_error() -> None:
    reader = Reader()
    reader.failing = {2: UnavailableError("nobody")}
    items = read_range(reader, ReadProgress("s", 0, 4, RECORDS))
    got: list[int] = []
    while True:
        try:
            take(got, await anext(items))
        except UnavailableError:
            continue
        except StopAsyncIteration:
            break
    assert got == list(range(4, RECORDS))


async def test_read_ahead_raises_an_unexpected_fetch_error_in_the_consumer() -> None:
    reader = Reader()
    reader.failing = {1: KeyError("k")}
    with pytest.raises(LiftError, match=r"read s/0: KeyError\('k"):
        await anext(aiter(Consumer(reader, "earliest", "end")))
    await nothing_left()


async def test_client_close_with_a_full_read_ahead_buffer_ends_the_consumer() -> None:
    reader = Reader()
    items = aiter(Consumer(reader, "earliest", "end"))
    await anext(items)
    for _ in range(50):  # turns of the loop, until the buffer is full
        await asyncio.sleep(0)
    assert reader.fetches * PER_BATCH * PER_ANSWER < RECORDS
    for close in list(reader.close_callbacks):
        close()
    with pytest.raises(ClientClosedError):
        async for _ in items:
            pass
    await nothing_left()


async def test_consumer_iteration_closed_within_a_batch_slice_returns_no_more_records() -> None:
    items = aiter(Consumer(Reader(), "earliest", "end"))
    await anext(items)
    await items.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(items)


async def test_consumer_iterator_deleted_before_its_first_record_leaves_no_task() -> None:
    reader = Reader()
    items = aiter(Consumer(reader, "earliest", "end"))
    del items  # never begun
    await nothing_left()
