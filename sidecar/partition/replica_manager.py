"""Starts, updates, stops and deletes the partitions of this node according to the metadata image.

After each change of the image, the workers are updated in slices. A limited number of tasks opens logs. All partitions
share the lease of the node. A partition that does not have the current image keeps the lease that it had before [D22].
Data is deleted only if a record names the uid of the stream [M11]. A node that is not a controller also needs the
confirmation of a controller. A partition that has moved away stays until it has a leader elsewhere. A directory of an
unknown stream is kept and reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionState
from liftpy.core.base.rate_limits import doubled_wait_s
from liftpy.core.base.worker_assignment import WHOLE, WorkerShare
from liftpy.core.metadata.data_deletion import DepartedPartitions
from liftpy.core.metadata.image import ClusterImage, StreamImage
from liftpy.core.metadata.image_delta import diff
from liftpy.core.publish.log_state_part import NodeStateMemory
from liftpy.core.replication import effects as do
from liftpy.core.replication import events, messages
from liftpy.core.replication.catchup_throttle import CatchupThrottle
from liftpy.core.replication.events import DataPathChanged, Event, LeaseChanged
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import replication_pb2, service_pb2
from liftpy.core.wire.decode_errors import REPLY, counter_name
from liftpy.core.wire.envelope import MessageType
from liftpy.core.wire.subjects import InboxRule
from liftpy.errors import LiftError, ProtocolError
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.request_guard import RequestGuard
from sidecar.partition.deletions import LATER_S
from sidecar.partition.metric_sums import NodeCounts
from sidecar.partition.node_tools import NodeTools
from sidecar.partition.ports import WallClock
from sidecar.partition.reads import ReadSubjects
from sidecar.partition.services import PartitionServices
from sidecar.partition.worker import PartitionWorker, open_worker
from sidecar.runtime import clock
from sidecar.runtime.logs import WarningLogRateLimit
from sidecar.runtime.memory import GarbageCollection
from sidecar.runtime.tasks import CooperativeQueue, spawn, start_attended
from sidecar.runtime.timers import Timer
from sidecar.transport.connection import send_answer
from sidecar.transport.ports import Bus

logger = logging.getLogger("liftpy.partitions")
_seldom = WarningLogRateLimit()

_RETRY_S = 5.0
_DELETE_AGAIN_S, _LONGEST_DELETE_AGAIN_S = 5.0, 300.0
"""Wait after the first failed deletion of a partition's files, and maximum wait, in seconds. The wait doubles with each failure."""
_STOPS_AT_ONCE = 64
_OPENED_AT_ONCE = 32
"""Maximum number of partitions that are opened or stopped at a time. Others wait."""


