"""What the state machines ask for is done: each field of each effect, wish, frame, and each end of a partition's life."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from liftpy.cluster.image import ClusterImage
from liftpy.config import AckPolicy, FlushPolicy, ReplicationConfig, StreamConfig
from liftpy.errors import CorruptionError, LiftError, NoSpaceError, StorageError
from liftpy.ids import PartitionKey
from liftpy.log.horizon import Horizon
from liftpy.log.log import Log
from liftpy.log.memory import MemoryStorage
from liftpy.log.rechecks import Recheck
from liftpy.partition import PartitionStatus
from liftpy.replica import effects as do
from liftpy.replica import events
from liftpy.replica.effects import RejectReason
from liftpy.replica.events import MetadataHeard, RefusalReason
from liftpy.wire import frames
from liftpy.wire._pb import cluster_pb2 as pb
from liftpy.wire._pb import replication_pb2
from liftpy.wire.batch import build_batch
from liftpy.wire.inboxes import InboxRule
from liftpy.wire.subjects import Subjects
from sidecar.partition import housekeeping
from sidecar.partition import set as partitions_module
from sidecar.partition import worker as worker_module
from sidecar.partition.deletions import Deletions
from sidecar.partition.executor import Executor, Tools
from sidecar.partition.flushing import Flusher
from sidecar.partition.housekeeping import Housekeeping
from sidecar.partition.proposals import Proposals
from sidecar.partition.quiet import QuietAsker, QuietTalk
from sidecar.partition.reads import ReadSubjects, ReadTools
from sidecar.partition.recovery import RecoveredLogs
from sidecar.partition.replication import _MAX_TOKENS, AnswerRouter, FetchClient
from sidecar.partition.timers import Timer, Timers
from sidecar.partition.worker import PartitionWorker
from tests.scripts.desk import Desk

KEY = PartitionKey("orders", "u1", 3)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


# ---- the executor ------------------------------------------------------------------------------------------------------------
class Recorded:
    """Takes every call; ``calls`` has its name and what it was given."""

    def __init__(self, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]], name: str, **more: Any) -> None:
        self.__dict__.update(more, _calls=calls, _name=name)

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            self._calls.append((f"{self._name}.{name}", args, more))
            return Recheck.SOUND if name == "complaint" else b"batch"

        return call


PARTS = (
    "flusher",
    "promises",
    "timers",
    "ingest",
    "acks",
    "replication",
    "fetches",
    "notifications",
    "quiet",
    "probes",
    "reads",
    "proposals",
    "services",
)


def executor(**replaced: Any) -> tuple[Executor, list[tuple[str, tuple[Any, ...], dict[str, Any]]], list[events.Event]]:
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    fed: list[events.Event] = []
    parts: dict[str, Any] = {name: Recorded(calls, name) for name in PARTS}
    parts["fetches"] = Recorded(calls, "fetches", fetched={})
    parts["log"] = Recorded(calls, "log", log_end_offset=5, log_start_offset=0)
    parts |= {
        "key": KEY, "incarnation": 41, "counters": Counter(), "feed": fed.append, "high_watermark": lambda: 42,
        "leader": lambda: ("n9", 43), "step_aside": lambda key, leader_epoch, done: done(),
    }  # fmt: skip
    return Executor(Tools(**(parts | replaced))), calls, fed


def flat(value: Any) -> Iterator[Any]:
    """All that is in it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield value
        yield from flat([getattr(value, field.name) for field in dataclasses.fields(value)])
    elif isinstance(value, list | tuple | set | frozenset | dict):
        for item in value.items() if isinstance(value, dict) else value:
            yield from flat(item)
    else:
        yield value


def filled(kind: type[Any]) -> Any:
    """One of ``kind`` whose numbers and texts all differ."""
    number = iter(range(101, 200))

    def value(text: str) -> Any:
        for word, made in {
            "frozenset[str]": lambda: frozenset({f"n{next(number)}"}),
            "tuple[tuple[str, int]": lambda: ((f"n{next(number)}", next(number)),),
            "tuple[str": lambda: (f"n{next(number)}",), "AckPolicy": lambda: AckPolicy.LEADER,
            "RefusalReason": lambda: RefusalReason.DIVERGED,
            "RejectReason": lambda: RejectReason.BELOW_MIN_ISR, "Deadline": lambda: events.Deadline.LAG, "bool": lambda: True,
            "int": lambda: next(number), "str": lambda: f"n{next(number)}",
        }.items():  # fmt: skip
            if text.startswith(word):
                return made()
        raise AssertionError(text)

    return kind(**{field.name: value(str(field.type)) for field in dataclasses.fields(kind)})


SAID_OTHERWISE = {do.AppendFetched, do.DropFetched, do.RoleChanged}
"""Their fields are for what is held here, or for the log of events."""


