"""Test queries of a service: when they are answered, their limits, and the content of answers."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client.metadata_requests import MetadataRequests
from liftpy.client.services import QueryRejectedError, Services
from liftpy.client.stream_directory import StreamDirectory
from liftpy.core.services.queries import ERROR_HEADER, POSITION_HEADER, PendingQueries, Query, QueryFailedError, position_in
from liftpy.core.wire.partitioner import partition_of
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import NotFoundError, UnavailableError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.transport import NoRespondersError
from liftpy.service import DivergedError, Identity, Record, Service, ServiceFailedError, ServiceMachine
from liftpy.service.query_server import QueryServer
from liftpy.service.settings import ServiceSettings
from liftpy.testing import ServiceTest
from liftpy.testing.memory import memory_cluster


def query(body: bytes = b"q", position: int | None = None, at_s: float = 0.0) -> Query:
    return Query(body, "reply", at_s, position)


# ---- the pending --------------------------------------------------------------------------------------------------------
def test_service_pending_queries_are_limited_in_number_bytes_and_wait_time() -> None:
    pending = PendingQueries(max_queries=2, max_bytes=10, patience_s=2.0)
    first, second = query(b"12345", at_s=1.0), query(b"12345", at_s=1.5)
    assert pending.try_add(first)
    assert pending.try_add(second)
    assert not pending.try_add(query(b""))
    assert pending.pop_expired(2.9) == []
    assert pending.pop_expired(3.0) == [first]
    assert not pending.try_add(query(b"123456", at_s=3.0))
    assert pending.try_add(query(b"12345", at_s=3.0))
    assert pending.drop([first, second]) == [second]
    assert pending.try_add(query(b"12345", at_s=3.0)), "what is gone takes no room"


@pytest.mark.parametrize("header", ["", "-1", "1.5", "x", "٣", "9" * 20, " 1"])
def test_service_query_position_header_without_an_offset_is_rejected(header: str) -> None:
    with pytest.raises(QueryFailedError, match="Lift-At-Least"):
        position_in(header)


# ---- the service -----------------------------------------------------------------------------------------------------
def machine_of(service: Service) -> ServiceMachine:
    machine = ServiceMachine(service, Identity("s", "in", "u", 0), snapshot_interval_records=1000)
    machine.start(None)
    return machine


class Sum(Service):
    def on_start(self, snapshot: bytes | None) -> None:
        self.total = int(snapshot or 0)

    def on_record(self, record: Record) -> None:
        self.total += int(record.value or 0)

    def on_query(self, query: bytes) -> bytes:
        if query == b"fail":
            raise KeyError(query.decode())
        if query == b"emit":
            self.emit(b"x")
        if query == b"timer":
            self.set_timer("t", 1)
        if query == b"more":
            self.total += 1
        return b"%d" % self.total if query != b"text" else "text"  # type: ignore[return-value]

    def take_snapshot(self) -> bytes:
        return b"%d" % self.total


class Deaf(Sum):
    on_query = Service.on_query


def test_service_machine_query_reads_the_state_and_returns_its_errors() -> None:
    machine = machine_of(Sum())
    assert machine.takes_queries
    assert not machine_of(Deaf()).takes_queries
    machine.apply([Record(0, 1, None, b"41", (), "", None, 1)])
    assert machine.query(b"?") == b"41"
    for bad, why in (
        (b"fail", "on_query: KeyError"),
        (b"emit", "emit is allowed only in"),
        (b"timer", "set_timer is allowed only in on_record and on_timer"),
        (b"text", "on_query returned str. Return bytes"),
    ):
        with pytest.raises(ServiceFailedError, match=why):
            machine.query(bad)
    machine.apply([Record(1, 1, None, b"1", (), "", None, 1)])
    assert machine.query(b"?") == b"42", "it goes on"


def test_service_test_harness_query_that_changes_the_state_raises_diverged() -> None:
    test = ServiceTest(Sum).send(b"5")
    assert test.query(b"?") == b"5"
    with pytest.raises(DivergedError, match="on_query changes the state"):
        test.query(b"more")


# ---- the server ------------------------------------------------------------------------------------------------------
@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let queries wait longer than a busy machine can delay a test."""
    monkeypatch.setattr("liftpy.service.query_server.PendingQueries", partial(PendingQueries, patience_s=60.0))


