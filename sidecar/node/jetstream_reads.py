"""Answers JetStream's stateless read API from committed records. It keeps no state between two requests.

Goal: ``nats stream ls|info|get`` works unchanged, and so do readers that use direct get in any JetStream client.

Constraint: a reader that asks after an ack must find the record. If a request needs the end of the log, the leader is
asked.

Algorithm: a sequence is an offset + 1. "The last of a subject" is a backward read with a filter. "The next" is a
forward read. A node reads about 1 MiB of its log per request. So a search that finds nothing in a long log ends after
``PATIENCE_S`` with an answer that says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from liftpy.client.client import Client
from liftpy.client.consumer import ReadOptions
from liftpy.client.iteration import Iteration
from liftpy.client.positions import Bounds
from liftpy.client.stream_info import StreamInfo
from liftpy.core.publish.jetstream_headers import stream_of
from liftpy.core.wire.batch import Record
from liftpy.core.wire.subjects import data_subject
from liftpy.errors import LiftError, NotFoundError, OffsetOutOfRangeError
from liftpy.nats.cancellation import end_tasks
from sidecar.node.jetstream_protocol import (
    LIST_PAGE,
    NAMES_PAGE,
    JsAnswer,
    JsRejection,
    JsRequest,
    Kind,
    PartitionStream,
    account,
    describe_stream,
    direct,
    kind_of,
    message,
    no_message,
    not_found,
    overlap,
    page,
    parse_request,
    rejection_answer,
    size_of,
    status,
    stream_info,
    unavailable,
)
from sidecar.runtime.tasks import LoopPauses, start_attended

PATIENCE_S = 4.0
"""Maximum time to compute an answer, in seconds. Clients wait for 5 s by default."""
BATCH_PATIENCE_S = 3.5
"""Time after which a batch ends with the messages that were sent until then, in seconds."""
LIST_PATIENCE_S = 3.0
"""Maximum time in which a list reads the state of its streams, in seconds. The answer names the others as missing."""
STATES_AT_ONCE = 32
"""Maximum number of streams whose state the node reads at a time, for all lists."""
MAX_SUBJECTS_OF_ANSWER = 1024
"""Maximum number of subjects whose newest messages one answer has, as in nats-server."""
MAX_BYTES = 8 * 1024 * 1024
"""Maximum size of the records of one answer with keys, subjects and headers, in bytes. The next request continues after them."""
MAX_HELD_BYTES = 64 * 1024 * 1024
"""Maximum size of the records that all requests for the newest messages of subjects hold at a time, in bytes."""
_OPTIONS = ReadOptions(max_bytes=128 * 1024, wait_s=0, answer_timeout_s=2.0, patience_s=PATIENCE_S, read_ahead=1)
_ONE_RECORD = replace(_OPTIONS, max_bytes=4096)
_Records = Iteration[Record] | AsyncGenerator[Record, None]


class HeldRecords:
    """Newest record of each subject (``by_subject``) that one request holds until its answer is sent. ``reads``: counts their size."""

    def __init__(self, reads: StatelessReads) -> None:
        self._reads = reads
        self._size_bytes = 0
        self.by_subject: dict[str, Record] = {}

    def add(self, record: Record) -> None:
        """Add the newest record of its subject. Raise JsRejection if this request or all requests together hold too much."""
        size_bytes = size_of(record)
        self.by_subject[record.subject] = record
        self._size_bytes += size_bytes
        self._reads.held_bytes += size_bytes
        if self._size_bytes > MAX_BYTES or len(self.by_subject) > MAX_SUBJECTS_OF_ANSWER:
            raise JsRejection(413, 0, "Too Many Results")
        if self._reads.held_bytes > MAX_HELD_BYTES:
            raise JsRejection(429, 0, "Too Many Requests")

    def drop(self) -> None:
        """Drop all records."""
        self.by_subject.clear()
        self._reads.held_bytes -= self._size_bytes
        self._size_bytes = 0


@dataclass
class StatelessReads:
    """Answers JetStream read requests."""

    client: Client
    domain: str
    wall_ns: Callable[[], int] = field(default=time.time_ns)
    held_bytes: int = field(default=0, init=False)
    """Size of the records that requests for the newest messages of subjects hold now, in bytes."""
    _states_at_once: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STATES_AT_ONCE), init=False)

    async def answer(self, rest: str, body: bytes) -> AsyncGenerator[JsAnswer, None]:
        """Yield the messages that answer a request on ``$JS.<domain>.API.<rest>``, at least one."""
        kind = kind_of(rest)[0]
        try:
            request = parse_request(rest, body)
            async with asyncio.timeout(PATIENCE_S):
                async for part in self._answers(request):
                    yield part
        except JsRejection as rejection:
            yield rejection_answer(kind, rejection)
        except NotFoundError:
            yield rejection_answer(kind, not_found(kind))
        except TimeoutError:
            hint = "say where to begin, or read with a consumer" if kind is Kind.MESSAGE else "retry"
            yield rejection_answer(kind, unavailable(kind, f"no answer within {PATIENCE_S:g} s: {hint}"))
        except LiftError as error:
            yield rejection_answer(kind, unavailable(kind, str(error)[:200]))

    async def _answers(self, request: JsRequest) -> AsyncIterator[JsAnswer]:
        match request.kind:
            case Kind.INFO:
                yield account(self.domain, len(await self._all_partitions()))
            case Kind.CONSUMER_NAMES | Kind.CONSUMER_LIST:
                await self._stream(request)
                yield page(request, 0, [])
            case Kind.NAMES | Kind.LIST:
                yield await self._list(request)
            case Kind.STREAM:
                yield stream_info(await self._partition_state(*await self._stream(request)), self.wall_ns())
            case _:
                async for part in self._records(request):
                    yield part

    # ---- streams -----------------------------------------------------------------------------------------------------
    async def _all_partitions(self) -> list[tuple[StreamInfo, int]]:
        """Return (stream, partition number) of all partitions of the cluster, sorted by the name of the stream."""
        streams = sorted(await self.client.admin.list_streams(), key=lambda stream: stream.name)
        return [(stream, one.partition) for stream in streams for one in stream.partitions]

    async def _stream(self, request: JsRequest) -> tuple[StreamInfo, int]:
        stream = await self.client.stream(request.stream)
        if request.partition >= len(stream.partitions):  # the answering controller may be behind
            stream = StreamInfo.of(await self.client._streams.newest_stream(request.stream))
        if request.partition >= len(stream.partitions):
            raise not_found(request.kind)
        return stream, request.partition

    async def _list(self, request: JsRequest) -> JsAnswer:
        streams = [
            (stream, partition)
            for stream, partition in await self._all_partitions()
            if not request.subject or overlap(data_subject(stream.subject, partition), request.subject)
        ]
        begin = request.page_offset
        if request.kind is Kind.NAMES:
            names = [stream_of(stream.name, partition) for stream, partition in streams[begin : begin + NAMES_PAGE]]
            return page(request, len(streams), names)
        now_ns, found, missing = self.wall_ns(), list[dict[str, Any]](), list[str]()
        for (stream, partition), place in await self._states(streams[begin : begin + LIST_PAGE]):
            if place is None:
                missing.append(stream_of(stream.name, partition))
            else:
                found.append(describe_stream(place, now_ns))
        return page(request, len(streams), found, missing)

    async def _states(
        self, wanted: Sequence[tuple[StreamInfo, int]]
    ) -> list[tuple[tuple[StreamInfo, int], PartitionStream | None]]:
        """Read the state of each partition in ``wanted``. None: no leader reported it within ``LIST_PATIENCE_S``.

        Partitions of streams that were deleted since are left out.
        """

        async def limited_state(stream: StreamInfo, partition: int) -> PartitionStream:
            async with self._states_at_once:
                return await self._partition_state(stream, partition)

        tasks = {
            start_attended(limited_state(stream, partition)): (stream, partition)
            for stream, partition in wanted
            if stream.partitions[partition].leader
        }
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=LIST_PATIENCE_S)
            states: dict[tuple[str, int], PartitionStream] = {}
            deleted = set[tuple[str, int]]()
            for task, (stream, partition) in tasks.items():
                if task.done():
                    try:
                        states[stream.name, partition] = task.result()
                    except NotFoundError:
                        deleted.add((stream.name, partition))
                    except LiftError:
                        pass  # it is missing in the list
        finally:
            await end_tasks(tasks)
        places = ((at, (at[0].name, at[1])) for at in wanted)
        return [(at, states.get(key)) for at, key in places if key not in deleted]

    async def _partition_state(self, stream: StreamInfo, partition: int) -> PartitionStream:
        while True:
            bounds = await self.client.bounds(stream.name, partition, options=_OPTIONS)
            first = last = None
            try:
                if bounds.high_watermark >= bounds.log_start_offset:
                    read = partial(self._read, stream.name, partition, bounds, options=_ONE_RECORD)
                    first = await self._first(read(bounds.log_start_offset))
                    last = await self._first(read(bounds.high_watermark, backwards=True))
            except OffsetOutOfRangeError:  # retention was faster
                continue
            times = (None if record is None else record.timestamp_ns for record in (first, last))
            return PartitionStream(stream, partition, bounds, *times)

    # ---- records -----------------------------------------------------------------------------------------------------
    def _read(
        self,
        stream: str,
        partition: int,
        bounds: Bounds,
        start: int,
        subjects: tuple[str, ...] = (),
        options: ReadOptions = _OPTIONS,
        *,
        backwards: bool = False,
    ) -> _Records:
        """Read the records within ``bounds`` from the offset ``start`` on, or with ``backwards`` from there to the oldest one."""
        begin = start if backwards else max(start, bounds.log_start_offset)
        if not bounds.log_start_offset <= begin <= bounds.high_watermark:
            return _no_records()
        until = 0 if backwards else bounds.high_watermark
        return aiter(
            self.client.consume(
                stream, partition, start=begin, until=until, subjects=subjects, backwards=backwards, options=options
            )
        )

    @staticmethod
    async def _first(records: _Records) -> Record | None:
        try:
            async for record in records:
                return record
        finally:
            await records.aclose()
        return None

    async def _records(self, request: JsRequest) -> AsyncIterator[JsAnswer]:
        stream, partition = await self._stream(request)
        name, subject = stream_of(stream.name, partition), data_subject(stream.subject, partition)
        if request.multi:
            answers = self._newest_of_each
        elif request.batch:
            answers = self._batch
        else:
            answers = self._one
        while True:
            bounds = await self.client.bounds(stream.name, partition, options=_OPTIONS)
            try:
                async for part in answers(request, bounds, name, subject):
                    yield part
            except OffsetOutOfRangeError:  # retention was faster than the first message
                continue
            return

    async def _one(self, request: JsRequest, bounds: Bounds, name: str, subject: str) -> AsyncIterator[JsAnswer]:
        stream, partition, wanted = request.stream, request.partition, request.subjects
        if request.last:
            record = await self._first(self._read(stream, partition, bounds, bounds.high_watermark, wanted, backwards=True))
        else:
            start = await self._start(request)
            if start < bounds.log_start_offset and not wanted and request.start_ns is None:
                raise no_message(request.kind)
            record = await self._first(self._read(stream, partition, bounds, start, wanted))
            if record is not None and not wanted and request.start_ns is None and record.offset != start:
                record = None  # compaction has dropped it
        if record is None:
            raise no_message(request.kind)
        yield direct(name, record, subject) if request.kind is Kind.DIRECT else message(record, subject)

    async def _start(self, request: JsRequest) -> int:
        """Return the offset from which on the requested record is searched."""
        if request.start_ns is None:
            return request.sequence - 1
        return await self.client.offset_at(request.stream, request.partition, request.start_ns, options=_OPTIONS)

    async def _batch(self, request: JsRequest, bounds: Bounds, name: str, subject: str) -> AsyncIterator[JsAnswer]:
        """Yield the answers to a batch get: the matching records in log order, and a final status line.

        ``Nats-Num-Pending`` is exact without a filter and without compaction. Otherwise it is an upper bound. If the next records
        do not arrive in time, the batch ends after the last one. If retention deletes the next records, it continues after them.
        Before the first message, it raises TimeoutError and OffsetOutOfRangeError.
        """
        start = await self._start(request)
        most_value_bytes = min(request.max_bytes or MAX_BYTES, MAX_BYTES)
        count = value_bytes = size_bytes = last = pending = 0
        records: _Records = _no_records()
        pauses = LoopPauses()
        try:
            async with asyncio.timeout(BATCH_PATIENCE_S):
                while True:
                    records = self._read(request.stream, request.partition, bounds, start, request.subjects)
                    try:
                        async for record in records:
                            await pauses.pause()
                            pending = bounds.high_watermark - record.offset
                            numbers = ("Nats-Num-Pending", pending), ("Nats-Last-Sequence", last)
                            yield direct(name, record, subject, numbers)
                            count, last, size_bytes = count + 1, record.offset + 1, size_bytes + size_of(record)
                            value_bytes += len(record.value or b"")
                            if count >= request.batch or value_bytes >= most_value_bytes or size_bytes >= MAX_BYTES:
                                break
                        else:
                            pending = 0
                        break
                    except OffsetOutOfRangeError:
                        if not count:
                            raise
                        fresh = await self.client.bounds(request.stream, request.partition, options=_OPTIONS)
                        if fresh.uid != bounds.uid:
                            raise not_found(request.kind) from None
                        start, bounds = last, replace(bounds, log_start_offset=fresh.log_start_offset)
                    finally:
                        await records.aclose()
        except TimeoutError:
            if not count:
                raise
        if not count:
            raise no_message(request.kind)
        yield status(204, "EOB", ("Nats-Num-Pending", pending), ("Nats-Last-Sequence", last))

    async def _newest_of_each(self, request: JsRequest, bounds: Bounds, name: str, subject: str) -> AsyncIterator[JsAnswer]:
        """Yield the newest record of each subject that matches the request, in log order, up to the requested end.

        The whole log is read, unless the request names the subjects without wildcards. The node holds all records of the answer. If
        other requests hold too many, the request is rejected with 429.
        """
        newest, held = await self._up_to(request, bounds), HeldRecords(self)
        try:
            await self._hold_newest(request, bounds, newest, held)
            chosen = sorted(held.by_subject.values(), key=lambda record: record.offset)
            if not chosen:
                raise no_message(request.kind)
            limit = request.batch or len(chosen)
            last, pauses = 0, LoopPauses()
            for place, record in enumerate(chosen[:limit]):
                await pauses.pause()
                numbers = ("Nats-Num-Pending", len(chosen) - 1 - place), ("Nats-Last-Sequence", last)
                yield direct(name, record, subject, numbers)
                last = record.offset + 1
            rest = ("Nats-Num-Pending", len(chosen) - len(chosen[:limit])), ("Nats-Last-Sequence", last)
            yield status(204, "EOB", *rest, ("Nats-UpTo-Sequence", newest + 1))
        finally:
            held.drop()

    async def _hold_newest(self, request: JsRequest, bounds: Bounds, newest: int, held: HeldRecords) -> None:
        """Read the newest record of each subject that matches the request, from the offset ``newest`` down, into ``held``."""
        literal = {one for one in request.subjects if "*" not in one and ">" not in one}
        sought = literal if len(literal) == len(request.subjects) else None
        pauses = LoopPauses()
        records = self._read(request.stream, request.partition, bounds, newest, request.subjects, backwards=True)
        try:
            async for record in records:
                await pauses.pause()
                if record.subject not in held.by_subject:
                    held.add(record)
                    if held.by_subject.keys() == sought:
                        break
        finally:
            await records.aclose()

    async def _up_to(self, request: JsRequest, bounds: Bounds) -> int:
        """Return the offset of the newest record that the answer may contain, inclusive. The request may set an end."""
        newest = bounds.high_watermark
        if request.up_to_ns is not None:
            after = await self.client.offset_at(request.stream, request.partition, request.up_to_ns, options=_OPTIONS)
            return min(newest, after - 1)
        return min(newest, request.up_to - 1) if request.up_to else newest


async def _no_records() -> AsyncGenerator[Record, None]:
    nothing: tuple[Record, ...] = ()
    for record in nothing:
        yield record
