"""Test records that a service cannot apply: all nodes undo and skip them by one decision in the log."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from liftpy.client.batch_view import BatchSlice
from liftpy.client.progress import ReadProgress
from liftpy.config import StreamConfig
from liftpy.core.services import bad_records
from liftpy.core.services.bad_records import (
    MAX_SKIPS,
    BadRecordError,
    DecisionMissedError,
    FailedUnit,
    NextStep,
    OnError,
    SkipDecision,
    SkippedUnits,
    Unit,
    dead_letter_headers,
    decided_unit,
)
from liftpy.core.services.snapshot import decode
from liftpy.core.wire.batch import Record, parse_batch
from liftpy.errors import DataLossError, OffsetOutOfRangeError, UnavailableError
from liftpy.service import Identity, Outbox, Role, Service, ServiceFailedError, ServiceMachine, Snapshot
from liftpy.service.bad_record_writer import DecisionWriter
from liftpy.testing.memory import memory_cluster
from tests.batches import build_batch
from tests.each import each
from tests.unit.services.feeder_node import Node as FeederNode

WHO = Identity("brittle", "in", "u1", 0)


class Brittle(Service):
    """Emits every value in halves; raises on ``bad`` after the first half, and on timers named ``bad``."""

    broken = True

    def on_start(self, snapshot: bytes | None) -> None:
        self.seen: list[str] = json.loads(snapshot) if snapshot else []

    def on_record(self, record: Record) -> None:
        text = (record.value or b"").decode()
        self.seen.append(text)
        if text.startswith("timer "):
            self.set_timer(text.split()[1], self.now_ns)
        self.emit(text.encode() + b"/1")
        if text == "bad" and self.broken:
            raise ValueError("out of range")
        self.emit(text.encode() + b"/2")

    def on_timer(self, name: str) -> None:
        self.seen.append(f"fired {name}")
        self.emit(name.encode())
        if name == "bad" and self.broken:
            raise KeyError(name)

    def take_snapshot(self) -> bytes:
        return json.dumps(self.seen).encode()


class Skipping(Brittle):
    """A service like ``Brittle`` with ``on_error`` set to skip."""

    on_error = "skip"


def record(offset: int, value: bytes = b"x", at_ns: int = 0, epoch: int = 1, headers: Any = ()) -> Record:
    return Record(offset, at_ns, None, value, headers, "", None, epoch)


def machine_of(service: Service, who: Identity = WHO, snapshot: Any = None) -> ServiceMachine:
    machine = ServiceMachine(service, who, snapshot_interval_records=1000, outbox=Outbox("u1/0"))
    machine.start(snapshot)
    return machine


def outputs(machine: ServiceMachine) -> list[bytes]:
    assert machine.outbox is not None
    return [output.value for output in machine.outbox.read(machine.outbox.oldest_number, 10_000)]


# ---- the machine -------------------------------------------------------------------------------------------------------------
def test_service_failing_record_discards_its_outputs_and_raises_with_its_offset() -> None:
    machine = machine_of(Brittle())
    with pytest.raises(BadRecordError, match="on_record failed at offset 2: ValueError: out of range") as raised:
        machine.apply([record(0), record(1), record(2, b"bad")])
    assert raised.value.unit == Unit(2)
    assert outputs(machine) == [b"x/1", b"x/2"] * 2
    assert machine.outbox is not None
    assert machine.outbox.output_count == 4
    with pytest.raises(ServiceFailedError, match="Its state"):
        machine.snapshot()


def test_service_skip_decision_for_an_applied_record_raises_decision_missed() -> None:
    machine = machine_of(Brittle())
    with pytest.raises(DecisionMissedError) as missed:  # the offsets between were compacted
        machine.apply([record(0), record(9, b"", headers=SkipDecision("brittle", Unit(0)).headers())])
    assert (missed.value.unit, missed.value.decision_offset) == (Unit(0), 9)
    with pytest.raises(ServiceFailedError, match="makes no snapshot"):  # a stop would store it instead of an earlier one
        machine.snapshot()


@each(
    "header",
    [
        b"other/0/0/",
        b"brittle/1/0/",  # itself
        b"brittle/5/0/",  # what is to come
        b"brittle/0/7/",  # of another LeaderEpoch
        b"brittle/-1/0/",
        b"brittle/0/0",
        b"brittle/x/0/",
        b"../x/0/0/",
        b"\xff",
        b"",
    ],
)
def test_service_skip_decision_that_is_invalid_is_ignored(header: bytes) -> None:
    service = Brittle()
    machine = machine_of(service)
    machine.apply([record(0), record(1, b"bad", headers=(("Lift-Service-Skip", header),))])
    assert (service.seen, machine.position) == (["x"], 2)


def test_service_snapshot_contains_the_applied_skip_decisions() -> None:
    machine = machine_of(Brittle())
    machine.skip(Unit(1))
    machine.skip(Unit(7, "née"))
    machine.apply([record(0), record(1, b"bad")])
    snapshot = decode(machine.snapshot().encode(), WHO)
    assert snapshot == machine.snapshot()
    assert snapshot.skips == (Unit(1),)  # when the other one was learned is not the same on all nodes
    again = machine_of(Brittle(), snapshot=snapshot)
    again.apply([record(2), record(3, b"", headers=SkipDecision("brittle", Unit(1)).headers())])
    assert again.position == 4


def test_service_skip_decisions_are_bounded_in_number() -> None:
    skips = SkippedUnits()
    for offset in range(MAX_SKIPS + 5):
        skips.add(Unit(offset), offset)
    assert len(list(skips)) == MAX_SKIPS + 1, "those that were skipped, and the last one"
    assert Unit(3) not in skips
    assert Unit(4) in skips
    assert len(skips.newest(MAX_SKIPS + 5)) == MAX_SKIPS


# ---- what is done about it ---------------------------------------------------------------------------------------------------
def test_service_failing_record_is_retried_by_the_leader_before_a_skip_decision() -> None:
    error, newest = (BadRecordError(Unit(3), record(3), text) for text in "xy")
    failing = FailedUnit(error)
    assert failing.next(OnError.STOP, leads=True, now_s=0) is NextStep.STOP
    assert failing.next(OnError.SKIP, leads=True, now_s=0) is NextStep.TRY
    failing.record_failure(error, 100.0)
    assert failing.next(OnError.SKIP, leads=True, now_s=100) is NextStep.DECIDE
    failing.decided_s = 100.0
    assert failing.next(OnError.SKIP, leads=True, now_s=101) is NextStep.WAIT  # its decision is on its way
    assert failing.next(OnError.SKIP, leads=True, now_s=111) is NextStep.DECIDE
    failing.decided_s = None
    assert failing.next(OnError.SKIP, leads=False, now_s=100.5) is NextStep.WAIT
    assert failing.next(OnError.SKIP, leads=False, now_s=101) is NextStep.TRY
    for _ in range(30):
        failing.record_failure(newest, 200.0)
    assert failing.next(OnError.SKIP, leads=False, now_s=259) is NextStep.WAIT
    assert failing.next(OnError.SKIP, leads=False, now_s=260) is NextStep.TRY
    assert failing.error is newest, "operators read why the record fails now"


def test_dead_letter_of_a_service_has_its_source_and_drops_headers_that_control_a_publish() -> None:
    """Two records with one message id become two dead letters."""
    asking = (
        "Nats-Msg-Id",
        "Nats-Expected-Last-Sequence",
        "Nats-Expected-Stream",
        "Nats-TTL",
        "Nats-Schedule-Target",
        "Nats-Rollup",
    )
    own = (("a", b"1"), ("Nats-Trace-Dest", b"t"))
    given = (*((name, b"1") for name in (*asking, "Lift-Output")), *own)
    headers = dead_letter_headers("bank", "in/u1/0", "é" * 400, record(7, headers=given))
    assert headers[:2] == own
    added = dict(headers[2:])
    assert added.keys() == {"Lift-Dead-Letter-Service", "Lift-Dead-Letter-Source", "Lift-Dead-Letter-Error"}
    assert added["Lift-Dead-Letter-Source"] == b"in/u1/0/7"
    assert len(added["Lift-Dead-Letter-Error"]) == 500


# ---- the feeder --------------------------------------------------------------------------------------------------------------
class FakeLog:
    """A log with one record per batch. A read at the high watermark ends after a moment, as a long poll does."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.log_start = 0
        self.is_busy = False
        """Records keep arriving: no read is answered with nothing."""

    def append(self, *values: bytes, headers: Any = (), epoch: int = 1) -> None:
        for value in values:
            self.batches.append(build_batch([value], base_offset=len(self.batches), leader_epoch=epoch, headers=[headers]))

    async def fetch(self, progress: ReadProgress) -> list[BatchSlice]:
        if progress.next_offset < self.log_start:
            raise OffsetOutOfRangeError("gone")
        await asyncio.sleep(0 if progress.next_offset < len(self.batches) else 0.01)
        if self.is_busy and progress.next_offset >= len(self.batches):
            self.append(b"more")
        progress.high_watermark = len(self.batches) - 1
        found = [parse_batch(data) for data in self.batches[progress.next_offset : progress.next_offset + 7]]
        if found:
            progress.next_offset = found[-1].next_offset
        return [s for s in (BatchSlice.between(batch, 0, None) for batch in found) if s]


