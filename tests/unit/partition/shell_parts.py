"""Helpers for the tests of the partition shell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.log import Log
from liftpy.errors import StorageError
from sidecar.disk.flush_thread import FlushThread, NodeFlushTimes
from sidecar.partition.flushing import Flusher
from sidecar.partition.leadership import LeadershipTransfers
from sidecar.partition.recovery import RecoveredLogs
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
