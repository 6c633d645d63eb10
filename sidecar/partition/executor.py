"""Executor: the shell of one partition on a node, with its flushes, timers, NATS and requests to the metadata group.

``PartitionShell`` changes the log and the publishers. All calls are synchronous. Slow work (a flush, a proposal) is started,
and its result is fed as an event. A storage error becomes the event StorageFailed.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.log import Log
from liftpy.core.observe.tracing import PartitionTraces
from liftpy.core.partition.shell import PartitionShell
from liftpy.core.publish.acks import PendingAcks
from liftpy.core.publish.ingest import Ingest
from liftpy.core.publish.log_state import LogState
from liftpy.core.publish.standby import FailoverBacklog, Standby
from liftpy.core.replication import effects as do
from liftpy.core.replication import events
from liftpy.core.replication.effects import Acts, Effect, Methods, methods_of
from liftpy.core.replication.events import Event, FetchReceived, LogFlushed
from liftpy.core.replication.phases import LeaderPhase
from liftpy.core.replication.replica import Replica
from liftpy.errors import StorageError
from sidecar.partition.driver import ReplicaDriver
from sidecar.partition.flushing import Flusher
from sidecar.partition.promises import Promises
from sidecar.partition.proposals import Proposals
from sidecar.partition.quiescence import FetchCombiner
from sidecar.partition.reads import ReadSubjects
from sidecar.partition.recovery import LogReplay
from sidecar.partition.replication import FetchClient, ReplicationHandler
from sidecar.partition.services import NoServices, PartitionServices
from sidecar.runtime import clock
from sidecar.runtime.logs import INFO_LOG_LIMIT, WarningLogRateLimit
from sidecar.runtime.timers import EventTimer, Timer, Timers
from sidecar.transport.liveness import Probes
from sidecar.transport.notify import Notifications

logger = logging.getLogger("liftpy.replica")
_seldom = WarningLogRateLimit()
_REACHED = {kind.name: events.DeadlineReached(kind=kind) for kind in events.Deadline}
"""Event for each kind of deadline."""


@dataclass(slots=True, kw_only=True)
class Tools:
    """Parts of one partition on a node that its executor uses. ``incarnation``: incarnation of the node's process."""

    key: PartitionKey
    incarnation: int
    log: Log
    flusher: Flusher
    promises: Promises
    timers: Timers
    ingest: Ingest
    derived: LogState
    standby: Standby
    replay: LogReplay
    acks: PendingAcks
    replication: ReplicationHandler
    fetches: FetchClient
    notifications: Notifications
    fetch_combiner: FetchCombiner
    probes: Probes
    reads: ReadSubjects
    proposals: Proposals
    services: PartitionServices | NoServices
    counters: Counter[str]
    feed: Callable[[events.Event], None]
    driver: ReplicaDriver
    high_watermark: Callable[[], int]
    transfer_leadership: Callable[[PartitionKey, int, Callable[[], None]], None]
    leader: Callable[[], tuple[str, int, int]]
    """Function that returns (leader, LeaderEpoch, Epoch) of the metadata, for redirects."""


