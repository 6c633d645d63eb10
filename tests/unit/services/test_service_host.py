"""Test a whole ServiceHost on a scripted bus: its messages, its orders and its files."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client.progress import NotServedError
from liftpy.core.services.bad_records import Unit
from liftpy.core.services.effects import Effect, EffectNumbering, NumberingDecision
from liftpy.core.services.rules import NO_PARAMETERS
from liftpy.core.services.versions import VersionDecision
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import service_pb2 as pb
from liftpy.core.wire.batch import Record
from liftpy.core.wire.envelope import MessageType
from liftpy.errors import (
    ConfigError,
    DataDirectoryLockedError,
    LogTruncatedError,
    NotFoundError,
    ProtocolError,
    UnavailableError,
)
from liftpy.service import DivergedError, Role, ServiceFailedError, host
from liftpy.service.bad_record_writer import DecisionWriter, RecordWriter
from liftpy.service.host import ServiceHost
from liftpy.service.settings import ServiceSettings
from liftpy.service.snapshots import ServiceLock
from tests.unit.services.feeder_node import EVERY, FakeLog, Sum


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
    assert (first.version, first.activeVersion) == (0, 0), "there is no state yet"
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


@pytest.mark.parametrize(
    ("text", "reported"),
    [("cannot parse caf\udce9", "cannot parse caf?"), ("cannot parse " + "x" * 2 * 1024 * 1024, "cannot parse xx")],
    ids=["not UTF-8", "larger than a message"],
)
async def test_service_host_reports_an_error_text_that_no_message_can_hold(
    running: Any, monkeypatch: pytest.MonkeyPatch, text: str, reported: str
) -> None:
    bus, _, task, log = running
    publish = bus.publish

    async def limited(subject: str, payload: bytes, *, reply: str) -> None:
        if len(payload) > 1024 * 1024:
            raise ProtocolError("The message is too large.")
        await publish(subject, payload, reply=reply)

    def fail(*_: Any) -> None:
        raise ValueError(text)

    monkeypatch.setattr(bus, "publish", limited)
    monkeypatch.setattr(Quiet, "on_error", "skip")
    monkeypatch.setattr(Quiet, "on_record", fail)
    log.append(1)
    await bus.tell(order(bus, 1))
    await bus.until(lambda: task.done() or reported in bus.hellos[-1].problem)
    assert (task.done(), bus.hellos[-1].failing) == (False, True), "it waits for a decision to skip the record"


async def test_service_host_sends_heartbeats_at_the_heartbeat_interval(running: Any) -> None:
    bus, *_ = running
    await bus.tell(order(bus, 1))
    count = len(bus.hellos)
    async with asyncio.timeout(20):
        await bus.until(lambda: len(bus.hellos) > count + 20)


async def test_service_host_registers_again_after_its_node_was_unreachable(running: Any) -> None:
    bus, _, task, _ = running
    bus.deaf = True
    await asyncio.sleep(0.02)
    assert not task.done()
    bus.deaf = False
    count = len(bus.hellos)
    await bus.until(lambda: len(bus.hellos) > count)


async def test_service_host_ignores_an_order_for_another_instance_and_an_older_order(running: Any) -> None:
    bus, made, task, log = running
    log.append(3)
    other = order(bus, 9, role=pb.SERVICE_LEADER)
    other.instance += 1
    await bus.tell(other)
    await bus.tell(order(bus, 5, role=pb.SERVICE_LEADER))
    await bus.until(lambda: made.leads and bus.acks)
    await bus.tell(order(bus, 4))
    assert made.leads, "an older order arrived late"
    await bus.tell(order(bus, 6))
    await bus.until(lambda: not made.leads)
    assert {ack.ackId for ack in bus.acks} <= {5, 6}
    assert not task.done()


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (pb.ServiceRefusal.MALFORMED, ConfigError),
        (pb.ServiceRefusal.COMPACTED, ConfigError),
        (pb.ServiceRefusal.WRONG_STREAM, NotFoundError),
        (pb.ServiceRefusal.TOO_MANY, None),
        (pb.ServiceRefusal.NO_SUCH_PARTITION, None),
    ],
)
async def test_service_host_ends_only_after_a_permanent_refusal(
    running: Any, tmp_path: Path, reason: Any, error: type[Exception] | None
) -> None:
    bus, made, task, _ = running
    await bus.tell(pb.ServiceRefusal(instance=bus.hellos[0].instance + 1, reason=reason, node="n1", detail="for another"))
    assert made.problem == ""
    await bus.tell(pb.ServiceRefusal(instance=bus.hellos[0].instance, reason=reason, node="n1", detail="why"))
    if error is None:
        assert (made.problem, task.done()) == ("why", False)
    else:
        with pytest.raises(error):
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


async def test_leader_service_with_effects_activates_the_numbering_of_effects_that_its_node_requests(
    running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, _, _, _ = running
    said: list[NumberingDecision] = []

    async def change_numbering(self: Any, who: Any, decision: NumberingDecision) -> int:
        said.append(decision)
        raise UnavailableError("not now")

    async def wait_for_hellos() -> None:
        count = len(bus.hellos)
        await bus.until(lambda: len(bus.hellos) > count + 2)

    monkeypatch.setattr(DecisionWriter, "change_numbering", change_numbering)
    by_record = pb.EFFECT_NUMBERS_BY_RECORD
    leader = {"leads": True, "role": pb.SERVICE_LEADER}
    await bus.tell(order(bus, 1, **leader, effectNumbers=by_record))
    await wait_for_hellos()
    assert said == [], "it has no effects"
    monkeypatch.setattr(Quiet, "on_effect", lambda *_: None)
    for fields in (
        {"leads": True, "effectNumbers": by_record},
        leader,
        {**leader, "effectNumbers": pb.EFFECT_NUMBERS_BY_COUNT},
    ):
        await bus.tell(order(bus, 2, **fields))
        await wait_for_hellos()
    assert said == []
    await bus.tell(order(bus, 3, **leader, effectNumbers=by_record))
    await bus.until(lambda: said)
    assert said == [NumberingDecision("sum", EffectNumbering.BY_RECORD, 3)]


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
    hello = await bus.until(lambda: bus.hellos[-1].figures.snapshotsStored and bus.hellos[-1])
    assert [told.position for told in hello.snapshots] == [0, 3], "at 0 it tells its parameters"
    assert (len(hello.snapshots[1].digest), hello.snapshotPosition) == (16, 3)
    assert [(point.position, point.version) for point in hello.replayPoints] == [(3, 1)]
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


async def test_service_host_rejects_a_change_of_the_state_by_an_effect_while_it_applies_a_record(
    running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, _, _, log = running
    begun, applying, tried = threading.Event(), threading.Event(), threading.Event()
    errors: list[str] = []

    def on_record(service: Quiet, record: Record) -> None:
        if record.offset == 0:
            service.effect("charge", b"")
        else:
            applying.set()
            tried.wait(30)

    def on_effect(service: Quiet, effect: Effect) -> bytes:
        begun.set()
        applying.wait(30)
        try:
            service.set_timer("t", 1)
        except ServiceFailedError as error:
            errors.append(str(error))
        tried.set()
        return b""

    async def append(*_: Any) -> int:
        return 2

    monkeypatch.setattr(RecordWriter, "append", append)
    monkeypatch.setattr(Quiet, "on_record", on_record)
    monkeypatch.setattr(Quiet, "on_effect", on_effect)
    log.append(1)
    await bus.tell(order(bus, 1, role=pb.SERVICE_LEADER, leads=True))
    await bus.until(begun.is_set)
    log.append(1)
    await bus.until(lambda: bus.hellos[-1].position == 2)
    assert len(errors) == 1
    assert "set_timer is allowed only in on_record" in errors[0]


async def test_service_host_with_a_snapshot_before_the_first_record_reports_the_digest_of_its_parameters_for_position_0(
    running: Any,
) -> None:
    bus, made, _, _ = running
    await bus.tell(order(bus, 1))
    await bus.until(lambda: made.machine is not None and made._keeper is not None)
    await made._keeper.save(made.machine.snapshot())  # as before a first record that the service cannot apply
    hello = await bus.until(lambda: bus.hellos[-1].figures.snapshotsStored and bus.hellos[-1])
    assert [(told.position, told.digest) for told in hello.snapshots] == [(0, NO_PARAMETERS)]


class SilentEmitter:
    """An output writer that writes nothing."""

    problem = ""

    def __init__(self, *_: Any) -> None: ...

    def wake(self) -> None: ...

    def reread_end(self) -> None: ...

    async def run(self) -> None:
        await asyncio.Event().wait()


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


async def test_service_host_with_a_failing_last_snapshot_deregisters_as_failed(
    running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus, made, task, log = running
    log.append(1)
    await bus.tell(order(bus, 1))
    await bus.until(lambda: bus.hellos[-1].position == 1)
    monkeypatch.setattr(Quiet, "take_snapshot", lambda self: 1 // 0)
    made.stop()
    with pytest.raises(ServiceFailedError, match="take_snapshot"):
        await task
    assert (bus.hellos[-1].leaving, bus.hellos[-1].ending, bus.subscribed) == (True, pb.ServiceHello.FAILED, {})


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


async def test_service_host_leader_without_messages_of_its_node_becomes_follower(running: Any) -> None:
    bus, made, _, _ = running
    await bus.tell(order(bus, 1, role=pb.SERVICE_LEADER))
    await bus.until(lambda: made.machine is not None and made.machine.role is Role.LEADER)
    made._orders.contact_s -= 60.0
    await bus.until(lambda: made.machine.role is Role.FOLLOWER)
    await bus.tell(order(bus, 1, role=pb.SERVICE_LEADER))
    assert made.leads, "the same order again renews it"


async def test_service_host_that_produces_outputs_again_remains_leader_while_its_node_orders_to_catch_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FOLLOWER would drop the outputs again, without end."""
    bus, log = Bus(), FakeLog()
    monkeypatch.setattr(host, "PartitionReader", lambda *_: log)
    monkeypatch.setattr(host, "Emitter", SilentEmitter)
    settings = ServiceSettings("sum", "in", "n1", tmp_path, output_stream="out", heartbeat_interval_s=0.01, outbox_records=4)
    made = ServiceHost(Sum, settings, bus, "ns")  # type: ignore[arg-type]
    task = asyncio.create_task(made.run())
    await bus.until(lambda: bus.said)
    log.append(30)
    await bus.tell(order(bus, 1))
    first = await bus.until(lambda: made.machine)
    await bus.until(lambda: first.position == 30)
    outbox = first.outbox
    outbox.known = True
    await bus.tell(order(bus, 2, role=pb.SERVICE_LEADER, leads=True, leaderEpoch=4))
    await bus.until(lambda: made.machine is not first)
    await bus.tell(order(bus, 3, leads=True, leaderEpoch=4, stopPosition=30))
    await bus.until(lambda: bus.acks[-1].ackId == 3)
    produced: list[bytes] = []
    while len(produced) < 30:
        waiting = await bus.until(lambda: outbox.read(outbox.emitted_end, 1))
        produced += [output.value for output in waiting]
        outbox.outputs_committed(len(produced))
    assert produced == [b"v%d" % offset for offset in range(30)]
    assert made.leads
    await bus.until(lambda: bus.hellos[-1].figures.sinceOutputMs > 20)
    await bus.tell(order(bus, 4, leaderEpoch=4))
    assert not made.leads, "its node does not lead"
    made.stop()
    await task


