"""``Group``: one member of a consumer group. The members share the partitions of the streams.

``liftpy.core.groups.member`` decides which partitions this member owns. This module sends heartbeats, reads the
partitions and commits positions. A member returns records only while its session is valid by its own clock. So a
process that was paused never returns records of a partition that another member owns now. A batch is finished when the
application requests the next one or calls ``commit``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import logging
import math
import secrets
import socket
import time
import warnings
import weakref
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Literal, Self

from liftpy.client.arguments import check_bounds, check_function, check_text, checked_options
from liftpy.client.batch_view import BatchSlice, ConsumedRecord, GroupBatch, records_of
from liftpy.client.consumer import Consumer, ReadOptions, filter_of
from liftpy.client.fetcher import Fetcher, wait_for_event
from liftpy.client.group_admin import GroupCoordinator, GroupRejectedError, ask_coordinator, name_of
from liftpy.client.in_flight import now_ns
from liftpy.client.iteration import Iteration, ResultIterator, end_later
from liftpy.client.partition_sender import ManyReceipt, ProducerOptions, Source
from liftpy.client.positions import Position, Start
from liftpy.client.producer import Producer
from liftpy.client.retrying import RETRY_S, UNANSWERED
from liftpy.client.stream_directory import StreamDirectory
from liftpy.core.base.ids import PartitionKey, check_name
from liftpy.core.groups import commands
from liftpy.core.groups.commands import partition_of
from liftpy.core.groups.group import ADDED_LATER
from liftpy.core.groups.member import MemberEvent, MemberMachine, PartitionAssigned, PartitionLost, PartitionRevoked
from liftpy.core.metadata.image import StreamImage
from liftpy.core.wire import partitioner
from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.core.wire.batch import Record
from liftpy.errors import (
    ClientClosedError,
    ConfigError,
    LiftError,
    NotFoundError,
    PublishRejectedError,
    UnavailableError,
)
from liftpy.nats.cancellation import CloseOnce, end_tasks

logger = logging.getLogger("liftpy.client")

_ANSWER_S = 2.0
_COMMIT_S = 10.0
_MIN_COMMIT_S = 0.1
"""Shortest interval of automatic commits, in seconds."""
STREAMS_S = 30.0
"""Interval at which a member lists streams and partitions, in seconds. It lists them at once if a stream was deleted."""
_LIST_CHECK_S = 1.0
LOOKUP_AGAIN_S = 5.0
"""Time after which a member lists streams again if the metadata group did not answer, in seconds."""
_NS_PER_S = 1_000_000_000
Hook = Callable[[Sequence[PartitionKey]], None]
_HOOKS = ("on_assigned", "on_revoked")
PartitionFor = Callable[[bytes | None, int], int]
Transform = Callable[[Record], Iterable[tuple[bytes | None, bytes | None]]]
"""Function of a source record. It returns (key, value) of each result, possibly none."""
MOST_IN_HAND = 32
"""Maximum number of source batches without acks, over all partitions of a member."""
_CHECK_INTERVAL_S = 0.5
"""Interval at which an idle producer checks that its member still owns the partition, in seconds."""
_ANOTHERS = ("PRODUCER_FENCED", "DIVERGED_PRODUCER", "OUT_OF_ORDER")
_NOT_NOW = ("PAUSED", "READ_ONLY")
"""Rejections that last until an operator changes the stream."""
_COMMIT_CODES = (pb.GROUP_OK, pb.GROUP_STALE, pb.GROUP_UNKNOWN_MEMBER)
"""Codes of answers to a commit that name the rejected positions. A member whose session has ended joins again by itself."""
_FAREWELLS = 3
"""Number of sessions for which the member retries after such a rejection while it owns the partition."""


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """Options of a member of a consumer group.

    Args:
        session_s: Time without a heartbeat after which a member loses its partitions, in seconds (3 to 3600). Default
            10.
        start: Where to start in a partition without committed position: ``earliest`` (default) or ``new``. Partitions
            and streams that are added later start at their first record.
        auto_commit_s: Interval of automatic commits of finished records, in seconds (0 to 3600, at least 0.1 is
            used). Default 5. 0: only ``commit`` commits, also if a partition moves.
        read: Options for reading. Memory limits apply per owned partition. Default: ``ReadOptions()``.
        subjects: Only records of these subjects. Positions advance over the others. Default: all.
        keys: Only records with these keys. Positions advance over the others. Default: all.

    Raises:
        ConfigError: A value is out of range.

    Example:
        options = liftpy.GroupOptions(session_s=30, start="new", auto_commit_s=0)
        group = await client.group("billing", ["orders"], options=options)
    """

    session_s: float = commands.SESSION_MS / 1000
    start: Literal["earliest", "new"] = "earliest"
    auto_commit_s: float = 5.0
    read: ReadOptions = field(default_factory=ReadOptions)
    subjects: Sequence[str] = ()
    keys: Sequence[bytes] = ()

    def __post_init__(self) -> None:
        session_s = (commands.MIN_SESSION_MS / 1000, commands.MAX_SESSION_MS / 1000)
        check_bounds(self, {"session_s": session_s, "auto_commit_s": (0, 3600)})
        filter_of(self.subjects, self.keys)
        checked_options(self.read, ReadOptions, "read")
        if self.start not in ("earliest", "new"):
            raise ConfigError(f"Invalid start = {self.start!r}. Use 'earliest' or 'new'.")


@dataclass(slots=True)
class _OwnedPartition:
    """Partition that this member reads."""

    gained: PartitionAssigned
    consumer: Consumer
    slices: Iteration[BatchSlice] | None = None
    """Iteration over its slices. None before the start of the read is known and stored."""


class _UnfinishedBatches:
    """Taken batches of one partition that the application has not finished, by their last offsets.

    The application may finish batches in any order. A position may not pass a batch that is not finished.
    """

    def __init__(self) -> None:
        self._taken: set[int] = set()
        self._finished: dict[int, int] = {}
        """Last offset -> LeaderEpoch of the batches that are finished, although an earlier one is not."""

    @property
    def is_empty(self) -> bool:
        return not self._taken

    def add(self, last_offset: int) -> None:
        self._taken.add(last_offset)

    def is_first(self, last_offset: int) -> bool:
        """Return whether no batch before the one that ends at ``last_offset`` (inclusive) is unfinished."""
        return min(self._taken, default=last_offset) >= last_offset

    def finish(self, last_offset: int, leader_epoch: int) -> tuple[int, int] | None:
        """Note that a batch is finished. Return the next offset to commit, and the LeaderEpoch of the record before it.

        None: an earlier batch is not finished, or this batch was finished before.
        """
        if last_offset not in self._taken:
            return None
        self._taken.discard(last_offset)
        self._finished[last_offset] = leader_epoch
        first = min(self._taken, default=math.inf)
        if not (passed := [offset for offset in self._finished if offset < first]):
            return None
        end = max(passed)
        epoch = self._finished[end]
        for offset in passed:
            del self._finished[offset]
        return end + 1, epoch


class Group:
    """One member of a consumer group. Iterate over it for records, or over ``batches()``.

    Create it with ``client.group``. Asking for the next record finishes the one before. The member commits finished
    records. Delivery is at least once. Only one task may iterate at a time. ``counters`` counts errors that the member
    retried.

    Close it with ``async with`` or ``close``. While the object exists, it sends heartbeats and keeps its partitions. If an
    application drops the object without a close, its heartbeats end with a ResourceWarning. The coordinator gives its
    partitions to other members when its session ends. They receive uncommitted records again.

    Example:
        async with client.group("billing", ["orders"]) as group:
            async for record in group:
                print(record.stream, record.partition, record.value)
    """

    def __init__(
        self, coordinator: GroupCoordinator, name: str, streams: Sequence[str], instance: str, options: GroupOptions,
        on_assigned: Hook | None, on_revoked: Hook | None,
    ) -> None:  # fmt: skip
        self._tasks: list[asyncio.Task[None]] = []
        self.name = check_name(name, "group")
        if isinstance(streams, str) or not isinstance(streams, Iterable) or not streams:
            raise ConfigError("A group needs a list of streams, by name or pattern. For example ['orders', 'pay-*'].")
        for stream in streams:
            check_text("stream name in streams", stream)
        if instance:
            check_name(instance, "instance")
        for hook_name, hook in zip(_HOOKS, (on_assigned, on_revoked), strict=True):
            if hook is not None:
                check_function(hook_name, hook)
        self._coordinator, self._streams = coordinator, coordinator.streams
        self._wanted, self._instance, self._options = tuple(streams), instance, options
        self._hooks = on_assigned, on_revoked
        self._machine: MemberMachine | None = None
        self._partition = 0
        self._owned: dict[PartitionKey, _OwnedPartition] = {}
        self._fetcher: Fetcher[PartitionKey] = Fetcher()
        self._revoking: dict[PartitionKey, int] = {}
        """Partitions to release after the application has finished their batches, with their generations."""
        self._current_batch: GroupBatch | None = None
        """The batch that an iteration returned last, as a whole or record by record."""
        self._records: Iterator[ConsumedRecord] | None = None
        """Remaining records of ``_current_batch``. None: the iteration returned it as a whole."""
        self._returned: deque[GroupBatch] = deque()
        """Taken batches that ``take`` returns again, before all others. They are not finished."""
        self._record: ConsumedRecord | None = None
        """The record of ``_current_batch`` that an iteration returned last. It is finished when the next one is requested."""
        self._past: ConsumedRecord | None = None
        """The finished record before ``_record``. None: ``_record`` is the first record of ``_current_batch``."""
        self._unfinished: dict[tuple[PartitionKey, int], _UnfinishedBatches] = {}
        """(Partition, generation) -> its batches that were taken and are not finished. At least one."""
        self._finished_ends: dict[PartitionKey, tuple[int, int]] = {}
        """Owned partition -> next offset to commit, and the LeaderEpoch of the record before it."""
        self._committed: dict[PartitionKey, tuple[int, int]] = {}
        self._lost_ends: dict[PartitionKey, int] = {}
        """Lost partition -> offset after its returned records, if they were not committed. The next ``commit`` reports it."""
        self._is_iterating = False
        """True while a task waits for the next record or batch of an iteration."""
        self._committing = asyncio.Lock()
        self._news, self._wake, self._beat_soon = self._fetcher.news, asyncio.Event(), asyncio.Event()
        self._list_soon = asyncio.Event()
        self._error: Exception | None = None
        self._closed = False
        self._closing = CloseOnce(f"closing of a member of {self.name}")
        self._last_check_s = -math.inf
        self._must_list_newest = False
        """True if the next list of streams must have the changes that a read has noticed."""
        self._missing: set[PartitionKey] = set()
        """Owned partitions that nodes reported as deleted. Their reads resume if the next list of the newest streams has them."""
        self._commit_at_s = math.inf
        """Monotonic time of the next automatic commit, in seconds."""
        self._at_open: dict[str, pb.KnownStream] = {}
        """Streams that existed when the member joined. ``start="new"`` applies only to these."""
        self.counters: Counter[str] = Counter()

    @property
    def owned(self) -> list[PartitionKey]:
        """The partitions that this member reads now, sorted."""
        return sorted(self._owned)

    # ---- life ------------------------------------------------------------------------------------------------------------
    async def open(self) -> Group:
        """Find the coordinator and join the group. ``client.group`` calls it."""
        home = await self._coordinator.stream()
        self._partition = partition_of(self.name, len(home.partitions))
        known, self._last_check_s = self._known_streams(await self._streams.newest_streams()), time.monotonic()
        if not known:
            raise NotFoundError(f"No stream matches {', '.join(self._wanted)}. Check the names with `liftpy stream list`.")
        self._at_open = {stream.name: stream for stream in known}
        self._machine = MemberMachine(
            self.name, known, lambda: secrets.token_hex(16), instance=self._instance,
            client=socket.gethostname()[: commands.MAX_CLIENT_LENGTH], session_ms=round(self._options.session_s * 1000),
        )  # fmt: skip
        member, machine = weakref.ref(self), self._machine
        beats, lives = _beat_on(member, machine, self._beat_soon, self._news), _live(member, machine, self._wake, self._news)
        lists = _list_on(member, machine, self._list_soon, self._news)
        self._tasks = [
            asyncio.create_task(beats, name=f"heartbeats of a member of {self.name}"),
            asyncio.create_task(lives, name=f"member of {self.name}"),
            asyncio.create_task(lists, name=f"streams of a member of {self.name}"),
        ]
        return self

    async def __aenter__(self) -> Group:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reading, commit finished records and leave the group.

        With ``auto_commit_s=0`` nothing is committed. A member with ``instance`` keeps its partitions for the rest of
        its session. A second call waits for the end of the first one. If a call is cancelled, the close continues.
        """
        if not self._closed:
            self._closed = True
            self._news.set()
            self._note_finished(self._past)
        await self._closing.run(self._close)

    async def _close(self) -> None:
        await end_tasks([*self._tasks, *self._fetcher.stop()])
        reads = [owned.slices for owned in self._owned.values() if owned.slices is not None]
        generations = {key: owned.gained.generation for key, owned in self._owned.items()} | self._revoking
        for key in list(self._owned):
            self._stop(key)
        await asyncio.gather(*(slices.aclose() for slices in reads))
        machine = self._machine
        if machine is None:
            return
        try:
            if self._options.auto_commit_s:
                await self._commit(machine, self._finished_ends, _ANSWER_S)
            goodbye = machine.leave()
            if goodbye is not None and not self._instance:
                await self._send_command(goodbye, _ANSWER_S)
        except LiftError as error:  # the session expires, and uncommitted records are delivered again
            self.counters["unsaid"] += 1
            logger.warning("group %s: not left in order: %s", self.name, error)
        finally:
            for key, generation in generations.items():
                self._note_uncommitted(key, generation)

    def __del__(self) -> None:
        if all(task.done() for task in self._tasks):
            return
        warnings.warn(
            f"The member of group {self.name} was not closed. It sends no more heartbeats. Use `async with client.group(...)`, or "
            "call close().",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )
        for task in (*self._tasks, *self._fetcher.stop()):
            end_later(task)

    # ---- what the application sees ----------------------------------------------------------------------------------------
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumedRecord:
        """Return the next record. The record before it is finished then.

        Raises:
            ConfigError: Another task is iterating over this member.
            GroupRejectedError: The group has fenced this member.
            LiftError: Every error of reading a partition.
        """
        if self._is_iterating or (record := self.next_fetched()) is None:
            with self._only_iteration():
                record = await self._wait_for_record()
        return record

    async def _wait_for_record(self) -> ConsumedRecord:
        while (record := self.next_fetched()) is None:
            if self._must_wait_for_heartbeat():
                if self._error is not None:
                    raise self._error
                if self._closed:
                    raise StopAsyncIteration
                self.counters["held_back"] += 1
                self._news.clear()
                await self._news.wait()
                continue
            self._finish()
            part = await self.take()
            if part is None:
                raise StopAsyncIteration
            self._returned.appendleft(part)  # if its records cannot be decoded, it stays the next batch
            self._records = records_of(part.key.stream, part.key.partition, part.slice)
            self._current_batch = self._returned.popleft()
        return record

    @contextlib.contextmanager
    def _only_iteration(self) -> Iterator[None]:
        """Raise ConfigError if another task waits in an iteration. Two tasks would finish the records of each other."""
        if self._is_iterating:
            raise ConfigError(
                f"This member of group {self.name} is already read by another task. Iterate in one task only, open one member per "
                "task, or use take() and finished()."
            )
        self._is_iterating = True
        try:
            yield
        finally:
            self._is_iterating = False

    def next_fetched(self) -> ConsumedRecord | None:
        """Return the next record of the current batch, without waiting.

        Returns:
            The record. None at the end of the batch, or if this member may not deliver the record now.
        """
        record = next(self._records, None) if self._records is not None and self._may_return_record() else None
        if record is not None:
            self._past, self._record = self._record, record
        return record

    def _may_return_record(self) -> bool:
        """Return whether this member may deliver the records of the current batch now."""
        part, machine = self._current_batch, self._machine
        return part is not None and machine is not None and machine.may_deliver(part.key, now_ns())

    def _rewind(self) -> None:
        """Return the records again that follow the last returned one, because their iterator was interrupted."""
        part, record = self._current_batch, self._record
        if part is None or self._records is None or self.generation_of(part.key) != part.generation:
            return
        end = part.slice.last_offset + 1
        rest = part.slice if record is None else BatchSlice.between(part.slice.batch, record.offset + 1, end)
        self._records = iter(()) if rest is None else records_of(part.key.stream, part.key.partition, rest)

    def _must_wait_for_heartbeat(self) -> bool:
        """Return whether the member must wait for a heartbeat answer before it may return more records of the current batch.

        The batch is not finished then, also if the group is closed or has failed.
        """
        part, machine = self._current_batch, self._machine
        if part is None or self._records is None or machine is None:
            return False
        return self.generation_of(part.key) == part.generation and not machine.may_deliver(part.key, now_ns())

    def batches(self) -> AsyncIterator[GroupBatch]:
        """Iterate over batches of records of one partition. This is much faster than single records.

        Asking for the next batch finishes the one before.

        Returns:
            An asynchronous iterator of GroupBatch. It ends when the group is closed.

        Raises:
            ConfigError: On reading: another task is iterating over this member.
            GroupRejectedError: On reading: the group has fenced this member.
            LiftError: On reading: every error of reading a partition.

        Example:
            async for batch in group.batches():
                print(batch.key.stream, batch.slice.values())
                await group.commit()
        """
        return ResultIterator(self._next_batch)

    async def _next_batch(self) -> GroupBatch | None:
        with self._only_iteration():
            part = self._current_batch = await self.take()
        return part

    def _rest_of_batch(self) -> GroupBatch | None:
        """Return those records of the current batch that the iteration over records has not returned. None: there are none."""
        part, record, records = self._current_batch, self._record, self._records
        self._records = self._record = self._past = None
        if part is None or records is None or self.generation_of(part.key) != part.generation:
            return None
        if record is None:
            return part
        self._note_finished(record)
        rest = BatchSlice.between(part.slice.batch, record.offset + 1, part.slice.last_offset + 1)
        return None if rest is None else GroupBatch(part.key, part.generation, rest)

    async def take(self) -> GroupBatch | None:
        """Return the next batch, for applications that process several batches at once.

        Call ``finished`` for each batch. The member releases a partition only when all its batches are finished. After
        an iteration, the call finishes what the iteration returned last, and continues there.

        Returns:
            The batch. None if the group is closed.

        Raises:
            GroupRejectedError: The group has fenced this member.
            LiftError: Every error of reading a partition.

        Example:
            part = await group.take()
            group.finished(part)
        """
        rest = self._rest_of_batch()
        if rest is None:
            self._finish()
        else:
            self._current_batch = None
            self._returned.appendleft(rest)
        while True:
            if self._error is not None:
                raise self._error
            if self._closed or self._machine is None:
                return None
            self._news.clear()
            while self._returned and self.generation_of(self._returned[0].key) != self._returned[0].generation:
                self._returned.popleft()  # this member has lost the partition
            if self._returned:
                if self._machine.may_deliver(self._returned[0].key, now_ns()):
                    return self._returned.popleft()
                self.counters["held_back"] += 1
            elif (key := next(iter(self._fetcher.arrived), None)) is not None:
                if self._machine.may_deliver(key, now_ns()):
                    piece = self._fetcher.take(key)
                    if piece is None:  # the stream was deleted, or the member has failed
                        continue
                    generation = self._owned[key].gained.generation
                    self._unfinished.setdefault((key, generation), _UnfinishedBatches()).add(piece.last_offset)
                    return GroupBatch(key, generation, piece)
                self.counters["held_back"] += 1
            await self._news.wait()

    async def into(
        self,
        target: str,
        transform: Transform,
        *,
        partition_for: PartitionFor | None = None,
        options: ProducerOptions | None = None,
    ) -> None:
        """Transform records into another stream, each one exactly once.

        The results of one source partition keep their order. The call runs until it is cancelled. After a failure,
        another member continues without loss and without duplicates.

        Args:
            target: Name of the target stream.
            transform: Function of a record that returns a list of (key, value) pairs. The list may be empty.
            partition_for: Function of (key, number of partitions) that returns the target partition. Default None: by
                key, or by the source partition without a key.
            options: Options of the producers. Default: ``ProducerOptions()``.

        Raises:
            ConfigError: The group reads the target itself, or a function is a coroutine function.
            LiftError: Every error of reading, and of ``client.producer``.
            PublishRejectedError: The target was paused or read-only for three sessions.

        Example:
            async with client.group("billing", ["orders"]) as group:
                await group.into("bills", lambda record: [(record.key, record.value)])
        """
        check_function("transform", transform)
        if partition_for is not None:
            check_function("partition_for", partition_for)
        check_name(target, "stream")
        if pattern := next((pattern for pattern in self._wanted if fnmatchcase(target, pattern)), None):
            raise ConfigError(
                f"Group {self.name} reads stream {target} itself ({pattern}), so it would copy its own results without end. Choose "
                "another target, or let the group read other streams."
            )
        session_s = self._options.session_s
        copying = GroupCopy(
            self._streams, self, target, transform, partition_for=partition_for, options=options, session_s=session_s
        )
        await copying.run()

    def _put_back(self, parts: Iterable[GroupBatch]) -> None:
        """Let ``take`` return batches again that it has returned and that are not finished."""
        left = [*self._returned, *parts]
        self._returned = deque(sorted(left, key=lambda part: (part.key, part.slice.first_offset)))
        self._news.set()

    def _remember(self) -> Callable[[GroupBatch | ConsumedRecord | None], None]:
        """Return a function that takes back what a later call has returned: the next call returns it again."""
        current, record, past = self._current_batch, self._record, self._past

        def take_back(returned: GroupBatch | ConsumedRecord | None) -> None:
            part = self._current_batch
            if returned is None:
                return
            if isinstance(returned, ConsumedRecord) and part is current and self._records is not None:
                self._records, self._record, self._past = itertools.chain([returned], self._records), record, past
                return
            if isinstance(returned, ConsumedRecord) or part is returned:
                self._current_batch = self._records = self._record = self._past = None
            batch = returned if isinstance(returned, GroupBatch) else part
            self._put_back(() if batch is None else [batch])

        return take_back

    async def commit(self) -> None:
        """Commit all records that this member returned, including the last one.

        Raises:
            GroupRejectedError: This member has lost a partition, or is closed. The next owner receives these records again.
            UnavailableError: The coordinator did not answer. Nothing changed.
            OutcomeUnknownError: No answer in time. Commit again: that does no harm.

        Example:
            async for record in group:
                print(record.value)
                await group.commit()
        """
        part, record = self._current_batch, self._record
        if self._records is None or part is None or (record is not None and record.offset == part.slice.last_offset):
            self._finish()
        else:
            self._note_finished(record)
        if self._machine is None:
            raise ConfigError("The group is not open. Use it inside `async with client.group(...)`.")
        self._pass_over()
        refused = await self._commit(self._machine, self._finished_ends, _COMMIT_S)
        lost_ends, self._lost_ends = self._lost_ends, {}
        # this member may own a lost partition again, and may have returned its records once more
        lost = {
            key
            for key, end in lost_ends.items()
            if self._committed.get(key, (0, 0))[0] < end and (self._closed or key not in self._finished_ends)
        }.union(refused)
        if lost:
            names = ", ".join(f"{key.stream}/{key.partition}" for key in sorted(lost))
            why, advice = f"has lost {names}", "If this repeats, increase session_s."
            if self._closed:
                why, advice = "is closed", "Call commit() before close()."
            raise GroupRejectedError(
                f"Group {self.name}: records of {names} were not committed, because this member {why}. The next owner receives these "
                f"records again. {advice}"
            )

    def _note_finished(self, record: ConsumedRecord | None) -> None:
        """Mark all records of the current batch up to ``record`` (inclusive) as finished, so that they can be committed."""
        part = self._current_batch
        if part is None or record is None or self.generation_of(part.key) != part.generation:
            return
        unfinished = self._unfinished.get((part.key, part.generation))
        if unfinished is not None and not unfinished.is_first(part.slice.last_offset):
            return  # an earlier batch of ``take`` is not finished
        if record.offset >= self._finished_ends.get(part.key, (0, 0))[0]:  # a commit may have finished the record after it
            self._finished_ends[part.key] = (record.offset + 1, record.leader_epoch)

    def _note_uncommitted(self, key: PartitionKey, generation: int) -> None:
        """Let the next ``commit`` report the partition, which this member gives up, if it has returned records without a commit."""
        part, end = self._current_batch, self._finished_ends.get(key, (0, 0))[0]
        if part is not None and (part.key, part.generation) == (key, generation):
            end = max(end, self._returned_end(part))
        if end > self._committed.get(key, (0, 0))[0]:
            self._lost_ends[key] = max(end, self._lost_ends.get(key, 0))

    def _returned_end(self, part: GroupBatch) -> int:
        """Return the offset after the last record of the current batch ``part`` that an iteration has returned. 0: none."""
        if self._records is None:
            return part.slice.last_offset + 1
        return 0 if self._record is None else self._record.offset + 1

    def _finish(self) -> None:
        part, self._current_batch = self._current_batch, None
        self._records = self._record = self._past = None
        if part is not None:
            self.finished(part)

    def finished(self, part: GroupBatch) -> None:
        """Mark a batch of ``take`` as finished, so that it is committed.

        Batches may be finished in any order. The committed position of a partition does not pass a batch that is not
        finished. If another member owns the partition now, nothing is committed.

        Args:
            part: The batch.
        """
        which = part.key, part.generation
        if (unfinished := self._unfinished.get(which)) is not None:
            end = unfinished.finish(part.slice.last_offset, part.slice.leader_epoch)
            if end is not None and self.generation_of(part.key) == part.generation:
                self._finished_ends[part.key] = end
            if unfinished.is_empty:
                del self._unfinished[which]
        if self._revoking:
            self._wake.set()

    def generation_of(self, key: PartitionKey) -> int | None:
        """Return the generation of this member's ownership of a partition.

        Args:
            key: The partition.

        Returns:
            The generation, also while the partition is being released. None: this member does not own it.
        """
        owned = self._owned.get(key)
        return owned.gained.generation if owned is not None else self._revoking.get(key)

    def _pass_over(self) -> None:
        """Move the positions of owned partitions past records that were filtered out or deleted.

        A position moves only if all earlier records of its partition are finished.
        """
        for key, owned in self._owned.items():
            if (key, owned.gained.generation) in self._unfinished:
                continue
            at = owned.consumer.passed_position()
            if at is not None and at.offset > max(owned.gained.position, self._finished_ends.get(key, (0, 0))[0]):
                self._finished_ends[key] = (at.offset, at.leader_epoch)

    # ---- the member's life -------------------------------------------------------------------------------------------------
    async def _do_due_work(self, machine: MemberMachine) -> float:
        """Release partitions and commit if it is time. Return the wait until the next call, in seconds."""
        await self._release_partitions(machine)
        if time.monotonic() >= self._commit_at_s:
            self._schedule_commit()
            self._pass_over()
            self._note_finished(self._past)
            await self._try_commit(machine, self._finished_ends)
        longest_s = RETRY_S if self._revoking and not self._unfinished else 1.0
        return max(0.0, min(longest_s, self._commit_at_s - time.monotonic()))

    def _schedule_commit(self) -> None:
        every_s = max(_MIN_COMMIT_S, self._options.auto_commit_s) if self._options.auto_commit_s else math.inf
        self._commit_at_s = time.monotonic() + every_s

    async def _beat(self, machine: MemberMachine, command: pb.GroupCommand) -> None:
        try:
            answer = await self._send_command(command, _ANSWER_S)
        except ClientClosedError:  # the iteration raises it: no heartbeat will have an answer
            raise
        except LiftError as error:
            self.counters["unanswered"] += 1
            logger.debug("group %s: %s", self.name, error)
            return
        self._follow(machine.on_answer(answer, now_ns()))
        self._news.set()  # held-back records may be deliverable now

    def _follow(self, events: list[MemberEvent]) -> None:
        gained: list[PartitionKey] = []
        revoked_keys: list[PartitionKey] = []
        for event in events:
            if isinstance(event, PartitionAssigned):
                self._begin(event)
                gained.append(event.key)
            elif isinstance(event, PartitionRevoked):
                self._revoking[event.key] = event.generation
                self._stop(event.key)
                self._wake.set()
            elif isinstance(event, PartitionLost):
                self._stop(event.key)
                self._note_uncommitted(event.key, event.generation)
                for table in (self._revoking, self._finished_ends, self._committed):
                    table.pop(event.key, None)
                self._unfinished.pop((event.key, event.generation), None)
                if self._current_batch is not None and (self._current_batch.key, self._current_batch.generation) == (
                    event.key,
                    event.generation,
                ):
                    self._records = iter(())  # another member receives the rest
                self.counters["lost"] += 1
                revoked_keys.append(event.key)
            else:
                self.counters["refused"] += 1
                logger.warning("group %s: %s", self.name, event.detail)
                if event.for_good:
                    self._fail(
                        GroupRejectedError(
                            f"Group {self.name}: the coordinator ended this membership: {event.detail}. Join again."
                        )
                    )
        self._call(0, gained)
        self._call(1, revoked_keys)

    def _call(self, which: int, keys: list[PartitionKey]) -> None:
        hook: Callable[[Sequence[PartitionKey]], object] | None = self._hooks[which]
        if hook is not None and keys and inspect.isawaitable(returned := hook(keys)):
            getattr(returned, "close", bool)()
            raise ConfigError(
                f"Invalid {_HOOKS[which]}: it returned an awaitable, which never runs. Use a function without async."
            )

    async def _release_partitions(self, machine: MemberMachine) -> None:
        """Release the partitions that the member must give up, if the application has finished their batches.

        With automatic commits, the positions are committed first.
        """
        keys_in_hand = {key for key, _ in self._unfinished}
        for key in [key for key in self._revoking if key not in keys_in_hand]:
            end = self._finished_ends.get(key) if self._options.auto_commit_s else None
            if end is not None and not await self._try_commit(machine, {key: end}):
                continue
            if self._revoking.pop(key, None) is None:
                continue
            self._finished_ends.pop(key, None)
            self._committed.pop(key, None)
            self._call(1, [key])
            machine.given_up(key)
            self._beat_soon.set()

    async def _try_commit(self, machine: MemberMachine, positions: dict[PartitionKey, tuple[int, int]]) -> bool:
        try:
            await self._commit(machine, positions, _ANSWER_S)
        except ClientClosedError:
            raise
        except LiftError as error:
            self.counters["uncommitted"] += 1
            logger.debug("group %s: %s", self.name, error)
            return False
        return True

    async def _commit(
        self, machine: MemberMachine, positions: dict[PartitionKey, tuple[int, int]], timeout_s: float
    ) -> list[PartitionKey]:
        """Commit positions, and return the partitions whose position was not committed, because this member no longer owns them."""
        refused: list[PartitionKey] = []
        async with self._committing:
            news = sorted((key, at) for key, at in positions.items() if self._committed.get(key) != at)
            for first in range(0, len(news), commands.MAX_POSITIONS):
                some = dict(news[first : first + commands.MAX_POSITIONS])
                command = machine.commit(some)
                if command is None:
                    refused += some
                    continue
                answer = await self._send_command(command, timeout_s)
                if answer.code not in _COMMIT_CODES:
                    raise GroupRejectedError(
                        f"Group {self.name}: the coordinator rejected the request: {name_of(answer.code)} {answer.detail}. "
                        "Open the group again."
                    )
                bad = {PartitionKey(at.stream, at.uid, at.partition) for at in answer.refused}
                owned = {PartitionKey(at.stream, at.uid, at.partition) for at in command.commit.positions}
                refused += [key for key in some if key in bad or key not in owned]
                self._committed.update(
                    {key: at for key, at in some.items() if key in owned - bad and key in self._finished_ends}
                )
        return refused

    async def _send_command(self, command: pb.GroupCommand, timeout_s: float) -> pb.GroupAnswer:
        return await ask_coordinator(self._coordinator.services, self._partition, command, timeout_s)

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._news.set()

    # ---- streams and their readers -----------------------------------------------------------------------------------------
    def _known_streams(self, listed: Sequence[StreamImage]) -> list[pb.KnownStream]:
        """Return the streams in ``listed`` that this member reads. Raises GroupRejectedError if they are too many."""
        streams = {
            stream.name: stream
            for stream in listed
            if not stream.name.startswith("_") and any(fnmatchcase(stream.name, pattern) for pattern in self._wanted)
        }
        known = [
            pb.KnownStream(name=name, uid=stream.uid, partitions=len(stream.partitions))
            for name, stream in sorted(streams.items())
            if stream.partitions
        ]
        partitions = sum(stream.partitions for stream in known)
        if len(known) > commands.MAX_STREAMS or partitions > commands.MAX_PARTITIONS:
            raise GroupRejectedError(
                f"Group {self.name}: {', '.join(self._wanted)} matches {len(known)} streams with {partitions} partitions. A group "
                f"can read at most {commands.MAX_STREAMS} streams with {commands.MAX_PARTITIONS} partitions. Use several groups."
            )
        return known

    async def _refresh_if_due(self, machine: MemberMachine) -> None:
        """List the streams if it is time. If the metadata group does not answer, that takes many seconds."""
        if time.monotonic() - self._last_check_s >= STREAMS_S:
            await self._refresh_streams(machine)

    async def _refresh_streams(self, machine: MemberMachine) -> None:
        newest, self._must_list_newest, self._last_check_s = self._must_list_newest, False, time.monotonic()
        missing = set(self._missing)
        streams = self._streams
        try:
            # after a change, the answer of a controller that is behind would be of no use
            listed = await (streams.newest_streams() if newest else streams.list_streams())
            if newest:
                self._resume_reads(missing, listed)
            machine.reads(self._known_streams(listed))
        except ClientClosedError:
            raise
        except GroupRejectedError as error:  # there are too many streams now: the member continues with the known ones
            self.counters["refused"] += 1
            logger.warning("%s", error)
        except LiftError as error:
            self._must_list_newest = self._must_list_newest or newest
            self._last_check_s += LOOKUP_AGAIN_S - STREAMS_S
            self.counters["unanswered"] += 1
            logger.debug("group %s: streams not listed: %r", self.name, error)

    def _resume_reads(self, missing: set[PartitionKey], listed: Sequence[StreamImage]) -> None:
        """Read those of the ``missing`` partitions again that are in ``listed``, because the nodes that reported them were behind."""
        self._missing -= missing
        existing = {stream.key(number) for stream in listed for number in range(len(stream.partitions))}
        for key in missing & existing & self._owned.keys():
            self.counters["unread"] += 1
            self._read(key, self._owned[key])

    def _begin(self, gained: PartitionAssigned) -> None:
        self._stop(gained.key)
        self._revoking.pop(gained.key, None)
        self._finished_ends.pop(gained.key, None)
        self._committed.pop(gained.key, None)
        key, position, options = gained.key, gained.position, self._options
        epoch = gained.leader_epoch if position > 0 else 0
        start = Position(key.uid, position, epoch) if position >= 0 else self._start_of(gained)
        wanted = filter_of(options.subjects, options.keys)
        consumer = self._streams.consume(key.stream, key.partition, start, wanted=wanted, options=options.read)
        owned = self._owned[key] = _OwnedPartition(gained, consumer)
        self._read(key, owned)

    def _read(self, key: PartitionKey, owned: _OwnedPartition) -> None:
        self._fetcher.remove(key)
        self._fetcher.add(key, partial(_next_slice, weakref.ref(self), owned))
        self._fetcher.start()

    def _stop(self, key: PartitionKey) -> None:
        self._owned.pop(key, None)
        self._missing.discard(key)
        self._fetcher.remove(key)

    def _note_unread(self, error: LiftError) -> None:
        self.counters["unread"] += 1
        logger.debug("group %s: %s", self.name, error)

    def _check_streams_soon(self, missing: PartitionKey) -> None:
        """List the streams, because nodes reported that the partition ``missing`` was deleted, or created again."""
        self._missing.add(missing)
        self._must_list_newest, self._last_check_s = True, -math.inf
        self._list_soon.set()

    def _start_of(self, gained: PartitionAssigned) -> Start:
        """Return where to start in a new partition without a committed position.

        A partition that was created after the member joined starts at its first record.
        """
        key = gained.key
        if gained.position == ADDED_LATER:
            return "earliest"
        known = self._at_open.get(key.stream)
        was_there = known is not None and known.uid == key.uid and key.partition < known.partitions
        return self._options.start if was_there else "earliest"

    async def _begin_reading(self, owned: _OwnedPartition) -> None:
        """Resolve the start of a partition, and begin its slices. With ``start="new"``, commit the start."""
        gained, key = owned.gained, owned.gained.key
        bounds = await owned.consumer.begin()
        if bounds.uid != key.uid:
            raise NotFoundError(f"Stream {key.stream} was deleted and created again. Join the group again.")
        if gained.position < 0 and self._options.start == "new" and key not in self._committed:
            first = await owned.consumer.position()
            begins = self._finished_ends.setdefault(key, (first.offset, first.leader_epoch))
            assert self._machine is not None
            # commit the start before any record is delivered. Otherwise the next owner would start later
            if await self._commit(self._machine, {key: begins}, _ANSWER_S):
                raise UnavailableError(
                    f"Group {self.name}: this member has lost {key.stream}/{key.partition} before its first record."
                )
        owned.slices = owned.consumer.batches()


