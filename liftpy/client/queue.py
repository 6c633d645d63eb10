"""``Queue``: one worker of a work queue. The workers share the records of a stream, one record at a time.

The coordinator decides which worker gets which record (``liftpy.core.groups.queue``). A worker fetches the records that
it was granted, and sends many acks in one command. When ``ack`` returns, the ack is committed, and the record is never
delivered again. A worker returns a record to the application only while the ack wait of the record is valid by the
worker's own clock.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal

from liftpy.client.arguments import check_bounds, check_count, check_number, check_text, check_wait, checked_options
from liftpy.client.consumer import ReadOptions
from liftpy.client.group_admin import GroupCoordinator, GroupRejectedError, ask_coordinator
from liftpy.client.in_flight import now_ns as _now_ns
from liftpy.client.job_acks import LostRange, Settlements, gaps, is_in, ranges_of, settlement
from liftpy.client.positions import Bounds
from liftpy.client.queue_log import QueueLog
from liftpy.client.retrying import RETRY_S, UNANSWERED
from liftpy.client.shared_publishers import SharedPublishers
from liftpy.client.stream_info import StreamInfo
from liftpy.core.base.ids import PartitionKey, check_name, check_published, is_utf8, quote
from liftpy.core.groups import commands
from liftpy.core.groups.commands import partition_of
from liftpy.core.groups.queue import NO_KEY, key_digest
from liftpy.core.publish.jetstream_headers import asked_for
from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.core.wire.batch import Record
from liftpy.core.wire.headers import is_reserved
from liftpy.core.wire.subjects import has_wildcards
from liftpy.errors import (
    ConfigError,
    LiftError,
    NotAllowedError,
    NotFoundError,
    OutcomeUnknownError,
    ProtocolError,
    PublishRejectedError,
    UnavailableError,
)
from liftpy.nats.cancellation import CloseOnce, end_tasks

HORIZON_S = 0.25
_TAKES = 8
"""Maximum number of takes that the rate is computed from."""
_FEWEST = 3
_PAUSE_NS = 2_000_000_000
_NS_PER_S = 1_000_000_000


class PrefetchLimit:
    """Decides how many records a worker prefetches: as many as the application took per 0.25 s in the last takes.

    The first takes, and the first after a pause, prefetch nothing. ``most``: maximum number of records. Times are
    monotonic, in nanoseconds. Example: if a record takes 5 ms, the worker prefetches 50. If it takes 2 s, it prefetches none.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: deque[tuple[int, int]] = deque(maxlen=_TAKES + 1)
        """Time and number of records of the last takes, the newest last."""

    def took(self, count: int, now_ns: int) -> None:
        if self._taken and now_ns - self._taken[-1][0] > _PAUSE_NS:
            self._taken.clear()
        self._taken.append((now_ns, count))

    def ahead(self, now_ns: int) -> int:
        """Return the number of records to prefetch at the time ``now_ns``, in monotonic nanoseconds."""
        if len(self._taken) <= _FEWEST or now_ns - self._taken[-1][0] > _PAUSE_NS:
            return 0
        began_ns = self._taken[0][0]
        done = sum(count for _, count in self._taken) - self._taken[-1][1]  # the application still processes the last ones
        rate = done * _NS_PER_S / max(1, now_ns - began_ns)
        return min(int(rate * HORIZON_S), max(self._most, self._taken[-1][1]))


_AHEAD = 256
"""Number of keys that a worker sends in addition to the wanted records. Records of busy keys are skipped."""


class KeyDigests:
    """Digests of the keys of the next records of an ordered queue, one per offset, from offset ``start`` on.

    A digest has 8 bytes. There are at most ``MAX_KEYS`` of them.
    """

    def __init__(self) -> None:
        self.start = 0
        self.digests: list[int] = []
        self._known = False
        """True if the coordinator has confirmed that new records begin at ``start``."""

    def begin(self, offset: int) -> bool:
        """Let the digests begin at ``offset``, the first record that was never delivered. Return whether the offset has changed."""
        moved = not self._known or offset != self.start
        self.digests = self.digests[offset - self.start :] if offset >= self.start else []
        self.start, self._known = offset, True
        return moved

    async def read_on(self, log: QueueLog, bounds: Bounds, wanted: int) -> None:
        """Read the keys that a request for ``wanted`` records may need from ``log``. Raises the errors of reading."""
        if not self._known:
            return
        self.begin(max(self.start, bounds.log_start_offset))
        end = min(bounds.end_offset, self.start + min(commands.MAX_KEYS, wanted + _AHEAD))
        at = self.start + len(self.digests)
        if at >= end:
            return
        for one in await log.spans_between(at, end):
            for offset, name in one.keys(at, end):
                self._fill(offset)
                self.digests.append(key_digest(name))
        self._fill(end)

    def _fill(self, end: int) -> None:
        """Add empty digests up to ``end`` for offsets whose records compaction removed."""
        self.digests += [NO_KEY] * (end - self.start - len(self.digests))


logger = logging.getLogger("liftpy.client")

