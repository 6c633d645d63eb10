"""A partition whose batches are traced: what its executor does and what its replica is told is noted, and changed in nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

from liftpy.replica import effects as do
from liftpy.replica.events import Event, FetchReceived, LogFlushed
from liftpy.replica.phases import Leading
from liftpy.trace.batches import PartitionTraces
from sidecar.partition.executor import Executor, Tools

Feed = Callable[[Event], None]


class TracedExecutor(Executor):
    """``followers``: whose flushes of a batch that is appended now are waited for."""

    def __init__(self, tools: Tools, traces: PartitionTraces, followers: Callable[[], frozenset[str]]) -> None:
        self._traces = traces
        self._followers = followers
        super().__init__(tools)

    def append_batch(self, effect: do.AppendBatch) -> None:
        tools = self._t
        owed, batch = tools.acks.count, self._append(effect)
        if not batch:
            return
        end_offset = tools.log.log_end_offset
        self._traces.appended(
            batch,
            effect.base_offset,
            end_offset - effect.base_offset,
            effect.leader_epoch,
            arrived_wall_ns=min(effect.timestamp_ns, time.time_ns()),
            flushed=tools.log.flushed_end_offset >= end_offset,
            awaited=tools.acks.count > owed,
            followers=self._followers(),
        )

    def raise_high_watermark(self, effect: do.RaiseHighWatermark) -> None:
        super().raise_high_watermark(effect)
        if self._traces.follows:
            self._traces.committed(effect.high_watermark)

    def send_acks(self, effect: do.SendAcks) -> None:
        owed = self._t.acks.count
        super().send_acks(effect)
        if self._traces.follows and self._t.acks.count < owed:
            self._traces.acked(effect.policy, effect.through_offset)

    def drop_pending_acks(self, effect: do.DropPendingAcks) -> None:
        super().drop_pending_acks(effect)
        self._traces.ended()

    def role_changed(self, effect: do.RoleChanged) -> None:
        super().role_changed(effect)
        self._traces.role_is(effect.role.value, effect.phase == Leading.READY, effect.leader_epoch)

    def close(self) -> None:
        super().close()
        self._traces.ended()


def feed_of(feed: Feed, traces: PartitionTraces | None) -> Feed:
    """``feed``, which notes flushes and followers' fetches on the way, of a partition that is traced."""
    if traces is None:
        return feed

    def note(event: Event) -> None:
        if traces.follows:
            if type(event) is FetchReceived:
                traces.fetched(event.replica, event.offset, event.leader_epoch)
            elif type(event) is LogFlushed:
                traces.flushed(event.end_offset)
        feed(event)

    return note
