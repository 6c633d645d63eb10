"""An executor that also records trace spans for batches. It is used only if tracing is on."""

from __future__ import annotations

import time
from typing import Protocol

from liftpy.core.log.log import Log
from liftpy.core.observe.tracing import PartitionTraces
from liftpy.core.publish.acks import PendingAcks
from liftpy.core.replication import effects as do
from liftpy.core.replication.effects import Acts, Effect
from liftpy.core.replication.events import Event, FetchReceived, LogFlushed
from liftpy.core.replication.phases import Leading
from liftpy.core.replication.replica import Replica
from sidecar.partition.driver import ReplicaDriver
from sidecar.partition.executor import Executor


class Traceable(Protocol):
    """Interface of a partition for tracing."""

    replica: Replica
    executor: Executor
    log: Log
    acks: PendingAcks

    def followers(self) -> frozenset[str]:
        """Return the replicas whose flush of a new batch is awaited."""
        ...


class TracedActs:
    """Effects of the executor of ``one``, with trace spans."""

    def __init__(self, one: Traceable, traces: PartitionTraces) -> None:
        self._one = one
        self._executor = one.executor
        self._traces = traces

    def acts(self) -> Acts:
        """Return the handlers of the traced effects."""
        return {
            do.AppendBatch: self.append_batch,
            do.RaiseHighWatermark: self.raise_high_watermark,
            do.SendAcks: self.send_acks,
            do.DropPendingAcks: self.drop_pending_acks,
            do.RoleChanged: self.role_changed,
        }

    def append_batch(self, effect: do.AppendBatch) -> None:
        acks, log = self._one.acks, self._one.log
        owed, batch = acks.count, self._executor.append(effect)
        if not batch:
            return
        end_offset = log.log_end_offset
        self._traces.appended(
            batch,
            effect.base_offset,
            end_offset - effect.base_offset,
            effect.leader_epoch,
            arrived_wall_ns=min(effect.timestamp_ns, time.time_ns()),
            flushed=log.flushed_end_offset >= end_offset,
            awaited=acks.count > owed,
            followers=self._one.followers(),
        )

    def raise_high_watermark(self, effect: do.RaiseHighWatermark) -> None:
        self._executor.raise_high_watermark(effect)
        if self._traces.follows:
            self._traces.committed(effect.high_watermark)

    def send_acks(self, effect: do.SendAcks) -> None:
        owed = self._one.acks.count
        self._executor.send_acks(effect)
        if self._traces.follows and self._one.acks.count < owed:
            self._traces.acked(effect.policy, effect.through_offset)

    def drop_pending_acks(self, effect: do.DropPendingAcks) -> None:
        self._executor.drop_pending_acks(effect)
        self._traces.ended()

    def role_changed(self, effect: do.RoleChanged) -> None:
        self._executor.role_changed(effect)
        self._traces.role_is(effect.role.value, effect.phase == Leading.READY, effect.leader_epoch)


class TracedReplica:
    """A replica that reports flushes and fetches to ``traces`` first."""

    def __init__(self, replica: Replica, traces: PartitionTraces) -> None:
        self._replica = replica
        self._traces = traces

    def step(self, event: Event, now_ns: int) -> list[Effect]:
        """Process an event as the replica does, and trace it."""
        traces = self._traces
        if traces.follows:
            if type(event) is FetchReceived:
                traces.fetched(event.replica, event.offset, event.leader_epoch)
            elif type(event) is LogFlushed:
                traces.flushed(event.end_offset)
        return self._replica.step(event, now_ns)


def trace(one: Traceable, driver: ReplicaDriver, traces: PartitionTraces | None) -> None:
    """Start tracing the batches of a partition. None: stop."""
    driver.replica = one.replica if traces is None else TracedReplica(one.replica, traces)
    one.executor.act_by({} if traces is None else TracedActs(one, traces).acts())