@pytest.mark.parametrize("kind", [k for k in get_args(do.Effect) if k not in SAID_OTHERWISE], ids=lambda kind: kind.__name__)
async def test_every_field_of_an_effect_arrives_where_it_is_carried_out(kind: type[Any]) -> None:
    runner, calls, _ = executor()
    effect = filled(kind)
    if kind is do.SetDeadline:
        runner._deadlines = {effect.kind._name_: effect.kind}  # type: ignore[dict-item]
    runner.execute(effect)
    given = list(flat([(args, more) for _, args, more in calls]))
    for field in dataclasses.fields(kind):
        wanted = [value for value in flat(getattr(effect, field.name)) if value not in ("", True)]
        missing = [value for value in wanted if value not in given and not any(callable(g) for g in given)]
        assert not missing, f"{field.name} of {effect} is in none of {calls}"
    assert calls, "nobody did anything"


@pytest.mark.parametrize(("last_offset", "taken"), [(10, 3), (9, 2), (8, 2), (7, 1), (6, 1)])
def test_of_what_was_fetched_only_what_was_decided_is_appended(last_offset: int, taken: int) -> None:
    runner, calls, _ = executor()
    data = b"".join(build_batch([b"a", b"b"], base_offset=offset, leader_epoch=1) for offset in (5, 7, 9))
    from liftpy.wire.batch import split_batches

    batches = split_batches(data)
    runner._t.fetches.fetched[1] = SimpleNamespace(buffer=memoryview(data), batches=batches)
    runner.execute(do.AppendFetched(token=1, last_offset=last_offset, leader_high_watermark=6, leader_epoch=4))
    name, args, more = calls[0]
    assert name == "log.append_batches"
    assert [batch.base_offset for batch in args[1]] == [5, 7, 9][:taken]
    assert len(args[0]) == sum(len(batch.view) for batch in batches[:taken])
    assert more == {"compacted": Horizon(7, 4)}, "all that the leader's compaction can have seen: up to HW, inclusive"
    assert calls[-1][0] == "flusher.appended"
    assert runner._t.fetches.fetched == {}


def test_pieces_of_a_batch_are_forgotten_with_the_role_that_asked_for_them() -> None:
    runner, calls, _ = executor()
    runner.execute(do.RoleChanged(role="FOLLOWER", phase="FOLLOWER_FETCH", leader_epoch=3))
    assert {"fetches.forget_pieces", "services.role_changed"} <= {name for name, *_ in calls}


def test_a_subject_that_is_closed_takes_and_answers_nothing() -> None:
    runner, calls, _ = executor()
    runner.execute(do.CloseSubject())
    assert [name for name, *_ in calls] == ["ingest.stop", "replication.stop"]


# ---- wishes ------------------------------------------------------------------------------------------------------------------
class Group:
    """The metadata group: ``answers`` are given in turn."""

    def __init__(self, *answers: pb.ControlResponse) -> None:
        self.asked: list[pb.ControlRequest] = []
        self.answers = list(answers)

    async def propose(self, request: pb.ControlRequest, timeout_s: float) -> pb.ControlResponse:
        self.asked.append(request)
        return self.answers.pop(0) if self.answers else pb.ControlResponse()


WISHES: dict[str, tuple[type[Any], Callable[[Proposals, Any], None], dict[str, str]]] = {
    "changeIsr": (do.ProposeIsr, lambda p, e: p.propose_isr(KEY, e, lambda _: None), {}),
    "reportLeader": (do.ReportLeader, lambda p, e: p.report_leader(KEY, e), {"witness": "n1", "witnessIncarnation": "7"}),
    "leaveIsr": (do.LeaveIsr, lambda p, e: p.leave_isr(KEY, e), {"node": "n1", "incarnation": "7"}),
    "giveUpLeadership": (do.GiveUpLeadership, lambda p, e: p.give_up_leadership(KEY, e), {"leader": "n1", "incarnation": "7"}),
    "reportPromotion": (
        do.ReportPromotion,
        lambda p, e: p.report_promotion(KEY, e),
        {"candidate": "n1", "candidateIncarnation": "7"},
    ),
}
NAMES = {"replayed_end_offset": "replayedEndOffset", "newest_offset": "newestOffset", "high_watermark": "highWatermark",
         "leader_epoch": "leaderEpoch", "last_epoch": "lastEpoch", "leader_lacks": "leaderLacks"}  # fmt: skip


@pytest.mark.parametrize("kind", WISHES)
async def test_a_wish_says_all_that_was_decided_under_the_same_name(kind: str) -> None:
    effect_kind, ask, ours = WISHES[kind]
    group, effect = Group(), filled(effect_kind)
    proposals = Proposals(group, "n1", 7)  # type: ignore[arg-type]
    ask(proposals, effect)
    await until(lambda: group.asked)
    request = getattr(group.asked[0], kind)
    assert (request.stream, request.uid, request.partition) == ("orders", "u1", 3)
    for field in dataclasses.fields(effect_kind):
        value = getattr(effect, field.name)
        if field.name == "slow":
            continue  # for the log and a counter
        said = getattr(request, NAMES.get(field.name, field.name))
        if isinstance(value, frozenset):
            said = frozenset(said)
        elif field.name == "incarnations":
            said = tuple(said.items())
        assert said == value, field.name
    for name, value in ours.items():
        assert str(getattr(request, name)) == value
    await proposals.close()


