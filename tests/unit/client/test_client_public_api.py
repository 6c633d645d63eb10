"""Test the public names of the package, the ways to open a client, and the synchronous client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

import liftpy
from liftpy.client import Client, ReadOptions, sync
from liftpy.client import client as client_module
from liftpy.client.awaitable_context import AwaitableContext
from liftpy.client.consumer import ReadEvent
from liftpy.core.wire.batch import Record
from liftpy.errors import ClientClosedError, ConfigError
from liftpy.testing.memory import memory_cluster


def test_package_raises_attribute_error_for_an_unknown_name() -> None:
    assert {name: getattr(liftpy, name) for name in liftpy.__all__}["connect"] is client_module.connect
    assert liftpy.OutcomeUnknownError.code == "OUTCOME_UNKNOWN"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = liftpy.nothing  # type: ignore[attr-defined]


class Thing:
    def __init__(self) -> None:
        self.steps: list[str] = []

    async def __aenter__(self) -> Thing:
        self.steps.append("entered")
        return self

    async def __aexit__(self, kind: Any, *_: object) -> None:
        self.steps.append(f"left {kind.__name__ if kind else 'well'}")


def test_package_dir_lists_the_public_names() -> None:
    modules = {"client", "config", "errors", "service", "spark", "testing"}
    assert {name for name in dir(liftpy) if not name.startswith("__")} - modules == set(liftpy.__all__) - {"__version__"}
    assert {name for name in dir(liftpy.client) if not name.startswith("_")} - {"sync"} == set(liftpy.client.__all__)
    assert {"QueueOptions", "GroupOptions", "ProducerOptions", "Queue", "Group", "Position"} <= set(dir(liftpy))
    assert liftpy.QueueOptions.__module__ == "liftpy.client.queue"
    assert liftpy.Record is liftpy.client.Record is Record, "the type of what a consumer returns"


async def test_awaitable_context_opens_with_await_or_async_with() -> None:
    thing = Thing()

    async def opened() -> Thing:
        await asyncio.sleep(0)
        return thing

    async with AwaitableContext(opened()) as found:
        assert found is thing
    with pytest.raises(ValueError):
        async with AwaitableContext(opened()):
            raise ValueError
    async with await AwaitableContext(opened()) as found:
        assert found is thing
    assert await asyncio.create_task(AwaitableContext(opened())) is thing
    assert thing.steps == ["entered", "left well", "entered", "left ValueError", "entered", "left well"]


# ---- without asyncio -----------------------------------------------------------------------------------------------------------


def test_sync_client_call_that_a_keyboard_interrupt_ends_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next call would find the consumer in use."""

    def interrupted(call: Any, timeout_s: float | None) -> Any:
        raise KeyboardInterrupt

    with memory_cluster(1) as cluster, cluster.sync_client() as client:
        client.create_stream("orders", "shop.orders")
        consumer = client.consume("orders")
        with monkeypatch.context() as patch:
            patch.setattr(sync._Call, "result", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.getone()
        client.publish("orders", b"v")
        record = consumer.getone(30)
        assert record is not None
        assert record.value == b"v"


def test_sync_client_close_ends_calls_of_all_threads() -> None:
    told: list[type[BaseException]] = []
    with memory_cluster(1) as cluster:
        client = cluster.sync_client()
        client.create_stream("orders", "shop.orders")
        consumer = client.consume("orders")
        began = threading.Event()

        def read() -> None:
            began.set()
            try:
                consumer.getone()
            except BaseException as error:
                told.append(type(error))

        reading = threading.Thread(target=read)
        reading.start()
        assert began.wait(30)
        client.close()
        client.close()
        reading.join(30)
        assert told == [ClientClosedError]
        with pytest.raises(ClientClosedError):
            client.admin.list_streams()


def test_sync_client_call_from_its_own_thread_is_rejected() -> None:
    told: list[str] = []
    with memory_cluster(1) as cluster, cluster.sync_client() as client:
        client.create_stream("orders", "shop.orders")
        client.publish("orders", b"v")

        def called(_: ReadEvent) -> None:
            try:
                client.publish("orders", b"w")
            except ConfigError as error:
                told.append(str(error))

        assert client.consume("orders", options=ReadOptions(on_event=called)).getone(30) is not None
    assert "another thread" in told[0]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with memory_cluster() as cluster, cluster.client() as client:
        yield client


async def test_stream_info_deprecated_field_warns_and_returns_the_value(client: Client) -> None:
    await client.create_stream("orders", "shop.orders")
    found = await client.stream("orders")
    with pytest.warns(DeprecationWarning, match=r"PartitionInfo\.purges is now PartitionInfo\.state\.purges"):
        assert found.partitions[0].purges == ()  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match=r"StreamInfo\.commits_by_quorum is now"):
        assert found.commits_by_quorum is False  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="'StreamInfo' object has no attribute 'colour'"):
        _ = found.colour  # type: ignore[attr-defined]
