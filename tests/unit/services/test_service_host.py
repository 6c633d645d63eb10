"""Test a whole ServiceHost on a scripted bus: its messages, its orders and its files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client.progress import NotServedError
from liftpy.core.services.outbox import Output
from liftpy.core.services.sessions import MAX_SERVICES, SendToService, ServicesReplayed
from liftpy.core.services.versions import VersionDecision
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import service_pb2 as pb
from liftpy.core.wire.batch import Record
from liftpy.core.wire.envelope import MessageType
from liftpy.errors import ConfigError, DataDirectoryLockedError, NotFoundError, UnavailableError
from liftpy.service import DivergedError, Outbox, Role, host, record_feeder
from liftpy.service.bad_record_writer import DecisionWriter
from liftpy.service.host import ServiceHost
from liftpy.service.output_writer import Emitter
from liftpy.service.settings import ServiceSettings
from liftpy.service.snapshots import ServiceLock
from tests.unit.services.test_record_feeder import EVERY, FakeLog, Node, Sum
from tests.unit.services.test_service_sessions import CANDIDATE, FOLLOWS, LEADS, acked, hello, joined, replays, sessions


class Quiet(Sum):
    """A service without an output stream."""

    def on_record(self, record: Record) -> None:
        self.values.append((record.value or b"").decode())


class Bus:
    """A Transport and its connection. ``said`` has the decoded frames that were published."""

    def __init__(self) -> None:
        self.connection = self
        self.said: list[Any] = []
        self.deaf = False
        self.subscribed: dict[str, Any] = {}
        self.settled = 0
        self.arrived: Any = None

    def new_inbox(self) -> str:
        return "_INBOX.me"

    async def subscribe(self, subject: str, cb: Any, **_: Any) -> Any:
        self.subscribed[subject] = cb
        self.arrived = self.subscribed["_INBOX.me"]

        async def unsubscribe() -> None:
            del self.subscribed[subject]

        return SimpleNamespace(unsubscribe=unsubscribe)

    async def publish(self, subject: str, payload: bytes, *, reply: str) -> None:
        assert subject in ("ns.service.n1.session.in.sum", "ns.service.n1"), "the second where the node does not answer"
        assert reply == "_INBOX.me"
        if self.deaf:
            raise UnavailableError("not connected")
        kind, body = envelope.decode(payload)
        self.said.append(frames.parse(body, pb.ServiceAck if kind is MessageType.SERVICE_ACK else pb.ServiceHello))

    async def settle(self) -> None:
        self.settled += 1

    async def tell(self, message: Any) -> None:
        await self.arrived(SimpleNamespace(data=frames.seal(message) if message is not None else b""))

    async def until(self, condition: Callable[[], Any]) -> Any:
        async with asyncio.timeout(30):
            while not (found := condition()):
                await asyncio.sleep(0.001)
        return found

    @property
    def hellos(self) -> list[pb.ServiceHello]:
        return [m for m in self.said if isinstance(m, pb.ServiceHello)]

    @property
    def acks(self) -> list[pb.ServiceAck]:
        return [m for m in self.said if isinstance(m, pb.ServiceAck)]


@pytest.fixture
async def running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Bus, ServiceHost, asyncio.Task[None], FakeLog]]:
    bus, log = Bus(), FakeLog()
    monkeypatch.setattr(host, "PartitionReader", lambda *_: log)
    settings = ServiceSettings("sum", "in", "n1", tmp_path, snapshot_interval_records=EVERY, heartbeat_interval_s=0.01)
    made = ServiceHost(Quiet, settings, bus, "ns")  # type: ignore[arg-type]
    task = asyncio.create_task(made.run())
    await bus.until(lambda: bus.said)
    yield bus, made, task, log
    made.stop()
    await asyncio.gather(task, return_exceptions=True)


def order(bus: Bus, ack_id: int, **more: Any) -> pb.JoinLog:
    given = {"role": pb.SERVICE_FOLLOWER, "stopPosition": -1, "logEndOffset": -1, "leaderEpoch": 3, "leaseMs": 60_000}
    return pb.JoinLog(instance=bus.hellos[0].instance, ackId=ack_id, streamUid="u1", **(given | more))


async def test_service_host_registers_applies_records_and_deregisters_on_stop(running: Any, tmp_path: Path) -> None:
    bus, made, task, log = running
    first = bus.hellos[0]
    assert (first.service, first.stream, first.partition) == ("sum", "in", 0)
    assert (first.first, first.leaving, first.position, first.streamUid) == (True, False, 0, "")
    assert first.instance
    with pytest.raises(DataDirectoryLockedError):
        ServiceLock(tmp_path, "sum", "in", 0)
    log.append(12)
    await bus.tell(order(bus, 7, stopPosition=5))
    ack = await bus.until(lambda: [a for a in bus.acks if a.position == 5])
    assert (ack[0].service, ack[0].stream, ack[0].partition, ack[0].streamUid) == ("sum", "in", 0, "u1")
    assert (ack[0].ackId, ack[0].instance) == (7, first.instance)
    later = await bus.until(lambda: [h for h in bus.hellos if h.position == 5])
    assert (later[0].first, later[0].streamUid) == (False, "u1"), "it takes nobody's place any more"
    await bus.tell(order(bus, 8))
    await bus.until(lambda: bus.hellos[-1].position == 12)
    made.stop()
    await task
    assert (bus.hellos[-1].leaving, bus.subscribed, bus.settled) == (True, {}, 1)
    count = len(bus.said)
    ServiceLock(tmp_path, "sum", "in", 0).close()
    await asyncio.sleep(0.02)
    assert len(bus.said) == count, "nothing of it goes on"


async def test_service_host_reports_a_problem_until_the_problem_is_solved(running: Any) -> None:
    bus, made, _, log = running
    await bus.tell(None)  # NATS: nobody listens there
    assert made.problem == "node n1 does not respond"
    await bus.until(lambda: bus.hellos[-1].problem == "node n1 does not respond")
    await bus.arrived(SimpleNamespace(data=b"garbage"))
    log.truncated = NotServedError("not in sync")  # type: ignore[assignment]
    await bus.tell(order(bus, 1))
    await bus.until(lambda: "not in sync" in bus.hellos[-1].problem)
    log.truncated = None
    log.append(1)
    await bus.until(lambda: bus.hellos[-1].position == 1 and not bus.hellos[-1].problem)


async def test_service_host_registers_again_after_its_node_was_unreachable(running: Any) -> None:
    bus, _, task, _ = running
    bus.deaf = True
    await asyncio.sleep(0.02)
    assert not task.done()
    bus.deaf = False
    count = len(bus.hellos)
    await bus.until(lambda: len(bus.hellos) > count)


async def test_service_host_with_a_permanent_refusal_raises_and_releases_its_resources(running: Any, tmp_path: Path) -> None:
    bus, _, task, _ = running
    refusal = pb.ServiceRefusal(instance=bus.hellos[0].instance, reason=pb.ServiceRefusal.WRONG_STREAM, node="n1")
    await bus.tell(refusal)
    with pytest.raises(NotFoundError):
        await task
    assert bus.subscribed == {}
    ServiceLock(tmp_path, "sum", "in", 0).close()


async def test_service_host_replaced_by_another_instance_loses_leadership_and_registers_again(running: Any) -> None:
    """The hello of the other instance may be forged."""
    bus, made, task, _ = running
    await bus.tell(order(bus, 1, role=pb.SERVICE_LEADER))
    await bus.until(lambda: made.leads and not bus.hellos[-1].first)
    await bus.tell(pb.ServiceRefusal(instance=bus.hellos[0].instance, reason=pb.ServiceRefusal.REPLACED, node="n1", detail="x"))
    assert not made.leads
    await bus.until(lambda: bus.hellos[-1].first)
    await bus.tell(
        pb.ServiceRefusal(instance=bus.hellos[0].instance, reason=pb.ServiceRefusal.TAKEN, node="n1", detail="waited for")
    )
    assert made.problem == "waited for"
    await bus.tell(order(bus, 2, role=pb.SERVICE_LEADER))
    await bus.until(lambda: made.leads and not made.problem and not bus.hellos[-1].first)
    assert not task.done()


async def test_service_host_of_the_leader_activates_a_version_that_all_nodes_run(
    running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, _, _, _ = running
    said: list[tuple[VersionDecision, bool]] = []

    async def upgrade(self: Any, who: Any, decision: VersionDecision, *, first: bool) -> int:
        said.append((decision, first))
        raise UnavailableError("not now")

    monkeypatch.setattr(DecisionWriter, "upgrade", upgrade)
    monkeypatch.setattr(Quiet, "version", 2)
    await bus.tell(order(bus, 1, leads=True, lowestVersion=2))
    await bus.until(lambda: bus.hellos[-1].version == 2)
    assert (bus.hellos[-1].activeVersion, said) == (1, []), "it follows"
    await bus.tell(order(bus, 2, leads=True, role=pb.SERVICE_LEADER, lowestVersion=1))
    count = len(bus.hellos)
    await bus.until(lambda: len(bus.hellos) > count + 2)
    assert said == []
    await bus.tell(order(bus, 2, leads=True, role=pb.SERVICE_LEADER, lowestVersion=2))
    await bus.until(lambda: said)
    assert said == [(VersionDecision("sum", 2, 3), False)]


@pytest.mark.parametrize(("ahead_s", "said"), [(0.0, ""), (4.9, ""), (3600.0, "log time is 3600 s ahead of the newest record")])
async def test_service_host_with_log_time_ahead_reports_a_problem_unless_a_worse_problem_exists(
    running: Any, ahead_s: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, made, _, _ = running
    await bus.tell(order(bus, 1))
    await bus.until(lambda: made.machine is not None)
    monkeypatch.setattr(type(made.machine), "ahead_ns", ahead_s * 1e9)
    assert made.problem.startswith(said)
    assert bool(made.problem) is bool(said)
    made._feeder.problem = "worse"
    assert made.problem == "worse"


async def test_service_host_stores_its_state_on_request_and_at_stop(running: Any, tmp_path: Path) -> None:
    bus, made, task, log = running

    def stored() -> list[int]:
        return sorted(int(path.stem) for path in tmp_path.glob("**/*.snapshot"))

    log.append(3)
    await bus.tell(order(bus, 1))
    await bus.until(lambda: bus.hellos[-1].position == 3)
    assert stored() == []
    await bus.tell(order(bus, 1, snapshotRequest=1))
    await bus.until(lambda: stored() == [3])
    hello = await bus.until(lambda: len(bus.hellos[-1].snapshots) > 1 and bus.hellos[-1])
    assert [told.position for told in hello.snapshots] == [0, 3], "at 0 it tells its parameters"
    assert (len(hello.snapshots[1].digest), hello.snapshotPosition) == (16, 3)
    figures = hello.figures
    assert (figures.snapshotsStored, figures.snapshotBytes, figures.sinceOutputMs) == (
        1,
        len(made.machine.snapshot().state),
        -1,
    )
    assert figures.sinceSnapshotMs >= 0
    assert hello.life
    log.append(2)
    await bus.until(lambda: bus.hellos[-1].position == 5)
    await bus.tell(order(bus, 1, snapshotRequest=1))
    await bus.until(lambda: bus.hellos[-1].position == 5)
    made.stop()
    await task
    assert stored() == [3, 5]


async def test_service_host_that_failed_stores_no_snapshot(running: Any, tmp_path: Path) -> None:
    bus, made, task, log = running

    def stored() -> list[Path]:
        return list(tmp_path.glob("**/*.snapshot"))

    log.append(3)
    await bus.tell(order(bus, 1))
    await bus.until(lambda: bus.hellos[-1].position == 3)
    made.fail(ConfigError("no"))
    with pytest.raises(ConfigError):
        await task
    assert bus.hellos[-1].leaving
    assert stored() == [], "nobody knows what it is worth"


async def test_service_host_that_diverged_ends_and_quarantines_its_snapshot(running: Any, tmp_path: Path) -> None:
    bus, _, task, log = running

    def stored(kind: str) -> list[int]:
        return sorted(int(path.stem) for path in tmp_path.glob(f"**/*.{kind}"))

    log.append(EVERY * 2)
    await bus.tell(order(bus, 1))
    await bus.until(lambda: len(stored("snapshot")) == 2)
    diverged = pb.ServiceRefusal.DIVERGED
    await bus.tell(pb.ServiceRefusal(instance=bus.hellos[0].instance, reason=diverged, node="n1", position=EVERY * 2))
    with pytest.raises(DivergedError):
        await task
    assert stored("snapshot") == [EVERY]
    assert stored("diverged") == [EVERY * 2]


async def test_service_host_with_other_parameters_ends_and_keeps_its_snapshots(running: Any, tmp_path: Path) -> None:
    bus, _, task, log = running

    def files(kind: str) -> list[Path]:
        return list(tmp_path.glob(f"**/*.{kind}"))

    log.append(EVERY)
    await bus.tell(order(bus, 1))
    await bus.until(lambda: files("snapshot"))
    diverged = pb.ServiceRefusal.DIVERGED
    await bus.tell(pb.ServiceRefusal(instance=bus.hellos[0].instance, reason=diverged, node="n1", detail="the parameters"))
    with pytest.raises(ConfigError, match="the parameters"):
        await task
    assert files("snapshot")
    assert not files("diverged")


async def test_service_host_without_a_recent_message_of_the_leader_node_writes_no_decision(running: Any) -> None:
    bus, made, _, _ = running
    assert not made.is_beside_leader()
    await bus.tell(order(bus, 1))
    assert not made.is_beside_leader()
    await bus.tell(order(bus, 2, leads=True))
    assert made.is_beside_leader()
    made._last_contact_s -= 60.0
    assert not made.is_beside_leader()


async def test_service_host_leader_without_messages_of_its_node_becomes_follower(running: Any) -> None:
    bus, made, _, _ = running
    await bus.tell(order(bus, 1, role=pb.SERVICE_LEADER))
    await bus.until(lambda: made.machine is not None and made.machine.role is Role.LEADER)
    made._last_contact_s -= 60.0
    await bus.until(lambda: made.machine.role is Role.FOLLOWER)
    await bus.tell(order(bus, 1, role=pb.SERVICE_LEADER))
    assert made.leads, "the same order again renews it"


# ---- feeding ---------------------------------------------------------------------------------------------------------------
@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(FakeLog(), tmp_path)
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("before", "took_steps", "after"),
    [(16, 1.01, 8), (16, 1.0, 16), (16, 0.25, 16), (16, 0.24, 32), (1, 2.0, 1), (1, 0.0, 2), (128, 0.0, 128), (3, 9.0, 1)],
)
async def test_service_record_feeder_chunk_size_shrinks_for_slow_and_grows_for_fast_services(
    before: int, took_steps: float, after: int, node: Node
) -> None:
    made: Any = node.feeder
    assert record_feeder._MAX_CHUNK_RECORDS == 128
    made._chunk_records = before
    made._adapt_chunk(took_steps * node.settings.step_s)
    assert made._chunk_records == after


async def test_service_record_feeder_replay_over_compacted_offsets_ends_at_the_stop_position(node: Node) -> None:
    await node.feeder.restart(0)
    made: Any = node.feeder
    made.stop_at(8)
    await made._skip(12)
    assert (node.machine.position, node.stops) == (8, 1), "what was read ended past the stop"
    made.stop_at(None)
    await made._skip(12)
    assert node.machine.position == 12
    made.stop_at(20)
    await made._skip(15)
    assert (node.machine.position, node.stops) == (15, 1)
    await made._skip(20)
    assert node.stops == 2


async def test_service_record_feeder_reports_a_read_error_until_a_read_succeeds(node: Node) -> None:
    log = node.log
    log.truncated = NotServedError("nobody in sync")  # type: ignore[assignment]
    await node.start()
    bus = Bus()
    await bus.until(lambda: "nobody in sync" in node.feeder.problem)
    assert node.feeder.problem.startswith("reading: ")
    log.truncated = None
    log.append(3)
    await node.at(3)
    assert node.feeder.problem == ""


async def test_service_record_feeder_truncation_at_a_snapshot_position_keeps_the_snapshot(node: Node) -> None:
    node.log.append(25)
    await node.start()
    await node.at(25)
    await node.stored(10, 20)
    del node.log.batches[20:]
    node.feeder.cut_at(20)
    await node.at(20)
    assert node.store.positions() == [10, 20]
    assert (node.outbox.known, node.outbox.output_count) == (False, 20), "what was written is read and compared again"


# ---- outputs ---------------------------------------------------------------------------------------------------------------
async def test_service_output_writer_after_a_role_change_reads_the_output_stream_before_sending(tmp_path: Path) -> None:
    """The role changed while a window of outputs was in flight. The stream may hold outputs of another leader."""
    settings = ServiceSettings("s", "in", "n1", tmp_path, output_stream="out", emit_window=1)
    outbox = Outbox("u/0")
    machine_outputs = [host_output(number) for number in range(3)]
    for output in machine_outputs:
        outbox.add(output)
    outbox.known = True
    transport: Any = SimpleNamespace(max_payload_bytes=1 << 20)
    instance: Any = SimpleNamespace(leads=True, outputs_written=list)
    made: Any = Emitter(transport, transport, settings, outbox, instance)
    written: list[int] = []

    async def write(batch: Any) -> None:
        written.append(batch.first.number)
        if batch.first.number == 1:
            made.reread_end()

    made._write, made._must_check = write, False
    await made._send()
    assert written == [0, 1]
    made._must_check = False
    await made._send()
    assert (written, outbox.emitted_end) == ([0, 1, 2], 3)


def host_output(number: int) -> Any:
    return Output(number, number, 0, b"v", None, ())


def test_service_outbox_after_a_log_truncation_drops_compared_digests() -> None:
    outbox = Outbox("u/0")
    for number in range(3):
        outbox.add(host_output(number))
    outbox.known = True
    for number in range(3):
        outbox.wrote(outbox.read(number, 1)[0])
    outbox.compare_again()
    outbox.restart(0)
    for number in range(3):  # the records of the new log give other outputs
        outbox.add(replace(host_output(number), value=b"w"))
    assert outbox.diverged == "", "the digest that was known belongs to records that are gone"
    outbox.restart(2, b"d" * 16)
    outbox.add(host_output(2))
    assert outbox.diverged == ""


# ---- what sessions say in full -----------------------------------------------------------------------------------------------
def test_service_sessions_instruction_and_rejection_contain_all_fields() -> None:
    s = sessions()
    view = replace(FOLLOWS, log_start_offset=4, high_watermark=8)
    (tell,) = s.hello(hello(instance=5, position=2), "_INBOX.a", view, 0)
    assert isinstance(tell, SendToService)
    wanted = pb.JoinLog(
        service="bank", stream="s", partition=0, streamUid="u1", instance=5, ackId=100, role=pb.SERVICE_FOLLOWER, leaderEpoch=1,
        startOffset=4, stopPosition=-1, highWatermark=8, logEndOffset=-1, leaseMs=1500, node="n1",
    )  # fmt: skip
    assert (tell.inbox, tell.message) == ("_INBOX.a", wanted)
    (tell,) = s.hello(hello(instance=6, position=2), "_INBOX.b", view, 0)
    assert isinstance(tell, SendToService)
    detail = "another instance of this service has registered with this node"
    refusal = pb.ServiceRefusal(
        reason=pb.ServiceRefusal.REPLACED, detail=detail, node="n1", service="bank", stream="s", partition=0, instance=6
    )
    assert (tell.inbox, tell.message) == ("_INBOX.b", refusal)


FIGURES = pb.ServiceFigures(
    sinceOutputMs=1,
    queriesWaiting=2,
    queriesAnswered=3,
    queriesRefused=4,
    snapshotsStored=5,
    sinceSnapshotMs=6000,
    snapshotBytes=7,
)


def test_service_sessions_report_an_ended_service_with_its_end_reason() -> None:
    s, at_ns = sessions(), 5_000_000_000
    s.hello(hello("a", position=4, problem="on_record failed at offset 4: ValueError", failing=True), "_INBOX.a", FOLLOWS, 0)
    s.hello(hello("b", position=10, snapshotPosition=8), "_INBOX.b", FOLLOWS, at_ns)
    s.hello(hello("b", position=10, leaving=True), "_INBOX.b", FOLLOWS, at_ns)
    assert [(one.service, one.ending) for one in s.expire(at_ns)] == [("a", "silent")]
    b, a = s.missing_services(9, at_ns + 1_500_000_000)
    assert a == {
        "service": "a",
        "role": "GONE",
        "position": 4,
        "lag": 6,
        "failing": True,
        "snapshot": 0,
        "gone_s": 1.5,
        "ending": "silent",
        "problem": "on_record failed at offset 4: ValueError",
    }
    assert (b["service"], b["position"], b["lag"], b["failing"], b["snapshot"]) == ("b", 10, 0, False, 8)
    assert b["problem"] == "it was stopped"
    s.hello(hello("a", instance=2), "_INBOX.a", FOLLOWS, at_ns)
    assert [row["service"] for row in s.missing_services(9, at_ns)] == ["b"], "it is back"
    for number in range(100):
        s.hello(hello(f"s{number}"), "_INBOX.s", FOLLOWS, at_ns)
        s.expire(at_ns * 2)
    assert len(s.missing_services(9, at_ns)) == MAX_SERVICES
    assert s.missing_services(9, at_ns)[-1]["problem"] == "nothing is heard from it"


def test_service_sessions_report_contains_one_row_per_service() -> None:
    s = sessions()
    s.hello(hello("a", position=10), "_INBOX.a", FOLLOWS, 0)
    s.hello(hello("a", position=4, outputCount=8, emittedEnd=7, problem="x" * 5000), "_INBOX.a", FOLLOWS, 0)
    s.hello(hello("b", position=10, figures=FIGURES), "_INBOX.b", FOLLOWS, 0)
    s.replay(CANDIDATE, 0)
    s.hello(hello("c", position=12), "_INBOX.c", CANDIDATE, 0)
    rows = {str(row.pop("service")): row for row in s.report(9)}
    problem = str(rows["a"].pop("problem"))
    assert 0 < len(problem) < 5000
    base = {"role": "FOLLOWER", "order": "replay", "acknowledged": False, "output_count": 0, "emitted_end": 0}
    base |= {"fetched_bytes": 0, "given_bytes": 0, "version": 0, "active_version": 0}
    base |= {"promotion_waits": True, "excused": False, "failing": False, "differs": False, "snapshot": 0, "problem": ""}
    base |= {"output_backlog": 0}
    base |= {"since_output_s": None, "queries_waiting": 0, "queries_answered": 0, "queries_refused": 0, "snapshots_stored": 0}
    base |= {"since_snapshot_s": None, "snapshot_bytes": 0, "timers_waiting": 0, "effects_waiting": 0}
    a = base | {"position": 4, "lag": 6, "output_count": 8, "emitted_end": 7, "output_backlog": 1}
    assert rows["a"] == {name: value for name, value in a.items() if name != "problem"}
    b = {"since_output_s": 0.001, "queries_waiting": 2, "queries_answered": 3, "queries_refused": 4, "snapshots_stored": 5}
    assert rows["b"] == base | b | {"position": 10, "lag": 0, "since_snapshot_s": 6.0, "snapshot_bytes": 7}
    assert rows["c"] == base | {"position": 12, "lag": 0, "promotion_waits": False}, "it came when the promotion had begun"
    (order,) = joined(s.hello(hello("b", position=10), "_INBOX.b", CANDIDATE, 0))
    s.ack(acked(order, 10), CANDIDATE)
    s.role_changed(LEADS)
    (order,) = joined(s.hello(hello("c", position=12), "_INBOX.c", LEADS, 0))
    s.ack(acked(order, 3), LEADS)
    found = {row["service"]: (row["role"], row["order"], row["acknowledged"], row["promotion_waits"]) for row in s.report(9)}
    assert found["c"] == ("FOLLOWER", "catch-up", True, False), "it has connected, and is not at its stop"
    assert found["b"] == ("LEADER", "lead", False, False)
    assert found["a"] == ("FOLLOWER", "catch-up", False, False)


def test_service_sessions_ignore_a_replay_ack_of_an_earlier_promotion() -> None:
    s = sessions()
    s.hello(hello(), "_INBOX.a", FOLLOWS, 0)
    (order,) = joined(s.replay(CANDIDATE, 0))
    later = replace(CANDIDATE, leader_epoch=5, high_watermark=11)
    s.role_changed(replace(FOLLOWS, leader_epoch=4))
    s.hello(hello(position=12), "_INBOX.a", replace(FOLLOWS, leader_epoch=4, high_watermark=11), 1)  # excused no more
    effects = s.replay(later, 2)
    (again,) = joined(effects)
    assert (again.stopPosition, again.leaderEpoch, again.role) == (12, 5, pb.SERVICE_FOLLOWER)
    assert not any(r.finished for r in replays(effects))
    assert s.ack(acked(order, 12), later) == [], "the answer to the order of the promotion before"
    (early,) = [effect for effect in s.ack(acked(again, 11), later) if isinstance(effect, ServicesReplayed)] or [None]
    assert early is None or not early.finished, "one record before the stop"
    assert replays(s.ack(acked(again, 12), later)) == [ServicesReplayed(12, True)]
    (lead,) = joined(s.role_changed(replace(LEADS, leader_epoch=5)))
    assert lead.role == pb.SERVICE_LEADER


def test_service_sessions_stop_waiting_for_a_promotion_in_a_new_candidate_epoch() -> None:
    s = sessions()
    s.hello(hello("bank", position=10), "_INBOX.a", FOLLOWS, 0)
    s.hello(hello(), "_INBOX.a", FOLLOWS, 0)
    s.replay(CANDIDATE, 0)
    assert s.role_changed(CANDIDATE) == []
    assert s.waits_until_ns is not None, "still the same candidate"
    s.role_changed(replace(CANDIDATE, leader_epoch=3))
    assert s.waits_until_ns is None, "a candidate in another epoch begins its own"
    assert s.report(9)[0]["excused"] is True


def test_service_sessions_replay_progress_is_the_position_of_the_slowest_service() -> None:
    s = sessions()
    s.hello(hello("a", position=10), "_INBOX.a", FOLLOWS, 0)
    s.hello(hello("b", position=10), "_INBOX.a", FOLLOWS, 0)
    for name, position in (("a", 2), ("b", 5)):
        s.hello(hello(name, position=position), "_INBOX.a", FOLLOWS, 0)
    assert replays(s.replay(CANDIDATE, 0)) == [ServicesReplayed(2, False)]
    assert replays(s.hello(hello("b", position=8), "_INBOX.a", CANDIDATE, 0)) == [], "the slowest has not moved"
    assert replays(s.hello(hello("a", position=30), "_INBOX.a", CANDIDATE, 0)) == [ServicesReplayed(8, False)]
    assert replays(s.hello(hello("b", position=40), "_INBOX.a", CANDIDATE, 0)) == [ServicesReplayed(10, False)]
    s.hello(hello("a", instance=2, first=True, position=0), "_INBOX.a", CANDIDATE, 1500)
    assert s.report(9)[0]["position"] == 0, "a new process begins anew"


@pytest.mark.parametrize("leaving_instance", [1, 2])
def test_service_sessions_ignore_a_leave_of_an_instance_that_is_not_registered(leaving_instance: int) -> None:
    s = sessions()
    s.hello(hello(instance=1), "_INBOX.a", FOLLOWS, 0)
    assert s.hello(hello(instance=leaving_instance, leaving=True, first=True), "_INBOX.z", FOLLOWS, 0) == []
    assert len(s) == (0 if leaving_instance == 1 else 1)