# The tasks of a member have a weak reference to it while they wait, so that Python deletes a Group that the application has
# dropped. They hold the event ``news``, which an application waits for, so that its waiting task stays alive.


async def _beat_on(member: weakref.ref[Group], machine: MemberMachine, beat_soon: asyncio.Event, news: asyncio.Event) -> None:
    """Send the heartbeats of a member until it is closed or dropped."""
    try:
        while True:
            beat_soon.clear()
            command = machine.command(now_ns())
            if command is not None:
                if (group := member()) is None:
                    return
                await group._beat(machine, command)
                del group
            await wait_for_event(beat_soon, max(0.0, min(1.0, (machine.wake_ns - now_ns()) / _NS_PER_S)))
    except Exception as error:  # the client is closed, an error of a callback, or a bug: the iteration raises it
        _fail(member, error, news)


async def _live(member: weakref.ref[Group], machine: MemberMachine, wake: asyncio.Event, news: asyncio.Event) -> None:
    """Commit and release partitions of a member until it is closed or dropped."""
    try:
        if (group := member()) is not None:
            group._schedule_commit()
        while group is not None:
            wake.clear()
            wait_s = await group._do_due_work(machine)
            del group
            await wait_for_event(wake, wait_s)
            group = member()
    except Exception as error:  # as above
        _fail(member, error, news)