class Charging(Sum):
    """A service with one effect, at offset 10."""

    def on_record(self, record: Record) -> None:
        super().on_record(record)
        if record.offset == 10:
            self.effect("charge", b"")

    def on_effect(self, effect: Effect) -> bytes:
        return b"paid"

    def on_effect_result(self, effect: Effect, result: bytes) -> None:
        self.values.append(result.decode())


@pytest.mark.parametrize("told_by", ["order", "reader"])
async def test_service_host_after_a_truncation_during_a_replay_forgets_the_lost_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told_by: str
) -> None:
    """The log ends above the position and below the end of the replay, so the host restores no snapshot."""
    bus, log, appended = Bus(), FakeLog(), []

    async def append(_: Any, name: str, partition: int, value: bytes, *more: Any, **options: Any) -> int:
        appended.append(value)
        return 17

    monkeypatch.setattr(RecordWriter, "append", append)
    monkeypatch.setattr(host, "PartitionReader", lambda *_: log)
    monkeypatch.setattr(host, "Emitter", SilentEmitter)
    settings = ServiceSettings("sum", "in", "n1", tmp_path, output_stream="out", heartbeat_interval_s=0.01, outbox_records=4)
    made = ServiceHost(Charging, settings, bus, "ns")  # type: ignore[arg-type]
    task = asyncio.create_task(made.run())
    await bus.until(lambda: bus.said)
    await bus.tell(order(bus, 1, highWatermark=29))
    first = await bus.until(lambda: made.machine)
    first.skip(Unit(20))  # as a decision at offset 28 says
    log.append(30)
    await bus.until(lambda: first.position == 30)
    outbox = first.outbox
    outbox.known = True
    await bus.tell(order(bus, 2, role=pb.SERVICE_LEADER, leads=True, leaderEpoch=4, highWatermark=29))
    await bus.until(lambda: made.machine is not first and made.machine.position == 4)
    machine = made.machine
    assert machine is not None
    assert machine.is_replaying
    del log.batches[17:]
    if told_by == "reader":
        log.truncated = LogTruncatedError("cut", 17)
        await bus.tell(order(bus, 3, leaderEpoch=5, highWatermark=29))
        await bus.until(lambda: machine.replay_end == 17)
        log.truncated = None
    await bus.tell(order(bus, 4, leaderEpoch=5, highWatermark=16, stopPosition=17))
    await bus.until(lambda: machine.position == 17)
    outbox.outputs_committed(17)  # another LEADER has written them
    await bus.tell(order(bus, 5, role=pb.SERVICE_LEADER, leads=True, leaderEpoch=5, highWatermark=16))
    await bus.until(lambda: appended)
    assert (made.machine, set(appended)) == (machine, {b"paid"})
    log.append(5, epoch=5, prefix="w")
    await bus.until(lambda: outbox.output_count == 21 or outbox.full)
    outbox.outputs_committed(20)
    await bus.until(lambda: machine.position == 22)
    service: Any = machine.service
    assert service.values[17:] == ["w17", "w18", "w19", "w20", "w21"]
    made.stop()
    await task
