"""``Consumer``: reads one partition with long-poll requests, read-ahead and failover among replicas.

``progress.py`` decides what a reader may return. This module sends the requests, waits, changes the replica, and keeps
a bounded number of answers ready. ``ReadEvent`` reports answers, failures and changes of replica to the application.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Literal

from liftpy.client import positions
from liftpy.client.arguments import check_bounds, check_count, check_offset, check_wait
from liftpy.client.batch_view import BatchSlice
from liftpy.client.closest_replica import ReplicaSelector
from liftpy.client.iteration import Fetch, Item, Iteration, LastItem, ReadAhead, whole
from liftpy.client.positions import Bounds, FromEnd, Position, Start, Until
from liftpy.client.progress import (
    FINAL,
    BackwardProgress,
    ErrorConfirmation,
    NotServedError,
    RangeFacts,
    RangeFiles,
    ReadProgress,
    bounds_of,
    check_head,
    decode_answer,
    facts_of,
    files_of,
)
from liftpy.client.retrying import retry_attempts
from liftpy.core.base.ids import check_uid, quote
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import Record
from liftpy.core.wire.chunking import requested_bytes
from liftpy.core.wire.filters import NOTHING_LEFT_OUT, Filter
from liftpy.core.wire.frames import MisdirectedError
from liftpy.core.wire.subjects import Subjects
from liftpy.errors import (
    ConfigError,
    CorruptionError,
    LiftError,
    NoClusterError,
    NotFoundError,
    ProtocolError,
)
from liftpy.nats.transport import NoRespondersError, Transport

_LOG_PERIOD_S = 1.0


class EventKind(Enum):
    """Kind of an event that a reader reports to ``ReadOptions.on_event``."""

    ANSWERED = "answered"
    """A replica sent ``records`` records of ``size_bytes`` bytes, ``took_s`` seconds after the request."""
    FAILED = "failed"
    """A request failed with ``detail``. The reader retries, perhaps with another replica, unless the error is final."""
    SILENT = "silent"
    """A replica did not answer in time. The reader also asks others."""
    MOVED = "moved"
    """Another replica (``node``) answers now. ``detail`` is the one before."""
    RECONNECTED = "reconnected"
    """The NATS connection was renewed, or its server was silent, during a request. The reader sends the request again."""


@dataclass(frozen=True, slots=True)
class ReadEvent:
    """Something that happened while a partition was read.

    Attributes:
        kind: Kind of the event.
        stream: Name of the stream.
        partition: Number of the partition.
        node: Node that answered or was asked. '': any.
        records: Number of records in the answer.
        size_bytes: Size of the answer, in bytes as sent.
        took_s: Time between request and answer, in seconds.
        detail: Error or previous node, as text.
    """

    kind: EventKind
    stream: str
    partition: int
    node: str = ""
    records: int = 0
    size_bytes: int = 0
    took_s: float = 0.0
    detail: str = ""


OnEvent = Callable[[ReadEvent], None]
"""Function that receives ReadEvents. It runs in the event loop and must not block.

