"""Test how a service host connects its components: settings, identity and calls between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from liftpy.core.services.bad_records import BadRecordError, FailedUnit, Unit
from liftpy.core.services.outbox import Route
from liftpy.core.services.replies import Reply
from liftpy.core.services.service import Service
from liftpy.core.wire._pb import service_pb2 as pb
from liftpy.core.wire.batch import Record
from liftpy.errors import UnavailableError
from liftpy.service import Role, host
from liftpy.service.host import ServiceHost
from liftpy.service.settings import ServiceSettings
from tests.only_in import only_in
from tests.unit.services.test_record_feeder import FakeLog, Sum
from tests.unit.services.test_service_host import Bus, order


class Answering(Sum):
    def on_query(self, body: bytes) -> bytes:
        return body


class Quiet(Service):
    """A service without queries and outputs."""

    def on_record(self, record: Record) -> None: ...

    def take_snapshot(self) -> bytes:
        return b""


class AnsweringQuietly(Quiet):
    """A service with queries and without outputs."""

    def on_query(self, body: bytes) -> bytes:
        return body


class Part:
    """A replacement of a component. It records its arguments and calls."""

    def __init__(self, kind: str, *args: Any, **named: Any) -> None:
        self.kind, self.args, self.named = kind, args, named
        self.problem = self.tried = ""
        self.runs = False
        self.told: list[str] = []
        self.waiting_count, self.answered_count, self.refused_count = 1, 2, 3
        self.fetched_bytes = 17

    async def run(self) -> None:
        self.runs = True
        await asyncio.Event().wait()

    def wake(self) -> None:
        self.told.append("wake")

    def reread_end(self) -> None:
        self.told.append("look again")


class Made:
    """A host whose components are recorded."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.log = FakeLog()
        self.reader: tuple[Any, ...] = ()

    def one(self, kind: str) -> Part:
        (part,) = self.all(kind)
        return part

    def all(self, kind: str) -> list[Part]:
        return [part for part in self.parts if part.kind == kind]


KINDS = (
    "Emitter",
    "Router",
    "SnapshotFetcher",
    "SnapshotServer",
    "Replier",
    "RecordWriter",
    "EffectRunner",
    "QueryServer",
    "DecisionWriter",
)
ROUTES = (Route("a", "s1"), Route("b", "s2"))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    made = Made()
    for kind in KINDS:

        def make(*args: Any, kind: str = kind, **named: Any) -> Part:
            made.parts.append(Part(kind, *args, **named))
            return made.parts[-1]

        monkeypatch.setattr(host, kind, make)

    def reader(*args: Any) -> FakeLog:
        made.reader = args
        return made.log

    monkeypatch.setattr(host, "PartitionReader", reader)
    return made


@pytest.fixture
async def running(made: Made, tmp_path: Path) -> AsyncIterator[tuple[Any, Bus, Made]]:
    bus = Bus()
    settings = ServiceSettings(
        "sum", "in", "n1", tmp_path, partition=2, output_stream="out", routes=ROUTES, outbox_records=11, outbox_bytes=5000,
        snapshots_kept=7, max_snapshot_bytes=9000, read_wait_s=2.5, read_max_bytes=8192, emit_timeout_s=4.5, heartbeat_interval_s=10.0,
        dead_letter_stream="dead",
    )  # fmt: skip
    server: Any = ServiceHost(Answering, settings, bus, "ns")  # type: ignore[arg-type]
    task = asyncio.create_task(server.run())
    await bus.until(lambda: bus.said)
    await bus.tell(order(bus, 1, startOffset=0))
    await bus.until(lambda: server._queries is not None)
    yield server, bus, made
    server.stop()
    await asyncio.gather(task, return_exceptions=True)


async def test_service_host_with_a_new_role_verifies_its_state_and_reads_the_output_stream(running: Any) -> None:
    server, bus, made = running
    made.log.append(3)
    await bus.until(lambda: server.machine.position == 3)
    emitter = made.one("Emitter")
    emitter.told.clear()
    await bus.tell(order(bus, 1))
    assert emitter.told == [], "the same role in the same epoch"
    await bus.tell(order(bus, 2, role=pb.SERVICE_LEADER))
    assert server.machine.role is Role.FOLLOWER, (
        "where the output stream ends is not known: it would take those of others for missing"
    )
    server.machine.outbox.known = True
    server.outputs_known()
    assert server.machine.role is Role.LEADER
    assert emitter.told == ["look again"]
    server._feeder._verifying = False
    await bus.tell(order(bus, 3, role=pb.SERVICE_LEADER, leaderEpoch=4, startOffset=2))
    assert (emitter.told, server._feeder._verifying) == (["look again"] * 2, True)
    assert (server._feeder._log_start_offset, server.machine.leader_epoch) == (2, 4)


