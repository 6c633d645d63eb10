"""Test the public names of the package, the ways to open a client, and the synchronous client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

import liftpy
from liftpy.client import Client, sync
from liftpy.client import client as client_module
from liftpy.client.admin import differences
from liftpy.client.awaitable_context import AwaitableContext
from liftpy.config import AckPolicy, StreamConfig
from liftpy.core.metadata.image import StreamImage
from liftpy.core.wire.batch import Record
from liftpy.errors import ClientClosedError, ConfigError, NotFoundError
from liftpy.testing.memory import memory_cluster
from tests.unit.client.test_client_publisher import Leader


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


def image(**fields: Any) -> StreamImage:
    return StreamImage(
        **{"name": "s", "uid": "u", "subject": "a.b", "config": StreamConfig(), "partitions": (), "waiting": 2, **fields}
    )


def test_create_stream_with_exist_ok_and_other_settings_lists_each_difference() -> None:
    there = image(replication_factor=3)
    assert differences(there, "a.b", 2, 0, None) == []
    assert differences(there, "a.b", 2, 3, StreamConfig()) == []
    config = StreamConfig(ack_policy=AckPolicy.LEADER, min_isr=1)
    assert differences(there, "a.c", 1, 2, config) == [
        "its subject is a.b, not a.c",
        "its partitions is 2, not 1",
        "its replicas is 3, not 2",
        "its ack_policy is all, not leader",
        "its min_isr is 0, not 1",
    ]


# ---- without asyncio -----------------------------------------------------------------------------------------------------------
async def test_sync_client_call_after_close_raises_client_closed(nats_url: str, server_side: Any) -> None:
    leader = await Leader(server_side, "data.of-a-script").start()

    def script() -> None:
        with sync.connect(nats_url) as client:
            with client.publisher("flights", subject="data.of-a-script") as publisher:
                for number in range(100):
                    publisher.send(b"%d" % number)
            client._wrapped._streams.requests.deadline_s = 0.1
            with pytest.raises(liftpy.UnavailableError):
                client.admin.list_streams()
        with pytest.raises(ClientClosedError):
            client.admin.list_streams()
        client.close()

    threads = threading.active_count()
    await asyncio.to_thread(script)
    assert [message.value for message in leader.stored] == [b"%d" % number for number in range(100)]
    assert threading.active_count() <= threads + 1, "one of to_thread"


async def _forever(began: threading.Event, ended: threading.Event) -> None:
    try:
        began.set()
        await asyncio.get_running_loop().create_future()
    finally:
        ended.set()


def test_sync_client_keyboard_interrupt_cancels_the_call_and_keeps_the_client_open(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, began, ended = sync._Loop(), threading.Event(), threading.Event()

    def interrupted(future: Any, timeout: float | None = None) -> Any:
        assert began.wait(30)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(concurrent.futures.Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.run(_forever(began, ended))
    assert ended.wait(30), "nothing goes on that nobody waits for"

    async def fine() -> str:
        return "fine"

    assert loop.run(fine()) == "fine"
    loop.end(sync._do_nothing)
    with pytest.raises(ClientClosedError):
        loop.run(fine())
    assert not loop._thread.is_alive()


def test_sync_client_close_ends_calls_in_other_threads() -> None:
    loop, began, ended = sync._Loop(), threading.Event(), threading.Event()
    told: list[type[BaseException]] = []

    def waits() -> None:
        try:
            loop.run(_forever(began, ended))
        except BaseException as error:
            told.append(type(error))

    waiting = threading.Thread(target=waits)
    waiting.start()
    assert began.wait(30)
    loop.end(sync._do_nothing)
    loop.end(sync._do_nothing)
    waiting.join(30)
    assert told == [ClientClosedError]


def test_sync_client_call_from_its_own_thread_is_rejected() -> None:
    loop = sync._Loop()

    async def calls_back() -> None:
        loop.run(sync._do_nothing())

    with pytest.raises(ConfigError, match="another thread"):
        loop.run(calls_back())

    async def fails() -> None:
        raise NotFoundError("as the asyncio client says it")

    with pytest.raises(NotFoundError):
        loop.run(fails())
    loop.end(sync._do_nothing)


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
