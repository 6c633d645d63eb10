"""Helpers for the tests of the partition shell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.instruments import Instruments
from liftpy.core.log.log import Log
from liftpy.core.replication import events
from liftpy.errors import StorageError
from sidecar.disk.flush_thread import FlushThread, NodeFlushTimes
from sidecar.partition.flushing import Flusher
from sidecar.partition.leadership import LeadershipTransfers
from sidecar.partition.recovery import RecoveredLogs
from sidecar.partition.worker import METHODS, PartitionWorker, ReplicaDriver
from sidecar.runtime.timers import Timer, Timers

KEY = PartitionKey("orders", "u1", 3)


class Clocked(Timers):
    """Timers that fire when the test says so."""

    def __init__(self) -> None:
        self.armed: list[tuple[Timer, int]] = []

    def set(self, timer: Timer, at_ns: int) -> None:
        self.armed.append((timer, at_ns))

    def cancel(self, timer: Timer) -> None:
        self.armed = [entry for entry in self.armed if entry[0] is not timer]


def worker(**more: Any) -> Any:
    """What ``PartitionWorker``'s methods need of one."""
    told: list[Any] = []
    made = SimpleNamespace(
        key=KEY, told=told, feed=told.append, quarantined_files=("old",), leader="n1",
        _node=SimpleNamespace(counters=Counter(), instruments=Instruments(), settings=SimpleNamespace(node_id="n1"),
                              folder=SimpleNamespace(delete_partition=told.append),
                              promises=SimpleNamespace(forget=told.append)),
        flusher=SimpleNamespace(stalls=False, alone=lambda work: told.append("settled") or work()),
        storage_failed=False, no_space=False, has_flushed_all=False, log_failed=told.append,
    )  # fmt: skip
    made.__dict__.update(more)
    return made


def process_tools(fatal: Callable[[Any], object] = pytest.fail) -> dict[str, Any]:
    """The part of the tools of a node that stands for its process."""
    transfers = LeadershipTransfers(None)  # type: ignore[arg-type]
    return {"process": SimpleNamespace(fatal=fatal), "transfers": transfers, "recovered": RecoveredLogs()}


class FlushedPartition:
    """A partition that notes what its flusher reports."""

    def __init__(self, log: Log, failed: Callable[[StorageError], object] = pytest.fail) -> None:
        self.key, self.log, self.log_failed = KEY, log, failed
        self.flushed: list[int] = []

    def log_flushed(self, end_offset: int, took_ns: int) -> None:
        self.flushed.append(end_offset)


def flusher_of(partition: FlushedPartition, pool: Any, timers: Timers, flush_thread: FlushThread | None = None) -> Flusher:
    return Flusher(partition, pool, timers, NodeFlushTimes(Counter()), flush_thread)  # type: ignore[arg-type]


class DrivenWorker:
    """A worker that notes the effects of its replica, and the errors that would end the process."""

    def __init__(self, replica: Any, execute: Callable[[Any], object] | None = None) -> None:
        self.key, self.replica = KEY, replica
        self.done: list[Any] = []
        self.broken: list[Exception] = []
        self.touches = 0
        self.steps_over = 0
        self.execute = execute or self.done.append
        self.replication = self
        self.driver = ReplicaDriver(self, SimpleNamespace(fatal=self.broken.append))  # type: ignore[arg-type]

    def mark_changed(self) -> None:
        self.touches += 1

    def end_step(self) -> None:
        self.steps_over += 1


_OWN_PARTS = (
    "flusher", "ingest", "derived", "standby", "replay", "acks", "replication", "fetches", "reads", "services",
)  # fmt: skip
_NODE_PARTS = ("promises", "timers", "notifications", "fetch_combiner", "probes", "proposals")
PARTS = (*_OWN_PARTS, *_NODE_PARTS)
"""Names of what a worker hands effects to, beside the log."""


def executing_worker(
    fed: list[events.Event], parts: dict[str, Any], log: Any, repaired: list[str] | None = None
) -> PartitionWorker:
    """A worker that carries out effects. ``parts``: an object for each name in PARTS. ``fed``: gets the events for the replica."""
    made = object.__new__(PartitionWorker)
    node = {name: parts[name] for name in _NODE_PARTS} | {
        "incarnation": 41,
        "transfers": SimpleNamespace(begin=lambda leader, done: done()),
        "settings": SimpleNamespace(node_id="n1"),
        "process": SimpleNamespace(repair=(repaired if repaired is not None else []).append),
    }
    vars(made).update(
        {name: parts[name] for name in _OWN_PARTS},
        key=KEY,
        log=log,
        state_fetcher=None,
        counters=Counter(),
        fetched=parts["fetches"].fetched,
        state=SimpleNamespace(leader="n1", leader_epoch=1, epoch=2),
        replica=SimpleNamespace(high_watermark=42),
        _node=SimpleNamespace(**node),
        _driver=SimpleNamespace(feed=fed.append),
        _deadlines={},
        _do=METHODS,
    )
    return made