It is called once per answer or attempt, never per record. Errors that it raises are logged at most once a second.
"""


class ReadEventEmitter:
    """Creates the ReadEvents of one partition and passes them to ``on_event``. It does nothing if ``on_event`` is None."""

    def __init__(self, on_event: OnEvent | None, stream: str, partition: int) -> None:
        self._on_event = on_event
        self._stream = stream
        self._partition = partition
        self._next_log_s = 0.0
        self._node = ""

    def emit(
        self, kind: EventKind, node: str = "", *, records: int = 0, size_bytes: int = 0, took_s: float = 0.0, detail: str = ""
    ) -> None:
        """Pass a ReadEvent with these values to ``on_event``. An exception of ``on_event`` is only logged."""
        if self._on_event is None:
            return
        event = ReadEvent(kind, self._stream, self._partition, node, records, size_bytes, took_s, detail)
        try:
            self._on_event(event)
        except Exception as error:
            now = time.monotonic()
            if now >= self._next_log_s:
                self._next_log_s = now + _LOG_PERIOD_S
                logger.error("on_event has failed at %s: %r", event, error, exc_info=error)

    def report_answer(self, node: str, records: int, size_bytes: int, took_s: float) -> None:
        """Pass an ANSWERED event to ``on_event`` if an answer had records, and a MOVED event if another node answered than before.

        ``size_bytes``: size of the answer. ``took_s``: time between request and answer, in seconds.
        """
        if self._on_event is None:
            return
        before, self._node = self._node, node
        if before and before != node:
            self.emit(EventKind.MOVED, node, detail=before)
        if records:
            self.emit(EventKind.ANSWERED, node, records=records, size_bytes=size_bytes, took_s=took_s)


logger = logging.getLogger("liftpy.client")
IDLE_S = 0.05
"""Minimum time between two requests at the end of the log, in seconds. It limits the requests of a reader with a short ``wait_s``."""
_HEDGE_S = 0.2
_MOST_HEDGES = 5
_EXISTS_S = 2.0
_ID_BITS = 63


def filter_of(subjects: Sequence[str], keys: Sequence[bytes]) -> Filter:
    """Return the filter for the arguments ``subjects`` and ``keys`` of an application. Raise ConfigError if they are invalid."""
    if isinstance(subjects, str):  # its characters would be subjects
        raise ConfigError(f"Invalid subjects {quote(subjects)}. Use a list, such as [{quote(subjects)}].")
    for name, given in (("subjects", subjects), ("keys", keys)):
        if isinstance(given, bytes) or not isinstance(given, Iterable):
            raise ConfigError(f"Invalid {name} of type {type(given).__name__}. Use a list. An empty list selects all records.")
    # the encoder of requests takes no bytearray or memoryview
    return Filter(tuple(subjects), tuple(bytes(key) if isinstance(key, bytearray | memoryview) else key for key in keys))


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options for reading a partition.

    Args:
        max_bytes: Maximum size of one answer (4 KiB to 64 MiB, and at most one NATS message). Default 1 MiB.
        wait_s: Time that a replica may hold a request at the end of the log, in seconds (0 to 30). Default 0.6. After
            0.2 s more without an answer, the reader also asks other replicas. With less than 0.05, the reader still
            sends at most one request in 0.05 s there.
        answer_timeout_s: Time beyond ``wait_s`` until a request counts as failed, in seconds (0.01 to 60). Default 2.
        patience_s: Time without any answer until UnavailableError, in seconds (0.01 to 3600). Default 30.
        read_ahead: Number of answers to keep ready, each up to ``max_bytes`` (1 to 64). Default 4.
        node: Read from this node only. Default '': any in-sync replica, the same one as long as it answers.
        isolation: ``committed`` (default) or ``uncommitted``. Uncommitted reads go to the leader and see records past
            the high watermark. These records may still disappear: LogTruncatedError says how far.
        near: Rack to prefer. A replica on this host comes first. Default '': no preference.
        nearest: If True, prefer a replica on this host. Default False.
        on_event: Function that receives ReadEvents. Default None.

    Raises:
        ConfigError: A value is out of range, or ``node`` and ``near`` exclude each other.

    Example:
        options = liftpy.ReadOptions(patience_s=60, near="rack-a")
        consumer = client.consume("orders", options=options)
    """

    max_bytes: int = 1024 * 1024
    wait_s: float = 0.6
    answer_timeout_s: float = 2.0
    patience_s: float = 30.0
    read_ahead: int = 4
    node: str = ""
    isolation: Literal["committed", "uncommitted"] = "committed"
    near: str = ""
    nearest: bool = False
    on_event: OnEvent | None = None

    def __post_init__(self) -> None:
        bounds = {
            "max_bytes": (4096, 64 << 20),
            "wait_s": (0, 30),
            "answer_timeout_s": (0.01, 60),
            "patience_s": (0.01, 3600),
            "read_ahead": (1, 64),
        }
        check_bounds(self, bounds)
        if self.isolation not in ("committed", "uncommitted"):
            raise ConfigError(f"Invalid isolation {quote(str(self.isolation))}. Use committed or uncommitted.")
        if (self.near or self.nearest) and (self.node or not self.committed):
            raise ConfigError(
                f"{'near' if self.near else 'nearest'} cannot be combined with node or with isolation='uncommitted'. "
                "Remove one of them."
            )

    @property
    def committed(self) -> bool:
        """True if only committed records are read."""
        return self.isolation == "committed"


