"""Test background tasks and components of a node: failures, order, and the end."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from liftpy.client import connect
from liftpy.core.log.log import Log
from liftpy.errors import StorageError
from liftpy.nats.cancellation import end_tasks
from sidecar.dev.nats_server import NatsServer
from sidecar.metadata.membership import Heartbeats
from sidecar.node import node
from sidecar.node.node import Node
from sidecar.partition import housekeeping
from sidecar.partition.housekeeping import Housekeeping
from sidecar.partition.replica_manager import Partitions
from sidecar.runtime.components import Component, close_all, start_all
from sidecar.runtime.settings import NodeSettings
from sidecar.runtime.tasks import BackgroundError, fatal_on, open_in_thread, report_failure, spawn, spawn_in, start_attended
from tests.until import until


# ---- the rules ----------------------------------------------------------------------------------------------------------
@pytest.fixture
async def failures() -> AsyncIterator[list[Exception]]:
    found: list[Exception] = []
    take_back = fatal_on(asyncio.get_running_loop(), found.append)
    yield found
    take_back()


async def fails() -> None:
    raise KeyError("nobody expected this")


async def test_background_task_that_raises_is_reported(failures: list[Exception]) -> None:
    spawn(fails(), "the beat")
    await until(lambda: failures)
    [failure] = failures
    assert isinstance(failure, BackgroundError)
    assert "The background task the beat ended unexpectedly: KeyError('nobody expected this')" in str(failure)


async def test_background_task_that_is_cancelled_or_finishes_is_not_reported(failures: list[Exception]) -> None:
    task = spawn(asyncio.sleep(60), "a sleeper", endless=True)
    await asyncio.sleep(0)
    task.cancel()
    done = spawn(asyncio.sleep(0), "a short one")
    mine = start_attended(fails())
    await asyncio.wait((task, done, mine))
    await asyncio.sleep(0)
    assert failures == []


async def test_endless_background_task_that_returns_or_is_cancelled_is_reported(failures: list[Exception]) -> None:
    async def waits() -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    spawn(asyncio.sleep(0), "one that returns", endless=True)
    spawn(waits(), "one that waits", endless=True)
    await until(lambda: len(failures) == 2)
    said = sorted(map(str, failures))
    assert ["the task returned" in said[0], "canceled itself" in said[1]] == [True, True]


async def test_event_loop_callback_that_raises_is_reported_only_for_liftpy_code(failures: list[Exception]) -> None:
    loop = asyncio.get_running_loop()
    loop.call_soon(Partitions._opening_ended, None, None, None)  # fails in our code
    loop.call_soon(int, "no number")  # in somebody else's
    await until(lambda: failures)
    assert len(failures) == 1


async def test_fatal_error_handler_reports_a_background_failure_only_to_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    by_default: list[dict[str, Any]] = []
    monkeypatch.setattr(loop, "default_exception_handler", by_default.append)
    loop.set_exception_handler(None)
    failures: list[Exception] = []
    take_back = fatal_on(loop, failures.append)
    report_failure("the feed", ValueError("bad"))
    assert ([str(failure) for failure in failures], by_default) == (
        ["The background task the feed ended unexpectedly: ValueError('bad'). The node stops. Please report it with its log."],
        [],
    )
    loop.call_exception_handler({"message": "somebody else's"})
    assert (len(failures), by_default) == (1, [{"message": "somebody else's"}])
    take_back()


async def test_task_spawned_in_another_event_loop_is_cancelled_with_the_awaiting_task() -> None:
    other = asyncio.new_event_loop()
    thread = threading.Thread(target=other.run_forever)
    thread.start()
    began, over = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            began.set()
            await asyncio.sleep(60)
        finally:
            over.set()

    try:
        end = spawn_in(other, work(), "work")
        assert await asyncio.to_thread(began.wait, 10)
        await end()
        assert over.is_set()
    finally:
        other.call_soon_threadsafe(other.stop)
        thread.join()
        other.close()


# ---- every loop of a node ---------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as running:
        yield running


@pytest.fixture
def settings(server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeSettings:
    monkeypatch.setattr(node, "exit_after", lambda *_: None)
    monkeypatch.setattr(housekeeping, "RETENTION_EVERY_S", 0.01)
    namespace = f"t{time.monotonic_ns()}"
    return NodeSettings("n1", tmp_path / "n1", nats=(server.url,), controllers=("n1",), namespace=namespace)


def raising(*_: Any, **__: Any) -> Any:
    raise KeyError("nobody expected this")


LOOPS: dict[str, tuple[type, str, str]] = {
    "retention": (Housekeeping, "_retention", "retention"),
    "compaction": (Housekeeping, "_clean", "compaction"),
    "heartbeats": (Heartbeats, "_one_beat", "self._one_beat("),
    "a checkpoint in its thread": (Log, "checkpoint", "_checkpoint_ended"),
}


@pytest.mark.parametrize("what", LOOPS)
async def test_node_loop_that_fails_unexpectedly_ends_the_node_with_the_reason(
    what: str, settings: NodeSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running = Node(settings)
    await running.start()
    async with await connect(settings.nats[0], settings.namespace) as client:
        stream = await client.create_stream("s", f"data.{settings.namespace}")
        await until(lambda: running.partitions is not None and len(list(running.partitions)) == 1)
        [worker] = running.partitions or ()
        object.__setattr__(worker.config, "compaction", True)
        owner, name, says = LOOPS[what]
        with caplog.at_level(logging.CRITICAL):
            monkeypatch.setattr(owner, name, raising)
            await client.publish(stream.name, b"x")
            await asyncio.wait_for(running.wait(), 20)
        monkeypatch.undo()
        assert "nobody expected this" in caplog.text
        assert says in caplog.text
    monkeypatch.setattr(node, "exit_after", lambda *_: None)
    assert await running.stop() == 1


async def test_node_with_a_storage_error_of_one_partition_keeps_running(
    settings: NodeSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise StorageError("no checkpoint today")

    monkeypatch.setattr(Log, "checkpoint", full)
    running = Node(settings)
    await running.start()
    async with await connect(settings.nats[0], settings.namespace) as client:
        await client.create_stream("s", f"data.{settings.namespace}")
        await client.publish("s", b"x")
        await until(lambda: "no checkpoint today" in caplog.text)
        await client.publish("s", b"y")
    assert running._failure is None
    monkeypatch.setattr(Log, "checkpoint", lambda _: None)
    running.request_stop(transfer_leaderships=False)
    assert await running.stop() == 0


class Parts:
    """Three components. ``fails`` names the steps that raise."""

    def __init__(self, *fails: str) -> None:
        self.ran: list[str] = []
        self.failed: list[str] = []
        self._fails = fails
        self.all = [Component(name, self._step(f"start {name}"), self._async_step(f"close {name}")) for name in "abc"]

    def _step(self, name: str):
        def step() -> None:
            self.ran.append(name)
            if name in self._fails:
                raise OSError(name)

        return step

    def _async_step(self, name: str):
        async def step() -> None:
            self._step(name)()

        return step

    async def close(self) -> None:
        await close_all(self.all, lambda error: self.failed.append(str(error)))


async def test_node_components_start_in_order_and_close_in_reverse() -> None:
    parts = Parts()
    await start_all(parts.all)
    await parts.close()
    assert parts.ran == ["start a", "start b", "start c", "close c", "close b", "close a"]
    assert parts.failed == []


async def test_failed_start_of_a_component_closes_all_components_and_starts_no_other() -> None:
    parts = Parts("start b")
    with pytest.raises(OSError, match="start b"):
        await start_all(parts.all)
    await parts.close()
    assert parts.ran == ["start a", "start b", "close c", "close b", "close a"]


async def test_node_components_after_a_failed_close_close_the_others_and_report_the_error_at_once() -> None:
    parts = Parts("close c", "close a")
    await parts.close()
    assert parts.ran == ["close c", "close b", "close a"]
    assert parts.failed == ["close c", "close a"]


async def test_open_in_thread_if_canceled_twice_closes_the_opened_file() -> None:
    begun, may_open, closed = threading.Event(), threading.Event(), threading.Event()

    def open_file() -> str:
        begun.set()
        may_open.wait(60)
        return "file"

    with ThreadPoolExecutor(1) as pool:
        opening = asyncio.create_task(open_in_thread(pool, open_file, lambda opened: closed.set()))
        await asyncio.to_thread(begun.wait, 60)
        ending = asyncio.create_task(end_tasks([opening]))
        await until(lambda: opening.cancelling() >= 2)
        may_open.set()
        await ending
    assert opening.cancelled()
    assert closed.is_set()
