"""Test which objects of the node and the stream the parts of a partition get."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import AckPolicy, Codec, FlushPolicy, ReplicationConfig, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.publish.log_state_part import NodeDerived
from liftpy.core.publish.standby import NodeHeard, SortingRules
from liftpy.core.replication import effects as do
from liftpy.core.replication import events
from liftpy.errors import StorageError
from sidecar.partition import worker as worker_module
from sidecar.partition.worker import PartitionWorker
from sidecar.runtime import clock
from tests.unit.partition.shell_parts import KEY

REPLICATION = ReplicationConfig(partition_message_id_bytes=1 << 20, partition_subject_index_bytes=1 << 21)
CONFIG = StreamConfig(
    ack_policy=AckPolicy.LEADER, codec=Codec.LZ4, flush=FlushPolicy.parse("interval:50"), compaction=True, dedup_window_s=7.0
)
SUBJECT = "shop.orders"
OWN_SUBJECT = worker_module.data_subject(SUBJECT, KEY.partition)
MADE = (
    "derived_state", "Executor", "FetchClient", "Flusher", "Ingest", "LogReplay", "PartitionServices", "PendingAcks", "ReadSubjects",
    "Replica", "ReplicaDriver", "ReplicaSource", "ReplicationDesk", "Standby", "Tools",
)  # fmt: skip


class Wired:
    """A worker whose parts are stand-ins: what each was made with, by the names of its parameters."""

    def __init__(self, patch: pytest.MonkeyPatch, config: StreamConfig = CONFIG) -> None:
        self.given: dict[str, dict[str, Any]] = {}
        self.parts: dict[str, Any] = {}
        for name in MADE:
            patch.setattr(worker_module, name, self._stand_in(name, getattr(worker_module, name)))
        self.fed: list[Any] = []
        self.dropped: list[Any] = []
        self.failed: list[Any] = []
        self.flushed: list[Any] = []
        self.log: Any = SimpleNamespace(log_start_offset=0, log_end_offset=41, on_damage=None, checkpoint=None, closed=False)
        given = {name: f"the node's {name}" for name in (
            "intake", "copy_pace", "subjects", "node_inboxes", "router", "notifications", "quiet", "probes", "proposals", "timers",
            "pool", "counters", "instruments", "room", "flush_beside", "promises", "step_aside", "fatal", "repair",
        )}  # fmt: skip
        self.node: Any = SimpleNamespace(
            settings=SimpleNamespace(node_id="n7", replication=REPLICATION), incarnation=12,
            links=SimpleNamespace(
                ingest="the link of publishes", replication="the link of replication", standby="the link of standbys"
            ),
            heard=NodeHeard(1 << 30), derived=NodeDerived(), clocks=SimpleNamespace(stamp_ns="the time of records"),
            folder=SimpleNamespace(partition_path=lambda key: Path("/data") / key.folder),
            drops=SimpleNamespace(count=lambda *told: self.dropped.append(told)),
            reads=SimpleNamespace(inboxes="the inboxes of applications"), tracing=SimpleNamespace(of=lambda key: None),
            flush_times=SimpleNamespace(flushed=lambda *told: self.flushed.append(told)), touched=set(), **given,
        )  # fmt: skip
        self.joined: list[NodeDerived] = []
        self.went_past: list[PartitionKey] = []
        self.node.went_past = self.went_past.append
        self.worker = PartitionWorker(self.node, KEY, SUBJECT, config, self.log, ("quarantine",))

    def _stand_in(self, name: str, real: Any) -> Any:
        names = inspect.signature(real)

        def make(*args: Any, **more: Any) -> Any:
            self.given[name] = dict(names.bind(*args, **more).arguments)
            part = self.parts[name] = SimpleNamespace(name=name)
            if name == "ReplicaDriver":
                part.feed = lambda event: self.fed.append(event)
            elif name == "Replica":
                part.takes_publishes, part.may_refuse_publishers = "takes", lambda now_ns: ("may refuse", now_ns)
                part.may_refuse_for_now = lambda now_ns: ("for now", now_ns)
                part.high_watermark = 33
            elif name == "Executor":
                part.execute, part.storage_failed, part.failed = "executes", False, self.failed.append
                part.hand_over = lambda *told: self.fed.append(told)
            elif name == "Ingest":
                part.heard, part.reader = "heard", SimpleNamespace()
            elif name == "ReplicationDesk":
                part.step_over = "lets go"
            elif name == "ReadSubjects":
                part.give_states = lambda giver: None
            elif name == "derived_state":
                part.ids, part.join = "the ids", self.joined.append
            elif name == "Flusher":
                part.disk_ns = 99
            return part

        return make

    def taken(self, name: str, *functions: str) -> tuple[dict[str, Any], list[Any]]:
        """What ``name`` was given, and of that ``functions`` by themselves."""
        given = dict(self.given[name])
        return given, [given.pop(function) for function in functions]


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> Wired:
    return Wired(monkeypatch)


def test_partition_worker_has_all_expected_parts(wired: Wired) -> None:
    assert set(wired.given) == set(MADE)
    assert (wired.worker.key, wired.worker.config, wired.worker.log) == (KEY, CONFIG, wired.log)
    assert (wired.worker.set_aside, wired.worker.state) == (("quarantine",), None)


def test_partition_replica_gets_the_nodes_settings_and_its_own_seed(wired: Wired) -> None:
    given, (seed,) = wired.taken("Replica", "seed")
    assert list(given.values()) == [
        "n7", 12, REPLICATION, "the node's intake", worker_module._REQUEST_ID_BASE, "the node's copy_pace",
    ]  # fmt: skip
    driver, (replica,) = wired.taken("ReplicaDriver", "replica")
    assert list(driver.values()) == [KEY, "the node's fatal"]
    assert (wired.parts["ReplicaDriver"].execute, wired.parts["ReplicaDriver"].step_over) == ("executes", "lets go")
    assert replica is wired.worker.replica is wired.parts["Replica"]
    seeds = [seed]
    for node_id, key in (("n7", KEY), ("n8", KEY), ("n7", PartitionKey("orders", "u1", 4))):
        wired.node.settings.node_id = node_id
        worker_module._replica(wired.node, key)
        seeds.append(wired.given["Replica"]["seed"])
    assert seeds[0] == seeds[1], "the same one after a restart"
    assert len(set(seeds[1:])) == 3


def test_partition_ingest_gets_its_streams_rules_and_its_replica(wired: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(wired.given["derived_state"].values()) == [
        wired.log, OWN_SUBJECT, CONFIG, REPLICATION, clock.now_ns,
    ]  # fmt: skip
    assert wired.joined == [wired.node.derived]
    times, room = wired.given["Ingest"].pop("times"), wired.given["Ingest"].pop("room")
    assert (room.node, room._own_bytes, room._queued) == (
        "the node's room",
        REPLICATION.ingest_queue_bytes,
        wired.worker._queued_bytes,
    )
    assert (times._instruments, times.now_ns) == ("the node's instruments", clock.now_ns)
    monkeypatch.setattr(clock, "now_ns", lambda: 77)
    worker, (given, functions) = (
        wired.worker,
        wired.taken("Ingest", "log_end_offset", "may_refuse", "may_refuse_for_now", "on_drop", "may_leave", "feed"),
    )
    assert given == {
        "shell": "the link of publishes", "subject": OWN_SUBJECT, "config": REPLICATION, "policy": AckPolicy.LEADER, "codec": Codec.LZ4,
        "inboxes": "the inboxes of applications", "acks": wired.parts["PendingAcks"], "wall_ns": "the time of records",
        "derived": wired.parts["derived_state"], "takes": "takes",
    }  # fmt: skip
    log_end_offset, may_refuse, may_refuse_for_now, on_drop, may_leave, feed = functions
    assert (log_end_offset(), may_refuse(), feed) == (41, ("may refuse", 77), worker.feed)
    assert may_refuse_for_now() == ("for now", 77)
    for heir in ("", "n8"):
        wired.parts["Replica"].who_hears_for_it = lambda heir=heir: heir
        assert (may_leave(), wired.went_past) == (bool(heir), [KEY] if heir else [])
        assert worker.hand_over_what_went_past() is bool(heir)
    aside = do.StepAside(leader_epoch=0, toward="n8", reason="publishes may have gone past it")
    assert wired.fed == [(aside, "for publishes that went past")]
    on_drop("no room", 3)
    assert wired.dropped == [("orders/3", "no room", 3)]
    assert list(wired.given["PendingAcks"].values()) == ["the link of publishes", KEY, OWN_SUBJECT, times]


def test_partition_standby_gets_its_own_link_and_limits(wired: Wired, caplog: pytest.LogCaptureFixture) -> None:
    given, (reader, heard, on_lost, on_unreadable) = wired.taken("Standby", "reader", "heard", "on_lost", "on_unreadable")
    assert given == {
        "shell": "the link of standbys", "subject": OWN_SUBJECT, "replica": wired.parts["Replica"], "log": wired.log,
        "ids": "the ids", "now_ns": clock.now_ns, "wall_ns": "the time of records", "rules": SortingRules(doubt_ns=900_000_000),
    }  # fmt: skip
    assert reader is not wired.parts["Ingest"]
    assert (heard.node, heard.bound_bytes, heard.age_ns) == (wired.node.heard, REPLICATION.standby_bytes, 10_000_000_000)
    on_lost(4)
    assert wired.dropped == [("orders/3", "standby_overflow", 4)]
    on_unreadable(StorageError("gone"))
    assert caplog.messages == ["orders/3: what was heard can't be looked for in its log: gone"]


def test_partition_services_reads_and_replication_get_their_dependencies(wired: Wired) -> None:
    given, (feed, hand_over, _) = wired.taken("PartitionServices", "feed", "hand_over", "report_ended")
    assert given == {
        "bus": "the link of replication", "key": KEY, "node_id": "n7", "incarnation": 12, "config": REPLICATION, "compacted": True,
        "timers": "the node's timers", "log": wired.log, "replica": wired.parts["Replica"], "subjects": "the node's subjects",
        "inboxes": "the inboxes of applications", "counters": "the node's counters",
    }  # fmt: skip
    assert feed is wired.worker.feed
    hand_over("n8", "it lags")
    assert wired.fed == [(do.StepAside(leader_epoch=0, toward="n8", reason="it lags"), "for services")]
    source, (failed, is_heard) = wired.taken("ReplicaSource", "failed", "is_heard")
    assert source == {"replica": wired.parts["Replica"], "log": wired.log}
    assert (failed(), is_heard()) == (False, "heard")
    wired.parts["Executor"].storage_failed = True
    assert failed()
    assert list(wired.given["ReadSubjects"].values()) == [
        wired.node.reads, KEY, "n7", wired.parts["ReplicaSource"], f"/data/{KEY.folder}",
    ]  # fmt: skip
    assert list(wired.given["ReplicationDesk"].values()) == [
        "the link of replication", "the node's subjects", KEY, "the node's node_inboxes", wired.worker.feed, "the node's counters",
        "the node's instruments",
    ]  # fmt: skip
    assert list(wired.given["FetchClient"].values()) == [
        "the node's router", "the node's subjects", KEY, "n7", wired.worker.feed, "the node's counters", "the node's instruments",
    ]  # fmt: skip


def test_partition_flusher_reports_to_replica_node_and_executor(wired: Wired) -> None:
    given, (flushed, failed, took) = wired.taken("Flusher", "flushed", "failed", "took")
    assert given == {
        "log": wired.log, "policy": CONFIG.flush, "pool": "the node's pool", "timers": "the node's timers",
        "beside": "the node's flush_beside",
    }  # fmt: skip
    flushed(6)
    assert wired.fed == [events.LogFlushed(end_offset=6, took_ns=99)]
    took(0.5)
    assert wired.flushed == [(KEY, 0.5)]
    error = StorageError("broken")
    failed(error)
    replay, (tell, replay_failed) = wired.taken("LogReplay", "feed", "failed")
    assert list(replay.values()) == [wired.parts["derived_state"]]
    assert tell is wired.worker.feed
    replay_failed(error)
    assert wired.failed == [error, error]
    assert wired.log.on_damage == wired.worker._damaged
    assert wired.parts["Executor"].on_failure == wired.worker._storage_failed
    assert wired.parts["ReplicaDriver"].execute == "executes"


def test_partition_executor_gets_the_parts_of_its_partition(wired: Wired) -> None:
    worker, (given, (high_watermark, leader, feed)) = wired.worker, wired.taken("Tools", "high_watermark", "leader", "feed")
    own = {"flusher", "ingest", "derived", "standby", "replay", "acks", "replication", "fetches", "reads", "services"}
    nodes = {"promises", "timers", "notifications", "quiet", "probes", "proposals", "counters", "step_aside"}
    assert given == {
        "key": KEY, "incarnation": 12, "log": wired.log, "driver": wired.parts["ReplicaDriver"],
        **{name: getattr(worker, name) for name in own}, **{name: f"the node's {name}" for name in nodes},
    }  # fmt: skip
    made = {name: part.name for name in own if (part := given[name])}
    assert made == {
        "flusher": "Flusher", "ingest": "Ingest", "derived": "derived_state", "replay": "LogReplay", "acks": "PendingAcks",
        "replication": "ReplicationDesk", "fetches": "FetchClient", "reads": "ReadSubjects", "services": "PartitionServices",
        "standby": "Standby",
    }  # fmt: skip
    assert (high_watermark(), leader(), feed) == (33, ("", 0, 0), worker.feed)
    worker.state = SimpleNamespace(leader="n8", leader_epoch=5, epoch=9)  # type: ignore[assignment]
    assert leader() == ("n8", 5, 9)
    assert wired.given["Executor"] == {"tools": wired.parts["Tools"]}