async def _list_on(member: weakref.ref[Group], machine: MemberMachine, list_soon: asyncio.Event, news: asyncio.Event) -> None:
    """List the streams at intervals, and soon after a deletion, until the member is closed or dropped."""
    try:
        while (group := member()) is not None:
            list_soon.clear()
            await group._refresh_if_due(machine)
            del group
            await wait_for_event(list_soon, _LIST_CHECK_S)
    except Exception as error:  # as above
        _fail(member, error, news)


def _fail(member: weakref.ref[Group], error: Exception, news: asyncio.Event) -> None:
    if (group := member()) is not None:
        group._fail(error)
    news.set()


async def _next_slice(member: weakref.ref[Group], owned: _OwnedPartition) -> BatchSlice | None:
    """Return the next slice of a partition. None: the stream was deleted, or the member has failed or was dropped."""
    try:
        while True:
            try:
                if owned.slices is None:
                    if (group := member()) is None:
                        return None
                    await group._begin_reading(owned)
                    del group
                assert owned.slices is not None
                return await anext(owned.slices, None)
            except UNANSWERED as error:
                if (group := member()) is not None:
                    group._note_unread(error)
                group = None
                await asyncio.sleep(RETRY_S)
            except NotFoundError:
                if (group := member()) is not None and group._owned.get(owned.gained.key) is owned:
                    group._check_streams_soon(owned.gained.key)
                group = None
                await asyncio.sleep(RETRY_S)  # the limit for lists, if the nodes stay behind
                return None
    except Exception as error:  # the iteration raises the error, so that the application decides
        if (group := member()) is not None:
            group._fail(error)
        return None


