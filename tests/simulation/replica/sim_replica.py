"""SimReplica: the shipped ``Replica``, ``Log`` and ``PartitionShell`` of one partition in one simulated process.

The shell runs over the simulated network, disk and clock. The checkers see each effect before the shell carries it out.

SimFlusher: runs the flushes of one simulated log, when ``GroupCommit`` says so. One is done when its latency has passed, so that a
power cut in between loses what it covers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionMetadata, PartitionState
from liftpy.core.log.compaction import Compaction
from liftpy.core.log.flush import Flush
from liftpy.core.log.group_commit import GroupCommit
from liftpy.core.log.log import Log
from liftpy.core.log.range_reads import read_portion
from liftpy.core.metadata.controller.request_batcher import purge_report
from liftpy.core.metadata.image import StreamImage
from liftpy.core.partition.reads import Chunks, Reads, ReplicaSource
from liftpy.core.partition.shell import FetchedBatches, PartitionShell
from liftpy.core.publish.log_state_part import NodeStateMemory
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.combined_fetches import CombinedFetch
from liftpy.core.replication.control_requests import Request, request_of
from liftpy.core.replication.effects import methods_of
from liftpy.core.replication.fetch_assembly import FetchAssembly
from liftpy.core.replication.messages import EpochAnswer, EpochQuery, FetchRefusal, FetchRequest, LeaderNotice
from liftpy.core.replication.replica import Replica
from liftpy.core.replication.role import NodeContext
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.batch import split_batches
from liftpy.core.wire.chunking import room_bytes
from liftpy.errors import CorruptionError, DamagedBatchError, LiftError, NoSpaceError, StorageError
from tests.scrubbing import scrub_all
from tests.simulation.replica.clock import MS, Clock, SimTimer
from tests.simulation.replica.disk import Disk
from tests.simulation.replica.messages import FetchFrame, FetchResponse, ReadAnswer, StateAnswer, StateRequest
from tests.simulation.replica.network import NO_RESPONDERS, Reply
from tests.simulation.replica.sim_ingest import SimIngest

if TYPE_CHECKING:
    from tests.simulation.replica.process import SimProcess


class SimFlusher:
    """``FlushShell`` of one log in one process.

    ``run(callback)``: runs it in the process when it is not paused. ``dead()``: whether the process is gone.
    """

    def __init__(
        self,
        log: Log,
        disk: Disk,
        clock: Clock,
        run: Callable[[Callable[[], None]], None],
        dead: Callable[[], bool],
        flushed: Callable[[int, int], None],
        failed: Callable[[StorageError], None],
    ) -> None:
        self._log = log
        self._disk = disk
        self._clock = clock
        self._run = run
        self._dead = dead
        self.log_flushed = flushed
        self.log_failed = failed
        self._interval_ns = round(log.config.flush.interval_s * 1e9)
        self._latency_ns = 0
        """Duration of the running flush."""
        self._device_did: tuple[Flush, StorageError | None] | None = None
        """The flush that the device did last, and its error."""
        self.commit = GroupCommit(log, log.config.flush, self)

    def begin(self) -> None:
        """Start one; the device has done it when its latency has passed."""
        if (flush := self.commit.start()) is not None:
            flush.waiter = partial(self._wait, flush)
            self._latency_ns = latency_ns = self._disk.flush_latency_ns()
            self._clock.after(latency_ns, lambda: self._passed(flush, latency_ns))

    def _passed(self, flush: Flush, latency_ns: int) -> None:
        """Complete a flush: the device works while the process is paused."""
        if not self._dead() and self.commit.running is flush:
            error = self._device_does(flush)
            self._run(lambda: self.commit.flush_ended(flush, latency_ns, error))

    def _device_does(self, flush: Flush) -> StorageError | None:
        """Flush once. A second call returns the result."""
        if self._device_did is None or self._device_did[0] is not flush:
            error: StorageError | None = None
            try:
                flush.run()
            except StorageError as refused:
                error = refused
            self._device_did = (flush, error)
        return self._device_did[1]

    def wait(self, flush: Flush) -> tuple[int, Exception | None]:
        """The device does it now."""
        return self._latency_ns, self._device_does(flush)

    def _wait(self, flush: Flush) -> None:
        self._device_does(flush)

    def wait_for_checkpoint(self) -> None:
        """Do nothing: a simulated checkpoint ends at once."""

    def arm(self) -> None:
        """Start the interval."""
        self._clock.after(self._interval_ns, lambda: self._run(self.commit.interval_over))

    def flush_succeeded(self) -> None:
        """Do nothing: the latency was drawn."""


_OVERHEAD_BYTES = 64
"""Size of a message with batches in addition to them, in bytes."""
_REPLAY_NS = 3 * MS
_REPLAY_BYTES = 2048
"""Number of bytes to replay in one slice: a few batches, so that a replay has several slices."""
_DIRTY_RATIO = 0.5
_STATE_PIECE_BYTES = 256
"""Size of a part of the derived state. It is small, so that there are several."""


class SimReplica(PartitionShell):
    """Replica of one partition in one process. It is dead if the process is, or if a newer object replaced it."""

    def __init__(self, process: SimProcess, stream: StreamImage, partition: PartitionState, log: Log) -> None:
        self.process = process
        self.node_id = process.node_id
        self.host = process.host
        self.key = PartitionKey(stream.name, stream.uid, partition.partition)
        self.subject = f"{stream.name}.{partition.partition}"
        self.log = log
        cluster = process.cluster
        self.cluster = cluster
        seed = hash((cluster.seed, process.incarnation, partition.partition))
        shared = NodeContext(
            process.node_id, process.incarnation, process.config, process.lease, process.inflight, process.copy_limit
        )
        self.replica = Replica(shared, seed)
        self.counters = cluster.counters
        self.state: PartitionState | None = None
        self.known_index = 0
        """Index of the image of which the replica was told last."""
        self.gone = False
        """True if it was stopped because another node holds the partition."""
        self.reads: Reads[Reply] = Reads(self.key, self.node_id, ReplicaSource(self), self, cluster.counters)
        self._inbox: deque[ev.Event] = deque()
        self._stepping = False
        self._timers: dict[ev.Deadline, SimTimer] = {}
        self._tokens: dict[int, Any] = {}
        """Token -> request of a follower, and the way back."""
        self.fetched: dict[int, FetchedBatches] = {}
        self._behind_deletes = False
        """True if the log starts again, because the leader has deleted tombstones that it lacks."""
        self._replaying: do.ReplayLog | None = None
        """Last requested replay. Earlier ones have no caller anymore."""
        self._next_token = 1
        self._kept: dict[str, tuple[FetchFrame, Reply]] = {}
        """Replica -> token of its fetch that was answered without records."""
        self._assembly = FetchAssembly()
        self._waiting: FetchRequest | None = None
        """The fetch that leaves when the leader's state is here."""
        publishers = self.publishers = SimIngest(self)
        self.ingest, self.acks, self.log_state = publishers.ingest, publishers.acks, publishers.log_state
        self.standby, self.state_fetcher = publishers.standby, publishers.state_fetcher
        self.commit = SimFlusher(
            log,
            process.disk,
            cluster.clock,
            process.run,
            lambda: process.dead or self.gone,
            self.log_flushed,
            self.log_failed,
        ).commit
        self._do = methods_of(type(self))

    def open(self) -> None:
        """Feed the content of its log, and subscribe to its notices and reads."""
        self.feed_log_opened()
        self.log.on_damage = self._damaged
        subject = f"notify.{self.node_id}.{self.subject}"
        self.cluster.network.subscribe(self.host, subject, self._notified)
        read = f"{self.subject}.read.{self.node_id}"
        self.cluster.network.subscribe(self.host, read, lambda message, reply: self.reads.answer_request(message.frame, reply))

    def update(self, held: PartitionMetadata, incarnations: Mapping[str, int]) -> None:
        """The metadata shows the partition, its stream's settings or the set of live nodes in a new state."""
        self.state, self.known_index = held.state, self.process.image.index
        if self.apply_metadata(held, incarnations, self.replica.announced):
            self.apply_retention(self.process.time_of_age_ns())

    # ---- events in, effects out --------------------------------------------------------------------------------------
    def feed(self, event: ev.Event) -> None:
        """Feed one event. Events that its effects cause follow after all its effects."""
        if self.gone:
            return
        self._inbox.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._inbox:
                self._step(self._inbox.popleft())
        finally:
            self._stepping = False

    @property
    def folder(self) -> str:
        """Directory of its log on the simulated disk."""
        return f"{self.key.stream}-{self.key.uid}-{self.key.partition}"

    def stop(self) -> None:
        """Give up the role and close the log, because the partition moved away."""
        self.feed(ev.StopRequested())
        self.gone = True
        self.publishers.log_state.join(NodeStateMemory())
        for timer in self._timers.values():
            timer.cancel()
        for subject in (f"notify.{self.node_id}.{self.subject}", f"{self.subject}.read.{self.node_id}"):
            self.cluster.network.unsubscribe(self.host, subject)
        if not self.log.closed:
            self.log.close(clean=False)

    @property
    def is_busy(self) -> bool:
        """True if events of its own effects wait. Then core and log differ."""
        return bool(self._inbox)

    def _step(self, event: ev.Event) -> None:
        cluster = self.cluster
        effects = self.replica.step(event, self.now_ns())
        if cluster.trace is not None:
            cluster.trace.step(self, event, effects)
        for effect in effects:
            cluster.checkers.before_effect(self, effect)
            self._do[type(effect)](self, effect)
        cluster.checkers.after_step(self, event)
        self.publishers.stepped(event)
        if self.replica.held_bytes:
            cluster.counters["publishes held"] += 1

    def later(self, delay_ns: int, callback: Callable[[], None]) -> SimTimer:
        """Call ``callback`` in this process while it runs."""
        return self.process.at(self.now_ns() + delay_ns, callback)

    def _keep(self, what: Any) -> int:
        token, self._next_token = self._next_token, self._next_token + 1
        self._tokens[token] = what
        return token

    # ---- the log -----------------------------------------------------------------------------------------------------
    def append_time_ns(self) -> int:
        """Return 0: simulated segments never roll because of their age."""
        return 0

    def flush_appended(self) -> None:
        """Start a flush, as the flush policy says."""
        self.commit.appended()

    def run_without_flush(self, work: Callable[[], None]) -> None:
        """Run ``work`` after the running flush, which ends at once."""
        self.commit.alone(work)

    def named_leader(self) -> tuple[str, int, int]:
        """Return the leader that the replica knows."""
        state = self.replica.state
        return state.leader, state.leader_epoch, state.epoch

    def append_batch(self, effect: do.AppendBatch) -> bytes:
        self.publishers.appends(effect)
        return super().append_batch(effect)

    def appended(self, data: bytes | memoryview, *, leads: bool) -> None:
        """Check the appended batches."""
        self.cluster.checkers.appended(self, data, led=leads)

    def truncate_log(self, effect: do.TruncateLog) -> None:
        self.counters["truncation"] += 1
        self._behind_deletes = False
        super().truncate_log(effect)

    def reset_log(self, effect: do.ResetLog) -> None:
        self._behind_deletes = effect.deletes_end > 0
        self.counters["started afresh behind deletes"] += self._behind_deletes
        self.counters["fresh start"] += 1
        super().reset_log(effect)

    def log_was_truncated(self, *, is_reset: bool) -> None:
        """Check the truncated log."""
        super().log_was_truncated(is_reset=is_reset)
        self.cluster.checkers.cut(self, afresh=self._behind_deletes)

    def drop_prefix(self, log_start_offset: int) -> None:
        """Delete the records that retention releases."""
        start = min(log_start_offset, self.log.high_watermark + 1)
        if self.failed or not self._may_drop(start):
            return
        if self._stored(lambda: self.commit.alone(lambda: self.log.drop_prefix(log_start_offset))):
            self._prefix_dropped()

    def _may_drop(self, log_start_offset: int) -> bool:
        """Return whether the derived state of deleted records is stored, after storing it if needed."""
        states = self.publishers.states
        if not states.may_drop(log_start_offset):
            self.log.checkpoint()
            self.publishers.store_state()
        may_drop = states.may_drop(log_start_offset)
        self.cluster.counters["records dropped later, for a state"] += not may_drop
        return may_drop

    def _prefix_dropped(self) -> None:
        self.cluster.checkers.prefix_dropped(self)
        self.feed(ev.LogStartMoved(log_start_offset=self.log.log_start_offset))

    def apply_retention(self, now_wall_ns: int) -> None:
        """Apply retention, as housekeeping does."""
        before, config = self.log.log_start_offset, self.log.config
        if not self.log.may_give_up or (self.failed and not self.log.is_full):
            return
        done = self._stored(lambda: self.commit.alone(lambda: self.log.apply_retention(now_wall_ns, may_drop=self._may_drop)))
        if done and self.log.log_start_offset != before:
            asked = before < self.log.asked_start
            self.cluster.counters[
                "truncated before" if asked else "expired by age" if config.retention_age_s else "expired by bytes"
            ] += 1
            self._prefix_dropped()

    def _damaged(self, error: CorruptionError) -> None:
        """The replica gives its role up, and the process comes back to repair the log [S3]."""
        if not self.failed:
            self._stored(lambda: self.commit.alone(self.log.checkpoint))
            self.log_failed(error)
            self.process.repair()

    def scrub(self) -> bool:
        """Check the complete log. Return whether no damage was found."""
        return scrub_all(self.log, tuple(self.log.segments), 4096)

    def compact(self) -> int:
        """Run compaction once. Return the number of removed records."""
        compaction = self.log.begin_compaction(0)
        if compaction is None:
            return 0
        compaction.run()
        return self.commit.alone(lambda: self.log.complete_compaction(compaction))

    def begin_compaction(self, now_wall_ns: int) -> None:
        """Start compaction in the background, as housekeeping does."""
        if not self.log.may_be_cleaned or self.failed:
            return
        self.report_purged()
        compaction = self.log.begin_compaction(now_wall_ns, min_dirty_ratio=_DIRTY_RATIO)
        if compaction is not None:
            self.later(self.process.disk.flush_latency_ns(), lambda: self._compacted(compaction))

    def _compacted(self, compaction: Compaction) -> None:
        if self.failed:
            return
        try:
            compaction.run()
            dropped = self.commit.alone(lambda: self.log.complete_compaction(compaction))
            self.cluster.counters["records dropped by compaction"] += dropped
        except CorruptionError as error:
            self.log.handle_damage(error)
        except StorageError as error:
            if self.log.closed:
                self.log_failed(error)

    def checkpoint(self) -> None:
        """The interval has passed."""
        if not self.failed and self.commit.begin_checkpoint():
            stored = self._stored(self.log.checkpoint)
            self.commit.checkpoint_ended()
            if stored:
                self.publishers.store_state()

    def _stored(self, change: Callable[[], Any], token: int = 0) -> bool:
        """Return whether the log was changed. If not, the replica is informed. ``token``: publishes to append."""
        try:
            change()
        except StorageError as error:
            self.log_failed(error, token)
            return False
        return True

    def log_failed(self, error: StorageError, token: int = 0) -> None:
        """Count the error and report it to the replica."""
        self.counters["no space" if isinstance(error, NoSpaceError) else "storage failure"] += 1
        super().log_failed(error, token)

    def store_promise(self, leader_epoch: int, then: Callable[[StorageError | None], None]) -> None:
        """Store the promise on the simulated disk at once."""
        try:
            self.process.promise(self.key, leader_epoch)
        except StorageError as error:
            then(error)
        else:
            then(None)

    def replay_log(self, effect: do.ReplayLog) -> None:
        if self.cluster.candidates_fail:
            self.cluster.counters["promotion hangs"] += 1
            self.later(100 * MS, lambda: self.replay_log(effect))
            return
        self._replaying = effect
        self.later(_REPLAY_NS, lambda: self._replay(effect))

    def _replay(self, effect: do.ReplayLog) -> None:
        """Replay one slice. Each takes time before its result."""
        log_state = self.publishers.log_state
        if self.failed or self._replaying is not effect:
            return
        try:
            complete = log_state.replay(_REPLAY_BYTES)
        except LiftError:
            return  # damage: ``_damaged`` has been told
        self.feed(ev.ReplayProgressed(end_offset=min(log_state.end_offset or 0, effect.end_offset)))
        self.later(_REPLAY_NS, lambda: self._replayed(effect) if complete else self._replay(effect))

    def _replayed(self, effect: do.ReplayLog) -> None:
        if self._replaying is effect:
            self.feed(ev.ReplayFinished(end_offset=effect.end_offset))

    # ---- publishers ----------------------------------------------------------------------------------------------------
    def open_subject(self, effect: do.OpenSubject) -> None:
        self.publishers.open()

    def close_subject(self, effect: do.CloseSubject) -> None:
        self.publishers.stop()
        self._replaying = None
        for subject in (f"{self.subject}.replicate", f"{self.subject}.offset"):
            self.cluster.network.unsubscribe(self.host, subject)
        self._kept.clear()

    def reject_publishes(self, effect: do.RejectPublishes) -> None:
        self.counters[f"negative ack: {effect.reason.name}"] += 1
        super().reject_publishes(effect)

    def drop_publishes(self, effect: do.DropPublishes) -> None:
        why = "in silence" if effect.reason is None else effect.reason.name
        self.counters[f"publish dropped: {why}"] += 1
        super().drop_publishes(effect)

    def send_acks(self, effect: do.SendAcks) -> None:
        self.publishers.release(effect)

    # ---- a follower's requests -------------------------------------------------------------------------------------------
    def send_fetch_request(self, message: FetchRequest) -> None:
        question = self.publishers.state_fetcher.asks(message.leader_epoch)
        self._waiting = None if question is None else message
        if question is not None:
            asked = StateRequest(self.node_id, self.key.uid, question)
            self._request(
                f"{self.subject}.offset", asked, message.request_id, lambda answer: self._process_state_piece(message, answer)
            )
            return
        frame = FetchFrame(
            replace(message, awaits_more=self.process.node.awaits_more),
            self.cluster.checkers.chain_at(self, message.offset),
            self._assembly.fetch_sent(message),
        )
        self._request(f"{self.subject}.replicate", frame, message.request_id)

    def combine_fetch(self, effect: do.CombineFetch) -> None:
        fetch = CombinedFetch(self.key, effect.leader_epoch, effect.request_id)
        if not self.process.node.awaits_more or not self.process.quiet.add(fetch, effect.leader, self.now_ns()):
            self.feed(ev.CombinedFetchEnded(last_answer_ns=None))

    def end_combined_fetch(self, effect: do.EndCombinedFetch) -> None:
        self.process.quiet.remove(self.key)

    def confirm_combined_fetch(self, effect: do.ConfirmCombinedFetch) -> None:
        self.process.confirmed.add(effect.token)

    def send_epoch_query(self, message: EpochQuery) -> None:
        self._request(f"{self.subject}.offset", message, message.request_id)

    def _process_state_piece(self, fetch: FetchRequest, answer: Any) -> None:
        """Process the leader's state before a fetch. Answers to earlier requests are ignored."""
        if self.process.dead or self.gone or self._waiting is not fetch:
            return
        self._waiting = None
        if answer is NO_RESPONDERS:
            self.publishers.state_fetcher.note_no_responders()
            self.feed(ev.RequestFailed(request_id=fetch.request_id, reason="no responders"))
            return
        try:
            goes_on = self.publishers.state_fetcher.add_piece(answer.piece)
        except StorageError as error:
            self.log_failed(error)
            return
        if goes_on:
            self.send_fetch_request(fetch)
        else:
            self.feed(ev.RequestFailed(request_id=fetch.request_id, reason="not ready"))

    def _request(self, subject: str, request: Any, request_id: int, answered: Callable[[Any], None] | None = None) -> None:
        answered = answered or (lambda answer: self._answered(answer, request_id))
        self.cluster.network.request(self.host, subject, request, answered)

    def _answered(self, answer: Any, request_id: int) -> None:
        if self.process.dead:
            return
        if answer is NO_RESPONDERS:
            self.feed(ev.RequestFailed(request_id=request_id, reason="no responders"))
        elif isinstance(answer, FetchRefusal):
            self.cluster.counters[f"refused: {answer.reason.name}"] += 1
            self.feed(answer)
        elif isinstance(answer, EpochAnswer):
            diverges = answer.leader_epoch != self.replica.log.epochs.latest_epoch
            self.cluster.counters["diverging epoch" if diverges else "epochs agree"] += 1
            self.feed(answer)
        else:
            self._fetched(answer, request_id)

    def _fetched(self, answer: FetchResponse, request_id: int) -> None:
        self.publishers.state_fetcher.fetch_answered()
        data = memoryview(answer.batches)
        if answer.piece is not None:
            whole = self._assembly.add_piece(answer.piece) if self._assembly.is_newest_request(request_id) else None
            if whole is None:
                self.feed(ev.FetchPieceArrived(request_id=request_id, leader_epoch=answer.leader_epoch))
                return
            self.cluster.counters["batch put together"] += 1
            data = whole
        try:
            batches = split_batches(data)
        except DamagedBatchError as error:
            self.cluster.counters["fetched_damage"] += 1
            self.feed(ev.RequestFailed(request_id=request_id, reason="damaged", bad_offset=error.offset))
            return
        except LiftError:
            self.feed(ev.RequestFailed(request_id=request_id, reason="unreadable"))
            return
        spans = tuple(
            ev.BatchSpan(base_offset=b.base_offset, last_offset=b.last_offset, leader_epoch=b.leader_epoch) for b in batches
        )
        token = 0
        if spans:
            token, self._next_token = self._next_token, self._next_token + 1
            self.fetched[token] = FetchedBatches(data, batches)
        self.feed(
            ev.FetchAnswered(
                token=token,
                request_id=request_id,
                leader_epoch=answer.leader_epoch,
                high_watermark=answer.high_watermark,
                spans=spans,
                size_bytes=len(data),
            )
        )

    # ---- a leader's answers ----------------------------------------------------------------------------------------------
    def start_serving(self, effect: do.StartServing) -> None:
        network = self.cluster.network
        network.subscribe(self.host, f"{self.subject}.replicate", self._fetch_received)
        network.subscribe(self.host, f"{self.subject}.offset", self._epoch_query_received)

    def _fetch_received(self, frame: FetchFrame, reply: Reply) -> None:
        self.feed(replace(frame.fetch, token=self._keep((frame, reply))))

    def _epoch_query_received(self, request: EpochQuery | StateRequest, reply: Reply) -> None:
        if isinstance(request, StateRequest):
            if not self.failed:
                reply(StateAnswer(self.publishers.state_server.read_piece(request.question, _STATE_PIECE_BYTES)))
            return
        self.feed(replace(request, token=self._keep((request, reply))))

    def send_fetch_response(self, effect: do.SendFetchResponse) -> None:
        frame, reply = self._tokens.pop(effect.token)
        self.cluster.checkers.fetch_accepted(self, frame)
        self._send_batches(effect, frame, reply)
        self.publishers.ingest.settle()

    def park_fetch(self, effect: do.ParkFetch) -> None:
        frame, reply = self._tokens.pop(effect.token)
        self.cluster.checkers.fetch_accepted(self, frame)
        self._kept[effect.replica] = (frame, reply)
        self.publishers.ingest.settle()

    def answer_parked_fetch(self, effect: do.AnswerParkedFetch) -> None:
        frame, reply = self._kept.pop(effect.replica)
        if effect.from_offset < self.log.log_end_offset:
            self.cluster.counters["second answer"] += 1
            self._send_batches(effect, frame, reply)

    def send_high_watermark(self, effect: do.SendHighWatermark) -> None:
        _, reply = self._kept[effect.replica]
        self.cluster.counters["HW told to a waiter"] += 1
        reply(FetchResponse(effect.leader_epoch, self.log.high_watermark, b""))

    def _send_batches(self, effect: do.SendFetchResponse | do.AnswerParkedFetch, frame: FetchFrame, reply: Reply) -> None:
        room = room_bytes(self.cluster.network.max_payload_bytes, _OVERHEAD_BYTES, effect.max_bytes)
        try:
            end_offset, held = self.log.log_end_offset, frame.held
            portion = read_portion(self.log, effect.from_offset, effect.max_bytes, room, end_offset=end_offset, held=held)
        except LiftError:
            return
        data = b"" if portion.piece is not None else b"".join(portion.chunks)
        reply(FetchResponse(effect.leader_epoch, self.log.high_watermark, data, portion.piece))

    def send_fetch_refusal(self, message: FetchRefusal) -> None:
        _, reply = self._tokens.pop(message.token)
        reply(message)

    def send_epoch_answer(self, message: EpochAnswer) -> None:
        query, reply = self._tokens.pop(message.token)
        self.cluster.checkers.epoch_answered(self, query, message)
        reply(message)

    def notify_replica(self, effect: do.NotifyReplica) -> None:
        self.cluster.network.publish(self.host, f"notify.{effect.replica}.{self.subject}", ev.NotificationReceived())

    def probe_replica(self, effect: do.ProbeReplica) -> None:
        replica = effect.replica
        self.cluster.network.request(self.host, f"status.{replica}", "?", lambda answer: self._probed(replica, answer))

    def _probed(self, replica: str, answer: Any) -> None:
        absent = answer is NO_RESPONDERS and not self.process.dead
        self.cluster.counters["probe: absent" if absent else "probe: there"] += 1
        if absent:
            self.feed(ev.ReplicaAbsent(replica=replica))

    def send_leader_notice(self, message: LeaderNotice) -> None:
        for replica in message.replicas:
            self.cluster.network.publish(self.host, f"notify.{replica}.{self.subject}", message)

    def _notified(self, event: ev.Event, reply: Reply) -> None:
        self.feed(event)

    # ---- readers: the ReadShell ------------------------------------------------------------------------------------------
    @property
    def max_payload(self) -> int:
        """Maximum message size of the simulated NATS, in bytes."""
        return self.cluster.network.max_payload_bytes

    def has_room_for(self, _: Any) -> bool:
        """Return True: the simulated network drops the rest."""
        return True

    def now_ns(self) -> int:
        """Return the monotonic time."""
        return self.process.now_ns()

    def answer(self, asker: Reply, chunks: Chunks) -> None:
        """Send one message to the reader."""
        asker(ReadAnswer(b"".join(chunks)))

    def request_failed(self, asker: Reply, error: Exception) -> None:
        """A defect: the simulation is to show it."""
        raise error

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Return a timer that fires in this process, when it runs."""
        return self.process.at(at_ns, callback).cancel

    # ---- requests to the metadata group ------------------------------------------------------------------------------------
    def _ask(self, effect: Request, answered: Callable[[pb.ControlResponse | None], None] = lambda response: None) -> None:
        self.process.propose(self.key, request_of(effect, self.key, self.node_id, self.process.incarnation), answered)

    def propose_isr(self, effect: do.ProposeIsr) -> None:
        self.cluster.counters["out of the ISR: slow flushes"] += len(effect.slow)

        def answered(response: pb.ControlResponse | None) -> None:
            accepted = None if response is None else response.error == pb.ControlResponse.OK
            self.feed(ev.IsrChangeAnswered(epoch=effect.epoch, accepted=accepted))

        self._ask(effect, answered)

    def report_leader(self, effect: do.ReportLeader) -> None:
        self._ask(effect)

    def leave_isr(self, effect: do.LeaveIsr) -> None:
        self.cluster.counters["leaves the ISR itself"] += 1
        self._ask(effect)

    def give_up_leadership(self, effect: do.GiveUpLeadership) -> None:
        self.cluster.counters[f"gives up: {effect.reason}"] += 1
        self._ask(effect)

    def wake_partition(self, effect: do.WakePartition) -> None:
        self.cluster.counters["pauses ended by publishes" if effect.pause.until_publish else "pauses over"] += 1
        self._ask(effect)

    def transfer_leadership(self, effect: do.TransferLeadership) -> None:
        self.cluster.counters[f"planned transfer: {effect.cause.value}"] += 1
        self._ask(effect)

    def report_promotion(self, effect: do.ReportPromotion) -> None:
        self._ask(effect)

    def report_purged(self) -> None:
        """Report completed purges that the group does not know yet."""
        purged = self.log.cleaning.purged
        report = purge_report(self.key, self.state, self.node_id, self.process.incarnation, purged) if self.state else None
        if report is not None:
            self.process.propose(self.key, report, lambda response: None)

    # ---- time and status -------------------------------------------------------------------------------------------------
    def set_deadline(self, effect: do.SetDeadline) -> None:
        timer = self._timers.pop(effect.kind, None)
        if timer is not None:
            timer.cancel()
        if effect.at_ns is None:
            return
        kind = effect.kind
        self._timers[kind] = self.process.at(effect.at_ns, lambda: self.feed(ev.DeadlineReached(kind=kind)))

    def role_changed(self, effect: do.RoleChanged) -> None:
        self.cluster.counters[f"role {effect.role} {effect.phase}"] += 1
        self._assembly.forget()
        self._waiting = None
        self.cluster.checkers.role_changed(self, effect)