class Partitions:
    """All partitions of a node, or of one of its processes.

    ``share``: partitions of this process. ``counts``: sums of their metrics. ``garbage``: runs the garbage collector of the
    process. None: one with the default limits.
    """

    def __init__(
        self, node: NodeTools, counts: NodeCounts, share: WorkerShare = WHOLE, garbage: GarbageCollection | None = None
    ) -> None:
        self._node = node
        self._share = share
        self._node_id = node.settings.node_id
        self._image = ClusterImage()
        self._live: dict[str, int] = {}
        self._workers: dict[PartitionKey, PartitionWorker] = {}
        self._by_name: dict[tuple[str, int], PartitionWorker] = {}
        self._changed = CooperativeQueue(self._follow_image)
        """Partitions whose state in the image has changed, and whose workers must be updated."""
        self._lease_ends = Timer(self._lease_ended)
        self._lease_notifications = CooperativeQueue(self._notify_lease_change)
        """Partitions that this node leads, and that must learn that the lease has ended or is valid again."""
        self._deferred: dict[PartitionKey, None] = {}
        """Partitions that wait to be opened or stopped, as an ordered set."""
        self._retries: dict[PartitionKey, asyncio.TimerHandle] = {}
        self._busy: dict[PartitionKey, asyncio.Task[Any]] = {}
        self._background_tasks: set[asyncio.Task[None]] = set()
        """Tasks that delete data of partitions that have left this node, when they have a leader and a controller confirms it."""
        self._later_deletions: dict[PartitionKey, asyncio.Task[None]] = {}
        """Partition that has left this node -> task that tries to delete its data until this is done."""
        self._failed_deletions: dict[PartitionKey, int] = {}
        """Partition whose files could not be deleted -> number of failures in a row."""
        self._moved_logs: set[PartitionKey] = set()
        """Partitions that moved away while the node was down, and whose data is not deleted yet."""
        self._endings: dict[PartitionKey, asyncio.Task[None]] = {}
        """Partition -> task that stops its worker."""
        self._changed_while_busy: set[PartitionKey] = set()
        """Partitions whose state in the image has changed while they were opened or stopped."""
        self._departed = DepartedPartitions(node.settings.node_id, self._uids_with_data)
        self._leading: dict[PartitionKey, PartitionWorker] = {}
        self._data_path_is_up = True
        self._garbage = garbage or GarbageCollection()
        self.counts = counts
        self._stopping = False
        self._all_clean = True
        self.all_flushed = True
        """True if all records of the logs that were closed so far were on the disk."""
        self.log_ends: dict[str, int] = {}
        """Name of each log that was closed cleanly -> its log end offset (exclusive)."""
        self.failed: dict[PartitionKey, str] = {}
        """Partition -> reason why its log cannot be opened. The node retries."""

    def __iter__(self) -> Iterator[PartitionWorker]:
        return iter(list(self._workers.values()))

    @property
    def clocks(self) -> WallClock:
        """Comparison of this node's clock with those of other nodes. The ages of records are based on it."""
        return self._node.clocks

    @property
    def copy_limit(self) -> CatchupThrottle:
        return self._node.copy_limit

    @property
    def state_memory(self) -> NodeStateMemory:
        return self._node.state_memory

    @property
    def standby_bytes(self) -> int:
        """Memory of the publishes that standby followers on this node have buffered, in bytes."""
        return self._node.standby_memory.size_bytes

    def __len__(self) -> int:
        return len(self._workers)

    def led_partitions(self) -> list[PartitionWorker]:
        return list(self._leading.values())

    @property
    def opening_count(self) -> int:
        """Number of partitions that are being opened or stopped, or wait for it."""
        return len(self._busy) + len(self._deferred)

    def replicas(self) -> Iterator[tuple[PartitionKey, bool]]:
        """Yield (partition, True if the replica is in sync) for each replica on this node. Learners are left out."""
        for worker in self:
            if worker.state is not None and self._node_id in worker.state.replicas:
                yield worker.key, worker.is_in_sync

    def deliver(self, stream: str, partition: int, uid: str, event: Event) -> None:
        """Feed ``event``, which arrived on the node's notify subject, to the named partition if it is on this node.

        ``uid``: uid of the stream. '': any.
        """
        worker = self._by_name.get((stream, partition))
        if worker is not None and uid in ("", worker.key.uid):
            worker.feed(event)

    def services_of(self, stream: str, partition: int) -> PartitionServices | None:
        worker = self._by_name.get((stream, partition))
        return None if worker is None else worker.open_services()

    def reads_of(self, key: PartitionKey) -> ReadSubjects | None:
        worker = self._workers.get(key)
        return None if worker is None else worker.reads

    def bounds_of(self, key: PartitionKey) -> tuple[int, int] | None:
        """Return (log start, HW + 1) of the replica of ``key`` on this node. None: there is none, or it is not in sync."""
        worker = self._workers.get(key)
        in_sync = worker is not None and worker.is_in_sync
        return (worker.log.log_start_offset, worker.high_watermark + 1) if worker is not None and in_sync else None

    def exists(self, key: PartitionKey) -> bool:
        """Return whether the cluster has the partition ``key``, on this node or on others, as far as this node knows."""
        return self._image.find(key.stream, key.uid, key.partition) is not None

    def has_everything(self, worker: PartitionWorker) -> bool:
        """Return whether the replica ``worker`` certainly has all committed records: it is in sync, without an unclean election."""
        location = self._find_in_image(worker.key)
        return location is not None and not location[1].unclean_elected and worker.is_in_sync

    def image_changed(self, old: ClusterImage, new: ClusterImage) -> None:
        """Open, update and stop partitions, because the metadata image changed from ``old`` to ``new``. Call it on the event loop."""
        before, self._image = self._image, new
        change = diff(before, new)
        nodes_changed = bool(change.nodes)
        if nodes_changed:
            self._live = {node_id: node.incarnation for node_id, node in new.nodes.items() if not node.fenced}
        if kept := self._departed.image_changed(before, new, change):
            logger.error(
                "metadata went back or was rescued partitions=%d: keeping the data of partitions that it took from this node",
                len(kept),
            )
        holds = self._share.holds
        changed = [c.key for c in change.for_node(self._node_id) if holds(c.key.stream, c.key.partition)]
        if nodes_changed or change.lease_changed:
            changed += self._workers
        for key in changed:
            if (worker := self._workers.get(key)) is not None:
                worker.announce_change()
        self._changed.add(changed)

    def heartbeat_answered(self, sent_ns: int, lease_ns: int = 0) -> None:
        """Extend the lease of this node, because a heartbeat was answered.

        The image must be as new as the answer. ``sent_ns``: monotonic time at which the heartbeat was sent. ``lease_ns``:
        granted length of the lease, 0 for the length in the settings.
        """
        lease, now_ns = self._node.lease, clock.now_ns()
        had_ended = lease.extend(sent_ns, lease_ns, now_ns)
        if lease.is_current(now_ns):
            self._node.timers.set(self._lease_ends, lease.until_ns(now_ns))
        if had_ended:
            self._lease_notifications.add(self._leading.values())

    def _lease_ended(self) -> None:
        """Tell the leaders that their lease has ended. Each of them also notices it itself before it sends an ack."""
        self._lease_notifications.add(self._leading.values())

    def _notify_lease_change(self, worker: PartitionWorker) -> None:
        if self._leading.get(worker.key) is worker:
            worker.feed(LeaseChanged())

    def data_path_changed(self, is_up: bool) -> None:
        """Tell all replicas that the connections that a leader needs are up (``is_up``) or down."""
        self._data_path_is_up = is_up
        for worker in self:
            worker.feed(DataPathChanged(is_up=is_up))

    def serves(self, question: replication_pb2.LeaderQuestion) -> bool:
        """Return whether this node leads the partition that ``question`` names, in the named LeaderEpoch, with a lease."""
        worker = self._by_name.get((question.stream, question.partition))
        if worker is None or worker.key.uid != question.streamUid:
            return False
        return worker.replica.serves(question.leaderEpoch, clock.now_ns())

    # ---- one partition -------------------------------------------------------------------------------------------------
    def _find_in_image(self, key: PartitionKey) -> tuple[StreamImage, PartitionState] | None:
        location = self._image.find(key.stream, key.uid, key.partition)
        if location is None or self._node_id not in location[1].holders or self._stopping:
            return None
        return location

    def _follow_image(self, key: PartitionKey) -> None:
        if self._stopping:
            return  # ``stop`` ends whatever there is
        if key in self._busy:
            self._changed_while_busy.add(key)  # its task may have looked at the image for the last time already
            return
        worker, wanted = self._workers.get(key), self._find_in_image(key)
        if worker is not None and wanted is not None:
            self._update_worker(worker)
        elif worker is None and wanted is None:
            if self.failed.pop(key, None) is not None and self._has_moved_away(key):
                self._delete_later(key, at_once=True)
        elif len(self._busy) >= _OPENED_AT_ONCE:
            self._deferred[key] = None
        else:
            task = start_attended(self._open_or_stop(key))
            self._busy[key] = task
            task.add_done_callback(lambda done: self._opening_ended(key, done))

    def _opening_ended(self, key: PartitionKey, done: asyncio.Task[None]) -> None:
        self._busy.pop(key, None)
        if not self._stopping:
            if key in self._changed_while_busy:
                self._changed_while_busy.discard(key)
                self._changed.add((key,))
            self._changed.add(self._next_to_open())
        if not done.cancelled() and done.exception() is not None:
            self._node.process.fatal(done.exception())  # type: ignore[arg-type]

    def _next_to_open(self) -> list[PartitionKey]:
        """Return the next partitions to open or to stop, those that have waited longest first.

        There are at most as many as may be opened or stopped at the same time. Partitions that need neither any more are
        skipped.
        """
        following: list[PartitionKey] = []
        free = _OPENED_AT_ONCE - len(self._busy)
        while self._deferred and len(following) < free:
            key = next(iter(self._deferred))
            del self._deferred[key]
            if (key in self._workers) != (self._find_in_image(key) is not None):
                following.append(key)
        return following

    async def _open_or_stop(self, key: PartitionKey) -> None:
        while (worker := self._workers.get(key)) is None or self._find_in_image(key) is None:
            wanted = self._find_in_image(key)
            if worker is not None:
                await self._stop(worker)
            elif wanted is None or not await self._start(key, *wanted):
                return
        self._update_worker(worker)

    async def _start(self, key: PartitionKey, stream: StreamImage, partition: PartitionState) -> bool:
        """Open the log of the partition ``key`` and start its worker. Return False after a failure. The node then retries later."""
        try:
            worker = await open_worker(self._node, key, stream.subject, stream.config)
        except LiftError as error:
            reason = f"{error.code}: {error}"
            if self.failed.get(key) != reason:  # not at each retry
                logger.error("log not opened partition=%s code=%s error=%s", key, error.code, error)
            self.failed[key] = reason
            if partition.joining == self._node_id:
                self._node.proposals.send(key, do.LeaveIsr(reason=reason, is_learner=True))
            self._retry_later(key)
            return False
        self.failed.pop(key, None)
        self._workers[key] = worker
        self.counts.opened(worker)
        if not self._data_path_is_up:
            worker.feed(DataPathChanged(is_up=False))
        self._by_name[key.stream, key.partition] = worker
        self._garbage.count_opened()
        return True

    def _retry_later(self, key: PartitionKey) -> None:
        earlier = self._retries.pop(key, None)
        if earlier is not None:
            earlier.cancel()
        self._retries[key] = asyncio.get_running_loop().call_later(_RETRY_S, self._retry, key)

    def _retry(self, key: PartitionKey) -> None:
        del self._retries[key]
        self._changed.add((key,))

    async def _stop(self, worker: PartitionWorker) -> None:
        """Stop the partition ``worker`` completely, even if the caller is canceled. A second call waits for the first one."""
        ending = self._endings.get(worker.key)
        if ending is None:
            ending = self._endings[worker.key] = spawn(self._end(worker), f"the end of {worker.key}")
            ending.add_done_callback(lambda _: self._endings.pop(worker.key))
        await asyncio.shield(ending)

    async def _end(self, worker: PartitionWorker) -> None:
        key = worker.key
        self.counts.closing(worker)
        del self._workers[key]
        self._leading.pop(key, None)
        if self._by_name.get((key.stream, key.partition)) is worker:
            del self._by_name[key.stream, key.partition]
        is_removed, later = self._departed.has_moved_away(key, self._image), False
        if is_removed and not self._stopping:
            allowed = await self._is_deletion_allowed(key)
            is_removed = bool(allowed) and self._departed.has_moved_away(key, self._image)  # it may be back by now
            later = allowed is None
            if allowed is False:
                self._departed.deletion_denied(key)
        deletes = is_removed and not self._stopping
        clean = await worker.stop(delete=deletes)
        if deletes:
            await self._delete_data(key)
            later = key in self._failed_deletions
        self.counts.closed(worker)
        self.log_ends.pop(key.folder, None)
        if clean and not is_removed:
            self.log_ends[key.folder] = worker.log.log_end_offset
        self._all_clean = self._all_clean and clean
        self.all_flushed = self.all_flushed and (clean or worker.has_flushed_all)
        if not self._stopping:
            self._garbage.count_closed()
        if later and not self._stopping:
            self._delete_later(key)

    async def _is_deletion_allowed(self, key: PartitionKey) -> bool | None:
        """Return True if the data of ``key``, which has left this node, may be deleted, False if a controller denies it.

        None: not now, because no controller has answered, or because the partition has no leader and this may be the only copy.
        """
        if self._departed.may_be_the_only_copy(key, self._image):
            return None
        allowed = await self._node.deletions.is_allowed(key)
        return None if allowed and self._departed.may_be_the_only_copy(key, self._image) else allowed

    def _uids_with_data(self) -> set[str]:
        """Return the uids of the streams of all partitions that are open, opened or stopped here, or whose data must be deleted."""
        parts = (
            self._workers,
            self._busy,
            self._endings,
            self._deferred,
            self.failed,
            self._later_deletions,
            self._failed_deletions,
            self._moved_logs,
        )
        return {key.uid for keys in parts for key in keys}

    def _delete_later(self, key: PartitionKey, *, at_once: bool = False) -> None:
        """Delete the data of the partition ``key`` as soon as this is allowed and possible.

        ``at_once``: True to try without a wait first.
        """
        if self._departed.may_be_the_only_copy(key, self._image):
            _seldom.warning(
                logger, "partition not deleted partition=%s: it has left this node, but has no leader: retrying", key
            )
        earlier = self._later_deletions.get(key)
        if earlier is None or earlier.done():
            task = self._start_in_background(self._delete_when_allowed(key, at_once), f"deleting {key} later")
            self._later_deletions[key] = task

    def _start_in_background(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task = spawn(work, what)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)
        return task

    async def _delete_when_allowed(self, key: PartitionKey, at_once: bool) -> None:
        """Try, from time to time, to delete the data of the partition ``key``.

        Stop when the data is deleted, when a controller denies it, or when the partition is on this node again.
        """
        while not self._stopping:
            failures = self._failed_deletions.get(key, 0)
            await asyncio.sleep(0.0 if at_once else _deletion_wait_s(failures) if failures else LATER_S)
            at_once = False
            if not self._has_moved_away(key) or await self._delete_if_allowed(key):
                break
        self._failed_deletions.pop(key, None)
        self._later_deletions.pop(key, None)

    def _update_worker(self, worker: PartitionWorker) -> None:
        location = self._find_in_image(worker.key)
        if location is None:
            return
        stream, partition = location
        worker.update(self._image.partition_metadata(stream, partition), self._live)
        if worker.leads:
            self._leading[worker.key] = worker
        else:
            self._leading.pop(worker.key, None)

    # ---- what moved away while the node was down ---------------------------------------------------------------------------
    def delete_moved_logs(self, folders: Iterable[str]) -> asyncio.Task[None]:
        """Delete the logs of partitions that are on other nodes now, one after the other. Return the task that does it.

        ``folders``: names of the directories, ``<stream>-<uid>/<partition>``.
        """
        streams = {f"{stream.name}-{stream.uid}": stream for stream in self._image.streams.values()}
        keys = []
        for name in folders:
            folder, _, number = name.rpartition("/")
            if folder in streams and self._share.holds_folder(name):
                keys.append(streams[folder].key(int(number)))
        self._moved_logs.update(keys)
        return self._start_in_background(self._delete_moved_logs(sorted(keys)), "logs that moved away")

    async def _delete_moved_logs(self, keys: list[PartitionKey]) -> None:
        for key in keys:
            if self._has_moved_away(key) and not await self._delete_if_allowed(key):
                self._delete_later(key)
                await asyncio.sleep(0)  # thousands of partitions may have no leader
            self._moved_logs.discard(key)

    def _has_moved_away(self, key: PartitionKey) -> bool:
        """Return whether the partition ``key`` is neither open here nor on this node by the current image."""
        is_free = not (self._stopping or key in self._busy or key in self._workers)
        return is_free and self._departed.has_moved_away(key, self._image)

    async def _delete_if_allowed(self, key: PartitionKey) -> bool:
        """Delete the data of the partition ``key`` if a controller allows it, and if it has not come back to this node by then.

        Return False if the caller must try again later: the deletion failed, or it is not decided yet.
        """
        allowed = await self._is_deletion_allowed(key)
        if allowed and self._has_moved_away(key):
            task = self._busy[key] = start_attended(self._delete_data(key, is_late=True))  # it cannot be opened until then
            task.add_done_callback(partial(self._opening_ended, key))
            await asyncio.wait([task])
            return key not in self._failed_deletions
        return allowed is not None

    async def _delete_data(self, key: PartitionKey, *, is_late: bool = False) -> None:
        """Delete the files of the partition ``key``. Count a failure in ``_failed_deletions``.

        ``is_late``: True if the partition left this node before, and not just now.
        """
        try:
            await asyncio.get_running_loop().run_in_executor(self._node.pool, self._node.folder.delete_partition, key)
            self._node.promises.forget(key.folder)
        except (LiftError, OSError) as error:
            failures = self._failed_deletions[key] = self._failed_deletions.get(key, 0) + 1
            wait_s = _deletion_wait_s(failures)
            logger.error("partition not deleted partition=%s error=%s: retrying in %.0f s", key, error, wait_s)
            return
        self._failed_deletions.pop(key, None)
        self.log_ends.pop(key.folder, None)
        if is_late:
            logger.info("partition deleted partition=%s: it has left this node", key)
        else:
            logger.info("partition deleted partition=%s", key)

    # ---- life --------------------------------------------------------------------------------------------------------------
    async def wait_until_open(self) -> None:
        """Wait until each partition of this node is open, or its first attempt to open has failed."""
        while self._changed or self._deferred or self._busy:
            if self._busy:
                await asyncio.wait(list(self._busy.values()), return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(0)

    async def close_subjects(self, timeout_s: float) -> None:
        """Stop accepting publishes in all partitions that this node leads, and answer the publishes that have arrived.

        ``timeout_s``: time limit.
        """
        await self._node.transfers.close_subjects(self.led_partitions(), timeout_s)

    def transfer_leadership(self, stream: str, partition: int, uid: str, leader_epoch: int, done: Callable[[], None]) -> None:
        """Prepare the transfer of one leadership: stop accepting publishes, answer those that have arrived, then call ``done``.

        If this node does not lead the partition in ``leader_epoch``, call ``done`` at once.
        """
        worker = self._by_name.get((stream, partition))
        if worker is None or worker.key.uid != uid:
            done()
        else:
            worker.prepare_transfer(leader_epoch, done)

    def publishes_lost(self) -> None:
        """Report to all partitions that this node leads that the connection for publishes was lost."""
        for worker in list(self._leading.values()):
            worker.ingest.process_link_loss()

    async def stop(self) -> bool:
        """Stop all partitions and close their logs. Return True if all acknowledged data is on disk. A second call is allowed.

        After an unclean stop, a log that cannot be opened may have data that is only in the page cache [S1]. A log that could not be
        deleted has such data, too.
        """
        self._stopping = True
        self._node.deletions.close()
        self._changed.close()
        self._lease_notifications.close()
        self._deferred.clear()
        for retry in self._retries.values():
            retry.cancel()
        await self._node.transfers.close()
        await end_tasks([*self._background_tasks])
        for task in list(self._busy.values()):
            task.cancel()
        await asyncio.gather(*self._busy.values(), return_exceptions=True)
        await asyncio.gather(*self._endings.values())
        workers = list(self)
        for start in range(0, len(workers), _STOPS_AT_ONCE):
            await asyncio.gather(*(self._stop(worker) for worker in workers[start : start + _STOPS_AT_ONCE]))
        has_unread_logs = bool(self.failed or self._node.recovered.unrecovered)
        is_complete = (not has_unread_logs or self._node.previous.clean_stop) and not self._failed_deletions
        self.all_flushed = self.all_flushed and is_complete
        return self._all_clean and is_complete


def _deletion_wait_s(failures: int) -> float:
    """Return the wait after ``failures`` failed deletions of a partition's files in a row, in seconds."""
    return doubled_wait_s(failures, _DELETE_AGAIN_S, _LONGEST_DELETE_AGAIN_S)


class NotifyHandler:
    """Receives the messages on ``<ns>.notify.<node>``: notices of leaders, combined fetches, service reports, and requests of the
    metadata leader.

    Each process of a node receives all messages, and processes those of its partitions (``share``). ``answer_combined_fetch``: called
    with (reply subject, combined fetch without its envelope). It raises ProtocolError.
    """

    def __init__(
        self,
        bus: Bus,
        subject: str,
        inboxes: InboxRule,
        partitions: Partitions,
        answer_combined_fetch: Callable[[bytes, memoryview], None],
        counters: Counter[str],
        share: WorkerShare = WHOLE,
    ) -> None:
        self._bus = bus
        self._inboxes = inboxes
        self._partitions = partitions
        self._answer_combined_fetch = answer_combined_fetch
        self._counters = counters
        self._share = share
        bus.listen(subject, RequestGuard("notify", counters).handler(self._notice_arrived))

    def _notice_arrived(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        try:
            kind, body = envelope.decode(payload)
            if kind is MessageType.PARTITION_NOTIFICATION:
                wake = frames.parse(body, replication_pb2.PartitionNotification)
                self._partitions.deliver(wake.stream, wake.partition, wake.streamUid, events.NotificationReceived())
                return
            if kind is MessageType.QUIET_FETCHES:
                self._answer_combined_fetch(reply, body)
                return
            if kind is MessageType.SERVICE_REPORT:
                report = frames.parse(body, service_pb2.ServiceReport)
                services = self._partitions.services_of(report.stream, report.partition)
                if services is not None:
                    services.record_states(report)
                return
            if kind in (MessageType.STEP_ASIDE, MessageType.LEADER_QUESTION) and not self._inboxes.allows(reply):
                self._counters[REPLY] += 1
                return
            if kind is MessageType.STEP_ASIDE:
                request = frames.parse(body, replication_pb2.StepAside)
                if not self._share.holds(request.stream, request.partition):
                    return  # another process of this node answers the request
                self._partitions.transfer_leadership(
                    request.stream,
                    request.partition,
                    request.streamUid,
                    request.leaderEpoch,
                    lambda: self._answer(reply, request),
                )
                return
            if kind is MessageType.LEADER_QUESTION:
                question = frames.parse(body, replication_pb2.LeaderQuestion)
                if not self._share.holds(question.stream, question.partition):
                    return
                testimony = replication_pb2.LeaderTestimony(serves=self._partitions.serves(question), question=question)
                self._answer(reply, testimony)
                return
            if kind is not MessageType.LEADER_NOTICE:
                raise ProtocolError(
                    f"Messages of type {kind.name} are not allowed on a notify subject. Check that all nodes run compatible "
                    "versions."
                )
            notice = frames.parse(body, replication_pb2.LeaderNotice)
        except ProtocolError as error:
            self._counters[counter_name(error)] += 1
            return
        self._partitions.deliver(notice.stream, notice.partition, notice.streamUid, messages.LEADER_NOTICE.from_pb(notice))

    def _answer(self, reply: bytes, answer: replication_pb2.StepAside | replication_pb2.LeaderTestimony) -> None:
        send_answer(self._bus, (self._inboxes,), self._counters, reply, (frames.seal(answer),))