class Node(FeederNode):
    """A feeder whose service may fail. A leader decides to skip the record."""

    who = WHO

    def __init__(self, log: FakeLog, data: Path, factory: type[Brittle], *, leads: bool = False, fetcher: Any = None) -> None:
        super().__init__(log, data, factory, kept=3, fetcher=fetcher)
        self.role = Role.LEADER
        self.is_beside_leader, self.decisions, self.refuse_decisions = leads, 0, False

    async def pass_over(self, identity: Identity, decision: SkipDecision, record: Record, error: str) -> None:
        if self.refuse_decisions:
            raise UnavailableError("nobody")
        self.decisions += 1
        self.log.append(b"why", headers=decision.headers())

    async def at(self, position: int) -> None:
        await self.until(lambda: self.machine.position == position and self.feeder.failing is None)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Any]:
    made: list[Node] = []
    log = FakeLog()

    def make(factory: type[Brittle], *, leads: bool = False, fetcher: Any = None, folder: str = "", log: FakeLog = log) -> Node:
        made.append(Node(log, tmp_path / (folder or f"n{len(made)}"), factory, leads=leads, fetcher=fetcher))
        return made[-1]

    yield make
    for node in made:
        await node.close()


BEFORE, AFTER = [b"a%d" % n for n in range(25)], [b"b%d" % n for n in range(8)]


