"""Test the synchronous client when Ctrl-C arrives at the moment of a result: the next call returns the result again."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from liftpy.client import sync
from liftpy.client.sync import SyncClient
from liftpy.testing.memory import memory_cluster

COUNT = 12
EVERY = [(partition, offset) for partition in range(2) for offset in range(COUNT)]


class Interrupts:
    """Raises KeyboardInterrupt instead of some results of calls, while ``is_on``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_on = False
        self.count = 0
        choices = random.Random(5)
        real = sync._Call.result

        def result(call: Any, timeout_s: float | None) -> Any:
            found = real(call, timeout_s)
            if self.is_on and found is not None and (self.count == 0 or choices.random() < 0.4):
                self.count += 1
                raise KeyboardInterrupt
            return found

        monkeypatch.setattr(sync._Call, "result", result)

    def collect(self, each: Callable[[], Iterable[Any]], places: Callable[[Any], list[Any]], count: int) -> list[Any]:
        """Return the places of ``count`` results of ``each``, which is called again after each interrupt."""
        found: list[Any] = []
        self.is_on, give_up_s = True, time.monotonic() + 30
        while len(found) < count:
            assert time.monotonic() < give_up_s, found
            try:
                for result in each():
                    found += places(result)
                    if len(found) >= count:
                        break
            except KeyboardInterrupt:
                continue
        self.is_on = False
        assert self.count
        return found


@pytest.fixture
def client() -> Iterator[SyncClient]:
    with memory_cluster() as cluster, cluster.sync_client() as made:
        cluster.serve_groups()
        made.create_stream("orders", "orders", partitions=2)
        for number in range(COUNT):
            for partition in range(2):
                made.publish("orders", b"%d" % number, partition=partition)
        yield made


@pytest.fixture
def interrupts(client: SyncClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[Interrupts]:
    made = Interrupts(monkeypatch)
    yield made
    made.is_on = False


def offsets_of(partition: int, piece: Any) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in piece.offsets().tolist()]


@pytest.mark.parametrize("how", ["iteration", "batches", "getone", "getmany"])
def test_sync_consumer_after_an_interrupt_returns_each_record_once(
    client: SyncClient, interrupts: Interrupts, how: str
) -> None:
    consumer = client.consume("orders")
    calls: dict[str, Callable[[], Iterable[Any]]] = {
        "iteration": lambda: consumer,
        "batches": consumer.batches,
        "getone": lambda: iter(consumer.getone, None),
        "getmany": lambda: (record for records in iter(lambda: consumer.getmany(5), []) for record in records),
    }
    found = interrupts.collect(calls[how], lambda one: offsets_of(0, one) if how == "batches" else [(0, one.offset)], COUNT)
    assert found == EVERY[:COUNT]
    assert consumer.position().offset == COUNT


@pytest.mark.parametrize("how", ["iteration", "batches", "next", "next_record"])
def test_sync_consume_many_after_an_interrupt_returns_each_record_once(
    client: SyncClient, interrupts: Interrupts, how: str
) -> None:
    with client.consume_many("orders") as many:
        calls: dict[str, Callable[[], Iterable[Any]]] = {
            "iteration": lambda: many,
            "batches": many.batches,
            "next": lambda: iter(many.next, None),
            "next_record": lambda: iter(many.next_record, None),
        }
        is_batch = how in ("batches", "next")
        found = interrupts.collect(
            calls[how],
            lambda one: offsets_of(one.partition, one.slice) if is_batch else [(one.partition, one.record.offset)],
            2 * COUNT,
        )
        assert sorted(found) == EVERY
        assert {place[1]: position.offset for place, position in many.positions().items()} == {0: COUNT, 1: COUNT}


@pytest.mark.parametrize("how", ["iteration", "batches", "take"])
def test_sync_group_after_an_interrupt_returns_and_commits_each_record_once(
    client: SyncClient, interrupts: Interrupts, how: str
) -> None:
    with client.group("billing", ["orders"]) as group:
        calls: dict[str, Callable[[], Iterable[Any]]] = {
            "iteration": lambda: group,
            "batches": group.batches,
            "take": lambda: iter(group.take, None),
        }

        def places(one: Any) -> list[Any]:
            if how == "iteration":
                return [(one.partition, one.offset)]
            if how == "take":
                group.finished(one)
            return offsets_of(one.key.partition, one.slice)

        found = interrupts.collect(calls[how], places, 2 * COUNT)
        assert sorted(found) == EVERY
        group.commit()
    assert sorted(client.groups.describe("billing").positions.values()) == [COUNT, COUNT]


@pytest.mark.parametrize("how", ["iteration", "take"])
def test_sync_queue_after_an_interrupt_delivers_each_record_once(client: SyncClient, interrupts: Interrupts, how: str) -> None:
    with client.queue("orders", "workers") as queue:

        def places(job: Any) -> list[Any]:
            interrupts.is_on = False
            job.ack()
            interrupts.is_on = True
            assert job.deliveries == 1
            return [(job.key.partition, job.record.offset)]

        taken = lambda: (job for jobs in iter(lambda: queue.take(3), []) for job in jobs)  # noqa: E731
        assert sorted(interrupts.collect((lambda: queue) if how == "iteration" else taken, places, 2 * COUNT)) == EVERY


def test_sync_call_interrupted_before_it_has_started_ends_at_once(client: SyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    real, is_interrupted = asyncio.BaseEventLoop.call_soon_threadsafe, False

    def call_soon_threadsafe(*arguments: Any, **named: Any) -> asyncio.Handle:
        nonlocal is_interrupted
        if not is_interrupted and threading.current_thread() is threading.main_thread():
            is_interrupted = True
            raise KeyboardInterrupt
        return real(*arguments, **named)

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_soon_threadsafe", call_soon_threadsafe)
    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        client.publish("orders", b"interrupted")
    assert time.monotonic() - began_s < 7.0
    assert client.publish("orders", b"next").offset == COUNT


def test_sync_group_interrupted_while_it_opens_leaves_the_group(client: SyncClient, interrupts: Interrupts) -> None:
    interrupts.is_on = True
    with pytest.raises(KeyboardInterrupt):
        client.group("billing", ["orders"])
    interrupts.is_on = False
    with client.group("billing", ["orders"]) as group:
        group.take()
        assert len(client.groups.describe("billing").members) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a signal may arrive while a generator ends
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("how", ["consumer", "consume_many", "group"])
def test_sync_iteration_interrupted_by_signals_returns_each_record_once(client: SyncClient, how: str) -> None:
    """The signals arrive anywhere in the iteration, also between two steps of Python."""
    count, found, interrupted, is_armed = 30_000, list[int](), 0, False
    client.create_stream("many", "many")
    with client.producer("many") as producer:
        producer.send_many([b"v"] * count)
    reader: Any
    if how == "consumer":
        reader = client.consume("many")
    else:
        reader = client.consume_many("many") if how == "consume_many" else client.group("billing", ["many"])

    def interrupt(*_: object) -> None:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            raise KeyboardInterrupt

    before, delays_s = signal.signal(signal.SIGVTALRM, interrupt), random.Random(1)
    try:
        while len(found) < count:
            try:
                is_armed = True
                signal.setitimer(signal.ITIMER_VIRTUAL, delays_s.uniform(0.0005, 0.004))
                for record in reader:
                    found.append(record.offset if how == "consumer" else record.record.offset)
                    if len(found) >= count:
                        is_armed = False
                        break
                is_armed = False
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert found == list(range(count))
    assert interrupted
    if how != "consumer":
        reader.close()