_COMMAND_S = 10.0
_CHECK_NS = 100_000_000
"""Time between two checks without a result, in nanoseconds."""
STREAM_NS = 30_000_000_000
"""Interval at which a worker lists the partitions of the stream, in nanoseconds. ``_ASK_AGAIN_S`` if there are none yet."""
LOOKUP_S = 2.0
"""Maximum time in which a worker lists the partitions of the stream, in seconds. No records are taken meanwhile."""
_ASK_AGAIN_S = 1.0
"""Interval at which a worker asks for records that other workers may have returned, in seconds."""
_MARGIN_NS = 50_000_000
"""Remaining ack wait below which a record is not delivered, in nanoseconds."""
UNTOUCHED_S = 1.0
"""Time after which a prefetched record that the application does not take is returned to the queue, in seconds."""
_LEAVE_S = 2.0
_CLOSED_PAUSE_S = 0.1
"""Maximum duration of a take after the close, in seconds."""
_HEADER = "Dead-Letter-"
_TEXT = ("utf-8", "surrogateescape")
"""Encoding of a subject: each byte that is not UTF-8 becomes a lone surrogate."""
_DLQ_S = 5.0
"""Maximum time to store one dead letter, in seconds."""
_DLQ_RETRY_S = 5.0
"""Time after which a record is delivered again if it could not be stored as a dead letter, in seconds."""
_DLQ_ATTEMPT_S = 0.25
"""Time that a take without other records waits until dead letters are stored, in seconds."""
_LONGEST_TAKE_S = 1e9
_MAX_SUBJECT = 256
"""Maximum length of the subject in a dead letter that is too large for the whole record, in bytes."""


