"""Test the close of clients, publishers and connections, and the checks whether a stream exists."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client import Client, GroupOptions, Publisher, PublishOptions, connect, consumer
from liftpy.client.admin_requests import NodeRequests
from liftpy.client.consumer import PartitionReader, ReadOptions
from liftpy.client.in_flight import Window
from liftpy.core.groups.commands import MIN_SESSION_MS
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import (
    ClientClosedError,
    ConfigError,
    NotFoundError,
    OutcomeUnknownError,
    ProtocolError,
    UnavailableError,
)
from liftpy.nats.transport import Transport, open_connection
from liftpy.nats.urls import check_urls
from liftpy.testing.memory import memory_cluster
from tests.each import each


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_publish_window_admits_the_next_waiting_message_when_the_first_is_cancelled() -> None:
    window = Window(10, 10)
    assert window.try_enter(6)
    large, small = (asyncio.ensure_future(window.enter(size)) for size in (8, 3))
    await turns()
    assert not small.done(), "whoever waits longest is first"
    large.cancel()
    await turns()
    assert small.done()
    assert (window.count, window.size_bytes) == (2, 9)
    window.leave(6)
    window.leave(3)
    assert (window.count, window.size_bytes) == (0, 0)


# ---- does the stream exist? ---------------------------------------------------------------------------------------------------
def a_reader(exists: Any) -> Any:
    transport: Any = SimpleNamespace(max_payload_bytes=1 << 20)
    return PartitionReader(transport, Subjects("ns"), "s", 0, ReadOptions(), exists)


async def test_partition_reader_runs_at_most_one_stream_existence_check_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer, "_HEDGE_S", 0.0)
    asked: list[asyncio.Future[None]] = []

    async def exists() -> None:
        asked.append(asyncio.get_running_loop().create_future())
        await asked[-1]

    reader = a_reader(exists)
    for _ in range(3):
        await reader._must_exist()  # waited for no longer than a hedge
        await turns()
    assert len(asked) == 1
    asked[0].set_exception(NotFoundError("there is none"))
    await turns()
    with pytest.raises(NotFoundError):
        await reader._must_exist()


async def test_partition_reader_repeats_the_stream_existence_check_after_a_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    async def exists() -> None:
        asked.append(1)
        if len(asked) == 2:
            raise UnavailableError("nobody there")

    reader = a_reader(exists)
    for _ in range(3):
        await reader._must_exist()
    assert len(asked) == 1
    for count in (2, 3):
        reader._ask_at = 0.0
        await reader._must_exist()
        assert len(asked) == count, "whatever was answered before"
    await a_reader(None)._must_exist()


async def test_partition_reader_raises_the_not_found_error_of_its_stream_existence_check() -> None:
    async def exists() -> None:
        await asyncio.sleep(0)
        raise NotFoundError("there is none")

    with pytest.raises(NotFoundError):
        await a_reader(exists)._must_exist()


# ---- what is left behind -------------------------------------------------------------------------------------------------------
async def test_client_close_leaves_an_application_connection_open_without_subscriptions(nats_url: str) -> None:
    connection = await open_connection(nats_url)
    try:
        before = dict(connection._subs)
        client = Client(Transport(connection), Subjects("ns"), owns_connection=False)
        told: list[str] = []
        client._transport.on_close(lambda: told.append("closed"))
        client._transport.on_close(lambda: told.append("taken back"))()
        with pytest.raises(UnavailableError):
            await client._transport.request("nobody.there", b"", 5.0)
        assert len(connection._subs) == len(before) + 1
        await client.close()
        assert (connection.is_closed, connection._subs, told) == (False, before, ["closed"])
        with pytest.raises(ClientClosedError):
            await client._transport.request("nobody.there", b"", 5.0)
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
    assert publisher._sweeper is not None
    await asyncio.wait({publisher._sweeper})
    assert publisher._sweeper.cancelled()
    await publisher.close()


async def test_nats_transport_close_raises_client_closed_in_tasks_that_wait_for_an_inbox(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = Transport(await open_connection(nats_url))
    listening = asyncio.Event()

    async def listen(*_: Any) -> None:
        listening.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(transport, "listen", listen)

    async def expecting() -> None:
        async with transport.expect_answer("s", 30.0):
            pass

    asking = [asyncio.create_task(transport.request("s", b"", 30.0)), asyncio.create_task(expecting())]
    await listening.wait()
    await transport.close()
    await asyncio.wait(asking)
    assert [type(task.exception()) for task in asking] == [ClientClosedError] * 2


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


# ---- answers to publishes --------------------------------------------------------------------------------------------
class Answered(Publisher):
    """A publisher with one message in flight. ``told`` is the outcome of an answer."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._stream, self._partition = "s", 0
        self._in_flight = {3: SimpleNamespace(uid="u1", refusal=None)}  # type: ignore[dict-item]
        address = SimpleNamespace(subject="shop.s")
        self._addressing = SimpleNamespace(address=address, doubt=lambda: self.told.append("doubt"))  # type: ignore[assignment]

    def _send_again(self, number: int, message: Any, error: Any) -> None:
        self.told.append(f"again {number}")

    def _count_foreign_answer(self, why: str) -> None:
        self.told.append("not ours")

    def _messages_stored(self, number: int, ack: Any) -> None:
        self.told.append(f"stored {number} at {ack.offset}")

    def _refusal(self, number: int, waiting: Any, ack: Any, other: bool) -> None:
        self.told.append(f"refused {number}, other {other}")


def an_ack(**fields: Any) -> bytes:
    return frames.encode(client_pb2.Ack(**({"stream": "s", "partition": 0, "offset": 8, "streamUid": "u1"} | fields)))


WRONG_STREAM = client_pb2.Ack.WRONG_STREAM


@each(
    ("token", "data", "told"),
    [
        ("3", an_ack(), ["stored 3 at 8"]),
        ("3", an_ack(streamUid=""), ["stored 3 at 8"]),
        ("3", None, ["doubt", "again 3"]),
        ("3", b"garbage", ["not ours"]),
        ("3", an_ack(stream="t"), ["not ours"]),
        ("3", an_ack(partition=1), ["not ours"]),
        ("3", an_ack(streamUid="u2"), ["not ours"]),
        ("3", an_ack(streamUid="u2", ackError=WRONG_STREAM), ["refused 3, other True"]),
        ("3", an_ack(ackError=client_pb2.Ack.TOO_LARGE), ["refused 3, other False"]),
        ("3", an_ack(stream="t", ackError=WRONG_STREAM), ["not ours"]),
        ("4", an_ack(), []),
        ("x", an_ack(), []),
        ("-3", an_ack(), []),
        ("3" * 30, an_ack(), []),
    ],
)
async def test_publisher_completes_resends_or_rejects_a_message_by_the_kind_of_its_answer(
    token: str, data: bytes | None, told: list[str]
) -> None:
    made = Answered()
    headers = {"Status": "503"} if data is None else None
    await made._on_ack(SimpleNamespace(subject=f"_INBOX.x.{token}", data=data or b"", headers=headers))
    assert made.told == told
    refusal = made._in_flight[3].refusal
    assert (refusal is not None) is (data == an_ack(stream="t", ackError=WRONG_STREAM))


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
        async with first.group("g", ["jobs"], options=options) as owner, asyncio.timeout(20):
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
