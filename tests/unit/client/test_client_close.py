"""Test the close of clients and connections, and what is left behind."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from nats.aio.client import Client as NatsConnection

from liftpy.client import Client, GroupOptions, PublishOptions, connect
from liftpy.client.admin_requests import NodeRequests
from liftpy.client.group_admin import GroupCoordinator, Groups
from liftpy.core.groups.commands import MIN_SESSION_MS
from liftpy.core.wire._pb import group_pb2
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import (
    ClientClosedError,
    ConfigError,
    OutcomeUnknownError,
    ProtocolError,
    UnavailableError,
)
from liftpy.nats.transport import Transport, open_connection
from liftpy.nats.urls import check_urls
from liftpy.testing.memory import memory_cluster


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def subscriptions(connection: Any) -> dict[int, Any]:
    return dict(connection._subs)


# ---- what is left behind -------------------------------------------------------------------------------------------------------
async def test_client_close_leaves_an_application_connection_open_without_subscriptions(nats_url: str) -> None:
    connection = await open_connection(nats_url)
    try:
        before = subscriptions(connection)
        client = Client(Transport(connection), Subjects("ns"), owns_connection=False)
        told: list[str] = []
        client.transport.on_close(lambda: told.append("closed"))
        client.transport.on_close(lambda: told.append("taken back"))()
        with pytest.raises(UnavailableError):
            await client.transport.request("nobody.there", b"", 5.0)
        assert len(subscriptions(connection)) == len(before) + 1
        await client.close()
        assert (connection.is_closed, subscriptions(connection), told) == (False, before, ["closed"])
        with pytest.raises(ClientClosedError):
            await client.transport.request("nobody.there", b"", 5.0)
        await client.close()
    finally:
        await connection.close()


async def test_client_close_fails_unanswered_messages_of_open_publishers(nats_url: str) -> None:
    """No node subscribes to the subject. Without the close, the publisher resends until its timeout."""
    client = Client(Transport(await open_connection(nats_url)), Subjects("ns"), owns_connection=True)
    publisher = await client.publisher("s", subject="nobody.there", options=PublishOptions(window=1))
    first = await publisher.send(b"1")
    second = asyncio.create_task(publisher.send(b"2"))
    await turns()
    await client.close()
    async with asyncio.timeout(5):  # both at once
        with pytest.raises(OutcomeUnknownError, match="the client was closed before the ack came"):
            await first
        with pytest.raises(ClientClosedError):
            await second
    await publisher.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("acks of")]


async def test_client_close_closes_only_a_connection_that_the_client_opened(nats_url: str) -> None:
    connection = await open_connection(nats_url)
    client = await connect(connection)
    await client.close()
    assert connection.is_connected, "it was lent"
    await Client(Transport(connection), Subjects("ns"), owns_connection=True).close()
    assert connection.is_closed


# ---- answers that are none -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("answer", [b"", b"not json", b"[1]", b"\xff", b"{"])
async def test_node_status_answer_that_is_invalid_raises_protocol_error(answer: bytes) -> None:
    async def request(subject: str, question: bytes, timeout_s: float) -> bytes:
        assert subject == "ns.status.n1"
        return answer

    nodes = NodeRequests(SimpleNamespace(request=request), Subjects("ns"))  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="The status of node"):
        await nodes.ask_node("n1", b"", 1.0)


async def test_node_status_of_a_node_that_repeats_a_page_raises_protocol_error() -> None:
    async def request(subject: str, question: bytes, timeout_s: float) -> bytes:
        return b'{"partitions": [{"stream": "orders", "partition": 1}], "more": true}'

    nodes = NodeRequests(SimpleNamespace(request=request), Subjects("ns"))  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="twice"):
        await nodes.node_status("n1")


@pytest.mark.parametrize("names", [["a", "b"], []])
async def test_groups_list_with_a_repeated_or_empty_page_raises_protocol_error(names: list[str]) -> None:
    class Coordinator:
        async def stream(self, name: str) -> Any:
            return SimpleNamespace(partitions=[0])

        async def query(self, service: str, query: bytes, **how: Any) -> Any:
            groups = [group_pb2.GroupSummary(group=name) for name in names]
            return SimpleNamespace(value=group_pb2.GroupQueryAnswer(groups=groups, more=True).SerializeToString())

    groups = Groups(GroupCoordinator(Coordinator(), Coordinator()))  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="repeats or is empty"):
        await groups.list()


@pytest.mark.parametrize("pages_before", [0, 1])
async def test_node_status_of_a_node_that_rejects_a_page_raises_unavailable_error(pages_before: int) -> None:
    pages = [b'{"partitions": [{"stream": "orders", "partition": 1}], "more": true}'] * pages_before
    pages.append(b'{"error": "the node has too many status requests: retry in a second"}')

    async def request(subject: str, question: bytes, timeout_s: float) -> bytes:
        return pages.pop(0)

    nodes = NodeRequests(SimpleNamespace(request=request), Subjects("ns"))  # type: ignore[arg-type]
    with pytest.raises(UnavailableError, match="too many status requests: retry"):
        await nodes.node_status("n1")


# ---- answers to publishes --------------------------------------------------------------------------------------------
async def test_nats_transport_publish_after_close_sends_nothing(nats_url: str) -> None:
    connection = await open_connection(nats_url)
    transport = Transport(connection)
    transport.end()
    try:
        sent = connection.stats["out_msgs"]
        with pytest.raises(ClientClosedError):
            await transport.publish("shop.s", b"late")
        assert connection.stats["out_msgs"] == sent, "nothing leaves on a connection that is somebody else's again"
    finally:
        await connection.close()


async def test_calls_that_wait_end_when_the_application_connection_is_closed() -> None:
    """nats-py also closes a connection by itself, after ``max_reconnect_attempts``. A group member then waited forever."""
    async with memory_cluster(1) as cluster, asyncio.timeout(60):
        connection = await cluster.nats()
        client = await connect(connection)
        await client.create_stream("orders", "shop.orders")
        group = await client.group("billing", ["orders"])
        queue = await client.queue("orders", "workers")
        publisher, producer = await client.publisher("orders"), await client.producer("orders")
        cluster.kill("n1")
        receipt = await producer.send(b"one")
        sent = await publisher.send(b"two")

        async def acked() -> object:
            return await receipt

        waiting: list[Any] = [
            anext(group),
            anext(queue),
            anext(aiter(client.consume("orders"))),
            client.consume_many("orders").next(),
        ]
        waiting += [
            client.services.call("bank", "orders", b"c", timeout_s=50),
            client.publish("orders", b"three"),
            sent,
            acked(),
        ]
        tasks = [asyncio.ensure_future(one) for one in waiting]
        await asyncio.sleep(0.1)
        await connection.close()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors] == [ClientClosedError] * 5 + [OutcomeUnknownError] * 3
        for call in (client.publish("orders", b"x"), publisher.publish(b"x"), client.stream("orders"), group.take()):
            with pytest.raises(ClientClosedError):
                await call
        await client.close()


async def test_connect_with_a_nats_connection_that_is_not_open_raises_config_error() -> None:
    """The first call failed with an AssertionError of nats-py, or waited for its whole timeout."""
    async with memory_cluster(1) as cluster:
        connection = await cluster.nats()
        await (await connect(connection)).close()
        await connection.close()
        for unusable in (connection, NatsConnection()):
            with pytest.raises(ConfigError, match="not connected, or is closed"):
                await connect(unusable)


def test_connect_with_an_empty_server_list_raises_config_error() -> None:
    with pytest.raises(ConfigError, match="No NATS URL is given"):
        check_urls(())
    check_urls(("nats://a:1",))


# ---- calls that wait during the close -----------------------------------------------------------------------------------------
async def test_client_close_ends_a_first_publish_at_every_step() -> None:
    async with memory_cluster(1) as cluster, cluster.client() as admin:
        await admin.create_stream("jobs", "jobs")
        for count in range(60):
            client = await cluster.client()
            publishing = asyncio.create_task(client.publish("jobs", b"1"))
            await turns(count)
            await client.close()
            done, _ = await asyncio.wait({publishing}, timeout=2.0)
            assert done, f"it waits when the client closes after {count} turns"
            error = publishing.exception()
            assert error is None or isinstance(error, ClientClosedError | OutcomeUnknownError)


async def test_client_close_ends_the_wait_of_a_group_member_without_partitions() -> None:
    options = GroupOptions(session_s=MIN_SESSION_MS / 1000)
    async with memory_cluster(1) as cluster, cluster.client() as first:
        await asyncio.to_thread(cluster.serve_groups)
        await first.create_stream("jobs", "jobs")
        async with first.group("g", ["jobs"], options=options) as owner, asyncio.timeout(60):
            while not owner.owned:
                await asyncio.sleep(0.01)
            client = await cluster.client()
            member = await client.group("g", ["jobs"], options=options)
            waiting = asyncio.create_task(anext(member))
            await asyncio.sleep(0.1)
            await client.close()
            with pytest.raises(ClientClosedError):
                await waiting
            await member.close()


async def test_publish_during_a_reconnect_does_not_wait_for_the_lost_pong(monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as admin, cluster.client() as client:
        await admin.create_stream("jobs", "jobs")
        await client.stream("jobs")  # opens the inbox of the client, so that the publish opens only that of its acks
        connection = client.transport.connection
        real, lost = connection.flush, asyncio.Event()

        async def flush(timeout: int = 10) -> None:
            if not lost.is_set():
                lost.set()
                await asyncio.sleep(timeout)
            await real(timeout)

        monkeypatch.setattr(connection, "flush", flush)
        publishing = asyncio.create_task(client.publish("jobs", b"1"))
        await lost.wait()
        await asyncio.to_thread(cluster.restart_nats)
        async with asyncio.timeout(4):
            await publishing