class Executor(PartitionShell):
    """Carries out the effects of one replica on a node.

    ``execute`` calls the method for the effect, for example ``append_batch`` for AppendBatch.
    """

    def __init__(self, tools: Tools) -> None:
        self._t = tools
        self.key, self.log, self.counters = tools.key, tools.log, tools.counters
        self.ingest, self.acks, self.derived = tools.ingest, tools.acks, tools.derived
        self.standby, self.reads = tools.standby, tools.reads
        self.fetched = tools.fetches.fetched
        self.taker = None
        self._closed = False
        self.on_failure: Callable[[StorageError], None] | None = None
        """Callback for the first storage error. None: no callback."""
        self._deadlines: dict[str, Timer] = {}
        """Name -> timer of a deadline. A timer is created when it is first set."""
        self._do = _METHODS

    def execute(self, effect: Effect) -> None:
        self._do[type(effect)](self, effect)

    def use_services(self, services: PartitionServices) -> None:
        """Use ``services`` from now on, because the partition has its first service."""
        self._t.services = services

    def act_by(self, acts: Acts) -> None:
        """Use the functions in ``acts`` to carry out their effects. This object carries out all other effects."""
        self._do = {**_METHODS, **{kind: partial(_without_executor, act) for kind, act in acts.items()}}

    # ---- the log and the publishers ------------------------------------------------------------------------------------
    def feed(self, event: Event) -> None:
        self._t.feed(event)

    def now_ns(self) -> int:
        return clock.now_ns()

    def append_time_ns(self) -> int:
        return time.time_ns()

    def flush_appended(self) -> None:
        self._t.flusher.appended()

    def named_leader(self) -> tuple[str, int, int]:
        return self._t.leader()

    def log_failed(self, error: StorageError, token: int = 0) -> None:
        """Report a storage error to the replica (StorageFailed). ``on_failure`` is called for the first error only.

        ``token``: handle of the publishes that could not be stored. 0: none.
        """
        is_first = not self.failed
        if is_first:
            self.counters["storage_failure"] += 1
            logger.error("storage failed partition=%s error=%s", self.key, error)
        super().log_failed(error, token)
        if is_first and self.on_failure is not None:
            self.on_failure(error)

    def truncate_log(self, effect: do.TruncateLog) -> None:
        logger.info("log truncated partition=%s log_end=%d", self.key, effect.end_offset)
        super().truncate_log(effect)

    def reset_log(self, effect: do.ResetLog) -> None:
        logger.warning("log discarded partition=%s: fetching it again from=%d", self.key, effect.start_offset)
        super().reset_log(effect)

    def run_without_flush(self, work: Callable[[], None]) -> None:
        """Run ``work``, which changes files of the log. If a slow flush is running, run it after the flush.

        So the event loop does not wait. The replica gets no event until then.
        """

        def behind_the_flush() -> None:
            self._t.driver.go_on(work)

        put_off = False
        if self._t.flusher.alone(lambda: behind_the_flush() if put_off else work()):
            put_off = True
            logger.warning("truncation delayed partition=%s: waiting for the running flush", self.key)
            self._t.driver.hold()

    def recheck_log(self, effect: do.RecheckLog) -> None:
        outcome = self.recheck(effect)
        text = "replica fetched damaged bytes partition=%s from=%s offset=%d error=%s"
        _seldom.warning(logger, text, self.key, effect.replica, effect.offset, outcome.value)

    def store_promise(self, leader_epoch: int, then: Callable[[StorageError | None], None]) -> None:
        def stored(error: StorageError | None) -> None:
            if not self._closed:
                then(error)

        self._t.promises.store(self.key.folder, leader_epoch, stored)

    # ---- other replicas -------------------------------------------------------------------------------------------------
    def send_fetch(self, effect: do.SendFetch) -> None:
        self._t.fetches.send_fetch(effect, self._t.incarnation)

    def quiesce(self, effect: do.Quiesce) -> None:
        self._t.fetch_combiner.wait(self.key, effect, self._t.feed)

    def end_quiescence(self, _: do.EndQuiescence) -> None:
        self._t.fetch_combiner.stop(self.key)

    def confirm_quiescence(self, effect: do.ConfirmQuiescence) -> None:
        self._t.fetch_combiner.confirm(effect)

    def send_epoch_query(self, effect: do.SendEpochQuery) -> None:
        self._t.fetches.send_epoch_query(effect)

    def send_fetch_response(self, effect: do.SendFetchResponse) -> None:
        self._t.replication.send_response(effect, self.log, self._t.high_watermark())
        self.ingest.settle()

    def park_fetch(self, effect: do.ParkFetch) -> None:
        self._t.replication.keep(effect)
        self.ingest.settle()

    def answer_parked_fetch(self, effect: do.AnswerParkedFetch) -> None:
        self._t.replication.answer_parked_fetch(effect, self.log, self._t.high_watermark())

    def send_high_watermark(self, effect: do.SendHighWatermark) -> None:
        self._t.replication.send_high_watermark(effect, self._t.high_watermark())

    def send_fetch_refusal(self, effect: do.SendFetchRefusal) -> None:
        self._t.replication.send_refusal(effect)

    def send_epoch_answer(self, effect: do.SendEpochAnswer) -> None:
        self._t.replication.send_epoch_answer(effect)

    def notify_replica(self, effect: do.NotifyReplica) -> None:
        self._t.notifications.wake(self.key, effect)

    def probe_replica(self, effect: do.ProbeReplica) -> None:
        self._t.probes.ask(effect.replica, lambda: self._t.feed(events.ReplicaAbsent(replica=effect.replica)))

    def send_notice(self, effect: do.SendNotice) -> None:
        self._t.notifications.send_notice(self.key, effect)

    # ---- the metadata group -----------------------------------------------------------------------------------------------
    def propose_isr(self, effect: do.ProposeIsr) -> None:
        self.counters["slow_replica_evicted"] += len(effect.slow)
        self._t.proposals.propose_isr(self.key, effect, self._t.feed)

    def step_aside(self, effect: do.StepAside) -> None:
        self.hand_over(effect, "slow_disk")

    def hand_over(self, effect: do.StepAside, why: str) -> None:
        """Stop accepting publishes and answer the earlier ones, then request a leadership transfer from the metadata group.

        ``effect`` names the new leader. ``why``: reason, for the counter. There is a time limit for the answers.
        """
        self.counters[f"transfer_{why}"] += 1
        self._t.transfer_leadership(
            self.key, effect.leader_epoch, lambda: self._t.proposals.give_up_leadership(self.key, effect)
        )

    def report_leader(self, effect: do.ReportLeader) -> None:
        self._t.proposals.report_leader(self.key, effect)

    def leave_isr(self, effect: do.LeaveIsr) -> None:
        self._t.proposals.leave_isr(self.key, effect)

    def give_up_leadership(self, effect: do.GiveUpLeadership) -> None:
        self._t.proposals.give_up_leadership(self.key, effect)

    def wake_partition(self, effect: do.WakePartition) -> None:
        self._t.proposals.wake_partition(self.key, effect)

    def report_promotion(self, effect: do.ReportPromotion) -> None:
        self._t.proposals.report_promotion(self.key, effect)

    # ---- role -----------------------------------------------------------------------------------------------------------
    def replay_log(self, effect: do.ReplayLog) -> None:
        self._t.replay.run(lambda: self._t.services.replay(effect.end_offset))

    def start_serving(self, _: do.StartServing) -> None:
        self._t.replication.start()

    def open_subject(self, _: do.OpenSubject) -> None:
        self.standby.replay(self._open)

    def _open(self, backlog: FailoverBacklog | None) -> None:
        if backlog is not None and (backlog.fresh or backlog.known or backlog.undecided):
            text = "standby buffer replayed partition=%s to_append=%d already_in_log=%d with_condition=%d"
            logger.info(text, self.key, len(backlog.fresh), len(backlog.known), len(backlog.undecided))
        self.ingest.start(backlog)

    def close_subject(self, effect: do.CloseSubject) -> None:
        super().close_subject(effect)
        self._t.replay.forget()
        self._t.replication.stop()

    def _timer(self, kind: events.Deadline) -> Timer:
        return EventTimer(self._t.feed, _REACHED[kind._name_])

    def set_deadline(self, effect: do.SetDeadline) -> None:
        name = effect.kind._name_  # an enum member's hash is a call into Python
        timer = self._deadlines.get(name)
        if effect.at_ns is None:
            if timer is not None:
                self._t.timers.cancel(timer)
            return
        if timer is None:
            timer = self._deadlines[name] = self._timer(effect.kind)
        self._t.timers.set(timer, effect.at_ns)

    def role_changed(self, effect: do.RoleChanged) -> None:
        INFO_LOG_LIMIT.info(
            logger,
            "replica role changed partition=%s role=%s phase=%s epoch=%d",
            self.key,
            effect.role,
            effect.phase,
            effect.leader_epoch,
        )
        self._t.fetches.forget_pieces()
        self._t.services.role_changed()
        self.standby.review()

    def close(self) -> None:
        """Cancel all timers. The results of work that still runs are not reported to the replica."""
        self._closed = True
        self._t.replay.close()
        for timer in self._deadlines.values():
            self._t.timers.cancel(timer)


