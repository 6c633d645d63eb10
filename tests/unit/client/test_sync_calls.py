"""Test that the synchronous client has the methods, parameters and docstrings of the asynchronous client."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from typing import Any, get_type_hints

import pytest

from liftpy.client import sync
from liftpy.client.admin import Admin
from liftpy.client.client import Client
from liftpy.client.consumer import Consumer
from liftpy.client.cursor import Cursor
from liftpy.client.group import Group
from liftpy.client.group_admin import Cursors, Groups, Queues
from liftpy.client.multi_consumer import ManyConsumer
from liftpy.client.producer import Producer
from liftpy.client.publisher import Publisher
from liftpy.client.queue import Job, Queue
from liftpy.client.services import Services
from liftpy.errors import ClientClosedError, ConfigError, OutcomeUnknownError, UnavailableError
from liftpy.testing.memory import memory_cluster
from tests.each import each

PAIRS = [
    (getattr(sync, f"Sync{theirs.__name__}"), theirs)
    for theirs in (
        Client, Admin, Groups, Queues, Cursors, Services, Publisher, Producer, Consumer, ManyConsumer, Group, Queue, Job, Cursor,
    )
]  # fmt: skip
NOT_FOR_APPLICATIONS = {"open", "transport", "over_ns", "queue", "next_fetched", "passed_position"}
"""Names of the asynchronous classes for other parts of this library. ``client.queue`` is a method of both clients."""
RENAMED = {"aclose": "close"}
BY_HAND = {("SyncClient", "close")}
"""Methods that differ from the asynchronous ones."""


def public(kind: type) -> set[str]:
    return {RENAMED.get(name, name) for name in dir(kind) if not name.startswith("_")}


def original_of(theirs: type, name: str) -> Any:
    return getattr(theirs, {new: old for old, new in RENAMED.items() if hasattr(theirs, old)}.get(name, name), None)


METHODS = [
    (ours, theirs, name)
    for ours, theirs in PAIRS
    for name in sorted(public(ours))
    if inspect.isfunction(getattr(ours, name)) and (ours.__name__, name) not in BY_HAND
]
PROPERTIES = [
    (ours, theirs, name)
    for ours, theirs in PAIRS
    for name in sorted(public(ours))
    if isinstance(original_of(theirs, name), property)
]


def named(one: Any) -> str:
    return one if isinstance(one, str) else one.__name__


@each(("ours", "theirs"), PAIRS)
def test_sync_class_has_the_public_methods_of_the_async_class(ours: type, theirs: type) -> None:
    excepted = NOT_FOR_APPLICATIONS - ({"queue"} if theirs is Client else set())
    assert public(theirs) - public(ours) - excepted == set()


@each(("ours", "theirs", "name"), METHODS)
def test_sync_method_has_the_parameters_and_docstring_of_the_async_method(ours: type, theirs: type, name: str) -> None:
    method, original = getattr(ours, name), original_of(theirs, name)
    assert inspect.signature(method).parameters == inspect.signature(original).parameters
    assert method.__doc__ == sync.without_await(original.__doc__)
    assert "await " not in method.__doc__
    assert "async " not in method.__doc__


@each(("ours", "theirs", "name"), PROPERTIES)
def test_sync_attribute_has_the_type_and_docstring_of_the_async_property(ours: type, theirs: type, name: str) -> None:
    attribute, original = vars(ours)[name], original_of(theirs, name)
    assert attribute.__doc__ == original.__doc__
    assert attribute.__orig_class__.__args__ == (get_type_hints(original.fget)["return"],)


def test_sync_connect_has_the_parameters_of_connect() -> None:
    ours, theirs = (
        {p.name: p.default for p in inspect.signature(f).parameters.values()} for f in (sync.connect, sync._connect)
    )
    assert ours == theirs


def test_sync_connect_that_fails_leaves_no_thread() -> None:
    before = {thread for thread in threading.enumerate() if thread.name == "liftpy-client"}
    with pytest.raises(UnavailableError):
        sync.connect("nats://127.0.0.1:1", timeout_s=0.5)
    assert {thread for thread in threading.enumerate() if thread.name == "liftpy-client"} <= before


def test_sync_consumer_without_a_reference_to_its_client_reads_and_then_closes_it() -> None:
    def threads() -> set[threading.Thread]:
        gc.collect()
        return {thread for thread in threading.enumerate() if thread.name == "liftpy-client"}

    with memory_cluster(nodes=1) as cluster:
        with cluster.sync_client() as client:
            client.create_stream("orders", "shop.orders")
            client.publish("orders", b"one")
        before = threads()
        consumer = cluster.sync_client().consume("orders", until="end")
        opened = threads() - before
        assert [record.value for record in consumer] == [b"one"]
        assert len(opened) == 1
        del consumer
        assert threads() == before


def test_sync_receipt_after_the_close_of_the_client_returns_its_ack() -> None:
    with memory_cluster(nodes=1) as cluster:
        with cluster.sync_client() as client:
            client.create_stream("orders", "shop.orders")
            with client.publisher("orders") as publisher, client.producer("orders") as producer:
                acked = publisher.send(b"0")
                publisher.flush()
                one, many = producer.send(b"1"), producer.send_many([b"2", b"3"])
                producer.flush()
                cluster.kill("n1")
                failed = producer.send_many([b"%d" % number for number in range(10)])
                producer.close()
        assert acked.result().offset == 0
        assert one.result(timeout_s=0).offset == 1
        assert [(ack.offset, ack.record_count) for ack in many.result()] == [(2, 2)]
        with pytest.raises((OutcomeUnknownError, ClientClosedError), match=r"Producer|records"):
            failed.result()


def test_sync_call_during_close_in_another_thread_raises_client_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call passed the check for a closed client before the event loop stopped."""
    loop, real = sync._Loop(), sync._Call.start
    looked, ending, told = threading.Event(), threading.Event(), list[BaseException]()

    def slowly(call: Any, where: Any) -> None:
        if threading.current_thread() is caller:
            looked.set()
            closing.join(0.3)
        real(call, where)

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
    monkeypatch.setattr(sync._Call, "start", slowly)
    closing.start()
    assert ending.wait(10)
    caller.start()
    for thread in (closing, caller):
        thread.join(10)
        assert not thread.is_alive()
    assert [type(error) for error in told] == [ClientClosedError]


@pytest.mark.parametrize("how", ["consume", "consume_many", "group"])
def test_sync_iteration_in_a_forked_process_returns_no_record_of_the_parent_process(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The reader has fetched records before the fork."""
    with memory_cluster() as cluster, cluster.sync_client() as client:
        client.create_stream("orders", "orders")
        with client.producer("orders") as producer:
            producer.send_many([b"v"] * 10)
        readers: dict[str, Any] = {
            "consume": lambda: client.consume("orders"),
            "consume_many": lambda: client.consume_many("orders"),
            "group": lambda: client.group("billing", ["orders"]),
        }
        reader = readers[how]()
        next(iter(reader))
        with monkeypatch.context() as child:
            child.setattr(sync.os, "getpid", lambda: -1)
            with pytest.raises(ConfigError, match="opened before a fork"):
                next(iter(reader))
        assert next(iter(reader)) is not None
