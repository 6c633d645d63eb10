"""The calls that wait: each is the client's own, with every argument under its name, and says what that says."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from liftpy.client import sync
from liftpy.client.admin import Admin
from liftpy.client.client import Client
from liftpy.client.group_admin import Cursors, Groups, Queues
from liftpy.client.producer import Producer
from liftpy.client.publisher import Publisher
from liftpy.client.services import Services
from liftpy.client.sync import (
    SyncAdmin,
    SyncClient,
    SyncConsumer,
    SyncCursors,
    SyncGroups,
    SyncProducer,
    SyncPublisher,
    SyncQueues,
    SyncServices,
)
from liftpy.errors import ClientClosedError


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


DERIVED = [
    *((SyncClient, Client, name) for name in ("create_stream", "stream", "bounds", "offset_at")),
    *(
        (ours, theirs, name)
        for ours, theirs in (
            (SyncAdmin, Admin), (SyncGroups, Groups), (SyncQueues, Queues), (SyncCursors, Cursors), (SyncServices, Services),
        )
        for name in sorted(public(theirs))
        if inspect.iscoroutinefunction(getattr(theirs, name))
    ),
]  # fmt: skip


class Asked:
    """In the place of the asynchronous one: what was called, on which thread, and an answer for each."""

    counters = {"odd": 3}  # noqa: RUF012

    def __init__(self, real: type) -> None:
        self.real = real
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.threads: set[str] = set()
        self.closed = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        method = getattr(self.real, name)

        def called(*args: Any, **named: Any) -> Any:
            given = dict(inspect.signature(method).bind(self, *args, **named).arguments)
            del given["self"]
            self.calls.append((name, given))
            self.threads.add(threading.current_thread().name)
            return f"answer of {name}"

        async def later(*args: Any, **named: Any) -> Any:
            return called(*args, **named)

        return later if inspect.iscoroutinefunction(method) else called

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def loop() -> Iterator[Any]:
    made = sync._Loop()

    async def nothing() -> None: ...

    yield made
    made.end(nothing)


def arguments_of(method: Any) -> dict[str, Any]:
    """A value for each parameter that has a name, no two alike."""
    return {name: f"a {name}" for name in list(inspect.signature(method).parameters)[1:]}


def test_sync_publish_passes_every_argument_by_name(loop: Any) -> None:
    client: Any = Asked(Client)
    made, given = SyncClient(loop, client), arguments_of(Client.publish)
    assert set(given) == set(arguments_of(SyncClient.publish))
    assert made.publish(**given) == "answer of publish"
    assert client.calls == [("publish", given)]
    assert client.threads == {"liftpy-client"}


def test_sync_publisher_send_passes_every_argument_by_name(loop: Any) -> None:
    publisher: Any = Asked(Publisher)
    given = arguments_of(SyncPublisher.send)
    SyncPublisher(loop, publisher).send(**given)
    assert publisher.calls == [("send", given)]
    SyncPublisher(loop, publisher).flush()
    assert publisher.calls[1:] == [("flush", {})]
    SyncPublisher(loop, publisher).close()
    assert publisher.closed == 1


def test_sync_publisher_and_consume_pass_every_argument_by_name(loop: Any) -> None:
    client: Any = Asked(Client)
    made = SyncClient(loop, client)

    async def opened(*args: Any, **named: Any) -> str:
        client.calls.append(("publisher", {"stream": args[0], "partition": args[1], **named}))
        client.threads.add(threading.current_thread().name)
        return "a publisher"

    client.publisher = opened
    publisher, consumer = arguments_of(SyncClient.publisher), arguments_of(SyncClient.consume)
    assert made.publisher(**publisher)._publisher == "a publisher"  # type: ignore[comparison-overlap]
    assert made.consume(**consumer)._consumer == "answer of consume"  # type: ignore[comparison-overlap]
    assert client.calls == [("publisher", publisher), ("consume", consumer)]
    assert client.threads == {"liftpy-client"}


def test_sync_producer_passes_every_argument_by_name(loop: Any) -> None:
    client, producer = Asked(Client), Asked(Producer)
    given = arguments_of(SyncClient.producer)
    made: Any = SyncClient(loop, client)  # type: ignore[arg-type]

    class Opening:
        def __await__(self) -> Any:
            return "a producer"
            yield

    client.producer = lambda *args, **named: client.calls.append(("producer", (args, named))) or Opening()  # type: ignore[attr-defined]
    assert made.producer(**given)._producer == "a producer"
    stream = given.pop("stream")
    assert client.calls == [("producer", ((stream,), given))]
    sync_one: Any = SyncProducer(loop, producer)  # type: ignore[arg-type]
    for name in ("send", "send_many"):
        given = arguments_of(getattr(SyncProducer, name))
        getattr(sync_one, name)(**given)
        assert producer.calls.pop() == (name, given)
    assert sync_one.next_sequence(3) == "answer of next_sequence"
    assert producer.calls.pop() == ("next_sequence", {"partition": 3})
    sync_one.flush()
    assert producer.calls.pop() == ("flush", {})
    sync_one.close()
    assert producer.closed == 1


def test_sync_consumer_left_early_closes_its_reader(loop: Any) -> None:
    ended: list[str] = []

    async def batches() -> Any:
        try:
            for number in range(9):
                yield f"batch {number}"
        finally:
            ended.append(threading.current_thread().name)

    class Reading:
        def batches(self) -> Any:
            self.made = batches()  # held: the collector is not what ends it
            return self.made

    reader: Any = Reading()
    for broken_off in (True, False):
        ended.clear()
        slices = SyncConsumer(loop, reader).batches()
        if broken_off:
            assert [next(slices), next(slices)] == ["batch 0", "batch 1"]  # type: ignore[comparison-overlap]
            assert ended == []
            slices.close()
        else:
            assert list(slices) == [f"batch {number}" for number in range(9)]  # type: ignore[comparison-overlap]
        assert ended == ["liftpy-client"]


def test_sync_defaults_equal_the_async_defaults() -> None:
    for one, other in (
        (SyncClient.publish, Client.publish), (SyncClient.publisher, Client.publisher), (SyncClient.consume, Client.consume),
        (SyncPublisher.send, Publisher.send), (SyncClient.producer, Client.producer), (SyncProducer.send, Producer.send),
        (SyncProducer.send_many, Producer.send_many),
    ):  # fmt: skip
        ours, theirs = ({p.name: p.default for p in inspect.signature(method).parameters.values()} for method in (one, other))
        assert ours == {name: theirs[name] for name in ours}, one
    ours, theirs = (
        {p.name: p.default for p in inspect.signature(f).parameters.values()} for f in (sync.connect, sync._connect)
    )
    assert ours == {name: theirs[name] for name in ours}


@pytest.mark.parametrize(("ours", "theirs", "name"), DERIVED, ids=lambda one: one if isinstance(one, str) else one.__name__)
def test_sync_call_is_the_async_one(ours: type, theirs: type, name: str) -> None:
    method, original = getattr(ours, name), getattr(theirs, name)
    assert method.__wrapped__ is original
    assert (method.__name__, method.__doc__) == (name, sync.without_await(original.__doc__))
    assert "await " not in method.__doc__
    assert "async " not in method.__doc__


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SyncAdmin, Admin), (SyncGroups, Groups), (SyncQueues, Queues), (SyncCursors, Cursors), (SyncServices, Services),
    ],
)  # fmt: skip
def test_sync_object_has_the_methods_of_the_async_one(ours: type, theirs: type) -> None:
    assert public(ours) == public(theirs)


def test_sync_call_passes_its_arguments_to_the_coroutine(loop: Any) -> None:
    client: Any = Asked(Client)

    async def own(self: Any, one: int, *, other: int) -> tuple[Any, int, int]:
        return self, one, other

    assert sync._waiting(own)(SyncClient(loop, client), 1, other=2) == (client, 1, 2)


def test_sync_connect_passes_every_argument_and_ends_its_thread_on_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    client = Asked(Client)

    async def connected(*args: Any, **named: Any) -> Any:
        calls.append((args, named))
        if len(calls) > 1:
            raise ConnectionError("nobody")
        return client

    monkeypatch.setattr(sync, "_connect", connected)
    given = {"credentials": "c", "name": "me", "timeout_s": 7.0, "trace": True, "tls": "t"}
    with sync.connect("nats://there", "spaces", **given) as made:  # type: ignore[arg-type]
        assert calls == [(("nats://there", "spaces"), given)]
        assert made.counters == {"odd": 3}
    assert client.closed == 1
    made.close()
    assert client.closed == 1
    with pytest.raises(ClientClosedError):
        made.publish("orders", b"x")
    threads = {thread for thread in threading.enumerate() if thread.name == "liftpy-client"}
    with pytest.raises(ConnectionError):
        sync.connect()
    assert {thread for thread in threading.enumerate() if thread.name == "liftpy-client"} <= threads


def test_sync_call_during_close_in_another_thread_raises_client_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had looked whether the client is closed, and its work came to a loop that has stopped."""
    loop, real = sync._Loop(), asyncio.run_coroutine_threadsafe
    looked, ending, told = threading.Event(), threading.Event(), list[BaseException]()

    def slowly(work: Any, where: Any) -> Any:
        if threading.current_thread() is caller:
            looked.set()
            closing.join(0.3)
        return real(work, where)

    def call() -> None:
        try:
            loop.run(asyncio.sleep(3600))
        except BaseException as error:
            told.append(error)

    async def last() -> None:
        ending.set()
        await asyncio.to_thread(looked.wait, 10)

    caller = threading.Thread(target=call, daemon=True)
    closing = threading.Thread(target=loop.end, args=(last,), daemon=True)
    monkeypatch.setattr(sync.asyncio, "run_coroutine_threadsafe", slowly)
    closing.start()
    assert ending.wait(10)
    caller.start()
    for thread in (closing, caller):
        thread.join(10)
        assert not thread.is_alive()
    assert [type(error) for error in told] == [ClientClosedError]