class PartitionReader:
    """Sends read requests for one partition.

    ``node`` is the replica that answered last. The next request goes to it. '': any replica.
    """

    on_delivery: Callable[[BatchSlice], None] | None = None
    """Callback for each slice that an iteration delivers, for traces. None: no callback."""

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        stream: str,
        partition: int,
        options: ReadOptions,
        exists: Callable[[], Coroutine[Any, Any, object]] | None = None,
        nearest: ReplicaSelector | None = None,
    ) -> None:
        """Create the reader.

        ``exists``: asks the metadata group whether the partition exists, and raises NotFoundError if not. None: no check. ``nearest``:
        chooses the closest replica. None: no preference.
        """
        self._transport = transport
        self._exists = exists
        self._existing: asyncio.Task[object] | None = None
        self._nearest = nearest
        self._ask_at = 0.0
        self._subjects = subjects
        self.stream = stream
        self.partition = partition
        self.options = options
        self.node = options.node
        self._event_emitter = ReadEventEmitter(options.on_event, stream, partition)
        self._has_warned = False
        self._max_bytes = requested_bytes(options.max_bytes, transport.max_payload_bytes)

    def must_be_usable(self) -> None:
        """Raise ClientClosedError if the client is closed, or ConfigError in another event loop than the client's."""
        self._transport.must_be_usable()

    def iterate(
        self,
        begin: Callable[[], Awaitable[Fetch]],
        unfold: Callable[[BatchSlice], Iterator[Item]],
        handed_on: LastItem | None = None,
    ) -> Iteration[Item]:
        """Return an iterator that fetches up to ``options.read_ahead`` answers in the background.

        ``begin``: function that starts the read and returns its fetch function. The others are the arguments of ``Iteration``.
        """
        ahead = ReadAhead(f"{self.stream}/{self.partition}", self._transport, self.options.read_ahead, begin)
        on_delivery = self.on_delivery
        if on_delivery is None:
            return Iteration(ahead, unfold, handed_on)

        def deliver(piece: BatchSlice) -> Iterator[Item]:
            items = unfold(piece)
            on_delivery(piece)
            return items

        return Iteration(ahead, deliver, handed_on)

    def fetching(self, progress: ReadProgress, until_ns: int | None = None) -> Fetch:
        """Return a function that fetches the next slices of the read ``progress``. It returns None at the end.

        ``until_ns``: time at which the read ends, in ns since 1970. The first record at or after it is not returned.
        """

        now_s = asyncio.get_running_loop().time

        async def fetch() -> list[BatchSlice] | None:
            if until_ns is not None and progress.end_offset is None and time.time_ns() >= until_ns:
                progress.end_offset = (await self.bounds(progress.uid, at_ns=until_ns))[1]
            if progress.done:
                return None
            position, earliest_s = progress.next_offset, now_s() + IDLE_S
            slices = await self.fetch(progress)
            if not slices and progress.moves_end and not progress.done:  # the end moves down to the committed end
                committed = (await self.bounds(progress.uid))[0].end_offset
                progress.end_offset = max(progress.next_offset, min(progress.end_offset or 0, committed))
            if progress.next_offset == position and not progress.assembly.held.position and not progress.done:
                await asyncio.sleep(earliest_s - now_s())
            return slices if until_ns is None or progress.end_offset is not None else _cut(slices, until_ns, progress)

        return fetch

    async def fetch(self, progress: ReadProgress, max_bytes: int | None = None) -> list[BatchSlice]:
        """Fetch the next slices after ``progress`` and advance it. Empty: a long poll ended without new records.

        ``max_bytes``: maximum size of this answer, None: ``options.max_bytes``. Raises OffsetOutOfRangeError, NotFoundError if the
        stream was created again, UnavailableError, and ProtocolError or CorruptionError if every replica sent a wrong answer.
        """
        size_bytes = min(max_bytes or self._max_bytes, self._max_bytes)
        attempts = retry_attempts(self.options.patience_s, reads=True)
        return await attempts(self._try_to_fetch, progress, ErrorConfirmation(), size_bytes)

    async def _try_to_fetch(self, progress: ReadProgress, opinion: ErrorConfirmation, max_bytes: int) -> list[BatchSlice]:
        if self._nearest is not None:
            self.node = await self._nearest.instead_of(self.node)
        asked, self.node = self.node, self.options.node  # after a failure, the next request goes to another replica
        try:
            return await self._fetch_from(asked, progress, opinion, max_bytes)
        except LiftError as error:
            self._event_emitter.emit(EventKind.FAILED, asked, detail=f"{error.code}: {error}")
            if self._nearest is not None:
                self._nearest.note_failure(asked)
            raise

    async def _fetch_from(
        self, node: str, progress: ReadProgress, opinion: ErrorConfirmation, max_bytes: int
    ) -> list[BatchSlice]:
        """Send one read request to the node ``node`` ('': any replica), check the answer and return its slices.

        ``opinion``: makes sure that a second node confirms a final error. After a failure, ``node`` is the replica to ask next.
        """
        wait_s, start_s = self.options.wait_s, time.perf_counter()
        request = progress.request(max_bytes, round(wait_s * 1000), secrets.randbits(_ID_BITS))
        answer = await self._answer(node, request, wait_s)
        try:
            slices = progress.accept(answer)
        except NotServedError as error:
            if error.leader != node:  # only the leader knows some answers
                self.node = self.options.node or error.leader
            raise
        except FINAL as error:
            self._transport.counters["answers doubted"] += 1
            self.node = self.options.node or (progress.leader if progress.leader != node else "")
            raise opinion.ask_again(error, progress.leader) from None
        except MisdirectedError:
            self._transport.counters["answers to something else"] += 1
            raise
        except (CorruptionError, ProtocolError):
            self._transport.counters["damaged answers"] += 1
            await self._complain(progress)
            raise
        if progress.missed_tombstones and not self._has_warned:
            self._has_warned = True
            self._transport.counters["reads that missed tombstones"] += 1
            logger.warning(
                "tombstones missed partition=%s/%s offset=%d: compaction dropped them before this reader came to them, so that deleted "
                "keys may look alive; continuing", self.stream, self.partition, progress.next_offset,
            )  # fmt: skip
        for piece in slices:
            piece.batch.on_damage = self._report_bad_batch
        if self.on_delivery is not None:
            arrived_ns = time.time_ns()
            for piece in slices:
                piece.batch.arrived_ns = arrived_ns
        self.node = self.options.node or progress.node
        if self._nearest is not None and progress.node != node:  # the asked replica was silent, and another one answered
            self._nearest.note_failure(node)
        records = sum(piece.record_count for piece in slices)
        self._event_emitter.report_answer(progress.node, records, len(answer), time.perf_counter() - start_s)
        return slices

    def _report_bad_batch(self, error: CorruptionError) -> None:
        """Log and count a batch that cannot be decompressed although its checksum is right. Its producer has made the error."""
        self._transport.counters["batches that do not decompress"] += 1
        logger.warning("%s/%s: %s", self.stream, self.partition, error)

    async def _complain(self, progress: ReadProgress) -> None:
        """Tell the node that sent damaged records about them, so that it checks its log."""
        node = progress.suspect[0] if progress.suspect is not None else ""
        complaint = progress.complaint()
        if complaint is not None and node:
            logger.warning("%s/%s: %s sent damaged bytes at offset %d", self.stream, self.partition, node, complaint.badOffset)
            with contextlib.suppress(LiftError):
                await self._ask(node, complaint, 0.0)

    async def bounds(
        self, uid: str = "", at_ns: int | None = None, last: tuple[int, int] = (-1, 0), *, beyond: int = 0, wait_s: float = 0.0
    ) -> tuple[Bounds, int]:
        """Ask the leader for the bounds of the partition, and for the first offset at or after ``at_ns`` (ns since 1970).

        Returns (bounds, the offset for ``at_ns`` or the high watermark + 1). ``uid``: expected uid of the stream, '' for any. ``last``:
        offset and LeaderEpoch of a record that was read, epoch 0: no check. LogTruncatedError is raised if the record is no longer in
        the log. The leader may wait ``wait_s`` seconds until the offset ``beyond`` is committed.
        """
        request = client_pb2.ReadRequest(boundsOnly=True, lastOffset=last[0], lastEpoch=last[1])
        request.offset, request.waitMs = beyond, round(wait_s * 1000)
        if at_ns is not None:
            request.byTimestamp, request.timestamp = True, at_ns
        head = await self._ask_leader(request, uid)
        return bounds_of(head), head.nextOffset

    async def measure(
        self,
        start: int,
        end: int,
        uid: str = "",
        *,
        every_bytes: int = 0,
        every_records: int = 0,
        last: tuple[int, int] = (-1, 0),
    ) -> RangeFacts:
        """Ask the leader for the size and the LeaderEpochs of a committed range, ``start`` to ``end`` (exclusive).

        The facts have up to 128 batch boundaries, ``every_bytes`` bytes or ``every_records`` records apart. 0: none. To get more, send
        a request that starts at the last boundary. ``uid``, ``last``: as in ``bounds``.
        """
        request = client_pb2.ReadRequest(boundsOnly=True, offset=start, rangeEnd=end, lastOffset=last[0], lastEpoch=last[1])
        request.borderBytes, request.borderRecords = every_bytes, every_records
        request.minHighWatermark = end - 1
        return facts_of(await self._ask_leader(request, uid), start, end)

    async def files(self, start: int, end: int, uid: str) -> RangeFiles:
        """Return the segment files on the host of ``options.node`` that contain a committed range.

        ``start``: first offset, inclusive. ``end``: end offset, exclusive. ``uid``: expected uid of the stream.
        """
        request = client_pb2.ReadRequest(boundsOnly=True, offset=start, rangeEnd=end, asksFiles=True, minHighWatermark=end - 1)
        return files_of(await self._ask_leader(request, uid))

    async def _ask_leader(self, request: client_pb2.ReadRequest, uid: str) -> client_pb2.ReadResponse:
        """Send a request that returns no records (``boundsOnly``) to the leader, and return its answer."""
        last = (request.lastOffset, request.lastEpoch)
        request.streamUid = check_uid(uid)
        if not request.HasField("rangeEnd"):
            request.minHighWatermark = -1
        node, opinion = self.options.node, ErrorConfirmation()
        async for attempt in retry_attempts(self.options.patience_s, reads=True):
            with attempt:
                target, node = node, self.options.node
                request.stream, request.partition, request.requestId = self.stream, self.partition, secrets.randbits(_ID_BITS)
                answer = await self._answer(target, request, request.waitMs / 1000)
                head, _ = decode_answer(answer, (self.stream, self.partition), request.requestId, uid, last)
                begins_at = head.node if self.options.committed else head.leader
                self.node = self.node or begins_at  # start the read at a replica that answers
                if not self.options.node and head.leader != head.node:
                    node = head.leader
                    text = f"Node {head.node} does not lead {self.stream}/{self.partition}. Retry: the client then asks the new leader."
                    raise NotServedError(text, head.leader)
                wanted = request.offset if request.HasField("rangeEnd") else head.logStartOffset
                try:
                    check_head(head, uid, self.stream, self.partition, last[0] + 1 if last[1] else wanted)
                except FINAL as error:
                    self._transport.counters["answers doubted"] += 1
                    raise opinion.ask_again(error, head.leader) from None
                return head
        raise AssertionError("Internal error: all attempts ended without a result. Please report it.")

    async def _answer(self, node: str, request: client_pb2.ReadRequest, wait_s: float) -> bytes:
        """Send a request as ``_ask`` does. If NATS reports no responders, check that the partition exists."""
        try:
            return await self._ask(node, request, wait_s)
        except NoRespondersError:
            if not node or self.options.node:
                await self._must_exist()
            raise

    async def _must_exist(self) -> None:
        """Raise NotFoundError if the metadata group answers that the partition does not exist.

        The check runs at most once per ``_EXISTS_S`` seconds.
        """
        now = asyncio.get_running_loop().time()
        if self._exists is None:
            return
        if self._existing is None:
            if now < self._ask_at:
                return
            self._ask_at = now + _EXISTS_S
            self._existing = asyncio.create_task(self._exists(), name=f"does {self.stream} exist")
            self._existing.add_done_callback(_retrieve_error)
        asking = self._existing
        await asyncio.wait([asking], timeout=_HEDGE_S)
        if asking.done():
            self._existing = None
            error = None if asking.cancelled() else asking.exception()
            if isinstance(error, NotFoundError | NoClusterError):
                raise error

    async def _ask(self, node: str, request: client_pb2.ReadRequest, wait_s: float) -> bytes:
        """Send a request to ``node`` ('': any replica) and return the first answer.

        ``wait_s``: time that the replica may hold the request, in seconds. If no answer arrives within ``_HEDGE_S`` after that,
        the request is sent again, up to ``_MOST_HEDGES`` times: to any replica, or to ``options.node`` if it is set.
        """
        payload, timeout_s = frames.seal(request), wait_s + self.options.answer_timeout_s
        group = self._subjects.read(self.stream, self.partition)
        named = self._subjects.read_from(self.stream, self.partition, node) if node else group
        elsewhere = (named,) if self.options.node else (group, group)
        requests: set[asyncio.Future[Any]] = set()
        patience_s: float | None = wait_s + _HEDGE_S
        try:
            for hedge in range(_MOST_HEDGES + 1):
                for subject in elsewhere if hedge else (named,):
                    requests.add(
                        asyncio.create_task(self._transport.request(subject, payload, timeout_s), name=f"ask {subject}")
                    )
                if hedge == _MOST_HEDGES:
                    patience_s = None
                again = self._transport.reconnected  # after a reconnect, the request or its answer may be lost
                waiting = {*requests, again}
                done, _ = await asyncio.wait(waiting, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                renewed = again in done
                done.discard(again)
                if done:
                    break
                self._event_emitter.emit(EventKind.RECONNECTED if renewed else EventKind.SILENT, node)
                patience_s = _HEDGE_S
            answer: bytes = (done or await _first(requests)).pop().result()
            return answer
        finally:
            for task in requests:
                task.cancel()  # its answer is not needed any more
                task.add_done_callback(_retrieve_error)


async def _first(requests: set[asyncio.Future[Any]]) -> set[asyncio.Future[Any]]:
    return (await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED))[0]