@pytest.mark.parametrize(
    ("error", "accepted"),
    [
        (pb.ControlResponse.OK, True), (pb.ControlResponse.STALE, False), (pb.ControlResponse.INVALID, False),
        (pb.ControlResponse.FENCED, False), (pb.ControlResponse.UNAVAILABLE, None), (pb.ControlResponse.OUTCOME_UNKNOWN, None),
        (pb.ControlResponse.UNKNOWN, None), (pb.ControlResponse.NOT_METADATA_LEADER, None),
    ],
)  # fmt: skip
async def test_only_a_clear_no_is_a_refusal_of_an_isr_change(error: Any, accepted: bool | None) -> None:
    fed: list[Any] = []
    proposals = Proposals(Group(pb.ControlResponse(error=error)), "n1", 7)  # type: ignore[arg-type]
    effect = filled(do.ProposeIsr)
    proposals.propose_isr(KEY, effect, fed.append)
    await until(lambda: fed)
    assert fed == [events.IsrChangeAnswered(epoch=effect.epoch, accepted=accepted)]
    await proposals.close()


async def test_wishes_go_on_being_sent() -> None:
    group = Group()
    proposals = Proposals(group, "n1", 7)  # type: ignore[arg-type]
    for count in (1, 2, 3):
        proposals.leave_isr(KEY, do.LeaveIsr(reason=f"reason {count}"))
        await until(lambda n=count: len(group.asked) == n)  # type: ignore[misc]
    await proposals.close()
    proposals.leave_isr(KEY, do.LeaveIsr(reason="after the end"))
    await asyncio.sleep(0)
    assert len(group.asked) == 3


# ---- flushing ----------------------------------------------------------------------------------------------------------------
class Clocked(Timers):
    """Timers that fire when the test says so."""

    def __init__(self) -> None:
        self.armed: list[tuple[Timer, int]] = []

    def set(self, timer: Timer, at_ns: int) -> None:
        self.armed.append((timer, at_ns))

    def cancel(self, timer: Timer) -> None:
        self.armed = [entry for entry in self.armed if entry[0] is not timer]


@pytest.fixture
def pool() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    with concurrent.futures.ThreadPoolExecutor(2) as running:
        yield running


