"""Carries out the effects of one replica: log, flushes, timers, NATS, requests to the metadata group.

``effects.py`` defines the contract. All calls are synchronous. Slow work (a flush, a proposal) is started, and its
result is fed as an event. A storage error becomes the event StorageFailed.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.compaction_point import Horizon
from liftpy.core.log.log import Log
from liftpy.core.observe.tracing import PartitionTraces
from liftpy.core.publish.acks import PendingAcks
from liftpy.core.publish.ingest import Ingest
from liftpy.core.publish.log_state import LogState
from liftpy.core.publish.standby import FailoverBacklog, Standby
from liftpy.core.replication import effects as do
from liftpy.core.replication import events
from liftpy.core.replication.effects import Acts, Effect, acts_of
from liftpy.core.replication.events import Event, FetchReceived, LogFlushed
from liftpy.core.replication.phases import Leading
from liftpy.core.replication.replica import Replica
from liftpy.errors import NoSpaceError, StorageError
from sidecar.partition.driver import ReplicaDriver
from sidecar.partition.flushing import Flusher
from sidecar.partition.promises import Promises
from sidecar.partition.proposals import Proposals
from sidecar.partition.quiescence import QuietTalk
from sidecar.partition.reads import ReadSubjects
from sidecar.partition.recovery import LogReplay
from sidecar.partition.replication import FetchClient, ReplicationDesk
from sidecar.partition.services import PartitionServices
from sidecar.runtime import clock
from sidecar.runtime.logs import CHATTER, LogRateLimit
from sidecar.runtime.timers import Timer, Timers
from sidecar.transport.liveness import Probes
from sidecar.transport.notify import Notifications

logger = logging.getLogger("liftpy.replica")
_seldom = LogRateLimit()
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
    replication: ReplicationDesk
    fetches: FetchClient
    notifications: Notifications
    quiet: QuietTalk
    probes: Probes
    reads: ReadSubjects
    proposals: Proposals
    services: PartitionServices
    counters: Counter[str]
    feed: Callable[[events.Event], None]
    driver: ReplicaDriver
    high_watermark: Callable[[], int]
    step_aside: Callable[[PartitionKey, int, Callable[[], None]], None]
    leader: Callable[[], tuple[str, int, int]]
    """Function that returns (leader, LeaderEpoch, Epoch) of the metadata, for redirects."""


class Executor:
    """Carries out the effects of one replica on a node.

    ``execute`` calls the method for the effect, for example ``append_batch`` for AppendBatch.
    """

    def __init__(self, tools: Tools) -> None:
        self._t = tools
        self._closed = False
        self.storage_failed = False
        self.no_space = False
        """True if the log failed because the disk was full."""
        self.on_failure: Callable[[StorageError], None] | None = None
        """Callback for the first storage error. None: no callback."""
        self._deadlines: dict[str, Timer] = {}
        """Name -> timer of a deadline. A timer is created when it is first set."""
        self._do = acts_of(self)

    def execute(self, effect: Effect) -> None:
        self._do[type(effect)](effect)

    def act_by(self, acts: Acts) -> None:
        """Use the functions in ``acts`` to carry out their effects. This object carries out all other effects."""
        self._do = {**acts_of(self), **acts}

    # ---- the log ------------------------------------------------------------------------------------------------------
    def log_failed(self, error: StorageError, token: int = 0) -> None:
        """Report a storage error to the replica (StorageFailed). ``on_failure`` is called for the first error only.

        ``token``: handle of the publishes that could not be stored. 0: none.
        """
        first, self.storage_failed = not self.storage_failed, True
        if first:
            self.no_space = isinstance(error, NoSpaceError)
            self._t.counters["storage failures"] += 1
            logger.error("%s: storage failed: %s", self._t.key, error)
        self._t.feed(events.StorageFailed(reason=str(error), no_space=self.no_space, token=token))
        if first and self.on_failure is not None:
            self.on_failure(error)

    def append_batch(self, effect: do.AppendBatch) -> None:
        self.append(effect)

    def append(self, effect: do.AppendBatch) -> bytes:
        """Append the publishes of ``effect`` to the log as one batch, and request a flush.

        Return the bytes of the batch. b"": the log has failed.
        """
        batch = self._t.ingest.seal(effect)
        try:
            self._t.log.append(batch, time.time_ns())
        except StorageError as error:
            self.log_failed(error, effect.token)
            return b""
        self._t.ingest.appended(effect, batch)
        self._t.flusher.appended()
        return batch

    def append_fetched(self, effect: do.AppendFetched) -> None:
        fetched = self._t.fetches.fetched.pop(effect.token)
        batches = [batch for batch in fetched.batches if batch.last_offset <= effect.last_offset]
        size_bytes = sum(batch.header.size_bytes for batch in batches)
        try:
            seen = Horizon(effect.leader_high_watermark + 1, effect.leader_epoch)
            self._t.log.append_batches(fetched.buffer[:size_bytes], batches, time.time_ns(), compacted=seen)
        except StorageError as error:
            self.log_failed(error)
            return
        self._t.derived.fetched(batches)
        self._t.standby.log_grew()
        self._t.flusher.appended()

    def drop_fetched(self, effect: do.DropFetched) -> None:
        self._t.fetches.fetched.pop(effect.token, None)
        self._t.counters[f"dropped answer: {effect.why}"] += 1

    def cut_log(self, effect: do.CutLog) -> None:
        logger.info("%s: log truncated log_end=%d", self._t.key, effect.end_offset)
        self._cut(lambda: self._t.log.truncate_to(effect.end_offset))

    def start_log_afresh(self, effect: do.StartLogAfresh) -> None:
        logger.warning("%s: discarding the local log, fetching it again from=%d", self._t.key, effect.start_offset)
        self._cut(lambda: self._t.log.start_afresh(effect.start_offset, effect.deletes_end), afresh=True)

    def _cut(self, cut: Callable[[], object], *, afresh: bool = False) -> None:
        """Call ``cut``, which truncates the log, and feed LogCut. If a slow flush is running, do both after it.

        So the event loop does not wait. ``afresh``: True if all records are deleted.
        """

        def cut_and_tell() -> None:
            try:
                cut()
            except StorageError as error:
                self.log_failed(error)
                return
            if afresh:
                self._t.derived.started_afresh()
                self._t.fetches.started_afresh()
            else:
                self._t.derived.cut()
            self._t.standby.cut()
            self._t.feed(events.LogCut(end_offset=self._t.log.log_end_offset))

        def behind_the_flush() -> None:
            self._t.driver.go_on(cut_and_tell)

        put_off = False
        if self._t.flusher.alone(lambda: behind_the_flush() if put_off else cut_and_tell()):
            put_off = True
            logger.warning("%s: the cut waits for a flush that is not over", self._t.key)
            self._t.driver.hold()

    def recheck_log(self, effect: do.RecheckLog) -> None:
        outcome = self._t.log.complaint(effect.offset, effect.replica, clock.now_ns())
        self._t.counters[outcome.value] += 1
        text = "%s: %s was served wrong bytes at offset %d: %s"
        _seldom.warning(logger, text, self._t.key, effect.replica, effect.offset, outcome.value)

    def raise_high_watermark(self, effect: do.RaiseHighWatermark) -> None:
        self._t.log.raise_high_watermark(effect.high_watermark)
        self._t.ingest.committed(effect.high_watermark)
        self._t.derived.committed(effect.high_watermark)
        self._t.standby.committed(effect.high_watermark)
        self._t.reads.advanced()

    def persist_leader_epoch(self, effect: do.PersistLeaderEpoch) -> None:
        self._t.promises.store(
            self._t.key.folder, effect.leader_epoch, lambda error: self._promise_stored(effect.leader_epoch, error)
        )

    def _promise_stored(self, leader_epoch: int, error: StorageError | None) -> None:
        if self._closed:
            return
        if error is not None:
            self.log_failed(error)
            return
        self._t.log.note_promise(leader_epoch)
        self._t.feed(events.LeaderEpochPersisted(leader_epoch=leader_epoch))

    # ---- publishers -----------------------------------------------------------------------------------------------------
    def reject_publishes(self, effect: do.RejectPublishes) -> None:
        self._t.ingest.reject(effect.token, effect.reason, *self._t.leader())

    def drop_publishes(self, effect: do.DropPublishes) -> None:
        self._t.ingest.drop(effect.token, effect.reason)

    def send_acks(self, effect: do.SendAcks) -> None:
        self._t.acks.release(effect.policy, effect.through_offset, effect.leader_epoch, self._t.ingest.wall_ns())

    def drop_pending_acks(self, _: do.DropPendingAcks) -> None:
        self._t.acks.drop()

    # ---- other replicas -------------------------------------------------------------------------------------------------
    def send_fetch(self, effect: do.SendFetch) -> None:
        self._t.fetches.send_fetch(effect, self._t.incarnation)

    def wait_quietly(self, effect: do.WaitQuietly) -> None:
        self._t.quiet.wait(self._t.key, effect, self._t.feed)

    def stop_waiting(self, _: do.StopWaiting) -> None:
        self._t.quiet.stop(self._t.key)

    def confirm_quiet(self, effect: do.ConfirmQuiet) -> None:
        self._t.quiet.confirm(effect)

    def send_epoch_query(self, effect: do.SendEpochQuery) -> None:
        self._t.fetches.send_epoch_query(effect)

    def send_fetch_response(self, effect: do.SendFetchResponse) -> None:
        self._t.replication.send_response(effect, self._t.log, self._t.high_watermark())
        self._t.ingest.settle()

    def keep_fetch(self, effect: do.KeepFetch) -> None:
        self._t.replication.keep(effect)
        self._t.ingest.settle()

    def answer_waiter(self, effect: do.AnswerWaiter) -> None:
        self._t.replication.answer_waiter(effect, self._t.log, self._t.high_watermark())

    def tell_waiter(self, effect: do.TellWaiter) -> None:
        self._t.replication.tell_waiter(effect, self._t.high_watermark())

    def send_fetch_refusal(self, effect: do.SendFetchRefusal) -> None:
        self._t.replication.send_refusal(effect)

    def send_epoch_answer(self, effect: do.SendEpochAnswer) -> None:
        self._t.replication.send_epoch_answer(effect)

    def notify_replica(self, effect: do.NotifyReplica) -> None:
        self._t.notifications.wake(self._t.key, effect)

    def probe_replica(self, effect: do.ProbeReplica) -> None:
        self._t.probes.ask(effect.replica, lambda: self._t.feed(events.ReplicaAbsent(replica=effect.replica)))

    def send_notice(self, effect: do.SendNotice) -> None:
        self._t.notifications.send_notice(self._t.key, effect)

    # ---- the metadata group -----------------------------------------------------------------------------------------------
    def propose_isr(self, effect: do.ProposeIsr) -> None:
        self._t.counters["replicas out of an ISR for slow flushes"] += len(effect.slow)
        self._t.proposals.propose_isr(self._t.key, effect, self._t.feed)

    def step_aside(self, effect: do.StepAside) -> None:
        self.hand_over(effect, "for slow flushes")

    def hand_over(self, effect: do.StepAside, why: str) -> None:
        """Stop accepting publishes and answer the earlier ones, then request a leadership transfer from the metadata group.

        ``effect`` names the new leader. ``why``: reason, for the counter. There is a time limit for the answers.
        """
        self._t.counters[f"leaderships handed over {why}"] += 1
        self._t.step_aside(self._t.key, effect.leader_epoch, lambda: self._t.proposals.give_up_leadership(self._t.key, effect))

    def report_leader(self, effect: do.ReportLeader) -> None:
        self._t.proposals.report_leader(self._t.key, effect)

    def leave_isr(self, effect: do.LeaveIsr) -> None:
        self._t.proposals.leave_isr(self._t.key, effect)

    def give_up_leadership(self, effect: do.GiveUpLeadership) -> None:
        self._t.proposals.give_up_leadership(self._t.key, effect)

    def wake_partition(self, effect: do.WakePartition) -> None:
        self._t.proposals.wake_partition(self._t.key, effect)

    def report_promotion(self, effect: do.ReportPromotion) -> None:
        self._t.proposals.report_promotion(self._t.key, effect)

    # ---- role -----------------------------------------------------------------------------------------------------------
    def replay_log(self, effect: do.ReplayLog) -> None:
        self._t.replay.run(lambda: self._t.services.replay(effect.end_offset))

    def start_serving(self, _: do.StartServing) -> None:
        self._t.replication.start()

    def open_subject(self, _: do.OpenSubject) -> None:
        self._t.standby.take_over(self._open)

    def _open(self, taken: FailoverBacklog | None) -> None:
        if taken is not None and (taken.fresh or taken.known or taken.undecided):
            text = "%s: heard while standing by: %d to append, %d in the log to be answered, %d bound to a condition"
            logger.info(text, self._t.key, len(taken.fresh), len(taken.known), len(taken.undecided))
        self._t.ingest.start(taken)

    def close_subject(self, _: do.CloseSubject) -> None:
        self._t.standby.cancel()
        self._t.ingest.stop()
        self._t.replay.forget()
        self._t.replication.stop()

    def _timer(self, kind: events.Deadline) -> Timer:
        feed, reached = self._t.feed, _REACHED[kind._name_]
        return Timer(lambda: feed(reached))

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
        CHATTER.info(logger, "%s: %s %s in epoch %d", self._t.key, effect.role, effect.phase, effect.leader_epoch)
        self._t.fetches.forget_pieces()
        self._t.services.role_changed()
        self._t.standby.review()

    def close(self) -> None:
        """Cancel all timers. The results of work that still runs are not reported to the replica."""
        self._closed = True
        self._t.replay.close()
        for timer in self._deadlines.values():
            self._t.timers.cancel(timer)


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


class TracedActs:
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
        self._traces.role_is(effect.role.value, effect.phase == Leading.READY, effect.leader_epoch)


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
    one.executor.act_by({} if traces is None else TracedActs(one, traces).acts())
