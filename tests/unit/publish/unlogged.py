"""Derived state and a replica for an Ingest that is tested without a log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from liftpy.core.publish.acks import PendingAcks
from liftpy.core.publish.log_state import LogState

WINDOW_NS = 120 * 1_000_000_000


def empty_log() -> Any:
    return SimpleNamespace(log_start_offset=0, log_end_offset=0, high_watermark=-1)


def create_log_state(window_ns: int = WINDOW_NS, max_bytes: int = 1 << 20) -> LogState:
    """Of an empty log; it is told of what is appended by the Ingest, and of nothing else."""
    return LogState(empty_log(), window_ns, max_bytes, lambda: 0)


def ingest_partition(
    acks: PendingAcks, replica: FakeReplica, log: Any, log_state: LogState, feed: Callable[[Any], None]
) -> Any:
    """``PublishPartition`` with these parts. Its clock stands still."""
    return SimpleNamespace(
        acks=acks, replica=replica, log=log, log_state=log_state, feed=feed, now_ns=lambda: 0,
        publishes_dropped=lambda reason, count: None, ingest_left=lambda: None,
    )  # fmt: skip


@dataclass
class FakeReplica:
    """Replica of a leader. A test sets what the leader may do."""

    may_reject: bool = True
    has_standby: bool = False
    """True if standby followers buffer publishes, so that the leader rejects none for a reason of its own."""
    is_busy: bool = False
    """True if the leader delays publishes."""
    held_bytes: int = 0
    uncommitted_bytes: int = 0

    def may_reject_publishes(self, now_ns: int) -> bool:
        return self.may_reject

    def may_reject_locally(self, now_ns: int) -> bool:
        return self.may_reject and not self.has_standby

    def takes_publishes(self) -> bool:
        return not self.is_busy

    def standby_successor(self) -> str:
        return "n2" if self.has_standby else ""