async def test_an_interval_is_as_long_as_it_says_and_begins_again(
    pool: concurrent.futures.ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.partition.flushing.clock.now_ns", lambda: 1_000)
    syncs: list[str] = []
    config = StreamConfig(flush=FlushPolicy.parse("interval:50"))
    log, _ = Log.open(MemoryStorage(fault=lambda what: syncs.append(what) if what == "sync" else None), config)
    timers, flushed = Clocked(), []
    flusher = Flusher(log, config.flush, pool, timers, flushed.append, pytest.fail)
    for turn in (1, 2, 3):
        for _ in range(3):
            log.append(build_batch([b"x"], base_offset=log.log_end_offset, leader_epoch=1))
            flusher.appended()
        assert flushed[-1] == log.log_end_offset, "it counts as flushed"
        ((timer, at_ns),) = timers.armed
        assert at_ns == 1_000 + 50_000_000
        timers.armed.clear()
        timer.fire()
        await until(lambda n=turn: flusher.count == n)  # type: ignore[misc]
        assert log.durable_end_offset == log.log_end_offset
    await flusher.close()


async def test_the_late_end_of_a_flush_that_a_cut_has_settled_completes_no_other(
    pool: concurrent.futures.ThreadPoolExecutor,
) -> None:
    gate, config = threading.Event(), StreamConfig()
    gate.set()
    log, _ = Log.open(MemoryStorage(fault=lambda what: gate.wait(10) and None if what == "sync" else None), config)
    flushed: list[int] = []
    flusher = Flusher(log, config.flush, pool, Clocked(), flushed.append, pytest.fail)
    log.append(build_batch([b"x"], base_offset=0, leader_epoch=1))
    flusher.appended()
    flusher.alone(lambda: None)  # the end of its thread is still on its way to the loop
    gate.clear()
    log.append(build_batch([b"y"], base_offset=1, leader_epoch=1))
    flusher.appended()
    began = asyncio.get_running_loop().time()
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert asyncio.get_running_loop().time() - began < 5, "the loop stood still"
    assert flushed == [1]
    gate.set()
    await until(lambda: flushed == [1, 2])
    await flusher.close()


async def test_a_close_waits_for_what_is_under_way(pool: concurrent.futures.ThreadPoolExecutor) -> None:
    gate, config = threading.Event(), StreamConfig()
    log, _ = Log.open(MemoryStorage(fault=lambda what: gate.wait(10) and None if what == "sync" else None), config)
    flusher = Flusher(log, config.flush, pool, Clocked(), lambda _: None, pytest.fail)
    log.append(build_batch([b"x"], base_offset=0, leader_epoch=1))
    flusher.appended()
    closing = asyncio.create_task(flusher.close())
    turned = asyncio.get_running_loop().time()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not closing.done()
    assert asyncio.get_running_loop().time() - turned < 5, "the loop turns while it waits"
    gate.set()
    await closing
    assert log.durable_end_offset == 1


# ---- a worker ----------------------------------------------------------------------------------------------------------------
def worker(**more: Any) -> Any:
    """What ``PartitionWorker``'s methods need of one."""
    told: list[Any] = []
    made = SimpleNamespace(
        key=KEY, told=told, feed=told.append, set_aside=("old",), leader="n1",
        _node=SimpleNamespace(counters=Counter(), settings=SimpleNamespace(node_id="n1"),
                              folder=SimpleNamespace(delete_partition=told.append),
                              promises=SimpleNamespace(forget=told.append)),
        flusher=SimpleNamespace(alone=lambda work: told.append("settled") or work()),
        executor=SimpleNamespace(storage_failed=False, failed=lambda error: told.append(error)),
    )  # fmt: skip
    made.__dict__.update(more)
    return made


@pytest.mark.parametrize("already", [False, True])
def test_damage_is_checkpointed_before_the_replica_fails(already: bool) -> None:
    order: list[str] = []
    broken = worker(
        log=SimpleNamespace(checkpoint=lambda: order.append("checkpoint")),
        flusher=SimpleNamespace(alone=lambda work: order.append("settle") or work()),
        executor=SimpleNamespace(storage_failed=already, failed=lambda error: order.append("failed")),
    )
    PartitionWorker._damaged(broken, CorruptionError("a flip"))
    assert order == ([] if already else ["settle", "checkpoint", "failed"])
    assert broken._node.counters["damage met"] == (0 if already else 1)


@pytest.mark.parametrize("healthy", [True, False])
@pytest.mark.parametrize("delete", [True, False])
@pytest.mark.parametrize("fails", [None, StorageError("no"), OSError("no")])
def test_an_end_is_clean_where_log_and_closing_were(healthy: bool, delete: bool, fails: Exception | None) -> None:
    closed: list[bool] = []

    def close(*, clean: bool) -> None:
        closed.append(clean)
        if fails is not None:
            raise fails

    ended = worker(log=SimpleNamespace(close=close))
    assert PartitionWorker._close(ended, healthy, delete) is (healthy and fails is None)
    assert closed == [healthy and not delete]
    assert ended.told == ([KEY, KEY.folder] if delete and fails is None else []), "the promise goes with the folder"


@pytest.mark.parametrize(("before", "after", "told"), [(3, 3, []), (3, 7, [events.LogStartMoved(log_start_offset=7)])])
def test_followers_hear_that_retention_has_moved_the_log_start(before: int, after: int, told: list[Any]) -> None:
    log = SimpleNamespace(log_start_offset=before)
    held: list[Any] = []
    log.apply_retention = lambda now, *hold: (held.append(hold), setattr(log, "log_start_offset", after))
    services, counters = SimpleNamespace(held_from=lambda: 5), Counter[str]()
    node = SimpleNamespace(settings=SimpleNamespace(replication=SimpleNamespace(service_hold_bytes=99)), counters=counters)
    kept = worker(log=log, services=services, _node=node)
    PartitionWorker.apply_retention(kept, 1)
    assert kept.told == ["settled", *told]
    assert held == [(5, 99)]
    assert sum(counters.values()) == (after > 5), "what a service needed is gone: said and counted"
    log.apply_retention = lambda now, *hold: (_ for _ in ()).throw(LiftError("closed"))
    PartitionWorker.apply_retention(kept, 1)
    assert kept.told[-1] == "settled", "an error ends it, and no more"


@pytest.mark.parametrize("in_isr", [True, False])
@pytest.mark.parametrize("agrees", [True, False])
def test_who_is_in_sync_is_in_the_isr_and_agrees_with_its_leader(in_isr: bool, agrees: bool) -> None:
    replica = SimpleNamespace(may_serve_committed=lambda: agrees)
    state = SimpleNamespace(isr=frozenset({"n1", "n2"} if in_isr else {"n2"}))
    assert PartitionWorker.is_in_sync.fget(worker(state=state, replica=replica)) is (in_isr and agrees)  # type: ignore[attr-defined]
    assert not PartitionWorker.is_in_sync.fget(worker(state=None, replica=replica))  # type: ignore[attr-defined]


@pytest.mark.parametrize(("policy", "marked"), [("always", 0), ("interval:50", 1), ("none", 1)])
async def test_a_stream_that_flushes_lazily_is_marked_before_its_log_is_opened(
    policy: str, marked: int, pool: concurrent.futures.ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[Any] = []
    identity = SimpleNamespace(flushes_lazily=lambda: order.append("marked"), previous=SimpleNamespace(clean_stop=True))
    found: dict[Path, Any] = {Path("there"): SimpleNamespace(storage="recovered", is_complete=True)}
    folder = SimpleNamespace(partition_path=lambda key: Path("there"), partition_storage=lambda key: "made")
    node: Any = SimpleNamespace(
        identity=identity, pool=pool, folder=folder, recovered=SimpleNamespace(take=lambda path: found.pop(path, None)),
        promises=SimpleNamespace(epoch_of=lambda key: 7 if key == KEY.folder else 0),
    )  # fmt: skip

    def opened(where: Any, config: StreamConfig, **more: Any) -> Any:
        order.append({"where": where, **more})
        raise StorageError("seen enough")

    monkeypatch.setattr(worker_module.Log, "open", opened)
    recovered = found[Path("there")]
    for where, taken in (("recovered", recovered), ("made", None)):
        order.clear()
        with pytest.raises(StorageError):
            await worker_module.open_worker(node, KEY, "shop", StreamConfig(flush=FlushPolicy.parse(policy)))
        assert order[:-1] == ["marked"] * marked
        assert (order[-1]["clean"], order[-1]["recovered"], order[-1]["where"]) == (True, taken, where)
        assert order[-1]["promised_epoch"] == 7


# ---- the partitions of a node --------------------------------------------------------------------------------------------------
class Fed:
    """A worker that remembers what it was fed and how it ended."""

    def __init__(self, key: PartitionKey, *, leads: bool = False, clean: bool = True) -> None:
        self.key, self.leads, self.clean = key, leads, clean
        self.events: list[Any] = []
        self.ends: list[bool] = []
        self.leader_epoch, self.asked = 4, []
        self.is_in_sync = True
        self.executor = SimpleNamespace(storage_failed=False)
        self.ingest = SimpleNamespace(
            leave=lambda: self.asked.append("leave"), come_back=lambda: self.asked.append("back"), idle=True
        )
        self.replica = SimpleNamespace(serves=lambda epoch, now_ns: epoch == 4)
        self.feed = self.events.append

    def update(self, held: Any, live: Any) -> None:
        self.events.append("told")

    async def stop(self, *, delete: bool) -> bool:
        self.ends.append(delete)
        return self.clean


def partitions(*workers: Fed, allowed: bool = True) -> Any:
    async def may_go(key: PartitionKey) -> bool:
        return allowed

    links = SimpleNamespace(ingest=SimpleNamespace(settled=lambda timeout_s: asyncio.sleep(0)))
    deletions = SimpleNamespace(allowed=may_go, close=lambda: None)
    settings = SimpleNamespace(node_id="n1", replication=ReplicationConfig())
    made: Any = partitions_module.Partitions(
        SimpleNamespace(settings=settings, fatal=pytest.fail, deletions=deletions, links=links)  # type: ignore[arg-type]
    )
    for one in workers:
        made._workers[one.key] = made._by_name[one.key.stream, one.key.partition] = one
    return made


async def test_an_event_reaches_the_stream_that_it_is_about() -> None:
    one = Fed(KEY)
    node = partitions(one)
    for uid in ("u1", "", "u2"):
        node.deliver("orders", 3, uid, f"event {uid}")
    node.deliver("orders", 4, "", "another partition's")
    assert one.events == ["event u1", "event "]


async def test_a_leader_is_vouched_for_in_its_own_stream_and_epoch() -> None:
    node = partitions(Fed(KEY))
    asked = {"stream": "orders", "streamUid": "u1", "partition": 3, "leaderEpoch": 4}
    assert node.serves(replication_pb2.LeaderQuestion(**asked))
    for wrong in ({"streamUid": "u2"}, {"partition": 2}, {"leaderEpoch": 5}, {"stream": "other"}):
        assert not node.serves(replication_pb2.LeaderQuestion(**(asked | wrong)))


@pytest.mark.parametrize("deleted", [True, False])
@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("stopping", [True, False])
async def test_data_goes_where_that_is_confirmed_and_never_in_a_stop(deleted: bool, allowed: bool, stopping: bool) -> None:
    one = Fed(KEY)
    node = partitions(one, allowed=allowed)
    node._stopping = stopping
    if deleted:
        node._departures._deleted_uids.add("u1")
    await node._end(one)
    assert one.ends == [deleted and allowed and not stopping]
    assert ("u1" in node._departures._deleted_uids) is (deleted and (allowed or stopping)), (
        "it is asked again when it is said again"
    )


@pytest.mark.parametrize("clean", [(True, True), (False, True), (True, False)])
async def test_one_end_that_is_not_clean_is_enough(clean: tuple[bool, bool]) -> None:
    node = partitions(*(Fed(PartitionKey("orders", "u1", n), clean=c) for n, c in enumerate(clean)))
    assert await node.stop() is all(clean)


@pytest.mark.parametrize("unclean_elected", [True, False])
@pytest.mark.parametrize("in_sync", [True, False])
async def test_who_has_everything(unclean_elected: bool, in_sync: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Fed(KEY)
    one.is_in_sync = in_sync
    node = partitions(one)
    found = (SimpleNamespace(), SimpleNamespace(unclean_elected=unclean_elected))
    monkeypatch.setattr(node, "_wanted", lambda key: found)
    assert node.has_everything(one) is (in_sync and not unclean_elected)
    monkeypatch.setattr(node, "_wanted", lambda key: None)
    assert not node.has_everything(one)


async def test_leaders_and_only_they_hear_of_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Fed(KEY, leads=True)
    node = partitions(one)
    held = SimpleNamespace(held=lambda partition: partition)
    monkeypatch.setattr(node, "_wanted", lambda key: (held, SimpleNamespace()))
    node.metadata_heard(7)
    node._tell(one)
    assert one.events == ["told", MetadataHeard(sent_ns=7)], "a new leader knows its lease at once"
    one.leads = False
    node._tell(one)
    assert one.events[2:] == ["told"]
    assert one.key not in node._leading
    node.metadata_heard(1 << 62)
    await asyncio.sleep(0)
    assert one.events[3:] == []


@pytest.mark.parametrize("is_up", [True, False])
async def test_a_partition_that_is_opened_off_the_net_knows_it(is_up: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Fed(KEY)

    async def opened(*_: Any) -> Fed:
        return made

    monkeypatch.setattr(partitions_module, "open_worker", opened)
    node = partitions()
    node.data_path_changed(is_up)
    assert await node._start(KEY, SimpleNamespace(subject="shop", config=None), SimpleNamespace())
    assert made.events == ([] if is_up else [events.DataPathChanged(is_up=False)])


async def test_an_opening_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def opened(*_: Any) -> Fed:
        raise StorageError("not now")

    monkeypatch.setattr(partitions_module, "open_worker", opened)
    monkeypatch.setattr(partitions_module, "_RETRY_S", 0.01)
    node = partitions()
    seen: list[PartitionKey] = []
    node._changed._work = seen.append
    assert not await node._start(KEY, SimpleNamespace(subject="shop", config=None), SimpleNamespace())
    assert "not now" in node.failed[KEY]
    await until(lambda: seen == [KEY])


@pytest.mark.parametrize("wrong", [{}, {"uid": "u2"}, {"leader_epoch": 5}, {"partition": 2}])
async def test_stepping_aside_is_said_when_nothing_is_on_its_way_any_more(
    wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions_module, "_BACK_AFTER_S", 0.01)
    one = Fed(KEY, leads=True)
    node, order = partitions(one), one.asked
    one.ingest.idle = False
    asked = {"stream": "orders", "partition": 3, "uid": "u1", "leader_epoch": 4} | wrong
    node.step_aside(**asked, done=lambda: order.append("done"))
    if wrong:
        assert order == ["done"], "it is not about this leadership: who asks need not wait"
        return
    for _ in range(5):
        await asyncio.sleep(0.001)
    assert order == ["leave"], "publishers are still answered"
    one.ingest.idle = True
    await until(lambda: order == ["leave", "done", "back"])
    await node.stop()


# ---- housekeeping --------------------------------------------------------------------------------------------------------------
class Kept:
    """A worker, as housekeeping sees one."""

    def __init__(self, key: str) -> None:
        self.key, self.done = key, []
        self.high_watermark = 0
        self.config = StreamConfig(retention_bytes=1, compaction=True)
        self.set_aside: tuple[str, ...] = ("old",)
        self.executor = SimpleNamespace(no_space=False)
        self.flusher = SimpleNamespace(
            checkpoint=lambda: self.done.append("checkpoint"), alone=lambda work: self.done.append("settle") or work()
        )
        self.compaction: Any = SimpleNamespace(run=lambda: self.done.append("run"))
        self.log = SimpleNamespace(
            begin_compaction=lambda now, min_dirty_ratio: self.compaction,
            complete_compaction=lambda compaction: self.done.append("complete") or 1,
            met_damage=lambda error: self.done.append("damage"),
        )

    def apply_retention(self, now: int) -> None:
        self.done.append("retention")

    def drop_set_aside(self) -> None:
        self.done.append("dropped")

    def log_was_closed(self, error: StorageError) -> None:
        self.done.append("closed")


class Keeping(list[Any]):
    everything = True

    def has_everything(self, worker: Any) -> bool:
        return self.everything


@pytest.mark.parametrize("everything", [True, False])
async def test_a_round_of_retention_compaction_and_what_was_set_aside(everything: bool, tmp_path: Path) -> None:
    workers = Keeping([Kept("a"), Kept("b")])
    workers.everything = everything
    workers[1].set_aside, workers[1].config = (), StreamConfig()
    keeping = Housekeeping(workers, 1.0, tmp_path, pytest.fail)  # type: ignore[arg-type]
    await keeping._retention()
    assert workers[0].done == ["retention", "run", "settle", "complete", *(["dropped"] if everything else [])]
    assert workers[1].done == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (CorruptionError("a flip"), ["damage"]),
        (StorageError("no"), ["closed"]),
        (NoSpaceError("full"), ["closed"]),
        (LiftError("x"), []),
    ],
)
async def test_what_compaction_meets_is_told(error: LiftError, told: list[str], tmp_path: Path) -> None:
    one = Kept("a")

    def run() -> None:
        raise error

    one.compaction = SimpleNamespace(run=run)
    await Housekeeping(Keeping([one]), 1.0, tmp_path, pytest.fail)._compact(one)  # type: ignore[arg-type]
    assert one.done == told


async def test_checkpoints_follow_hw_and_nobody_who_is_gone_is_remembered(tmp_path: Path) -> None:
    workers = Keeping([Kept("a"), Kept("b")])
    keeping = Housekeeping(workers, 1.0, tmp_path, pytest.fail)  # type: ignore[arg-type]
    for _ in range(3):
        await keeping._checkpoints()
    assert [worker.done for worker in workers] == [["checkpoint"], ["checkpoint"]], "an idle one costs nothing"
    workers[0].high_watermark = 5
    await keeping._checkpoints()
    assert [len(worker.done) for worker in workers] == [2, 1]
    gone = workers.pop()
    await keeping._checkpoints()
    assert gone not in keeping._checkpointed
    assert len(keeping._checkpointed) == 1


async def test_retention_comes_round_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "RETENTION_EVERY_S", 0.002)
    one = Kept("a")
    one.config, one.set_aside = StreamConfig(retention_bytes=1), ()
    keeping = Housekeeping(Keeping([one]), 0.001, tmp_path, pytest.fail)  # type: ignore[arg-type]
    keeping.start()
    await until(lambda: one.done.count("retention") >= 4)
    await keeping.close()


# ---- what was recovered --------------------------------------------------------------------------------------------------------
def test_a_recovered_log_is_given_once_and_one_that_failed_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = RecoveredLogs()
    found = SimpleNamespace(report=SimpleNamespace(flush_failed="", must_leave_isr=False), segments=[])
    monkeypatch.setattr("sidecar.partition.recovery.recover", lambda storage, clean: found)
    folder: Any = SimpleNamespace(storage=lambda path: path)
    path = Path("streams/orders-u1/3")
    logs._recover(path, folder, clean_stop=True)
    assert logs.take(path) is found
    assert logs.take(path) is None
    assert logs.damaged == []

    def fails(storage: Any, clean: bool) -> Any:
        raise CorruptionError("all of it")

    monkeypatch.setattr("sidecar.partition.recovery.recover", fails)
    logs._recover(path, folder, clean_stop=True)
    assert logs.damaged == ["orders-u1/3"]
    assert logs.take(path) is None


# ---- replication, reads, quiet partitions ----------------------------------------------------------------------------------------
async def test_a_fetch_says_what_its_follower_said() -> None:
    desk = Desk()
    request = replication_pb2.ReplicationRequest(
        replicaID="n2", offset=11, leaderEpoch=12, offsetEpoch=13, incarnation=14, requestId=15, maxBytes=16, streamUid="u",
        awaitsMore=True, badOffset=17, flushMicros=18, position=0, batchCrc=0,
    )  # fmt: skip
    desk.bus.deliver(desk.subjects.replicate("orders", 0), frames.encode(request), "liftpy.inbox.n2.1.1")
    found = desk.fetches.pop()
    assert dataclasses.replace(found, token=0) == events.FetchReceived(
        token=0, replica="n2", offset=11, leader_epoch=12, offset_epoch=13, incarnation=14, request_id=15, max_bytes=16, stream_uid="u",
        awaits_more=True, bad_offset=17, flush_ns=18_000,
    )  # fmt: skip


async def test_askers_who_are_never_answered_are_bounded() -> None:
    desk = Desk()
    for number in range(_MAX_TOKENS + 50):
        desk.replication._token(b"liftpy.inbox.n2.1.%d" % number)
    assert len(desk.replication._tokens) == _MAX_TOKENS
    assert max(desk.replication._tokens) - min(desk.replication._tokens) == _MAX_TOKENS - 1, "the oldest are forgotten"


class NatsBus:
    """One connection: ``up`` says whether it takes what is sent."""

    inbox, max_payload = "liftpy.inbox.n1", 1 << 20

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, str]] = []
        self.listening: dict[str, Any] = {}
        self.queues: dict[str, str] = {}
        self.up = True

    def listen(self, subject: str, sink: Any, queue: str = "", given_up: Any = None) -> Any:
        self.listening[subject], self.queues[subject] = sink, queue
        return SimpleNamespace(close=lambda: self.listening.pop(subject, None), leave=lambda: None)

    def send(self, subject: str, pieces: Any, reply: str = "", *, keep: bool = False) -> bool:
        if self.up:
            self.sent.append((subject, b"".join(pieces), reply))
        return self.up


