"""Test the calls between a partition worker and its parts, with stand-ins for the parts."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import AckPolicy, Codec, FlushPolicy, ReplicationConfig, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.publish.log_state_part import NodeStateMemory
from liftpy.core.publish.standby import NodeStandbyMemory
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
    "Replica", "ReplicaDriver", "ReplicaSource", "ReplicationHandler", "Standby", "Tools",
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
            heard=NodeStandbyMemory(1 << 30), derived=NodeStateMemory(), clocks=SimpleNamespace(stamp_ns="the time of records"),
            folder=SimpleNamespace(partition_path=lambda key: Path("/data") / key.folder),
            drops=SimpleNamespace(count=lambda *told: self.dropped.append(told)),
            reads=SimpleNamespace(inboxes="the inboxes of applications"), tracing=SimpleNamespace(of=lambda key: None),
            flush_times=SimpleNamespace(flushed=print), touched=set(), **given,
        )  # fmt: skip
        self.joined: list[NodeStateMemory] = []
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
                part.execute, part.storage_failed, part.log_failed = "executes", False, self.failed.append
                part.hand_over = lambda *told: self.fed.append(told)
            elif name == "Ingest":
                part.heard, part.reader = "heard", SimpleNamespace()
            elif name == "ReplicationHandler":
                part.step_over = "lets go"
            elif name == "ReadSubjects":
                part.set_state_server = lambda giver: None
            elif name == "derived_state":
                part.ids, part.join = "the ids", self.joined.append
            elif name == "Flusher":
                part.disk_ns = 99
            return part

        return make

    def taken(self, name: str, *functions: str) -> list[Any]:
        """Return functions that the worker gave to a part."""
        return [self.given[name][function] for function in functions]


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> Wired:
    return Wired(monkeypatch)


def test_partition_dedup_state_counts_against_the_memory_limit_of_the_node(wired: Wired) -> None:
    assert wired.joined == [wired.node.derived]


def test_partition_ingest_may_reject_publishes_only_if_its_replica_may(wired: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now_ns", lambda: 77)
    may_refuse, may_refuse_for_now, log_end_offset = wired.taken("Ingest", "may_refuse", "may_refuse_for_now", "log_end_offset")
    assert (may_refuse(), may_refuse_for_now(), log_end_offset()) == (("may refuse", 77), ("for now", 77), 41)


@pytest.mark.parametrize("heir", ["", "n8"])
def test_partition_that_may_have_missed_publishes_transfers_its_leadership_to_a_standby(wired: Wired, heir: str) -> None:
    wired.parts["Replica"].standby_to_lead_next = lambda: heir
    (may_leave,) = wired.taken("Ingest", "may_leave")
    assert (may_leave(), wired.went_past) == (bool(heir), [KEY] if heir else [])
    assert wired.worker.hand_over_what_went_past() is bool(heir)
    aside = do.StepAside(leader_epoch=0, toward="n8", reason="publishes may have gone past it")
    assert wired.fed == ([(aside, "missed_publishes")] if heir else [])


def test_partition_reports_dropped_publishes_to_the_node(wired: Wired) -> None:
    (on_drop,) = wired.taken("Ingest", "on_drop")
    on_drop("no room", 3)
    assert wired.dropped == [("orders/3", "no room", 3)]


def test_partition_flush_reports_the_durable_end_or_the_error_to_its_replica(wired: Wired) -> None:
    flushed, failed = wired.taken("Flusher", "flushed", "failed")
    flushed(6)
    assert wired.fed == [events.LogFlushed(end_offset=6, took_ns=99)]
    error = StorageError("broken")
    failed(error)
    assert wired.failed == [error]


def test_effect_executor_reads_the_current_leader_and_high_watermark_of_its_partition(wired: Wired) -> None:
    high_watermark, leader = wired.taken("Tools", "high_watermark", "leader")
    assert (high_watermark(), leader()) == (33, ("", 0, 0))
    wired.worker.state = SimpleNamespace(leader="n8", leader_epoch=5, epoch=9)  # type: ignore[assignment]
    assert leader() == ("n8", 5, 9)
