"""Test that every effect is executed in order, and that failures become events."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import sidecar.partition.replica_manager as set_module
from liftpy.config import ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.compaction_point import Horizon
from liftpy.core.log.epoch_promises import PromiseJournal
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.replication import effects as do
from liftpy.core.replication import events
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire._pb import replication_pb2
from liftpy.core.wire.batch import build_batch, split_batches
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import InvariantError, NoSpaceError, StorageError
from sidecar.partition import worker as driver_module
from sidecar.partition.deletions import Deletions
from sidecar.partition.metric_sums import NodeCounts
from sidecar.partition.promises import Promises
from sidecar.partition.replication import AnswerRouter, FetchClient
from sidecar.partition.worker import RECENT_STEPS, PartitionWorker, ReplicaDriver
from tests.unit.partition.shell_parts import PARTS, DrivenWorker, executing_worker, process_tools
from tests.unit.partition.test_partition_opening import Group, Worker
from tests.unit.partition.test_scrub import flip, partition, scrub_of
from tests.until import until


class Anything:
    """Takes every call and notes it."""

    def __init__(self, calls: list[str], name: str, fails: dict[str, Exception] | None = None) -> None:
        self._calls, self._name, self._fails = calls, name, fails or {}
        self.log_end_offset, self.log_start_offset = 5, 0

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> bytes:
            self._calls.append(f"{self._name}.{name}")
            if name in self._fails:
                raise self._fails[name]
            if name == "alone":
                return args[0]()
            return b"batch"

        return call


def executor(
    fails: dict[str, Exception] | None = None, repaired: list[str] | None = None
) -> tuple[PartitionWorker, list[str], list[events.Event]]:
    calls: list[str] = []
    fed: list[events.Event] = []
    parts: dict[str, Any] = {name: Anything(calls, name) for name in PARTS}
    return executing_worker(fed, parts, Anything(calls, "log", fails), repaired), calls, fed


class Scripted:
    """A replica that answers each event with prepared effects."""

    def __init__(self, answers: dict[str, list[str]]) -> None:
        self.answers, self.seen = answers, []

    def step(self, event: Any, now_ns: int) -> list[Any]:
        self.seen.append(event)
        if event == "bug":
            raise InvariantError("broken")
        return self.answers.get(event, [])


def test_replica_driver_on_hold_handles_queued_events_after_release() -> None:
    replica: Any = Scripted({"first": ["a", "b"], "from a": ["c"], "later": ["d"], "again": ["e"]})
    done: list[str] = []

    def execute(effect: Any) -> None:
        done.append(effect)
        if effect == "a":
            driver.feed("from a")  # type: ignore[arg-type]
            driver.hold()

    worker = DrivenWorker(replica, execute)
    driver, broken = worker.driver, worker.broken
    driver.feed("first")  # type: ignore[arg-type]
    driver.feed("later")  # type: ignore[arg-type]
    assert done == ["a", "b"], "the step is carried out, and no other"

    def work() -> None:
        done.append("work")
        driver.feed("again")  # type: ignore[arg-type]

    driver.resume(work)
    assert done == ["a", "b", "work", "c", "d", "e"]
    driver.hold()

    def fails() -> None:
        raise ValueError("a bug")

    driver.resume(fails)
    assert len(broken) == 1, "a bug in it is one of the replica's"
    driver.resume(lambda: done.append("after the end"))
    assert done[-1] == "e"


def test_replica_driver_on_hold_merges_repeated_wake_ups() -> None:
    taken: list[Any] = []

    def step(event: Any, now_ns: int) -> list[Any]:
        taken.append(event)
        return []

    replica: Any = SimpleNamespace(step=step)
    driver = DrivenWorker(replica).driver
    driver.hold()
    driver.feed("before")  # type: ignore[arg-type]
    for _ in range(100):
        driver.feed(events.NotificationReceived())
    driver.resume(lambda: None)
    assert taken == ["before", events.NotificationReceived()]


def test_replica_driver_exception_report_contains_the_last_steps(caplog: pytest.LogCaptureFixture) -> None:
    replica: Any = Scripted({f"event {n}": [f"effect {n}"] for n in range(100)})
    driver = DrivenWorker(replica).driver
    for n in range(100):
        driver.feed(f"event {n}")  # type: ignore[arg-type]
        driver.feed(events.LeaseChanged())
    assert len(driver.recent_steps) == RECENT_STEPS
    driver.feed("bug")  # type: ignore[arg-type]
    (record,) = [record for record in caplog.records if record.levelname == "CRITICAL"]
    lines = record.getMessage().splitlines()
    assert "event 99 -> ['effect 99']" in lines[-2]
    assert lines[-1].endswith("bug"), "what was being taken, and was not done"
    assert "event 36 -> " in lines[1], "the last 64 steps, heartbeats that changed nothing left out"
    assert not any("LeaseChanged" in line for line in lines)


def test_effect_executor_does_not_report_a_leader_epoch_after_the_close() -> None:
    runner, calls, fed = executor()
    answers: list[Any] = []
    runner._node.promises.store = lambda folder, leader_epoch, stored: answers.append(stored)  # type: ignore[method-assign]
    for _ in range(2):
        runner.execute(do.PersistLeaderEpoch(leader_epoch=4))
    runner.has_ended = True
    for answer, error in zip(answers, (None, StorageError("late")), strict=True):
        answer(error)
    assert (calls, fed, runner.storage_failed) == ([], [], False)


# ---- after an exception, a failed append or a stop -------------------------------------------------------------------------
KEY = PartitionKey("orders", "u1", 3)


# ---- the driver --------------------------------------------------------------------------------------------
class Machine:
    """A replica whose steps a test writes: ``script`` gets the event and gives the effects."""

    def __init__(self, script: Any) -> None:
        self.script = script
        self.taken: list[Any] = []

    def step(self, event: Any, now_ns: int) -> list[Any]:
        self.taken.append(event)
        return list(self.script(event))


def driven(script: Any, execute: Any = None) -> tuple[ReplicaDriver, Machine, list[Any], list[Exception]]:
    machine = Machine(script)
    worker = DrivenWorker(machine, execute)
    return worker.driver, machine, worker.done, worker.broken


@pytest.mark.parametrize("where", ["step", "effect"])
def test_replica_driver_after_an_exception_handles_no_event(where: str) -> None:
    def script(event: Any) -> list[Any]:
        if event == "bad" and where == "step":
            raise InvariantError("no")
        return [event]

    def execute(effect: Any) -> None:
        if effect == "good":
            for more in ("bad", "after"):
                driver.feed(more)  # type: ignore[arg-type]
        if effect == "bad" and where == "effect":
            raise InvariantError("no")

    driver, machine, _, broken = driven(script, execute)
    driver.feed("good")  # type: ignore[arg-type]
    driver.feed("later")  # type: ignore[arg-type]
    assert machine.taken == ["good", "bad"]
    assert [type(error) for error in broken] == [InvariantError]


def test_replica_driver_step_that_feeds_too_many_events_stops_the_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "MAX_QUEUE", 3)
    driver, machine, _, broken = driven(lambda event: [event], lambda effect: [driver.feed(number) for number in range(5)])  # type: ignore[arg-type]
    driver.feed("first")  # type: ignore[arg-type]
    assert machine.taken == ["first"], "what was queued is not taken any more"
    assert len(broken) == 1
    assert "more than 3 events" in str(broken[0])
    within, machine, _, broken = driven(
        lambda event: [event] if event == "first" else [],
        lambda effect: [within.feed(number) for number in range(3)],  # type: ignore[arg-type]
    )
    within.feed("first")  # type: ignore[arg-type]
    assert (machine.taken, broken) == (["first", 0, 1, 2], [])


def test_replica_driver_after_stop_ignores_events() -> None:
    driver, machine, _, _ = driven(lambda event: [])
    driver.stop()
    driver.feed("a")  # type: ignore[arg-type]
    assert machine.taken == []


# ---- the executor ------------------------------------------------------------------------------------------
class FullLog:
    """Every change fails."""

    log_end_offset, log_start_offset = 7, 2

    def __init__(self, error: StorageError) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        def fails(*_: Any, **__: Any) -> None:
            raise self.error

        return fails


@pytest.mark.parametrize("error", [StorageError("broken"), NoSpaceError("full")])
@pytest.mark.parametrize(
    "effect",
    [
        do.AppendFetched(token=4, last_offset=9, leader_high_watermark=3, leader_epoch=2),
        do.TruncateLog(end_offset=3),
        do.ResetLog(start_offset=3),
    ],
    ids=lambda effect: type(effect).__name__,
)
def test_effect_executor_reports_a_failed_log_change_and_skips_the_rest_of_the_effect(effect: Any, error: StorageError) -> None:
    fed: list[Any] = []
    repaired: list[str] = []
    calls: list[str] = []
    flusher = SimpleNamespace(appended=lambda: calls.append("appended"), alone=lambda work: calls.append("settled") or work())
    fetched = {4: SimpleNamespace(buffer=memoryview(b""), batches=[])}
    tools: dict[str, Any] = dict.fromkeys(PARTS)
    tools |= {"flusher": flusher, "fetches": SimpleNamespace(fetched=fetched)}
    executor = executing_worker(fed, tools, FullLog(error), repaired)
    for _ in range(2):
        fetched[4] = SimpleNamespace(buffer=memoryview(b""), batches=[])
        executor.execute(effect)
    full = isinstance(error, NoSpaceError)
    assert fed == [events.StorageFailed(reason=str(error), no_space=full)] * 2
    assert repaired == ([] if full else [f"{KEY}: {error}"]), "the node is restarted once"
    assert (executor.storage_failed, executor.no_space) == (True, full)
    assert "appended" not in calls, "nothing is flushed that is not there"
    assert executor.counters == {"storage_failure": 1}


# ---- promises ----------------------------------------------------------------------------------------------
async def test_leader_epoch_store_of_a_deleted_partition_returns_zero() -> None:
    storage, told = MemoryStorage(), []
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        promises = Promises(PromiseJournal(storage), pool, Counter(), pytest.fail)
        promises.store("s-u1/0", 5, told.append)
        await until(lambda: told)
        assert promises.epoch_of("s-u1/0") == 5
        promises.store("s-u1/0", 6, told.append)
        promises.forget("s-u1/0")
        assert promises.epoch_of("s-u1/0") == 0
        promises.store("t-u2/0", 3, told.append)
        await until(lambda: len(told) == 2)
        assert (promises.epoch_of("s-u1/0"), promises.epoch_of("t-u2/0")) == (0, 3)


# ---- the follower's side of replication --------------------------------------------------------------------
class Bus:
    inbox, max_payload = "liftpy.inbox.n1", 4096

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, str]] = []
        self.arrived: Any = None

    def listen(self, subject: str, arrived: Any) -> Any:
        assert subject == "liftpy.inbox.n1.*.*"
        self.arrived = arrived
        return SimpleNamespace(close=lambda: None)

    def send(self, subject: str, pieces: Any, reply: str = "") -> bool:
        self.sent.append((subject, b"".join(pieces), reply))
        return True

    def asked(self) -> replication_pb2.ReplicationRequest:
        return frames.decode(self.sent[-1][1], replication_pb2.ReplicationRequest)


def client(router: AnswerRouter, fed: list[Any], counters: Counter[str] | None = None) -> FetchClient:
    return FetchClient(router, Subjects(), KEY, "n1", fed.append, Counter() if counters is None else counters)


def fetch(request_id: int, **more: Any) -> do.SendFetch:
    given = {"leader": "n2", "offset": 4, "leader_epoch": 2, "offset_epoch": 1, "max_bytes": 1 << 16}
    return do.SendFetch(request_id=request_id, **(given | more))


BATCH = build_batch([b"x" * 900], base_offset=5, leader_epoch=2)


def arrive(bus: Bus, made: FetchClient, request_id: int, frame: bytes) -> None:
    bus.arrived(f"{bus.inbox}.{made._slot}.{request_id}".encode(), b"", frame, b"")


def test_fetch_client_after_close_holds_no_bytes_and_reports_no_response() -> None:
    bus, fed = Bus(), []
    made = client(AnswerRouter(bus), fed)  # type: ignore[arg-type]
    made.send_fetch(fetch(9), 7)
    arrive(bus, made, 9, frames.replication_response_header(2, 4, (BATCH,)) + BATCH)
    (answered,) = fed
    assert (answered.request_id, answered.leader_epoch, answered.high_watermark) == (9, 2, 4)
    assert answered.spans == (events.BatchSpan(base_offset=5, last_offset=5, leader_epoch=2),)
    assert list(made.fetched) == [answered.token]
    made.close()
    assert made.fetched == {}
    arrive(bus, made, 9, frames.replication_response_header(2, 4, (BATCH,)) + BATCH)
    assert len(fed) == 1


def test_fetch_client_request_fails_on_no_responders_and_not_on_an_unreadable_response() -> None:
    bus, fed = Bus(), []
    made = client(AnswerRouter(bus), fed)  # type: ignore[arg-type]
    subject = f"{bus.inbox}.{made._slot}.9".encode()
    for noise in (b"", b"x" * 30, envelope.encode(envelope.MessageType.STATUS_REQUEST, b"x")):
        bus.arrived(subject, b"", noise, b"")
    assert fed == [], "anybody can send it: the answer may still come"
    bus.arrived(subject, b"", b"", b"NATS/1.0 503\r\n\r\n")
    assert [(type(event), event.request_id) for event in fed] == [(events.RequestFailed, 9)]


# ---- all partitions ----------------------------------------------------------------------------------------
def a_set(monkeypatch: pytest.MonkeyPatch, count: int, open_worker: Any) -> tuple[Group, set_module.Partitions]:
    group = Group()
    for node in ("a", "b"):
        group.start_node(node)
    group.ask(createStream=pb.CreateStream(name="s", subject="s.x", replicationFactor=2, partitions=count))
    monkeypatch.setattr(set_module, "open_worker", open_worker)
    settings = SimpleNamespace(node_id="a", replication=ReplicationConfig())
    deletions = Deletions(None, "a", decides=lambda: True)  # type: ignore[arg-type]
    tools = SimpleNamespace(settings=settings, **process_tools(), deletions=deletions)
    return group, set_module.Partitions(tools, Mock(NodeCounts))  # type: ignore[arg-type]


async def test_replica_manager_stop_cancels_partitions_waiting_to_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_module, "_OPENED_AT_ONCE", 1)
    opened: list[Any] = []

    async def open_worker(node: Any, key: Any, subject: str, config: Any, *_: Any) -> Worker:
        opened.append(key)
        await asyncio.Event().wait()
        raise AssertionError

    group, partitions = a_set(monkeypatch, 3, open_worker)
    partitions.image_changed(ClusterImage(), group.fsm.image)
    await until(lambda: opened)
    async with asyncio.timeout(30):
        assert await partitions.stop()
        await partitions.wait_until_open()
    assert len(opened) == 1


# ---- timers and the scrub ----------------------------------------------------------------------------------


async def test_scrub_skips_failed_and_closed_logs(tmp_path: Path) -> None:
    failed, well, closed = partition(tmp_path, "a"), partition(tmp_path, "b"), partition(tmp_path, "c")
    flip(tmp_path, "a", 0)
    flip(tmp_path, "c", 0)
    failed.storage_failed = True
    closed.log.close()
    scrub, counters = scrub_of(tmp_path, failed, well, closed)
    scrub.start()
    await until(lambda: scrub.progress.last_full_pass_s > 0)
    await scrub.close()
    assert (scrub.progress.findings, counters["scrub_damage"]) == (0, 0)
    assert scrub.checked_bytes >= well.log.size_bytes


# ---- fetched batches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("last_offset", "taken"), [(10, 3), (9, 2), (8, 2), (7, 1), (6, 1)])
def test_effect_executor_appends_fetched_batches_only_up_to_the_given_offset(last_offset: int, taken: int) -> None:
    runner, calls, _ = executor()
    given: list[Any] = []
    log: Any = runner.log
    log.append_batches = lambda data, batches, _at_ns, *, compacted: given.append((len(data), batches, compacted))
    data = b"".join(build_batch([b"a", b"b"], base_offset=offset, leader_epoch=1) for offset in (5, 7, 9))
    batches = split_batches(data)
    fetched: Any = {1: SimpleNamespace(buffer=memoryview(data), batches=batches)}
    runner.fetched = fetched
    runner.execute(do.AppendFetched(token=1, last_offset=last_offset, leader_high_watermark=6, leader_epoch=4))
    ((size_bytes, appended, compacted),) = given
    assert [batch.base_offset for batch in appended] == [5, 7, 9][:taken]
    assert size_bytes == sum(len(batch.view) for batch in batches[:taken])
    assert compacted == Horizon(7, 4), "all that the leader's compaction can have seen: up to HW, inclusive"
    assert calls[-1] == "flusher.appended"
    assert runner.fetched == {}