async def test_service_host_metrics_contain_the_values_of_its_components(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, _, _ = running
    now_s = [100.0]
    only_in(monkeypatch, host, "time", monotonic=lambda: now_s[0])
    keeper, outbox = server._keeper, server.machine.outbox
    keeper.stored_count, keeper.state_bytes, keeper.saved_s = 5, 600, 90.5
    outbox.emitted_end = 4
    figures = server._figures()
    assert (figures.sinceOutputMs, figures.queriesWaiting, figures.queriesAnswered, figures.queriesRefused) == (-1, 1, 2, 3)
    assert (figures.snapshotsStored, figures.snapshotBytes, figures.sinceSnapshotMs) == (5, 600, 9500)
    outbox.known = True
    assert server._figures().sinceOutputMs == 0
    now_s[0] = 102.5
    assert server._figures().sinceOutputMs == 2500, "nothing more was written since"
    outbox.emitted_end = 5
    assert server._figures().sinceOutputMs == 0
    keeper.given_bytes = 23
    outbox.output_count = 6
    hello = server._hello()
    assert (hello.outputCount, hello.emittedEnd, hello.fetchedBytes, hello.givenBytes) == (6, 5, 17, 23)
    assert (hello.life, hello.failing, hello.fetching) == (keeper.life, False, False)


async def test_service_host_after_a_divergence_reports_zero_written_outputs(running: Any) -> None:
    server, _, _ = running
    server.machine.outbox.emitted_end = 4
    assert server.emitted_end == 4
    server.machine.outbox.diverged = "it differs"
    assert server.emitted_end == 0, "no reply leaves"


async def test_service_host_after_a_state_rebuild_drops_earlier_replies(running: Any) -> None:
    server, _, _ = running
    server._replies.add(Reply(1, "_INBOX.x", b""))
    machine = server.machine
    server.machine_started(machine, None)
    assert (len(server._replies), machine.replies, machine.is_apply_thread) == (
        0,
        server._replies,
        server._at_home,
    )
    assert machine.is_apply_thread()
    assert not await asyncio.to_thread(machine.is_apply_thread)


async def test_service_host_without_messages_for_one_lease_rejects_queries_and_decisions(
    running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, bus, made = running
    made.log.append(3)
    await bus.until(lambda: server.machine.position == 3)
    now_s = [1000.0]
    only_in(monkeypatch, host, "time", monotonic=lambda: now_s[0])
    await bus.tell(order(bus, 1, leaseMs=1500, highWatermark=2))
    assert (server.is_fed, server.has_caught_up) == (True, True)
    await bus.tell(order(bus, 1, leaseMs=1500, highWatermark=3, leads=True))
    assert (server.is_fed, server.has_caught_up) == (True, False)
    now_s[0] = 1001.49
    assert (server.is_fed, server.is_beside_leader()) == (True, True)
    server._feeder.problem = "reading"
    assert not server.is_fed
    server._feeder.problem = ""
    server._refusal = "refused"
    assert not server.is_fed
    server._refusal = ""
    now_s[0] = 1001.5
    assert (server.is_fed, server.is_beside_leader()) == (False, False)


async def test_service_host_skip_decision_contains_leader_epoch_and_record_offset(
    running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, bus, made = running
    await bus.tell(order(bus, 2, leaderEpoch=6, leads=True))
    given: list[Any] = []

    async def pass_over(_: Part, *args: Any) -> None:
        given.extend(args)
        raise UnavailableError("no ack")

    monkeypatch.setattr(Part, "pass_over", pass_over, raising=False)
    bad = Record(4, 0, None, b"bad", (), "", None, 6)
    what = FailedUnit(BadRecordError(Unit(4, "t"), bad, "it raised"))
    with pytest.raises(UnavailableError):
        await server.decide_to_skip(what)
    assert (server._client, "dead", 4.5) in [part.args for part in made.all("DecisionWriter")]
    identity, decision, record, error = given
    assert (identity, record, error) == (server.machine.identity, bad, str(what.error))
    assert (decision.service, decision.unit, decision.leader_epoch) == ("sum", Unit(4, "t"), 6)


async def test_service_host_of_a_service_without_outputs_starts_no_output_writer(made: Made, tmp_path: Path) -> None:
    bus = Bus()
    settings = ServiceSettings("sum", "in", "n1", tmp_path, heartbeat_interval_s=10.0)
    server: Any = ServiceHost(Quiet, settings, bus, "ns")  # type: ignore[arg-type]
    task = asyncio.create_task(server.run())
    await bus.until(lambda: bus.said)
    await bus.tell(order(bus, 1))
    await bus.until(lambda: made.all("EffectRunner"))
    await bus.tell(order(bus, 2, role=pb.SERVICE_LEADER))
    assert server.leads
    assert (made.all("Emitter"), made.all("Router"), made.all("QueryServer")) == ([], [], [])
    assert (server.emitted_end, server._figures().sinceOutputMs, server._figures().queriesWaiting) == (None, -1, 0)
    server.stop()
    await task


async def test_service_host_raises_the_first_error_of_its_ended_tasks(running: Any) -> None:
    server, _, _ = running

    async def ended(error: BaseException | None) -> None:
        if error is not None:
            raise error

    for error in (None, asyncio.CancelledError(), UnavailableError("no ack"), UnavailableError("later")):
        task = asyncio.ensure_future(ended(error))
        server._tasks.add(task)
        await asyncio.wait([task])
        server._task_ended(task)
        assert task not in server._tasks
        assert server._ended.done() is isinstance(error, UnavailableError)
    assert str(server._ended.exception()) == "no ack", "the first one counts"


# ---- in its node's own process ------------------------------------------------------------------------------------------------
async def test_service_host_in_the_process_of_its_node_leads_without_a_lease(made: Made, tmp_path: Path) -> None:
    said: list[Any] = []
    hear: list[Any] = []

    def say(message: Any, name: str, told: Any) -> None:
        said.append(message)
        hear.append(told)
        assert name == "_INBOX.me"

    bus = Bus()
    settings = ServiceSettings("sum", "in", "n1", tmp_path, heartbeat_interval_s=0.01)
    server: Any = ServiceHost(AnsweringQuietly, settings, bus, "ns", say=say)  # type: ignore[arg-type]
    task = asyncio.create_task(server.run())
    await bus.until(lambda: said)
    instance = said[0].instance

    def ordered(ack_id: int, **more: Any) -> None:
        given = {"stopPosition": -1, "logEndOffset": -1, "leaderEpoch": 3, "leaseMs": 1}
        hear[-1](pb.JoinLog(instance=instance, ackId=ack_id, streamUid="u1", **(given | more)))

    def acks() -> list[tuple[int, int]]:
        return [(message.ackId, message.position) for message in said if isinstance(message, pb.ServiceAck)]

    ordered(1)
    await bus.until(lambda: made.all("QueryServer") and acks())
    ordered(2, role=pb.SERVICE_LEADER)
    effects, replier, queries = made.one("EffectRunner"), made.one("Replier"), made.one("QueryServer")
    await bus.until(lambda: (2, 0) in acks())
    assert (effects.told, replier.told) == (["wake"], ["wake"]), "they act at once"
    server.machine.on_work()
    assert effects.told == ["wake", "wake"], "and where records bring something to do"
    count = len(said)
    await bus.until(lambda: len(said) > count + 3)
    assert server.leads, "a lease of 1 ms does not end between it and its own process"
    for _ in range(3):
        ordered(2, role=pb.SERVICE_LEADER)
    ordered(2, role=pb.SERVICE_LEADER, stopPosition=5)
    await bus.until(lambda: len(acks()) == 3)
    assert acks() == [(1, 0), (2, 0), (2, 0)], "the last one may be waited for"
    assert bus.said == [], "nothing goes over NATS"
    assert queries.told == []
    hear[-1](pb.ServiceRefusal(instance=instance, reason=pb.ServiceRefusal.REPLACED, node="n1", detail="x"))
    assert not server.leads
    await bus.until(lambda: queries.told), "it looks whether its node is there"
    server.stop()
    await task
    assert said[-1].leaving
    position = server.machine.role
    ordered(9, role=pb.SERVICE_LEADER)
    assert (server.machine.role, server._order.ackId) == (position, 2), "it hears nothing after its end"


async def test_service_host_that_is_not_registered_sends_hello_more_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    bus = Bus()
    settings = ServiceSettings("sum", "in", "n1", tmp_path, heartbeat_interval_s=9.0)
    server: Any = ServiceHost(Quiet, settings, bus, "ns")  # type: ignore[arg-type]

    async def sleep(wait_s: float) -> None:
        if wait_s:
            waits.append(wait_s)
            server._greeted, server._refusal = len(waits) > 1, "not here" if len(waits) == 2 else ""
        if len(waits) == 4:
            raise asyncio.CancelledError

    only_in(monkeypatch, host, "asyncio", sleep=sleep)
    with pytest.raises(asyncio.CancelledError):
        await server._heartbeats()
    assert waits == [0.25, 0.25, 0.25, 9.0]