_METHODS: Methods = methods_of(Executor)


def _without_executor(act: Callable[[Any], None], _: Executor, effect: Effect) -> None:
    act(effect)


# An executor that also records trace spans for batches. It is used only if tracing is on.


class Traceable(Protocol):
    """Interface of a partition whose batches are traced."""

    replica: Replica
    executor: Executor
    log: Log
    acks: PendingAcks

    def followers(self) -> frozenset[str]:
        """Return the node ids of the replicas. The trace of a batch ends after they have flushed it."""
        ...


class TracedEffects:
    """Functions that carry out the effects of one partition and also record trace spans."""

    def __init__(self, one: Traceable, traces: PartitionTraces) -> None:
        self._one = one
        self._executor = one.executor
        self._traces = traces

    def acts(self) -> Acts:
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
        self._traces.end_all()

    def role_changed(self, effect: do.RoleChanged) -> None:
        self._executor.role_changed(effect)
        self._traces.role_is(effect.role.value, effect.phase == LeaderPhase.READY, effect.leader_epoch)


class TracedReplica:
    """Replica that reports received fetches and completed flushes to ``traces`` before it processes them."""

    def __init__(self, replica: Replica, traces: PartitionTraces) -> None:
        self._replica = replica
        self._traces = traces

    def step(self, event: Event, now_ns: int) -> list[Effect]:
        traces = self._traces
        if traces.follows:
            if type(event) is FetchReceived:
                traces.fetched(event.replica, event.offset, event.leader_epoch)
            elif type(event) is LogFlushed:
                traces.flushed(event.end_offset)
        return self._replica.step(event, now_ns)


def trace(one: Traceable, driver: ReplicaDriver, traces: PartitionTraces | None) -> None:
    """Start to trace the batches of the partition ``one``, whose ``driver`` feeds its replica. ``traces``: None: stop tracing."""
    driver.replica = one.replica if traces is None else TracedReplica(one.replica, traces)
    one.executor.act_by({} if traces is None else TracedEffects(one, traces).acts())