def fetch_client(bus: NatsBus, fed: list[Any]) -> FetchClient:
    return FetchClient(AnswerRouter(bus), Subjects(), KEY, "n1", fed.append, Counter())  # type: ignore[arg-type]


FETCH = do.SendFetch(leader="n2", request_id=9, offset=4, leader_epoch=2, offset_epoch=1, max_bytes=1 << 16)


async def test_a_fetch_that_could_not_be_sent_has_failed() -> None:
    bus, fed = NatsBus(), []
    client = fetch_client(bus, fed)
    bus.up = False
    client.send_fetch(FETCH, 5)
    assert fed == [events.RequestFailed(request_id=9, reason="not connected")]
    client.send_epoch_query(do.SendEpochQuery(leader="n2", request_id=10, asked_epoch=1, current_epoch=2))
    assert fed[1:] == [events.RequestFailed(request_id=10, reason="not connected")]


async def test_damage_in_an_answer_is_told_with_its_offset() -> None:
    bus, fed = NatsBus(), []
    client = fetch_client(bus, fed)
    batches = [build_batch([b"a"], base_offset=offset, leader_epoch=2) for offset in (5, 6)]
    spoilt = bytearray(batches[1])
    spoilt[-1] ^= 1
    body = batches[0] + bytes(spoilt)
    client._answered(9, frames.replication_response_header(2, 4, (body,)) + body, b"")
    (failed,) = fed
    assert isinstance(failed, events.RequestFailed)
    assert (failed.request_id, failed.bad_offset) == (9, 6)
    assert client.fetched == {}


