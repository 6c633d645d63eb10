"""PartitionShell: carries out the effects of one replica on its log and its publishers.

``Replica`` decides, and returns effects. The shell changes the log, informs the parts that depend on it, and feeds the results back
as events. Two classes extend it: ``PartitionWorker`` of a node, and ``SimReplica`` of the simulator. Each of them adds its network,
its timers, and the way in which slow work runs.
``liftpy.core.replication.effects`` has the rules for the order of effects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionMetadata
from liftpy.core.log.compaction_point import Horizon
from liftpy.core.log.log import Log, RecheckResult
from liftpy.core.publish.acks import PendingAcks
from liftpy.core.publish.ingest import Ingest
from liftpy.core.publish.log_state import LogState
from liftpy.core.publish.standby import Standby
from liftpy.core.publish.state_transfer import StateFetcher
from liftpy.core.replication import effects as do
from liftpy.core.replication import events
from liftpy.core.replication.replica import Replica
from liftpy.core.wire.batch import RecordBatch
from liftpy.errors import NoSpaceError, StorageError


@dataclass(slots=True)
class FetchedBatches:
    """Batches of one answer to a fetch. They are stored until the replica appends or drops them."""

    buffer: memoryview
    batches: list[RecordBatch]


class CommittedReads(Protocol):
    """Readers of one partition that wait for new records."""

    def advanced(self) -> None:
        """Answer the reads that a higher HW completes."""


class PartitionShell(ABC):
    """Carries out the effects of one replica on its log and its publishers."""

    key: PartitionKey
    replica: Replica
    log: Log
    ingest: Ingest
    acks: PendingAcks
    log_state: LogState
    standby: Standby
    state_fetcher: StateFetcher | None
    """Receives the leader's state of deleted records. None: this shell needs none."""
    reads: CommittedReads
    counters: Counter[str]
    fetched: dict[int, FetchedBatches]
    """Token -> fetched batches that wait for the decision of the replica."""
    failed = ""
    """Reason of the first storage error. '': the log works."""
    no_space = False
    """True if the log failed because the disk was full."""

    # ---- what differs ----------------------------------------------------------------------------------------------------
    @abstractmethod
    def feed(self, event: events.Event) -> None:
        """Pass an event to the replica. During a step, the event waits until all effects of the step are carried out."""

    @abstractmethod
    def now_ns(self) -> int:
        """Return the monotonic time."""

    @abstractmethod
    def append_time_ns(self) -> int:
        """Return the wall clock that decides when the log rolls a segment. 0: segments never roll because of their age."""

    @abstractmethod
    def flush_appended(self) -> None:
        """Start a flush of the appended records, or let the flush policy start it later."""

    @abstractmethod
    def run_without_flush(self, work: Callable[[], None]) -> None:
        """Run ``work``, which changes files of the log, while no flush and no checkpoint runs."""

    @abstractmethod
    def store_promise(self, leader_epoch: int, then: Callable[[StorageError | None], None]) -> None:
        """Store durably that this replica follows no leader of an older epoch. Then call ``then`` with the error, or None."""

    @abstractmethod
    def named_leader(self) -> tuple[str, int, int]:
        """Return (leader, LeaderEpoch, Epoch) of the partition in the metadata. Rejected publishers get it."""

    @abstractmethod
    def transfer_leadership(self, effect: do.TransferLeadership) -> None:
        """Request from the metadata group that another replica leads."""

    def appended(self, data: bytes | memoryview, *, leads: bool) -> None:  # noqa: B027 - most shells have nothing to note
        """Note that the batches ``data`` were appended, as leader or as follower. The simulator checks them."""

    def mark_changed(self) -> None:  # noqa: B027 - the simulator has no metrics
        """Note that counters of the partition may have changed, for the metrics."""

    # ---- the log ---------------------------------------------------------------------------------------------------------
    def feed_log_opened(self) -> None:
        """Feed the content of the opened log to the replica, as its first event. Later compactions are fed as events."""
        log = self.log
        self.feed(
            events.LogOpened(
                log_start_offset=log.log_start_offset,
                log_end_offset=log.log_end_offset,
                high_watermark=log.high_watermark,
                epochs=tuple((epoch, start) for epoch, start in log.epochs.entries),
                persisted_epoch=log.persisted_epoch,
                epoch_before_start=log.epochs.before_start,
            )
        )
        log.on_compacted = self._log_compacted
        self._log_compacted(log.horizon)

    def _log_compacted(self, horizon: Horizon) -> None:
        self.feed(events.LogCompacted(**horizon._asdict()))

    def apply_metadata(self, metadata: PartitionMetadata, incarnations: Mapping[str, int], announced: int) -> bool:
        """Pass the partition's new state in the metadata, or a new set of live nodes, to the log and the replica.

        ``incarnations``: node id -> incarnation of each live node. ``announced``: number of changes that ``metadata`` contains
        (``Replica.announced``). Return True if records can be deleted now.
        """
        self.log.config = metadata.config
        self.ingest.settings_changed(metadata.config, metadata.partition_count)
        self.feed(events.PartitionChanged(metadata=metadata, incarnations=incarnations, announced=announced))
        self.standby.review()
        return self.log.apply_metadata(metadata.state)

    @property
    def storage_failed(self) -> bool:
        """True if the log has failed. It stays failed until the node restarts."""
        return bool(self.failed)

    def log_flushed(self, end_offset: int, took_ns: int) -> None:
        """Feed LogFlushed: all records below ``end_offset`` are flushed. ``took_ns``: duration of the flush, 0: none was needed."""
        self.feed(events.LogFlushed(end_offset=end_offset, took_ns=took_ns))

    def log_failed(self, error: StorageError, token: int = 0) -> None:
        """Report a storage error to the replica. ``token``: handle of the publishes that could not be stored. 0: none."""
        if not self.failed:
            self.failed = str(error) or type(error).__name__
            self.no_space = isinstance(error, NoSpaceError)
        self.feed(events.StorageFailed(reason=str(error), no_space=self.no_space, token=token))

    def append_batch(self, effect: do.AppendBatch) -> bytes:
        """Append the publishes of ``effect`` to the log as one batch, and request a flush.

        Return the bytes of the batch. b"": the log has failed.
        """
        batch = self.ingest.encode_batch(effect)
        try:
            self.log.append(batch, self.append_time_ns())
        except StorageError as error:
            self.log_failed(error, effect.token)
            return b""
        self.appended(batch, leads=True)
        self.ingest.appended(effect, batch)
        self.flush_appended()
        return batch

    def append_fetched(self, effect: do.AppendFetched) -> None:
        fetched = self.fetched.pop(effect.token)
        batches = [batch for batch in fetched.batches if batch.last_offset <= effect.last_offset]
        data = fetched.buffer[: sum(batch.header.size_bytes for batch in batches)]
        seen = Horizon(effect.leader_high_watermark + 1, effect.leader_epoch)
        try:
            self.log.append_batches(data, batches, self.append_time_ns(), compacted=seen)
        except StorageError as error:
            self.log_failed(error)
            return
        self.log_state.fetched(batches)
        self.standby.log_grew()
        self.appended(data, leads=False)
        self.flush_appended()

    def drop_fetched(self, effect: do.DropFetched) -> None:
        self.fetched.pop(effect.token, None)
        self.counters[f"dropped answer: {effect.why}"] += 1

    def truncate_log(self, effect: do.TruncateLog) -> None:
        self._truncate(lambda: self.log.truncate_to(effect.end_offset))

    def reset_log(self, effect: do.ResetLog) -> None:
        self._truncate(lambda: self.log.reset(effect.start_offset, effect.deletes_end), is_reset=True)

    def _truncate(self, truncate: Callable[[], object], *, is_reset: bool = False) -> None:
        def truncate_and_report() -> None:
            try:
                truncate()
            except StorageError as error:
                self.log_failed(error)
                return
            self.log_was_truncated(is_reset=is_reset)
            self.feed(events.LogTruncated(end_offset=self.log.log_end_offset))

        self.run_without_flush(truncate_and_report)

    def log_was_truncated(self, *, is_reset: bool) -> None:
        """Update the parts that depend on the log, because it was truncated. ``is_reset``: all records were deleted."""
        if is_reset:
            self.log_state.log_was_reset()
            if self.state_fetcher is not None:
                self.state_fetcher.log_was_reset()
        else:
            self.log_state.log_was_truncated()
        self.standby.log_was_truncated()

    def recheck_log(self, effect: do.RecheckLog) -> RecheckResult:
        """Read the batch again that a follower or a reader has received with wrong bytes. Return and count the result."""
        outcome = self.log.complaint(effect.offset, effect.replica, self.now_ns())
        self.counters[outcome.value] += 1
        return outcome

    def raise_high_watermark(self, effect: do.RaiseHighWatermark) -> None:
        high_watermark = effect.high_watermark
        self.log.raise_high_watermark(high_watermark)
        self.ingest.committed(high_watermark)
        self.log_state.committed(high_watermark)
        self.standby.committed(high_watermark)
        self.reads.advanced()

    def persist_leader_epoch(self, effect: do.PersistLeaderEpoch) -> None:
        leader_epoch = effect.leader_epoch

        def stored(error: StorageError | None) -> None:
            if error is not None:
                self.log_failed(error)
                return
            self.log.note_promise(leader_epoch)
            self.feed(events.LeaderEpochPersisted(leader_epoch=leader_epoch))

        self.store_promise(leader_epoch, stored)

    # ---- publishers --------------------------------------------------------------------------------------------------------
    def open_subject(self, _: do.OpenSubject) -> None:
        self.standby.replay(self.ingest.start)

    def close_subject(self, _: do.CloseSubject) -> None:
        self.standby.cancel()
        self.ingest.stop()

    def reject_publishes(self, effect: do.RejectPublishes) -> None:
        self.ingest.reject(effect.token, effect.reason, *self.named_leader())

    def drop_publishes(self, effect: do.DropPublishes) -> None:
        self.ingest.drop(effect.token, effect.reason)

    def send_acks(self, effect: do.SendAcks) -> None:
        self.acks.release(effect.policy, effect.through_offset, effect.leader_epoch, self.ingest.wall_ns())

    def drop_pending_acks(self, _: do.DropPendingAcks) -> None:
        self.acks.drop()