def expected() -> list[str]:
    return [value.decode() for value in [*BEFORE, *AFTER]]


async def test_service_skip_decision_of_the_leader_is_applied_on_all_nodes(nodes: Any) -> None:
    leader, follower = nodes(Skipping, leads=True), nodes(Skipping)
    leader.log.append(*BEFORE, b"bad", *AFTER)
    await follower.start()
    await follower.until(lambda: follower.feeder.failing is not None and follower.feeder.failing.tries >= 2)
    assert "offset 25" in follower.feeder.problem
    await leader.start()
    end = len(BEFORE) + 1 + len(AFTER) + 1
    for node in (leader, follower):
        await node.at(end)
        assert node.services[-1].seen == expected()
    assert leader.decisions == 1
    assert leader.outbox.digest == follower.outbox.digest != b""
    late = nodes(Skipping)
    await late.start()
    await late.at(end)
    assert late.machine.snapshot().encode() == leader.machine.snapshot().encode()


async def test_service_record_feeder_that_applied_a_skipped_record_rewinds_to_a_snapshot(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record failed on another node only."""
    node = nodes(Skipping)
    monkeypatch.setattr(Skipping, "broken", False)
    node.log.append(*BEFORE, b"bad", *AFTER, *[b"c"] * 10)
    await node.start()
    await node.at(44)
    node.log.append(b"why", headers=SkipDecision("brittle", Unit(25), 1).headers())
    await node.at(45)
    assert node.services[-1].seen == [*expected(), *["c"] * 10]
    await node.until(lambda: not has_snapshot_with(node, b"bad"))
    await node.until(lambda: node.keeper.digests[-1][0] == 45)
    told = [position for position, _ in node.keeper.digests]
    assert not [position for position in told if 25 < position < 45], "another node may not have read the decision yet"


def has_snapshot_with(node: Node, value: bytes) -> bool:
    for path in files_of(node):
        with suppress(FileNotFoundError):  # a thread has just deleted it
            if value in path.read_bytes():
                return True
    return False


def files_of(node: Node) -> list[Path]:
    return sorted(node.store.folder.glob("*.snapshot"))


async def test_service_process_killed_while_it_skips_an_applied_record_skips_it_at_the_next_start(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = nodes(Skipping, folder="n1")
    monkeypatch.setattr(Skipping, "broken", False)
    node.log.append(*BEFORE, b"bad", *AFTER, *[b"c"] * 10)
    await node.start()
    await node.at(44)
    started = node.machine_started
    node.machine_started = lambda machine, snapshot: (started(machine, snapshot), node.feeder.stop_at(33))
    node.log.append(b"why", headers=SkipDecision("brittle", Unit(25), 1).headers())
    await node.at(33)
    await node.close()
    again = nodes(Skipping, folder="n1")
    await again.start()
    await again.at(45)
    assert again.services[-1].seen == [*expected(), *["c"] * 10]


async def test_service_that_replays_more_skipped_records_than_a_snapshot_names_skips_all_of_them(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bad_records, "MAX_SKIPS", 4)
    node = nodes(Skipping)
    node.log.append(b"first", *[b"bad"] * 8, *AFTER)
    for offset in range(1, 9):
        node.log.append(b"why", headers=SkipDecision("brittle", Unit(offset), 1).headers())
    await node.start()
    await node.at(25)
    assert node.services[-1].seen == ["first", *[value.decode() for value in AFTER]]
    node.log.append(b"why", headers=SkipDecision("brittle", Unit(0)).headers())  # the replay begins with the first record
    await node.at(26)
    assert node.services[-1].seen == [value.decode() for value in AFTER]
    late = nodes(Skipping)
    await late.start()
    await late.at(26)
    assert late.machine.snapshot().encode() == node.machine.snapshot().encode()
    assert len(decode(late.machine.snapshot().encode(), WHO).skips) == 4


class PeerSnapshots:
    """Gives a node the snapshots of another node: those that ``wanted`` accepts by their position, the oldest first."""

    problem = tried = ""

    def __init__(self, giver: Node) -> None:
        self.giver = giver
        self.taker: Node

    async def fetch(self, lowest: int, wanted: Any, needed: Any) -> bool:
        async with asyncio.timeout(30):
            while True:
                for position in self.giver.store.positions():
                    if position >= lowest and wanted(Snapshot(WHO, position, 0, 0, 0, (), b"")):
                        found = self.giver.store.newest(lambda stored, position=position: stored.position == position)
                        self.taker.store.save(found, 1000)
                        return True
                await asyncio.sleep(0.002)


async def test_service_that_cannot_skip_an_applied_record_ends_and_keeps_its_snapshots(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log starts above all snapshots from before the record."""
    node = nodes(Skipping, folder="n1")
    monkeypatch.setattr(Skipping, "broken", False)
    node.log.append(*BEFORE, b"bad", *AFTER, *[b"c"] * 10)
    await node.start()
    await node.at(44)
    await node.until(lambda: node.store.positions()[-1] == 40)
    node.log.log_start = 35
    before = [path.read_bytes() for path in files_of(node)]
    node.log.append(b"why", headers=SkipDecision("brittle", Unit(37)).headers())
    with pytest.raises(DataLossError, match=r"decides to skip offset 37, but this service has applied it.*unchanged"):
        await node.at(45)
    assert [path.read_bytes() for path in files_of(node)] == before
    again = nodes(Skipping, folder="n1")
    await again.start()
    with pytest.raises(DataLossError):
        await again.at(45)
    assert [path.read_bytes() for path in files_of(node)] == before


async def test_service_that_cannot_skip_an_applied_record_applies_it_when_the_decision_is_withdrawn(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log starts above all snapshots from before the record, so no node can skip it."""
    node = nodes(Skipping, folder="n1")
    monkeypatch.setattr(Skipping, "broken", False)
    node.log.append(*BEFORE, b"bad", *AFTER, *[b"c%d" % n for n in range(10)])
    await node.start()
    await node.at(44)
    await node.until(lambda: node.store.positions()[-1] == 40)
    node.log.log_start = 35
    node.log.append(b"why", headers=SkipDecision("brittle", Unit(37)).headers())
    with pytest.raises(DataLossError, match="liftpy service skip brittle --stream in --partition 0 --offset 44"):
        await node.at(45)
    node.log.append(b"d")
    node.log.append(b"why", headers=SkipDecision("brittle", Unit(44)).headers())
    node.log.append(b"e")
    again = nodes(Skipping, folder="n1")
    again.role = Role.FOLLOWER
    await again.start()
    await again.at(48)
    assert again.services[-1].seen[-12:] == [*[f"c{n}" for n in range(10)], "d", "e"]
    assert again.services[-1].seen[:26] == [*expected()[:25], "bad"]
    await again.until(lambda: again.store.positions()[-1] == 48)
    await again.close()
    late = nodes(Skipping, folder="n1")
    late.role = Role.FOLLOWER
    await late.start()
    await late.at(48)
    assert late.machine.snapshot().encode() == again.machine.snapshot().encode()


async def test_service_that_has_skipped_a_record_applies_it_when_the_decision_is_withdrawn(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[A24] Nodes that read the withdrawal at another time, and a node that starts from the first record, have the same state."""
    monkeypatch.setattr(Skipping, "broken", False)
    node, killed = nodes(Skipping), nodes(Skipping, folder="n2")
    node.log.append(*BEFORE, b"bad", *AFTER, *[b"c%d" % n for n in range(10)])
    node.log.append(b"why", headers=SkipDecision("brittle", Unit(25)).headers())
    for one in (node, killed):
        await one.start()
        await one.at(45)
        assert "bad" not in one.services[-1].seen
    await killed.until(lambda: killed.store.positions()[-1] == 45)
    await killed.close()
    node.log.append(b"d", *[b"e"] * 8)
    node.log.append(b"why", headers=SkipDecision("brittle", Unit(44)).headers())
    node.log.append(b"f")
    again, late = nodes(Skipping, folder="n2"), nodes(Skipping)
    for one in (again, late):
        await one.start()
    for one in (node, again, late):
        await one.at(56)
        assert one.services[-1].seen.count("bad") == 1
        assert one.services[-1].seen[-1] == "f"
        assert one.machine.snapshot().encode() == node.machine.snapshot().encode()
        await one.until(lambda one=one: one.keeper.digests[-1][0] == 56)
        told = [position for position, _ in one.keeper.digests]
        assert not [position for position in told if 44 < position < 55], "another node may not have read the withdrawal yet"
    node.log.append(b"why", headers=SkipDecision("brittle", Unit(25)).headers())
    for one in (node, again, late):
        await one.at(57)
        assert "bad" not in one.services[-1].seen


async def test_service_blocked_at_a_record_ignores_a_withdrawn_decision_to_skip_it(nodes: Any) -> None:
    node = nodes(Brittle)
    node.log.append(*BEFORE, b"bad", *AFTER)
    node.log.append(b"why", headers=SkipDecision("brittle", Unit(25)).headers())
    node.log.append(b"why", headers=SkipDecision("brittle", Unit(34)).headers())
    await node.start()
    with pytest.raises(ServiceFailedError, match="on_record failed at offset 25"):
        await node.at(36)
    node.log.append(b"why", headers=SkipDecision("brittle", Unit(25)).headers())
    again = nodes(Brittle, folder="n1")
    await again.start()
    await again.at(37)
    assert again.services[-1].seen == expected()


async def test_service_that_cannot_skip_an_applied_record_fetches_the_snapshot_of_a_node_that_has_skipped_it(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Skipping, "broken", False)
    able = nodes(Skipping)
    able.log.append(*BEFORE, b"bad", *AFTER, *[b"c%d" % n for n in range(10)])
    peer, same_log = PeerSnapshots(able), FakeLog()
    same_log.batches = able.log.batches
    node = peer.taker = nodes(Skipping, fetcher=peer, log=same_log)
    for one in (able, node):
        await one.start()
        await one.at(44)
        await one.until(lambda one=one: one.store.positions()[-1] == 40)
    same_log.log_start = 35
    node.log.append(b"why", headers=SkipDecision("brittle", Unit(37)).headers())
    for one in (able, node):
        await one.at(45)
        assert "c3" not in one.services[-1].seen
    assert able.services[-1].seen == node.services[-1].seen
    assert able.machine.snapshot().encode() == node.machine.snapshot().encode()


@pytest.mark.parametrize("late_s", [0.0, 0.02])
async def test_service_record_feeder_drops_skip_decisions_of_truncated_records(nodes: Any, late_s: float) -> None:
    """A read of the new log may come together with the news of the truncation."""
    node = nodes(Skipping)
    node.log.append(*BEFORE, b"bad", *AFTER)
    node.log.append(b"why", headers=SkipDecision("brittle", Unit(25), 1).headers())
    await node.start()
    await node.at(len(node.log.batches))
    del node.log.batches[20:]  # an unclean election: another log from 20 on
    node.log.append(*[b"c%d" % offset for offset in range(20, 40)], epoch=5)
    node.feeder.cut_at(20)
    time.sleep(late_s)  # noqa: ASYNC251
    await node.at(40)
    assert node.services[-1].seen == [*expected()[:20], *[f"c{offset}" for offset in range(20, 40)]]


@pytest.mark.parametrize("told_by", ["order", "cut"])
async def test_service_record_feeder_after_an_election_lost_the_skip_decision_applies_the_record(
    nodes: Any, monkeypatch: pytest.MonkeyPatch, told_by: str
) -> None:
    """The log keeps the record and what follows it, and loses only the decision."""
    node = nodes(Skipping)
    node.log.append(*BEFORE, b"bad", *AFTER)
    await node.start()
    await node.until(lambda: node.feeder.failing is not None and node.feeder.failing.tries >= 2)
    if told_by == "order":  # the state is before the record
        node.feeder.stop_at(25)
    node.log.append(b"why", headers=SkipDecision("brittle", Unit(25), 1).headers())
    end = 25 if told_by == "order" else len(node.log.batches)
    await node.until(lambda: Unit(25) in node.machine.skipped_units and node.machine.position == end)
    monkeypatch.setattr(Skipping, "broken", False)
    del node.log.batches[32:]
    node.log.append(*[b"c"] * 5, epoch=5)
    if told_by == "order":
        node.feeder.check_replay(5, 32)
        node.feeder.stop_at(None)
    else:
        node.feeder.cut_at(32)
    await node.until(lambda: node.machine.position == 37)
    assert node.services[-1].seen == [*[value.decode() for value in [*BEFORE, b"bad", *AFTER[:6]]], *["c"] * 5]


async def skipped_before_its_decision(node: Any, stop_position: int) -> None:
    """Let the node skip the record at 25 and stop at ``stop_position``, before the decision at 34."""
    node.log.append(*BEFORE, b"bad", *AFTER)
    await node.start()
    await node.until(lambda: node.feeder.failing is not None and node.feeder.failing.tries >= 2)
    node.feeder.stop_at(stop_position)
    node.log.append(b"why", headers=SkipDecision("brittle", Unit(25), 1).headers())
    await node.until(lambda: Unit(25) in node.machine.skipped_units and node.machine.position == stop_position)


async def test_service_record_feeder_told_of_a_lost_skip_decision_and_a_log_end_applies_the_record(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One order of the node has both: the host reports the high watermark, then the log end below the state."""
    node = nodes(Skipping)
    await skipped_before_its_decision(node, 33)
    monkeypatch.setattr(Skipping, "broken", False)
    del node.log.batches[32:]
    node.log.append(*[b"c"] * 5, epoch=5)
    node.feeder.check_replay(5, 31)
    node.feeder.cut_at(32)
    node.feeder.stop_at(None)
    await node.until(lambda: node.machine.position == 37)
    assert node.services[-1].seen == [*[value.decode() for value in [*BEFORE, b"bad", *AFTER[:6]]], *["c"] * 5]


async def test_service_record_feeder_waiting_log_end_is_not_replaced_by_a_higher_one(nodes: Any) -> None:
    node = nodes(Skipping)
    node.log.append(*BEFORE)
    await node.start()
    await node.at(25)
    del node.log.batches[15:]
    node.log.append(*[b"c"] * 20, epoch=1)  # the epochs do not show the truncation
    node.feeder.cut_at(15)
    node.feeder.cut_at(24)
    await node.at(35)
    assert node.services[-1].seen == [*expected()[:15], *["c"] * 20]


async def test_service_record_feeder_without_a_snapshot_before_the_skipped_record_keeps_its_newest_snapshot(
    nodes: Any,
) -> None:
    """Retention has deleted the skipped record, so that no node can apply it."""
    node = nodes(Skipping)
    await skipped_before_its_decision(node, 33)
    await node.until(lambda: node.store.positions()[-1] == 30)
    node.log.log_start = 28
    del node.log.batches[32:]
    node.log.append(*[b"c"] * 5, epoch=5)
    node.feeder.stop_at(None)
    node.feeder.cut_at(32)
    await node.until(lambda: node.machine.position == 37)
    assert node.services[-1].seen == [*expected()[:31], *["c"] * 5]


async def test_service_record_feeder_told_of_a_log_end_above_the_lost_skip_decision_applies_the_record(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new leader has appended records before the node hears of the truncation."""
    node = nodes(Skipping)
    await skipped_before_its_decision(node, 33)
    node.log.append(*[b"d"] * 4)
    node.feeder.stop_at(None)
    await node.at(39)
    monkeypatch.setattr(Skipping, "broken", False)
    del node.log.batches[32:]
    node.log.append(*[b"c"] * 5, epoch=5)
    node.feeder.cut_at(37)
    await node.until(lambda: node.machine.position == 37)
    assert node.services[-1].seen == [*[value.decode() for value in [*BEFORE, b"bad", *AFTER[:6]]], *["c"] * 5]


async def test_service_record_feeder_finds_a_skip_decision_that_a_new_leader_appended_below_the_searched_offset(
    nodes: Any,
) -> None:
    node = nodes(Skipping)
    node.log.append(*BEFORE, b"bad", *AFTER)
    await node.start()
    await node.until(lambda: node.feeder.failing is not None and node.feeder.failing.scanned == 34)
    del node.log.batches[30:]  # an unclean election: another log from 30 on
    node.log.append(b"why", headers=SkipDecision("brittle", Unit(25), 5).headers(), epoch=5)
    node.log.append(*[b"c"] * 10, epoch=5)
    node.feeder.verify(0)
    await node.at(41)
    assert node.services[-1].seen == [*expected()[:29], *["c"] * 10]


async def test_service_on_error_stop_ends_the_service_with_an_error_that_contains_the_skip_command(nodes: Any) -> None:
    node = nodes(Brittle, leads=True)
    node.log.append(*BEFORE, b"bad", *AFTER)
    await node.start()
    with pytest.raises(ServiceFailedError, match="liftpy service skip brittle --stream in --partition 0 --offset 25"):
        await node.at(-1)
    assert node.decisions == 0
    node.log.append(b"why", headers=SkipDecision("brittle", Unit(25)).headers())
    again = nodes(Brittle)
    await again.start()
    await again.at(len(node.log.batches))
    assert again.services[-1].seen == expected()


async def test_service_failing_record_that_succeeds_on_retry_is_not_skipped(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = nodes(Skipping, leads=True)
    node.log.append(*BEFORE, b"bad", *AFTER)
    await node.feeder.restart(0)

    def healed() -> Brittle:
        monkeypatch.setattr(Skipping, "broken", False)
        return Skipping()

    node.factory = healed
    node.task = asyncio.create_task(node.feeder.run())
    await node.at(len(BEFORE) + 1 + len(AFTER))
    assert node.decisions == 0
    assert "bad" in node.services[-1].seen


async def test_leader_service_that_fails_at_a_record_with_written_outputs_does_not_skip_it(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier LEADER has applied the record. If all nodes skipped it now, their outputs would differ from the written ones."""
    monkeypatch.setattr(bad_records, "FIRST_WAIT_S", 0.01)
    node = nodes(Skipping, leads=True)
    node.log.append(*BEFORE, b"bad", *AFTER)
    node.outbox.outputs_committed(2 * len(BEFORE) + 2)
    await node.start()
    await node.until(lambda: node.feeder.failing is not None and node.feeder.failing.tries >= 4)
    assert node.decisions == 0
    monkeypatch.setattr(Skipping, "broken", False)
    await node.at(len(BEFORE) + 1 + len(AFTER))
    assert "bad" in node.services[-1].seen


async def test_service_skip_decision_rejected_by_the_stream_is_written_again(nodes: Any) -> None:
    node = nodes(Skipping, leads=True)
    node.refuse_decisions = True
    node.log.append(*BEFORE, b"bad", *AFTER)
    await node.start()
    await node.until(lambda: "giving up on it: UNAVAILABLE" in node.feeder.problem)
    node.refuse_decisions = False
    await node.at(len(BEFORE) + 1 + len(AFTER) + 1)


async def test_service_failing_record_retry_starts_at_the_last_snapshot_before_the_record(nodes: Any) -> None:
    """The service takes a snapshot right before the failing record."""
    node = nodes(Skipping, leads=True)
    node.log.append(*BEFORE, b"bad", b"bad", *AFTER)
    await node.start()
    await node.at(len(BEFORE) + 2 + len(AFTER) + 2)
    assert 25 in node.store.positions()
    assert node.services[-1].seen == expected()


@pytest.mark.parametrize("kind", [Skipping, Brittle])
async def test_service_failing_record_is_skipped_while_new_records_arrive(nodes: Any, kind: type[Brittle]) -> None:
    node = nodes(kind, leads=True)
    node.log.is_busy = True
    node.log.append(*BEFORE, b"bad", *AFTER)
    await node.start()
    if kind is Skipping:
        await node.until(lambda: node.decisions and node.machine.position > len(BEFORE) + len(AFTER) + 2)
        assert (node.decisions, "bad" in node.services[-1].seen) == (1, False)
    else:
        with pytest.raises(ServiceFailedError, match="service skip"):
            await node.until(lambda: False)


async def test_service_skip_decision_with_a_long_error_that_is_not_utf_8_is_stored() -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        uid = (await client.create_stream("in", "data.in")).uid
        await client.create_stream("dead", "data.dead")
        await client.publish("in", b"bad")
        writer = DecisionWriter(client, "dead")
        bad = record(0, b"bad", headers=(("caf\udce9", b"1"), ("h", b"2")))
        decision = SkipDecision("odd", Unit(0))
        assert await writer.pass_over(Identity("odd", "in", uid, 0), decision, bad, "caf\udce9" * 1_000_000) == 1
        [_, stored] = [one async for one in client.consume("in", until="end")]
        assert decided_unit(stored, "odd") == Unit(0)
        [dead] = [one async for one in client.consume("dead", until="end")]
        assert (dead.value, dead.header("h")) == (b"bad", b"2")


async def test_service_skip_of_a_record_that_is_too_large_for_the_dead_letter_stream_stores_its_remaining_parts() -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        uid = (await client.create_stream("in", "data.in")).uid
        await client.create_stream("dead", "data.dead", config=StreamConfig(max_message_bytes=1000))
        for number in range(4):
            await client.publish("in", b"%d" % number)
        writer, large = DecisionWriter(client, "dead"), b"x" * 2000
        bad = [
            record(0, b"small", headers=(("h", b"2"),))._replace(key=b"k"),
            record(1, large, headers=(("h", b"2"),))._replace(key=b"k"),
            record(2, large, headers=(("h", large),))._replace(key=b"k"),
            record(3, large, headers=(("h", large),))._replace(key=large),
        ]
        for one in bad:
            await writer.pass_over(Identity("odd", "in", uid, 0), SkipDecision("odd", Unit(one.offset)), one, "it fails")
        letters = [one async for one in client.consume("dead", until="end")]
        assert [(one.value, one.header("h"), one.key) for one in letters] == [
            (b"small", b"2", b"k"),
            (b"", b"2", b"k"),
            (b"", None, b"k"),
            (b"", None, None),
        ]
        errors = [one.header("Lift-Dead-Letter-Error") or b"" for one in letters]
        assert errors[0] == b"it fails"
        assert all(error.endswith(b"left out. it fails") for error in errors[1:])


def test_bad_record_error_with_a_long_text_has_its_beginning_and_the_offset() -> None:
    text = str(BadRecordError(Unit(3), record(3), "cannot parse " + "x" * 1_000_000))
    assert text.startswith("cannot parse x")
    assert text.endswith("the record at offset 3 can't be applied")
    assert len(text) < 600