async def test_reads_are_answered_under_inboxes_alone_and_shared_by_the_isr() -> None:
    bus, counters = NatsBus(), Counter[str]()
    source: Any = SimpleNamespace()
    tools = ReadTools(bus, Subjects(), InboxRule(("_INBOX.",)), Clocked(), counters)  # type: ignore[arg-type]
    reads = ReadSubjects(tools, KEY, "n1", source)  # type: ignore[arg-type]
    shared, own = "liftpy.orders.3.read", "liftpy.orders.3.read.n1"
    assert set(bus.listening) == {own}
    for wanted in (True, True, False, False, True):
        reads.share(wanted)
        assert (shared in bus.listening) is wanted
    assert bus.queues[shared] == shared
    bus.listening[own](own.encode(), b"orders", b"garbage", b"")
    assert bus.sent == []
    assert counters == {"refused: reply subject": 1}
    source.log, source.high_watermark, source.leader_epoch, source.compacted, source.leader = Desk().log, 0, 1, False, "n1"
    bus.listening[own](own.encode(), b"_INBOX.a", b"garbage", b"")
    assert [to for to, *_ in bus.sent] == ["_INBOX.a"], "what can't be read is refused, not dropped"
    reads.close()
    assert bus.listening == {}


async def test_confirmations_are_of_their_question_alone() -> None:
    bus, delivered = NatsBus(), []
    confirm: set[int] = set()

    def deliver(stream: str, partition: int, uid: str, event: Any) -> None:
        delivered.append((partition, event))
        if partition in confirm:
            talk.confirm(do.ConfirmQuiet(token=event.token))

    talk = QuietTalk(
        AnswerRouter(bus),
        Subjects(),
        QuietAsker("n1", 4),
        InboxRule(("liftpy.inbox.",)),
        ReplicationConfig(),
        Clocked(),
        deliver,
        Counter(),  # type: ignore[arg-type]
    )
    question = replication_pb2.QuietFetches(replicaID="n2", incarnation=7)
    for number in range(3):
        question.fetches.add(stream="orders", streamUid="u1", partition=number, leaderEpoch=5, requestId=6 + number)
    for confirmed, over in (({0, 2}, [1]), (set(), [0, 1, 2]), ({0, 1, 2}, [])):
        confirm.clear()
        confirm.update(confirmed)
        talk.received(b"liftpy.inbox.n2.1.1", memoryview(question.SerializeToString()))
        answer = frames.decode(bus.sent.pop()[1], replication_pb2.QuietFetchesAnswer)
        assert (list(answer.over), answer.count) == (over, 3)
        assert len(talk._confirmed) <= 3, "those of the question before are forgotten"
    event = delivered[0][1]
    assert (event.replica, event.incarnation, event.leader_epoch, event.request_id) == ("n2", 7, 5, 6)


async def test_the_image_that_a_node_begins_with_is_empty() -> None:
    assert not ClusterImage().streams
    assert PartitionStatus.ONLINE is PartitionStatus(1)


def test_streams_that_are_gone_are_remembered_in_a_bound_the_newest_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.partition.deletions._REMEMBERED", 3)
    group: Any = None
    deletions = Deletions(group, "n1", decides=False)
    for uid in "abcde":
        deletions._remember(uid)
    assert list(deletions._gone) == ["c", "d", "e"]