class Bus:
    """A connection and a client in memory. ``end_offset`` is the committed end of the leader. None: no leader."""

    def __init__(self, max_payload: int = 1 << 20) -> None:
        self.connection = SimpleNamespace(max_payload=max_payload, subscribe=self.subscribe)
        self.listening: Any = None
        self.groups: list[tuple[str, str]] = []
        self.answers: asyncio.Queue[tuple[str, bytes, dict[str, str]]] = asyncio.Queue()
        self.end_offset: int | None = 0
        self.asked = 0

    async def subscribe(self, subject: str, queue: str, cb: Any) -> Any:
        self.groups.append((subject, queue))
        self.listening = cb

        async def unsubscribe() -> None:
            self.listening = None

        return SimpleNamespace(unsubscribe=unsubscribe)

    async def publish(self, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        self.answers.put_nowait((subject, payload, headers))

    async def stream(self, name: str) -> Any:
        raise UnavailableError("nobody says how many partitions it has")

    async def bounds(self, stream: str, partition: int, *, options: Any) -> Any:
        self.asked += 1
        await asyncio.sleep(0)
        if self.end_offset is None:
            raise UnavailableError("nobody leads")
        return SimpleNamespace(end_offset=self.end_offset)

    async def ask(self, body: bytes, at_least: str | None = None, reply: str = "_INBOX.r") -> None:
        headers = {} if at_least is None else {"Lift-At-Least": at_least}
        await self.listening(SimpleNamespace(data=body, reply=reply, headers=headers))

    async def answer(self) -> tuple[str, bytes, dict[str, str]]:
        async with asyncio.timeout(30):
            return await self.answers.get()


def instance_of(machine: ServiceMachine) -> Any:
    return SimpleNamespace(machine=machine, is_fed=True, has_caught_up=True)


def server_of(bus: Bus, instance: Any) -> QueryServer:
    settings = ServiceSettings(service="sum", stream="in", node="n1", data=Path("unused"), partition=2)
    return QueryServer(bus, bus, Subjects(), settings, instance)  # type: ignore[arg-type]


async def served(
    bus: Bus, machine: ServiceMachine, *, instance: Any = None, server: QueryServer | None = None
) -> asyncio.Task[None]:
    task = asyncio.create_task((server or server_of(bus, instance or instance_of(machine))).run())
    async with asyncio.timeout(30):
        while bus.listening is None:
            await asyncio.sleep(0.001)
    return task


def record(offset: int) -> Record:
    return Record(offset, 1, None, b"1", (), "", None, 1)


async def test_service_query_server_answer_includes_all_records_committed_when_the_query_arrived() -> None:
    bus, machine = Bus(), machine_of(Sum())
    task = await served(bus, machine)
    assert bus.groups == [("liftpy.service.sum.query.2", "queries")]
    bus.end_offset = 3
    await bus.ask(b"?")
    while bus.asked == 0:
        await asyncio.sleep(0.001)
    machine.apply([record(0), record(1)])
    await asyncio.sleep(0.02)
    assert bus.answers.empty(), "one record is missing"
    machine.apply([record(2), record(3)])
    assert await bus.answer() == ("_INBOX.r", b"4", {POSITION_HEADER: "4", "Lift-Node": "n1"})
    task.cancel()


class SilentMetadataBus(Bus):
    """A bus on which the metadata group does not answer while ``is_silent``."""

    is_silent = True

    async def stream(self, name: str) -> Any:
        while self.is_silent:
            await asyncio.sleep(0.001)
        return SimpleNamespace(partitions=[None] * 3)


async def test_service_query_server_answers_queries_while_the_metadata_group_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftpy.service.query_server._COUNT_WAIT_S", 0.05)
    bus, machine = SilentMetadataBus(), machine_of(Sum())
    task = await served(bus, machine)
    for _ in range(2):
        await bus.ask(b"?")
        assert await bus.answer() == ("_INBOX.r", b"0", {POSITION_HEADER: "0", "Lift-Node": "n1"})
    bus.is_silent = False
    async with asyncio.timeout(30):
        while not await has_partitions(bus, 3):
            await asyncio.sleep(0.001)
    await end_tasks([task])
    assert [other.get_name() for other in asyncio.all_tasks() if "partitions" in other.get_name()] == []


async def has_partitions(bus: Bus, count: int) -> bool:
    """Send a query, and return whether its answer contains this number of partitions."""
    await bus.ask(b"?")
    return (await bus.answer())[2].get("Lift-Partitions") == str(count)


@pytest.mark.parametrize(
    ("body", "at_least", "code"),
    [(b"fail", "0", "QUERY_FAILED"), (b"?", "x", "QUERY_FAILED"), (b"?", None, "QUERY_REJECTED")],
)
async def test_service_query_server_error_answer_contains_code_and_reason(body: bytes, at_least: str | None, code: str) -> None:
    bus, machine = Bus(), machine_of(Sum())
    server = server_of(bus, instance_of(machine))
    task = await served(bus, machine, server=server)
    bus.end_offset = None
    await bus.ask(body, at_least)
    reply, why, headers = await bus.answer()
    assert (reply, headers[ERROR_HEADER]) == ("_INBOX.r", code)
    assert why
    bus.end_offset = 0
    await bus.ask(b"?")
    assert (await bus.answer())[1] == b"0", "the next one is answered"
    assert (server.answered_count, server.refused_count, server.waiting_count) == (1, 1, 0)
    task.cancel()


class Slow(Sum):
    """A service whose queries take longer than a step. Each one lets the event loop count a turn."""

    def on_query(self, query: bytes) -> bytes:
        time.sleep(0.025)
        asyncio.get_running_loop().call_soon(TURNS.append, None)
        return b"%d" % len(TURNS)


TURNS: list[None] = []


async def test_service_query_server_lets_other_tasks_run_between_many_slow_queries() -> None:
    TURNS.clear()
    bus, machine = Bus(), machine_of(Slow())
    task = await served(bus, machine)
    for _ in range(4):
        await bus.ask(b"?", at_least="0")
    assert [(await bus.answer())[1] for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    task.cancel()


async def test_service_query_server_with_an_answer_above_the_message_size_sends_an_error() -> None:
    bus, machine = Bus(max_payload=1000), machine_of(Sum())
    task = await served(bus, machine)
    await bus.ask(b"?", at_least="0")
    assert (await bus.answer())[2][ERROR_HEADER] == "QUERY_FAILED"
    task.cancel()


async def test_service_query_server_of_a_lagging_service_unsubscribes_until_the_service_catches_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("liftpy.service.query_server.PendingQueries", partial(PendingQueries, patience_s=0.05))
    bus, machine = Bus(), machine_of(Sum())
    instance = instance_of(machine)
    task = await served(bus, machine, instance=instance)
    instance.has_caught_up = False
    await bus.ask(b"?", at_least="9")
    assert (await bus.answer())[2][ERROR_HEADER] == "QUERY_REJECTED"
    async with asyncio.timeout(30):
        while bus.listening is not None:
            await asyncio.sleep(0.001)
        assert len(bus.groups) == 1
        instance.has_caught_up = True
        while bus.listening is None:
            await asyncio.sleep(0.001)
    assert len(bus.groups) == 2
    task.cancel()


async def test_service_query_server_rejects_only_the_query_for_an_offset_above_the_log_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("liftpy.service.query_server.PendingQueries", partial(PendingQueries, patience_s=0.05))
    bus, machine = Bus(), machine_of(Sum())
    task = await served(bus, machine)
    await bus.ask(b"?", at_least="9")
    _, why, headers = await bus.answer()
    assert headers[ERROR_HEADER] == "QUERY_REJECTED"
    assert b"Check the header Lift-At-Least" in why
    await bus.ask(b"?")
    assert (await bus.answer())[1] == b"0"
    assert len(bus.groups) == 1, "the server stays subscribed, so it rejects no other waiting query"
    task.cancel()


async def test_service_query_server_that_lost_its_node_unsubscribes_and_rejects_waiting_queries() -> None:
    bus, machine = Bus(), machine_of(Sum())
    instance = instance_of(machine)
    task = await served(bus, machine, instance=instance)
    await bus.ask(b"?", at_least="9")
    await asyncio.sleep(0.02)
    instance.is_fed = False
    _, why, headers = await bus.answer()
    assert headers[ERROR_HEADER] == "QUERY_REJECTED"
    assert b"nothing is heard from node n1" in why
    async with asyncio.timeout(30):
        while bus.listening is not None:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.15)
        assert len(bus.groups) == 1, "it holds what it was told of, and is told nothing more"
        instance.is_fed = True
        while bus.listening is None:
            await asyncio.sleep(0.001)
    task.cancel()


async def test_service_query_server_of_a_failed_service_sends_no_answer() -> None:
    """A callback raised in the middle of a change. The service rebuilds its state and answers from that."""
    bus, machine = Bus(), machine_of(Sum())
    task = await served(bus, machine)
    with pytest.raises(ServiceFailedError):
        machine.apply([Record(0, 1, None, b"no number", (), "", None, 1)])
    assert machine.failed
    with pytest.raises(ServiceFailedError, match="Its state"):
        machine.query(b"?")
    await bus.ask(b"?", at_least="0")
    await asyncio.sleep(0.05)
    assert bus.answers.empty()
    machine.failed = False
    assert (await bus.answer())[1] == b"0"
    task.cancel()


@pytest.mark.parametrize("reply", ["orders", "liftpy.control.admin", "_INBOXX.a", "_INBOX.>", "liftpy.inbox.n1.x"])
async def test_service_query_server_sends_answers_only_to_inbox_subjects(reply: str) -> None:
    bus, machine = Bus(), machine_of(Sum())
    task = await served(bus, machine)
    for header in ("x", "0", None):  # one of them is rejected at once, and its text is the asker's choice
        await bus.ask(b"?", header, reply=reply)
    await bus.ask(b"?", "0")
    subject, _, _ = await bus.answer()
    assert subject == "_INBOX.r", "only who asks from an inbox is answered [A5]"
    assert bus.answers.empty()
    await end_tasks([task])


class Instances:
    """Transport to the instances of a service. Each answers with its number.

    ``known``: number of partitions that the answers contain, in order. The last one stays. 0: none.
    """

    def __init__(self, *known: int) -> None:
        self.known = list(known)

    async def exchange(self, subject: str, query: bytes, timeout_s: float, headers: dict[str, str] | None) -> Any:
        partitions = self.known.pop(0) if len(self.known) > 1 else self.known[0]
        count = {"Lift-Partitions": str(partitions)} if partitions else {}
        error = {ERROR_HEADER: "QUERY_FAILED"} if query == b"fail" else {}
        number = subject.removeprefix("liftpy.service.sum.query").removeprefix(".") or "0"
        return SimpleNamespace(data=number.encode(), headers={POSITION_HEADER: "0", **count, **error})


def services_of(instances: Any) -> Services:
    return Services(StreamDirectory(MetadataRequests(instances, Subjects())))


@pytest.mark.parametrize("known", [(3,), (0, 3), (1, 3), (1, 2, 3)])
async def test_service_query_by_key_asks_the_partition_of_the_newest_number_of_partitions(known: tuple[int, ...]) -> None:
    keys = [b"key-%d" % number for number in range(20)]
    for key in keys:
        right = b"%d" % partition_of(key, 3)
        assert (await services_of(Instances(*known)).query("sum", b"?", key=key)).value == right
        with pytest.raises(QueryFailedError, match=right.decode()):
            await services_of(Instances(*known)).query("sum", b"fail", key=key)
    assert len({partition_of(key, 3) for key in keys}) == 3


async def test_service_query_by_key_of_an_unknown_number_of_partitions_is_rejected() -> None:
    with pytest.raises(QueryRejectedError, match="does not know its number of partitions"):
        await services_of(Instances(0)).query("sum", b"?", key=b"k", timeout_s=0.1)


def test_service_query_without_a_running_service_raises_with_a_hint_to_on_query() -> None:
    why = pytest.raises(NoRespondersError, match=r"service counter .*on_query")
    with memory_cluster(nodes=1) as cluster, cluster.sync_client() as client, why:
        client.services.query("counter", b"apples", timeout_s=0.2)


@pytest.mark.parametrize("query", [b"?", b"fail"])
def test_service_query_of_an_unknown_partition_raises_with_the_valid_partitions(query: bytes) -> None:
    with memory_cluster(nodes=1) as cluster, cluster.sync_client() as client:
        client.create_stream("numbers", "shop.numbers", partitions=3)
        cluster.serve(Sum, "sum", "numbers")
        with pytest.raises(NotFoundError, match=r"sum has no partition 9\. It has the partitions 0 to 2"):
            client.services.query("sum", query, partition=9)
        with pytest.raises(NoRespondersError, match=r"service sum answers queries of partition 2\."):  # it may come yet
            client.services.query("sum", query, partition=2, timeout_s=0.2)