class LeaseLostError(LiftError):
    """The ack wait of some records expired before they were acked. Another worker has them, or receives them soon.

    The other records of the same call are settled.

    Attributes:
        jobs: The records whose ack wait expired.

    Args:
        text: The error text.
        jobs: The records whose ack wait expired.
    """

    code = "LEASE_LOST"

    def __init__(self, text: str, jobs: Sequence[Job] = ()) -> None:
        super().__init__(text)
        self.jobs = tuple(jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Options of a work queue. All workers of a queue must use the same.

    Args:
        ack_wait_s: Time until a record without ack is delivered again, in seconds (0.1 to 43,200). Default 30.
        max_deliveries: Deliveries after which a record without ack goes to ``dead_letters`` (1 to 1,000,000). Default
            5.
        dead_letters: Name of the stream for dead letters. Its subject must have no wildcards, and its ack policy must be
            leader or all. Default '': none, and records are delivered again forever.
        max_ack_pending: Records without ack per partition, over all workers (1 to 100,000). Default 20,000.
        max_own_pending: Records without ack of this worker (1 to 100,000). Default 10,000.
        start: Where a new queue starts: ``earliest`` (default) or ``new``. Partitions that are added later start at
            their first record.
        ahead: Maximum number of records to prefetch (1 to 10,000). Default 64.
        order_by_key: If True, only one record of each key is out at a time, in order of offsets. Records without a key
            are not ordered. Default False.
        read: Options for reading. Default: ``ReadOptions()``.

    Raises:
        ConfigError: A value is out of range.

    Example:
        options = liftpy.QueueOptions(ack_wait_s=60, max_deliveries=3, dead_letters="jobs-dead")
        queue = await client.queue("jobs", "workers", options=options)
    """

    ack_wait_s: float = commands.ACK_WAIT_MS / 1000
    max_deliveries: int = commands.MAX_DELIVERIES
    dead_letters: str = ""
    max_ack_pending: int = commands.MAX_ACK_PENDING
    max_own_pending: int = commands.MAX_MEMBER_PENDING
    start: Literal["earliest", "new"] = "earliest"
    ahead: int = 64
    order_by_key: bool = False
    read: ReadOptions = field(default_factory=ReadOptions)

    def __post_init__(self) -> None:
        bounds = {
            "ack_wait_s": (commands.MIN_ACK_WAIT_MS / 1000, commands.MAX_ACK_WAIT_MS / 1000),
            "max_deliveries": (1, commands.MAX_MAX_DELIVERIES),
            "max_ack_pending": (1, commands.MAX_MAX_PENDING),
            "max_own_pending": (1, commands.MAX_MAX_PENDING),
            "ahead": (1, commands.MAX_TAKE),
        }
        check_bounds(self, bounds)
        checked_options(self.read, ReadOptions, "read")
        if self.start not in ("earliest", "new"):
            raise ConfigError(f"Invalid start = {self.start!r}. Use 'earliest' or 'new'.")
        if self.dead_letters:
            check_published(check_name(self.dead_letters, "dead_letters"))


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One record that this worker has until its ack wait expires.

    Attributes:
        record: The record.
        key: The partition of the record.
        deliveries: Number of deliveries, this one included.
        lease: Number of this delivery at the coordinator.
        until_ns: Monotonic time at which another worker may receive the record, in nanoseconds.
        over_ns: As ``until_ns``, by a clock that runs while the machine sleeps.
        queue: The worker.
    """

    record: Record
    key: PartitionKey
    deliveries: int
    lease: int
    until_ns: int
    over_ns: int = field(repr=False)
    queue: Queue = field(repr=False)

    async def ack(self) -> None:
        """Acknowledge this record: it is done and is never delivered again.

        Raises:
            LeaseLostError: The ack wait has expired. Another worker may have the record.
            UnavailableError: The coordinator did not answer. Nothing changed.
            OutcomeUnknownError: No answer in time. Call it again: that does no harm.

        Example:
            async for job in queue:
                print(job.record.value)
                await job.ack()
        """
        await self.queue.ack([self])

    async def nack(self, delay_s: float = 0.0) -> None:
        """Return this record to the queue. It is delivered again.

        Args:
            delay_s: Delay before the next delivery, in seconds (0 to 86,400). Default 0.

        Raises:
            ConfigError: The delay is out of range.
            LiftError: Every error of ``ack``.

        Example:
            await job.nack(delay_s=10)
        """
        await self.queue.nack([self], delay_s)

    async def extend(self) -> None:
        """Restart the ack wait of this record.

        Call it before ``ack_wait_s`` expires if the work takes longer. No other worker receives the record until the
        new ack wait expires. The errors are those of ``ack``.

        Example:
            await job.extend()
        """
        await self.queue.extend([self])

    async def reject(self, reason: str) -> None:
        """Send this record to the dead letters. It is not delivered again.

        Args:
            reason: Reason to store with the dead letter, 1 to 200 bytes.

        Raises:
            ConfigError: The queue has no stream for dead letters, or the reason is too long.
            LiftError: Every error of ``ack``.

        Example:
            await job.reject("unknown customer")
        """
        await self.queue.reject([self], reason)


def _list_of(jobs: Iterable[Job]) -> list[Job]:
    """Return ``jobs`` as a list. Raise ConfigError if they are no jobs, such as a single job or its record."""
    listed = list(jobs) if isinstance(jobs, Iterable) else None
    if listed is None or not all(isinstance(job, Job) for job in listed):
        raise ConfigError(f"Invalid jobs = {quote(repr(jobs))}. Use a list of jobs that take() has returned.")
    return listed


@dataclass(slots=True, eq=False)
class _QueuePartition:
    """One partition that the queue worker reads.

    ``ended``: log end (exclusive) at which the coordinator had no more records. -1: not known. ``again_ns``: monotonic time at which
    the coordinator is asked again. ``keys``: keys of the next records of an ordered queue.
    """

    log: QueueLog
    ended: int = -1
    again_ns: int = 0
    keys: KeyDigests = field(default_factory=KeyDigests)
    must_compare: bool = False
    """True if the coordinator requires a comparison of the log before it delivers records [Q8]."""

    @property
    def key(self) -> PartitionKey:
        return self.log.key

    def is_due(self, now_ns: int) -> bool:
        """Return whether the coordinator may have records now: the log has grown, or the time to ask again has come."""
        return self.log.end_offset != self.ended or now_ns >= self.again_ns


class Queue:
    """One worker of a work queue. Iterate over it to get jobs.

    Create it with ``client.queue``. ``counters`` counts errors that the worker retried. An iteration waits without a time
    limit while the coordinator does not answer. ``take`` raises UnavailableError after 10 seconds.

    Example:
        async with client.queue("jobs", "workers") as queue:
            async for job in queue:
                print(job.record.value)
                await job.ack()
    """

    def __init__(
        self, coordinator: GroupCoordinator, publishers: SharedPublishers, stream: str, group: str, options: QueueOptions
    ) -> None:
        self.stream = check_name(stream, "stream")
        self.name = check_name(group, "group")
        if options.dead_letters == stream:
            raise ConfigError(
                f"dead_letters is the stream of the queue itself ({stream}), so the queue would deliver its dead letters without end. "
                "Choose another stream (QueueOptions(dead_letters=))."
            )
        self._coordinator, self._streams, self._publishers = coordinator, coordinator.streams, publishers
        self._options = options
        self._member = secrets.token_hex(16)
        self._partition = 0
        self._partitions: deque[_QueuePartition] = deque()
        self._at_open: set[PartitionKey] = set()
        """Partitions that existed when the queue was opened. ``start="new"`` applies only to these."""
        self._next_check_ns = 0
        """Monotonic time of the next check for new partitions, in nanoseconds."""
        self._ready: deque[Job] = deque()
        """Fetched jobs that are not delivered yet."""
        self._fetch_task: asyncio.Task[None] | None = None
        """Task that takes more records from the coordinator. At most one runs."""
        self._pace = PrefetchLimit(options.ahead)
        self._last_requested = 1
        """Number of records that the last take requested."""
        self._touched_ns = 0
        """Time of the last delivery or arrival."""
        self._untouched: asyncio.TimerHandle | None = None
        self._settlements = Settlements(self.name, self._settle_and_take)
        self._number = 0
        self._closed = False
        self._closing = CloseOnce(f"closing of a worker of {self.name}")
        self._dead_letter_tasks: set[asyncio.Task[None]] = set()
        self.problem = ""
        """Why a record cannot be stored as a dead letter now: stream, record and reason. '': no problem."""
        self.counters: Counter[str] = Counter()

    # ---- life --------------------------------------------------------------------------------------------------------
    async def open(self) -> Queue:
        """Find the stream and the coordinator. ``client.queue`` calls it."""
        home = await self._coordinator.stream()
        self._partition = partition_of(self.name, len(home.partitions))
        if self._options.dead_letters:
            dead_letters = await self._streams.stream(self._options.dead_letters)
            if has_wildcards(dead_letters.subject) or not dead_letters.answers:
                raise ConfigError(
                    f"Stream {dead_letters.name} cannot store dead letters. It needs a subject without wildcards, and the ack policy "
                    "leader or all. Choose another stream (QueueOptions(dead_letters=))."
                )
        stream = StreamInfo.of(await self._streams.newest_stream(self.stream))
        self._at_open = {stream.key(partition.partition) for partition in stream.partitions}
        self._set_partitions(stream)
        if any(partition.state.unclean_elected for partition in stream.partitions):
            await self._check_logs()
        return self

    async def _check_logs(self) -> None:
        """Raise LogTruncatedError if an unclean election lost records of the queue, and the log is still shorter than before."""
        try:
            queues = (await self._coordinator.describe(self.name, "group"))[0].queues
        except (NotFoundError, NotAllowedError):  # it is a new queue, or this user may not describe it
            return
        taken_below = {figures.key: figures.taken_below for figures in queues}
        for place in self._partitions:
            await place.log.check_reaches(taken_below.get(place.key, 0))

    def _set_partitions(self, stream: StreamInfo) -> None:
        known = {place.key: place for place in self._partitions}
        keys = [stream.key(partition.partition) for partition in stream.partitions]
        streams, read = self._streams, self._options.read
        self._partitions = deque(
            known.get(key) or _QueuePartition(QueueLog(streams.reader(key.stream, key.partition, read), key, read))
            for key in keys
        )
        for place in known.keys() - set(keys):
            known[place].log.close()
        self._next_check_ns = _now_ns() + (STREAM_NS if keys else round(_ASK_AGAIN_S * 1e9))

    async def __aenter__(self) -> Queue:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Return prefetched records and send pending acks.

        Records that the application still has are delivered again when their ack wait expires. A second call waits for
        the end of the first one. If a call is cancelled, the close continues.
        """
        self._closed = True
        await self._closing.run(self._close)

    async def _close(self) -> None:
        if self._untouched is not None:
            self._untouched.cancel()
        if self._fetch_task is not None and not self._fetch_task.done():
            await asyncio.wait({self._fetch_task}, timeout=_LEAVE_S)
        if self._dead_letter_tasks:
            await asyncio.wait(self._dead_letter_tasks, timeout=_LEAVE_S)
        await end_tasks([self._fetch_task, *self._dead_letter_tasks, *(place.log.close() for place in self._partitions)])
        try:
            await self._return_prefetched()
            await self._settlements.wait_until_sent()
        except LiftError as error:  # the records are delivered again after their ack wait
            self.counters["unsaid"] += 1
            logger.warning("queue %s: not left in order: %s", self.name, error)

    def _return_prefetched(self) -> asyncio.Future[list[LostRange]]:
        """Return the prefetched records to the queue, for other workers. The future is done when the coordinator has answered."""
        jobs, self._ready = list(self._ready), deque()
        return self._begin_settling(pb.SETTLE_RELEASE, jobs)

    # ---- taking ------------------------------------------------------------------------------------------------------
    def __aiter__(self) -> Queue:
        return self

    async def __anext__(self) -> Job:
        """Return the next job. Wait until there is one.

        If the coordinator or a leader does not answer, the worker retries until it does, as a member of a group does.

        Raises:
            LiftError: Every error of ``take``, except UnavailableError and OutcomeUnknownError.
        """
        while not self._closed:
            try:
                for job in self._handed_on(1) or await self.take(1):
                    return job
            except UNANSWERED as error:
                logger.debug("queue %s: %s; retrying in %g s", self.name, error, RETRY_S)
                await asyncio.sleep(RETRY_S)
        raise StopAsyncIteration

    async def take(self, max_records: int = 64, timeout_s: float = 5.0) -> list[Job]:
        """Return up to ``max_records`` jobs of one partition, as soon as there are some.

        Args:
            max_records: Maximum number of jobs (1 to 10,000). Default 64.
            timeout_s: Time to wait for the first job, in seconds. At or below 0: request jobs once. Default 5.

        Returns:
            The jobs. Empty if none came in time, or if the queue is closed.

        Raises:
            GroupRejectedError: A limit of the coordinator does not allow new records.
            NotFoundError: The stream was deleted.
            LogTruncatedError: An unclean election lost records that the queue has delivered. Delete the queue and set its
                position, or it skips new records.
            UnavailableError: The coordinator did not answer in time.
            OutcomeUnknownError: No answer in time. Granted records are delivered again after their ack wait.

        Example:
            jobs = await queue.take(100)
            await queue.ack(jobs)
        """
        check_count("max_records", max_records, 1, commands.MAX_TAKE)
        check_wait("timeout_s", timeout_s)
        if self._closed:  # a worker that takes in a loop must not keep the event loop busy
            await asyncio.sleep(min(max(timeout_s, 0.0), _CLOSED_PAUSE_S))
        give_up_ns, tries = _now_ns() + round(min(max(timeout_s, 0.0), _LONGEST_TAKE_S) * 1e9), 0
        while not self._closed:
            if jobs := self._handed_on(max_records):
                return jobs
            coming, self._last_requested = self._fetch_task, max_records
            try:
                if coming is None:
                    tries += 1
                    coming = self._run_shielded(self._request_from_any(max_records))
                await asyncio.wait({coming})
                if not coming.cancelled():
                    coming.result()
            except GroupRejectedError:
                if _now_ns() >= give_up_ns:
                    raise
            if not self._ready and tries:
                if _now_ns() >= give_up_ns:
                    return []
                await self._wait_for_records(give_up_ns)
        return []

    def _handed_on(self, count: int) -> list[Job]:
        """Return up to ``count`` prefetched jobs of one partition for the application. Jobs whose ack wait is over are dropped."""
        now_ns, jobs = _now_ns(), list[Job]()
        while self._ready and len(jobs) < count and (not jobs or self._ready[0].key == jobs[0].key):
            job = self._ready.popleft()
            if now_ns < job.over_ns - _MARGIN_NS:
                jobs.append(job)
            else:
                self.counters["expired"] += 1  # the application was slow, and another worker may have the record
        if jobs:
            self._touched_ns = now_ns
            self._pace.took(len(jobs), now_ns)
        return jobs

    def _remember(self) -> Callable[[list[Job] | Job | None], None]:
        """Return a function that takes back the jobs that a later call has returned: the next call returns them again."""

        def take_back(returned: list[Job] | Job | None) -> None:
            jobs = [returned] if isinstance(returned, Job) else returned or []
            if self._closed:
                self._begin_settling(pb.SETTLE_RELEASE, jobs)
            else:
                self._ready.extendleft(reversed(jobs))
                self._return_later()

        return take_back

    def _run_shielded(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` in a task of its own, so that it continues if the caller is canceled. Return the task."""
        coming = self._fetch_task = asyncio.create_task(work, name=f"records of {self.name}")
        coming.add_done_callback(self._brought)
        return coming

    def _brought(self, coming: asyncio.Task[None]) -> None:
        self._fetch_task = None
        if not coming.cancelled() and coming.exception() is not None:
            self.counters["not brought"] += 1
        self._return_later()

    def _return_later(self) -> None:
        """Return the prefetched jobs to the queue if the application does not take them soon."""
        self._touched_ns = _now_ns()
        if self._untouched is None and self._ready and not self._closed:
            self._untouched = asyncio.get_running_loop().call_later(UNTOUCHED_S, self._return_if_untouched)

    def _return_if_untouched(self) -> None:
        """Return the prefetched jobs to the queue if the application has taken none for ``UNTOUCHED_S`` seconds.

        Else check again later.
        """
        self._untouched = None
        left_s = UNTOUCHED_S - (_now_ns() - self._touched_ns) / 1e9
        if left_s <= 0 and self._ready:
            self.counters["given back"] += len(self._ready)
            self._return_prefetched()
        elif self._ready:
            self._untouched = asyncio.get_running_loop().call_later(left_s, self._return_if_untouched)

    async def _request_from_any(self, wanted: int) -> None:
        """Request ``wanted`` records from one partition after the other, until one has some.

        Raises GroupRejectedError if no partition has records and the coordinator rejected a request.
        """
        refused: GroupRejectedError | None = None
        if _now_ns() >= self._next_check_ns:
            await self._refresh_partitions()
        for _ in range(len(self._partitions)):
            if not self._partitions:
                break
            place = self._partitions[0]
            self._partitions.rotate(-1)
            try:
                if await self._request_from(place, wanted):
                    return
            except GroupRejectedError as error:
                refused = error
        if refused is not None:
            raise refused

    async def _request_from(self, place: _QueuePartition, wanted: int) -> bool:
        """Request records of one partition. Return whether it had some, or whether it must be asked again at once."""
        log = place.log
        try:
            if log.bounds is None or not log.has_more or _now_ns() >= place.again_ns > 0:
                await log.refresh_bounds()
            if not place.is_due(_now_ns()):
                return False
            sent_ns = _now_ns()
            wanted = min(wanted + self._pace.ahead(sent_ns), commands.MAX_TAKE)
            answer = await self._ask(place, wanted)
        except NotFoundError:  # the stream was deleted, or created again
            return await self._refresh_stream()
        if answer.code == pb.GROUP_STALE:
            return await self._refresh_stream()
        if answer.granted:
            await self._receive(place, answer, sent_ns, wanted)
            return True
        self._note_end(place, answer)
        if answer.code:
            raise GroupRejectedError(
                f"Queue {self.name}: the coordinator rejected the request: {answer.detail}. Open the queue again."
            )
        return False

    async def _refresh_stream(self) -> bool:
        self._set_partitions(StreamInfo.of(await self._streams.stream(self.stream)))
        return False

    async def _refresh_partitions(self) -> None:
        self._next_check_ns = _now_ns() + (STREAM_NS if self._partitions else round(_ASK_AGAIN_S * 1e9))
        try:
            async with asyncio.timeout(LOOKUP_S):
                await self._refresh_stream()
        except (TimeoutError, UnavailableError, OutcomeUnknownError) as error:  # the worker continues with the known partitions
            self.counters["not looked"] += 1
            logger.debug("queue %s: %s", self.name, error)

    def _note_end(self, place: _QueuePartition, answer: pb.GroupAnswer) -> None:
        """Store that the coordinator has no more records of the partition, and when to ask it again."""
        place.ended = place.log.end_offset
        known = answer.nextReadyMs >= 0 and not answer.granted
        ready_s = answer.nextReadyMs / 1000 if known else _ASK_AGAIN_S
        place.again_ns = _now_ns() + round(min(ready_s, _ASK_AGAIN_S) * 1e9)

    async def _wait_for_records(self, until_ns: int) -> None:
        """Wait until new records are committed, or until other workers may have returned records."""
        if any(place.log.bounds is None for place in self._partitions):
            return  # a partition was not asked yet
        now_ns = _now_ns()
        at_ns = min(
            [
                until_ns,
                max(self._next_check_ns, now_ns),
                *(max(place.again_ns, now_ns + _CHECK_NS) for place in self._partitions),
            ]
        )
        watches = {place.log.watch() for place in self._partitions if not place.log.has_more}
        wait_s = max(0.0, (at_ns - now_ns) / 1e9)
        if watches:
            await asyncio.wait(watches, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(wait_s)

    async def _ask(self, place: _QueuePartition, wanted: int) -> pb.GroupAnswer:
        """Ask the coordinator for up to ``wanted`` records of a partition, and return its answer.

        For an ordered queue, the request has the keys of the next records. If the partition has had another leader, the log is
        compared first. Raises LogTruncatedError if the log has lost records that the queue has delivered.
        """
        while True:
            request = self._build_request(place, wanted)
            if self._options.order_by_key:
                assert place.log.bounds is not None
                await place.keys.read_on(place.log, place.log.bounds, wanted)
                request.ordered, request.keysFrom = True, place.keys.start
                request.keys.extend(place.keys.digests)
            answer = await self._send_command(take=request)
            place.must_compare = answer.code == pb.GROUP_COMPARE_LOG
            if place.must_compare:
                await place.log.compare(answer.takenBelow, answer.takenEpoch)
                continue
            if answer.code != pb.GROUP_OK or not self._options.order_by_key:
                return answer
            moved = place.keys.begin(answer.takenBelow)
            if answer.granted or not moved or answer.takenBelow >= request.logEnd:
                return answer

    def _build_request(self, place: _QueuePartition, wanted: int) -> pb.TakeRecords:
        options, key, bounds = self._options, place.key, place.log.bounds
        assert bounds is not None
        compared_epoch, compared_below = place.log.compared
        begin = bounds.end_offset if options.start == "new" and key in self._at_open else bounds.log_start_offset
        return pb.TakeRecords(
            member=self._member, stream=key.stream, uid=key.uid, partition=key.partition, maxRecords=wanted,
            logStart=bounds.log_start_offset, logEnd=place.log.end_offset, begin=begin,
            partitions=sum(at.uid == key.uid for at in self._at_open) or None,
            logEpoch=place.log.epoch, comparedEpoch=compared_epoch, comparedBelow=compared_below,
            ackWaitMs=round(options.ack_wait_s * 1000),
            maxDeliveries=options.max_deliveries if options.dead_letters else commands.MAX_MAX_DELIVERIES,
            maxAckPending=options.max_ack_pending, maxMemberPending=options.max_own_pending,
        )  # fmt: skip

    async def _receive(self, place: _QueuePartition, answer: pb.GroupAnswer, sent_ns: int, wanted: int) -> None:
        """Fetch the records that the coordinator has granted in ``answer``, and queue them as jobs for the application."""
        place.ended = -1
        try:
            self._ready.extend(await self._fetch(place.log, list(answer.granted), sent_ns + answer.waitMs * commands.NS_PER_MS))
        except NotFoundError:  # the stream was deleted, or created again
            await self._refresh_stream()
        count = sum(part.end - part.start for part in answer.granted)
        if count < wanted and len(answer.granted) < commands.MAX_GRANTED_RANGES and not place.log.has_more:
            self._note_end(place, answer)

    async def _receive_along(
        self, place: _QueuePartition, coming: asyncio.Future[pb.GroupAnswer | None], sent_ns: int, wanted: int
    ) -> None:
        """Process the records that the coordinator has granted together with the answer to an ack."""
        answer = await coming
        if answer is None:
            return
        if answer.code == pb.GROUP_COMPARE_LOG:  # the next take compares
            place.must_compare = True
        elif answer.granted:
            await self._receive(place, answer, sent_ns, wanted)
        else:
            self._note_end(place, answer)

    async def _fetch(self, log: QueueLog, granted: list[pb.GrantedRange], over_ns: int) -> list[Job]:
        """Fetch granted records and return their jobs. ``over_ns``: time at which their ack wait ends.

        Records that were deleted are acked. Records with too many deliveries are stored as dead letters by another task.
        """
        key, fetched_jobs, done, dead = log.key, list[Job](), list[pb.RecordRange](), list[tuple[pb.GrantedRange, list[Job]]]()
        try:
            for part in granted:
                await log.check_reaches(part.end)
                records = await log.records(part.start, part.end)
                log.granted_below = max(log.granted_below, part.end)
                until_ns = over_ns - _now_ns() + time.monotonic_ns()
                jobs = [Job(record, key, part.deliveries, part.lease, until_ns, over_ns, self) for record in records]
                done += gaps(part, [record.offset for record in records])
                if part.dead:
                    dead.append((part, jobs))
                else:
                    fetched_jobs += jobs
        except BaseException:
            rest = [pb.RecordRange(start=part.start, end=part.end, lease=part.lease) for part in granted]
            self._settlements.settle([settlement(pb.SETTLE_RELEASE, key, rest)])
            raise
        if done:
            self.counters["gone or dead"] += sum(part.end - part.start for part in done)
            self._settlements.settle([settlement(pb.SETTLE_ACK, key, done)])
        if dead:
            burial = asyncio.create_task(self._add_all_dead_letters(key, dead, over_ns), name=f"dead letters of {self.name}")
            self._dead_letter_tasks.add(burial)
            burial.add_done_callback(self._dead_letter_tasks.discard)
            if not fetched_jobs:
                await asyncio.wait((burial,), timeout=_DLQ_ATTEMPT_S)
        return fetched_jobs

    async def _add_all_dead_letters(
        self, key: PartitionKey, dead: Sequence[tuple[pb.GrantedRange, Sequence[Job]]], over_ns: int
    ) -> None:
        """Store records as dead letters, in order, and then ack them.

        After a failure, the remaining records return to the queue for ``_DLQ_RETRY_S`` seconds. ``over_ns``: time at which the ack
        wait of the records ends.
        """
        left = deque((part, job) for part, jobs in dead for job in jobs)
        stored: list[Job] = []
        try:
            while left:
                part, job = left[0]
                await self._add_dead_letters(part, job, min(_DLQ_S, (over_ns - _now_ns()) / 1e9))
                stored.append(left.popleft()[1])
            self.problem = ""
        except LiftError as error:
            self.counters["not buried"] += 1
            self.problem = (
                f"queue {self.name}: the record at {key.stream}/{key.partition} offset {left[0][1].record.offset} is not stored in the "
                f"dead-letter stream {self._options.dead_letters}: {error.code}: {error}"
            )
            logger.warning("%s; retrying in %g s", self.problem, _DLQ_RETRY_S)
        finally:
            self.counters["gone or dead"] += len(stored)
            settlements = [(pb.SETTLE_ACK, stored, 0.0), (pb.SETTLE_NACK, [job for _, job in left], _DLQ_RETRY_S)]
            for kind, jobs, delay_s in settlements:
                self._begin_settling(kind, jobs, delay_s=delay_s)

    async def _add_dead_letters(self, part: pb.GrantedRange, job: Job, timeout_s: float) -> None:
        """Publish the record of ``job`` to the stream for dead letters. Raises the errors of a publish.

        ``part``: grant of the record, with the number of deliveries. A message id prevents duplicates.
        """
        key, record = job.key, job.record
        origin = {
            "Group": self.name, "Stream": key.stream, "Partition": str(key.partition), "Offset": str(record.offset),
            "Deliveries": str(part.deliveries), "Reason": part.reason or "delivered too often", "Subject": record.subject,
        }  # fmt: skip
        user_headers = [
            pair for pair in record.headers if not is_reserved(pair[0]) and not asked_for(pair[0]) and is_utf8(pair[0])
        ]
        name = f"{self.name}/{key.stream}/{key.uid}/{key.partition}/{record.offset}"
        for omitted in ("", "value", "value headers", "value headers key", "value headers key reason"):
            origin["Omitted"] = omitted
            if "reason" in omitted:
                origin["Reason"] = origin["Subject"] = ""
            elif "headers" in omitted:
                origin["Subject"] = record.subject.encode(*_TEXT)[:_MAX_SUBJECT].decode(*_TEXT)
            own = [(_HEADER + name, value.encode(*_TEXT)) for name, value in origin.items() if value]
            try:
                publisher, left_s = await self._publishers.open(self._options.dead_letters, 0, max(timeout_s, 0.1))
                await publisher.publish(
                    b"" if "value" in omitted else record.value,
                    key=None if "key" in omitted else record.key,
                    headers=own if "headers" in omitted else [*own, *user_headers],  # the record may be a dead letter itself
                    msg_id=sha256(name.encode()).hexdigest()[:32],
                    timeout_s=left_s,
                )
                break
            except (PublishRejectedError, ConfigError, ProtocolError) as error:
                too_large = not isinstance(error, PublishRejectedError) or error.reason == "TOO_LARGE"
                if not too_large or "reason" in omitted:
                    raise
        self.counters["buried"] += 1
        self.counters["buried without value"] += bool(omitted)

    # ---- settling ----------------------------------------------------------------------------------------------------
    async def ack(self, jobs: Iterable[Job]) -> None:
        """Acknowledge several jobs, as ``Job.ack`` does.

        Args:
            jobs: The jobs.

        Raises:
            LeaseLostError: The ack wait of some jobs has expired. ``jobs`` lists them. The others are acked.
        """
        await self._settle(pb.SETTLE_ACK, _list_of(jobs))

    async def nack(self, jobs: Iterable[Job], delay_s: float = 0.0) -> None:
        """Return several jobs to the queue, as ``Job.nack`` does.

        Args:
            jobs: The jobs.
            delay_s: Delay before the next delivery, in seconds (0 to 86,400). Default 0.

        Raises:
            LeaseLostError: The ack wait of some jobs has expired. ``jobs`` lists them. The others are returned.
        """
        check_number("delay_s", delay_s, 0, commands.MAX_DELAY_MS / 1000)
        await self._settle(pb.SETTLE_NACK, _list_of(jobs), delay_s=delay_s)

    async def extend(self, jobs: Iterable[Job]) -> None:
        """Restart the ack wait of several jobs, as ``Job.extend`` does. ``Job.until_ns`` does not change.

        Args:
            jobs: The jobs.

        Raises:
            LeaseLostError: The ack wait of some jobs has expired. ``jobs`` lists them. The others are extended.
        """
        await self._settle(pb.SETTLE_EXTEND, _list_of(jobs))

    async def reject(self, jobs: Iterable[Job], reason: str) -> None:
        """Send several jobs to the dead letters, as ``Job.reject`` does.

        Args:
            jobs: The jobs.
            reason: Reason to store with the dead letters, 1 to 200 bytes.

        Raises:
            LeaseLostError: The ack wait of some jobs has expired. ``jobs`` lists them. The others are rejected.
        """
        if not self._options.dead_letters:
            raise ConfigError('reject() needs a dead-letter stream. Set QueueOptions(dead_letters="STREAM").')
        check_text("reason", reason)
        if not is_utf8(reason) or not 0 < len(reason.encode()) <= commands.MAX_REASON_BYTES:
            raise ConfigError(f"Invalid reason {quote(reason)}. Use 1 to {commands.MAX_REASON_BYTES} bytes of UTF-8 text.")
        await self._settle(pb.SETTLE_REJECT, _list_of(jobs), reason=reason)

    async def _settle(self, kind: Any, jobs: list[Job], *, delay_s: float = 0.0, reason: str = "") -> None:
        ranges = await self._begin_settling(kind, jobs, delay_s=delay_s, reason=reason)
        lost = [job for job in jobs if is_in(job.key, job.record.offset, ranges)]
        if lost:
            self.counters["lost"] += len(lost)
            raise LeaseLostError(
                (
                    f"Queue {self.name}: the ack wait of {len(lost)} of {len(jobs)} records expired, so other workers "
                    f"receive them. Increase ack_wait_s ({self._options.ack_wait_s:g} s), or call extend()."
                ),
                lost,
            )

    def _begin_settling(
        self, kind: Any, jobs: list[Job], *, delay_s: float = 0.0, reason: str = ""
    ) -> asyncio.Future[list[LostRange]]:
        by_key: dict[PartitionKey, list[Job]] = {}
        for job in jobs:
            by_key.setdefault(job.key, []).append(job)
        settlements = [
            settlement(kind, key, ranges_of((job.record.offset, job.lease) for job in some), delay_s, reason)
            for key, some in by_key.items()
        ]
        return self._settlements.settle(settlements)

    async def _settle_and_take(self, settlements: list[pb.Settlement]) -> list[pb.LostRange]:
        """Send settlements, and return the offset ranges that this worker no longer owns.

        If the worker can use more records, the command also requests them.
        """
        settle = pb.SettleRecords(member=self._member, settlements=settlements)
        along = self._along(settlements, _now_ns())
        answer = None if along is None else await self._send_with_settlements(settle, *along)
        if answer is None:
            answer = await self._send_command(settle=settle)
            if answer.code not in (pb.GROUP_OK, pb.GROUP_STALE):
                raise GroupRejectedError(
                    f"Queue {self.name}: the coordinator rejected the ack: {answer.detail}. The record may be delivered "
                    "again. Open the queue again."
                )
        free = {(one.stream, one.partition) for one in settlements if self._options.order_by_key or one.kind != pb.SETTLE_ACK}
        for place in self._partitions:
            if (place.key.stream, place.key.partition) in free:
                place.ended = -1  # these records are delivered again, or the next records of their keys are free
        return list(answer.lost)

    async def _send_with_settlements(
        self, settle: pb.SettleRecords, place: _QueuePartition, take: pb.TakeRecords
    ) -> pb.GroupAnswer | None:
        """Send settlements and a request for records of ``place`` in one command, and return the answer.

        None: the coordinator rejected the command. Acks may be sent again safely.
        """
        coming: asyncio.Future[pb.GroupAnswer | None] = asyncio.get_running_loop().create_future()
        self._run_shielded(self._receive_along(place, coming, _now_ns(), take.maxRecords))
        answer: pb.GroupAnswer | None = None
        try:
            answer = await self._send_command(settle=settle, take=take)
        finally:
            if not coming.done():
                coming.set_result(answer)
        settled = (pb.GROUP_OK, pb.GROUP_STALE, pb.GROUP_FULL, pb.GROUP_COMPARE_LOG)
        return answer if answer.code in settled else None

    def _along(self, settlements: list[pb.Settlement], now_ns: int) -> tuple[_QueuePartition, pb.TakeRecords] | None:
        """Return the partition and the request for records to send together with ``settlements``. None: request no records."""
        ahead = self._pace.ahead(now_ns)
        busy = self._closed or self._fetch_task is not None or self._options.order_by_key or not self._partitions
        if busy or 2 * len(self._ready) > ahead or ahead == 0 or any(one.kind != pb.SETTLE_ACK for one in settlements):
            return None
        for _ in range(len(self._partitions)):
            place = self._partitions[0]
            self._partitions.rotate(-1)
            if place.log.has_more and place.is_due(now_ns) and not place.must_compare:
                return place, self._build_request(place, min(max(ahead, self._last_requested), commands.MAX_TAKE))
        return None

    async def _send_command(self, **what: Any) -> pb.GroupAnswer:
        self._number += 1
        command = pb.GroupCommand(group=self.name, number=self._number, **what)
        return await ask_coordinator(self._coordinator.services, self._partition, command, _COMMAND_S)