def _retrieve_error(task: asyncio.Future[Any]) -> None:
    """Read the error of a task whose result is not needed, so that asyncio does not log the error."""
    if not task.cancelled():
        task.exception()


def _cut(slices: list[BatchSlice], until_ns: int, progress: ReadProgress) -> list[BatchSlice]:
    """Return the slices before the first record whose timestamp is ``until_ns`` or later.

    If there is such a record, set the end of ``progress`` to its offset.
    """
    slices_before: list[BatchSlice] = []
    for piece in slices:
        before, end_offset = piece.before(until_ns)
        if before is not None:
            slices_before.append(before)
        if end_offset is not None:
            progress.end_offset = end_offset
            break
    return slices_before


class Consumer:
    """Reads the committed records of one partition. Iterate over it, or over ``batches()``.

    Create it with ``client.consume``. Each committed record comes once, in order, without a gap, or an error is raised.
    If a loop ends early, by an error or by cancellation, the next loop continues after the last record that you
    received. A stream that is deleted and created again is an error. Only one iteration may run at a time.

    Example:
        consumer = client.consume("orders", until="end")
        async for record in consumer:
            print(record.offset, record.value)
        print(await consumer.position())
    """

    def __init__(
        self,
        reader: PartitionReader,
        start: Start,
        until: Until,
        after_epoch: int = 0,
        *,
        wanted: Filter = NOTHING_LEFT_OUT,
        backwards: bool = False,
    ) -> None:
        self._wanted = wanted
        self.backwards = backwards
        start = positions.resolve_start(start, datetime.now(UTC))
        if isinstance(start, Position):
            after_epoch = 0 if backwards else start.leader_epoch
        elif check_offset(after_epoch, "after_epoch") and (not isinstance(start, int) or start < 1):
            raise ConfigError(
                "after_epoch needs start to be an offset greater than 0. It is the leader_epoch of the record before "
                "that offset."
            )
        if backwards and not reader.options.committed:
            raise ConfigError("backwards=True cannot be combined with isolation='uncommitted'. Use isolation='committed'.")
        self._reader = reader
        self._start = start
        self._after_epoch = after_epoch
        self._until = positions.checked_until(until)
        self._origin: ReadProgress | None = None
        """State of the read at its start. None before ``begin`` and after ``seek``."""
        self._fetched: ReadProgress | None = None
        """Progress of the running iteration: the next offset to fetch."""
        self._handed_on = LastItem()
        self._iteration: weakref.ref[Iteration[Any]] | None = None
        self._one: Iteration[Record] | None = None
        """Iteration from which ``getone`` and ``getmany`` take records."""
        self.bounds: Bounds | None = None
        """Bounds of the partition when reading began. None before the first answer."""

    async def begin(self) -> Bounds:
        """Resolve the start and the end now instead of at the first record.

        Returns:
            The bounds of the partition at this moment. A second call returns the same.

        Raises:
            OffsetOutOfRangeError: The start was deleted by retention, or is past the end.
            NotFoundError: No such stream or partition.
            UnavailableError: No leader answered for ``options.patience_s``.
        """
        self._reader.must_be_usable()
        if self.bounds is None:
            start = self._start
            at_ns = positions.timestamp_ns(start) if isinstance(start, datetime) else None
            named = start.offset if isinstance(start, Position) else start
            last = (named - 1, self._after_epoch) if isinstance(named, int) and self._after_epoch else (-1, 0)
            uid = start.uid if isinstance(start, Position) else ""
            bounds, at_offset = await self._reader.bounds(uid, at_ns=at_ns, last=last)
            origin = await self._begin_at(bounds, None if at_ns is None else at_offset, last)
            if self.bounds is None and start is self._start:  # another task may have begun or called seek during the wait
                self._origin, self.bounds = origin, bounds
            return self.bounds or await self.begin()
        return self.bounds

    async def _begin_at(self, bounds: Bounds, at_offset: int | None, last: tuple[int, int]) -> ReadProgress:
        """Return the state of a read that starts now."""
        known, named = bounds, self._start.offset if isinstance(self._start, Position) else self._start
        # only the leader knows the end of the uncommitted records
        if isinstance(named, int) and not self._reader.options.committed:
            known = replace(bounds, high_watermark=max(bounds.high_watermark, named - 1))
        place = f"{self._reader.stream}/{self._reader.partition}"
        begin = positions.start_offset(self._start, known, place) if at_offset is None else at_offset
        end = positions.end_offset(self._until, bounds)
        if begin == bounds.end_offset and not last[1]:  # the last committed record must stay, as if it had been read
            last = (begin - 1, bounds.end_epoch)
        progress_type: type[ReadProgress] = ReadProgress
        if self.backwards:
            progress_type, end, last = BackwardProgress, await self._lowest(bounds), (-1, 0)
            by_record = isinstance(self._start, (int, FromEnd)) or self._start in ("latest", "earliest")
            begin = min(begin + by_record, bounds.end_offset)
        return progress_type(
            self._reader.stream,
            self._reader.partition,
            next_offset=begin,
            end_offset=end,
            uid=bounds.uid,
            high_watermark=bounds.high_watermark,
            compacted=bounds.compacted,
            last_offset=last[0],
            leader_epoch=last[1],
            wanted=self._wanted,
            committed=self._reader.options.committed,
            moves_end=self._until == "end" and not self.backwards,
        )

    async def _lowest(self, bounds: Bounds) -> int | None:
        """Return the lowest offset that a backward read returns, inclusive. None: it ends at the log start."""
        if isinstance(self._until, datetime):
            return (await self._reader.bounds(bounds.uid, at_ns=positions.timestamp_ns(self._until)))[1]
        return None if self._until in (None, "end") else positions.end_offset(self._until, bounds) - 1  # type: ignore[operator]

    async def position(self) -> Position:
        """Return the position after the last record that was returned.

        Store it as ``str(position)`` and pass it as ``start`` to another Consumer.

        Raises:
            UnavailableError: The start was not resolved yet, and no leader answered.
        """
        await self.begin()
        now = self._position()
        return Position(now.uid, now.next_offset, 0 if self.backwards else now.leader_epoch)

    @property
    def passed_offset(self) -> int | None:
        """Offset below which every record was returned or filtered out.

        None: no iteration runs, or fetched records were not returned yet.
        """
        passed = self.passed_position()
        return None if passed is None else passed.offset

    def passed_position(self) -> Position | None:
        """Return ``passed_offset`` with the LeaderEpoch of the record before it, if that is known."""
        iteration = self._iteration() if self._iteration is not None else None
        at = self._fetched
        if iteration is None or not iteration.is_idle or at is None or self.backwards:
            return None
        return Position(at.uid, at.next_offset, at.leader_epoch if at.last_offset == at.next_offset - 1 else 0)

    @property
    def has_missed_tombstones(self) -> bool:
        """True if compaction deleted tombstones before this consumer reached them, after it had read older records.

        Deleted keys then still seem to have a value. Call ``seek("earliest")`` and read again. With ``until="end"``
        reading raises TombstonesMissedError instead [R12].
        """
        return self._fetched is not None and self._fetched.missed_tombstones

    async def seek(self, start: Start) -> None:
        """Continue from another position. A running iteration ends, and its fetched records are dropped.

        Args:
            start: Where to continue, as in ``client.consume``.

        Raises:
            OffsetOutOfRangeError: The start was deleted by retention, or is past the end.
            NotFoundError: No such stream or partition.
            UnavailableError: No leader answered for ``options.patience_s``.

        Example:
            await consumer.seek("-10m")
        """
        earlier = self._iteration() if self._iteration is not None else None
        if earlier is not None:
            earlier.replace()
        self._iteration = None
        self._one = None
        self._start, self._after_epoch = positions.resolve_start(start, datetime.now(UTC)), 0
        if isinstance(self._start, Position) and not self.backwards:
            self._after_epoch = self._start.leader_epoch
        self.bounds = self._origin = self._fetched = self._handed_on.last = None
        await self.begin()

    async def lag(self) -> int:
        """Return the number of offsets between the position and the high watermark, at least 0.

        With ``backwards``: down to the log start.

        Raises:
            UnavailableError: No leader answered for ``options.patience_s``.
        """
        await self.begin()
        bounds, _ = await self._reader.bounds(self._position().uid)
        at = self._position().next_offset
        return max(at - bounds.log_start_offset if self.backwards else bounds.end_offset - at, 0)

    async def getone(self, timeout_s: float | None = None) -> Record | None:
        """Return the next record.

        Args:
            timeout_s: Time to wait, in seconds. At or below 0: return at once. Default None: wait forever.

        Returns:
            The record. None if ``until`` is reached or no record came in time.

        Raises:
            LiftError: Every error of an iteration.
        """
        records = await self.getmany(1, timeout_s)
        return records[0] if records else None

    async def getmany(self, max_records: int = 500, timeout_s: float | None = None) -> list[Record]:
        """Return the next records that are available, at least one.

        If the call is cancelled, it has taken nothing.

        Args:
            max_records: Maximum number of records, at least 1. Default 500.
            timeout_s: Time to wait for the first record, in seconds. At or below 0: return at once. Default None: wait
                forever.

        Returns:
            The records. Empty if ``until`` is reached or no record came in time.

        Raises:
            ConfigError: ``max_records`` is below 1, or ``timeout_s`` is not a number.
            LiftError: Every error of an iteration.

        Example:
            for record in await consumer.getmany(100, timeout_s=1.0):
                print(record.value)
        """
        check_count("max_records", max_records, 1)
        if timeout_s is not None:
            check_wait("timeout_s", timeout_s)
        if self._one is None or not self._one.may_go_on:
            self._one = self.records()
        records: list[Record] = []
        with contextlib.suppress(StopAsyncIteration, TimeoutError):
            async with asyncio.timeout(timeout_s):
                records.append(await anext(self._one))
        if records and max_records > 1:
            records += self._one.at_once(max_records - 1)
        return records

    def batches(self) -> Iteration[BatchSlice]:
        """Iterate over slices of batches. This is much faster than iterating over single records.

        Returns:
            An asynchronous iterator of BatchSlice, from the position up to ``until``.

        Raises:
            ConfigError: Another iteration of this Consumer is running.

        Example:
            async for piece in client.consume("orders", until="end").batches():
                print(piece.first_offset, piece.record_count)
        """
        return self._begin(self._reader.iterate(self._start_fetch, whole, self._handed_on))

    def records(self) -> Iteration[Record]:
        """Iterate record by record.

        Returns:
            An asynchronous iterator of Record, from the position up to ``until``.

        Raises:
            ConfigError: Another iteration of this Consumer is running.
        """
        unfold = _newest_first if self.backwards else BatchSlice.records
        return self._begin(self._reader.iterate(self._start_fetch, unfold, self._handed_on))

    def __aiter__(self) -> Iteration[Record]:
        return self.records()

    def _begin(self, iteration: Iteration[Item]) -> Iteration[Item]:
        """Make ``iteration`` the current one and return it. Raise ConfigError if another iteration is running."""
        earlier = self._iteration() if self._iteration is not None else None
        if earlier is not None:
            if earlier.alive and earlier is not self._one:  # the application has no reference to that iteration
                raise ConfigError(
                    f"{self._reader.stream}/{self._reader.partition} is already read by another iteration of this "
                    "Consumer. Finish it, call aclose(), or create one Consumer per task."
                )
            earlier.replace()
        self._iteration = weakref.ref(iteration)
        return iteration

    async def _start_fetch(self) -> Fetch:
        await self.begin()
        by_time = isinstance(self._until, datetime) and not self.backwards
        until_ns = positions.timestamp_ns(self._until) if by_time else None  # type: ignore[arg-type]
        earlier, self._fetched = self._fetched, self._position()
        if earlier is not None:
            self._fetched.learn_compacted(earlier.compacted_end)
            if self._handed_on.last is not None:
                self._fetched.tombstones = earlier.tombstones
                self._fetched.missed_tombstones = earlier.missed_tombstones
        return self._reader.fetching(self._fetched, until_ns)

    def _remember(self) -> Callable[[object], None]:
        """Return a function that takes back the records that a later call has returned: the next call returns them again."""
        last, start = self._handed_on.last, self._start

        def take_back(_: object) -> None:
            if self._start is not start:  # another thread has called `seek`
                return
            iteration = self._iteration() if self._iteration is not None else None
            if iteration is not None:
                iteration.replace()
            self._iteration = self._one = None
            self._handed_on.last = last

        return take_back

    def _position(self) -> ReadProgress:
        """Return the state of the read directly after the last record that the application received."""
        assert self._origin is not None
        last = self._handed_on.last
        if last is None:
            return replace(self._origin)
        if self.backwards:
            offset = last.first_offset if isinstance(last, BatchSlice) else last.offset
            return replace(self._origin, next_offset=offset, last_offset=offset, leader_epoch=last.leader_epoch)
        offset = last.last_offset if isinstance(last, BatchSlice) else last.offset
        return replace(self._origin, next_offset=offset + 1, last_offset=offset, leader_epoch=last.leader_epoch)


def read_range(reader: PartitionReader, progress: ReadProgress) -> Iteration[BatchSlice]:
    """Return an iterator over the records of ``reader`` from the start to the end of ``progress``."""

    async def begin() -> Fetch:
        return reader.fetching(progress)

    return reader.iterate(begin, whole)


def _newest_first(piece: BatchSlice) -> Iterator[Record]:
    return reversed(list(piece.records()))