class GroupCopy:
    """The work of ``Group.into``: copies the records of a group member to another stream, until ``run`` is canceled.

    Goal: exactly once in every partition of the target, also if members and leaders fail at any time. Constraint: there are
    no transactions, and a paused member may send long after another member owns its partition.

    Algorithm (docs/publishing.md, "From stream to stream"):

    - Each owned partition has its own producer. Its name consists of the group and the source partition. Each batch
      contains the generation of the ownership, and the offset of the last source record in the batch.
    - Opening the producer fences members of earlier generations. The answers say which source records each target partition
      has. The member does not send their results again.
    - The member commits a batch of source records when all of its results are acked. So the next member can begin at the
      committed position, also if a target partition got no record, or no longer has the state of the producer.
    - The member opens the producer again if a newer process has fenced it, or if a member of an earlier generation has used
      its sequence numbers. It sends everything without an ack again, as long as it owns the partition. After that, the next
      owner sends it.
    - If the target is paused or read-only, the member retries in the same way, for at most ``patience_s`` without an ack.

    ``transform``: returns the results of a record. ``partition_for``: function of (key, number of partitions) that returns the
    target partition. It must return an equal result in every run.
    """

    def __init__(
        self, streams: StreamDirectory, group: Group, target: str, transform: Transform, *,
        partition_for: PartitionFor | None, options: ProducerOptions | None, session_s: float,
    ) -> None:  # fmt: skip
        self.streams, self.group, self.target, self.transform = streams, group, target, transform
        self.partition_for, self.options = partition_for, options
        self.patience_s = _FAREWELLS * session_s
        self.room = asyncio.Event()
        self.in_hand = 0
        self._running: dict[tuple[PartitionKey, int], tuple[_PartitionCopy, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Run until the group is closed. Raises the errors of reads, the transform and the producers.

        At its end, the batches that are not finished are back in the group, even if the caller is canceled again.
        """
        taking: asyncio.Task[GroupBatch | None] | None = None
        try:
            while True:
                self.room.clear()
                if taking is None and self.in_hand < MOST_IN_HAND:
                    taking = asyncio.create_task(self.group.take(), name=f"{self.group.name} takes")
                waiting = asyncio.create_task(self.room.wait())
                running = [task for _, task in self._running.values()]
                try:
                    some = [waiting, *running, *([] if taking is None else [taking])]
                    await asyncio.wait(some, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waiting.cancel()
                for which, (_, task) in list(self._running.items()):
                    if task.done():
                        del self._running[which]
                        task.result()
                if taking is not None and taking.done():
                    part, taking = taking.result(), None
                    if part is None:
                        return
                    self._assign(part)
        finally:
            if taking is not None and taking.done() and not taking.cancelled() and taking.exception() is None:
                self.group._put_back([part] if (part := taking.result()) else [])
            for copy, _ in self._running.values():  # before any wait, which a second cancellation would end
                copy.put_back()
            await end_tasks([taking, *(task for _, task in self._running.values())])  # their errors are of the same kind

    def _assign(self, part: GroupBatch) -> None:
        which = part.key, part.generation
        if which not in self._running:
            copy = _PartitionCopy(self, *which)
            name = f"{self.group.name} copies {part.key.stream}/{part.key.partition}"
            self._running[which] = copy, asyncio.create_task(copy.run(), name=name)
        self.in_hand += 1
        self._running[which][0].add(part)


class _PartitionCopy:
    """Copy of one source partition while this member owns it: its batches without acks, and its producer.

    ``generation``: number of the ownership.
    """

    def __init__(self, home: GroupCopy, key: PartitionKey, generation: int) -> None:
        self._home = home
        self._key = key
        self._generation = generation
        self._parts: deque[GroupBatch] = deque()
        self._receipts: deque[asyncio.Task[None]] = deque()
        """Tasks that wait for the acks of the first batches, in order."""
        self._finished = 0
        """Number of batches whose results are acked."""
        self._changed = asyncio.Event()

    def add(self, part: GroupBatch) -> None:
        self._parts.append(part)
        self._changed.set()

    def put_back(self) -> None:
        """Return the batches without acks to the group, so that the application may take them."""
        parts = list(self._parts)
        self._parts.clear()
        self._home.in_hand -= len(parts)
        if self._is_owner:
            self._home.group._put_back(parts)

    @property
    def _is_owner(self) -> bool:
        return self._home.group.generation_of(self._key) == self._generation

    async def run(self) -> None:
        """Send the results of the queued batches until another member owns the source partition."""
        loop, home, refused_until = asyncio.get_running_loop(), self._home, 0.0
        try:
            while self._is_owner:
                before = self._finished
                try:
                    await self._copy()
                    return
                except PublishRejectedError as error:
                    if error.reason not in _ANOTHERS + _NOT_NOW:
                        raise
                    home.group.counters["target closed" if error.reason in _NOT_NOW else "copied anew"] += 1
                    if not refused_until or self._finished > before:
                        refused_until = loop.time() + home.patience_s
                    if loop.time() >= refused_until and self._is_owner:
                        text = f"{home.target} has taken nothing of {self._key} for {home.patience_s:g} s: {error}"
                        raise PublishRejectedError(text, error.reason) from error
                await asyncio.sleep(RETRY_S)
        finally:
            self.put_back()
            home.room.set()

    async def _copy(self) -> None:
        home, key = self._home, self._key
        opening = home.streams.open_producer(
            home.target,
            id=f"{home.group.name}/{key.stream}-{key.partition}/{key.uid}",
            options=home.options,
            partitioner=home.partition_for or self._partition,
            source=Source(key.stream, key.partition, self._generation),
        )
        producer = await opening
        try:
            if producer.source_uid != key.uid:
                raise NotFoundError(f"Stream {key.stream} was deleted and created again during the copy. Start the copy again.")
            await self._send_all(producer)
        except LiftError as error:
            raise producer.failure or error from None
        finally:
            await end_tasks(self._receipts)
            self._receipts.clear()
            await producer.close()

    async def _send_all(self, producer: Producer) -> None:
        """Send the results of all queued batches in order, several at once.

        Batches that an earlier producer has sent are sent again. The producer skips the stored results.
        """
        home = self._home
        while self._is_owner:
            self._changed.clear()
            while len(self._receipts) < len(self._parts):
                receipt = await self._send(producer, self._parts[len(self._receipts)])
                acknowledged = asyncio.create_task(_wait_for_ack(receipt))
                acknowledged.add_done_callback(lambda _: self._changed.set())
                self._receipts.append(acknowledged)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_INTERVAL_S):
                    await self._changed.wait()
            while self._parts and self._receipts and self._receipts[0].done():
                self._receipts.popleft().result()
                home.group.finished(self._parts.popleft())
                self._finished += 1
                home.in_hand -= 1
                home.room.set()

    async def _send(self, producer: Producer, part: GroupBatch) -> ManyReceipt:
        """Send the results of one batch and return their future acks. The producer skips results that are stored already."""
        known, transform = producer.begin_after, self._home.transform
        values: list[bytes | None] = []
        keys: list[bytes | None] = []
        positions: list[int] = []
        for record in part.slice.records():
            if record.offset > known:
                for key, value in transform(record):
                    keys.append(key)
                    values.append(value)
                    positions.append(record.offset)
        return await producer.send_many(values, keys=keys, positions=positions)

    def _partition(self, key: bytes | None, count: int) -> int:
        """Return the target partition of a result with this ``key``. Without a key, the source partition decides.

        ``count``: number of partitions of the target.
        """
        return self._key.partition % count if key is None else partitioner.partition_of(key, count)


async def _wait_for_ack(receipt: ManyReceipt) -> None:
    await receipt
