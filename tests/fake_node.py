"""A node that serves streams from memory over real NATS: what tests of readers run against when replication is not the point.

It answers the reader's side of the protocol only: describeCluster and describeStream on ``<ns>.info``, and ReadRequest on ``.read`` and
``.read.<node>``, by the rules of ``client.proto`` (whole batches, nothing past HW, and its error codes).
Faults are set by hand: ``log_start_offset`` and ``high_watermark`` are plain fields, and ``silent`` nodes do not answer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any, TypeVar

from nats.aio.client import Client as NatsConnection
from nats.aio.msg import Msg

from liftpy.core.base.ids import NO_OFFSET
from liftpy.core.log.log import Log
from liftpy.core.log.range_reads import spans_of
from liftpy.core.metadata.codec import image_from_pb
from liftpy.core.metadata.describe import describer
from liftpy.core.partition.reads import filter_of
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2, cluster_pb2
from liftpy.core.wire.batch import BatchHeader, parse_batch
from liftpy.core.wire.filters import Filter, keep_records, narrow
from liftpy.core.wire.subjects import Subjects
from liftpy.nats.transport import open_connection

T = TypeVar("T")
_Error = client_pb2.ReadResponse.Error
_POLL_S = 0.005


@dataclass(slots=True)
class FakePartition:
    """Log of one partition in a fake node.

    ``log_start_offset`` and ``high_watermark``: inclusive. ``compacted_end``, ``deletes_end``: exclusive.
    """

    batches: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    log_start_offset: int = 0
    high_watermark: int = NO_OFFSET
    leader_epoch: int = 1
    compacted: bool = False
    compacted_end: int = 0
    deletes_end: int = 0

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record, exclusive end of the log."""
        return self.batches[-1][0].next_offset if self.batches else self.log_start_offset

    def append(self, batch: bytes, *, commit: bool = True) -> None:
        """Add a sealed batch; ``commit``: raise HW to its last record."""
        header = parse_batch(memoryview(batch)).header
        self.batches.append((header, batch))
        if commit:
            self.high_watermark = header.last_offset

    def read(self, offset: int, max_bytes: int, end_offset: int | None = None, left_out: int = 0) -> tuple[list[bytes], int]:
        """Return committed batches from the one that contains ``offset``, at least one if there is any, and the next offset."""
        found: list[bytes] = []
        next_offset, size_bytes = offset, 0
        first = bisect_right(self.batches, offset, key=lambda entry: entry[0].next_offset)
        for header, batch in islice(self.batches, first, None):
            too_large = bool(found) and size_bytes + len(batch) > max_bytes
            if (
                too_large
                or header.last_offset > self.high_watermark
                or (end_offset is not None and header.next_offset > end_offset)
            ):
                break
            if left_out:
                batch = bytes(narrow(parse_batch(memoryview(batch)), left_out))
            found.append(batch)
            size_bytes += len(batch)
            next_offset = header.next_offset
        return found, next_offset

    def epoch_below(self, offset: int) -> int:
        """Return LeaderEpoch of the record before ``offset``, 0: none."""
        return next((h.leader_epoch for h, _ in self.batches if h.base_offset < offset <= h.next_offset), 0)

    def has_last(self, request: client_pb2.ReadRequest) -> bool:
        """Return whether the reader's last record exists or was deleted by retention."""
        trimmed = request.lastOffset < self.log_start_offset
        return trimmed or self.epoch_below(request.lastOffset + 1) == request.lastEpoch

    def cut_at(self, request: client_pb2.ReadRequest) -> int:
        """Return the largest offset up to which the log can be the one of the reader."""
        newer = (h.base_offset for h, _ in self.batches if h.leader_epoch > request.lastEpoch)
        return min(next(newer, self.log_end_offset), request.lastOffset)

    def measure(self, request: client_pb2.ReadRequest, head: client_pb2.ReadResponse) -> None:
        """Add the size of the range and its batch borders to the answer."""
        held = [(h, b) for h, b in self.batches if h.base_offset < request.rangeEnd and h.next_offset > request.offset]
        ends = [0, *accumulate(len(batch) for _, batch in held)]
        at_before = [
            (h.base_offset, position) for (h, _), position in zip(held, ends, strict=False) if h.base_offset > request.offset
        ]
        head.rangeBytes, head.beforeEpoch = ends[-1], self.epoch_below(request.offset)
        wanted: list[tuple[int, int]] = []
        for multiple in range(request.borderBytes, ends[-1], request.borderBytes) if request.borderBytes else ():
            wanted += [mark for mark in at_before if mark[1] <= multiple][-1:]
        before = request.offset
        while request.borderRecords and before + request.borderRecords < request.rangeEnd:
            later = [mark for mark in at_before if mark[0] > before]
            fitting = [mark for mark in later if mark[0] <= before + request.borderRecords][-1:] or later[:1]
            if not fitting:
                break
            before = fitting[0][0]
            wanted += fitting
        for offset, position in sorted(set(wanted))[:128]:
            head.borders.append(offset)
            head.borderPositions.append(position)

    def offset_at(self, timestamp_ns: int) -> int:
        """Return the first committed offset with this timestamp or later, else HW + 1."""
        later = [h.base_offset for h, _ in self.batches if h.timestamp_ns >= timestamp_ns]
        return min([*later, self.high_watermark + 1])


@dataclass(slots=True)
class FakeStream:
    """A stream that every fake node serves. ``uid``: its identity."""

    name: str
    uid: str
    partitions: list[FakePartition]


class FakeNode:
    """Answers for the nodes ``node_ids``, the first of which leads everything, over one connection.

    ``silent``: node ids that do not answer. ``lagging``: node id -> its HW, where it is not the partition's. ``trimmed``: node
    id -> its log start, likewise. ``own``: (stream, partition, node) -> a log that this node alone has; ``damaged``: the same -> what
    it says, once, instead of serving anything.
    ``asked``: how often each node was asked for a read. ``measures``: whether it tells sizes, borders and LeaderEpochs of ranges.
    ``files``: node id -> (host, folder, log) of a node that offers the files of its partition.
    ``waits``: whether it waits with bounds until there is more, likewise.
    ``partitions_known``: stream -> number of its partitions that it describes, unless the request is linearizable. 0: it describes no
    such stream.
    ``controllers``: ``majority``; ``minority``: they answer no linearizable request; ``silent``: they answer nothing.
    """

    def __init__(self, connection: NatsConnection, namespace: str = "liftpy", node_ids: tuple[str, ...] = ("n1", "n2", "n3")):
        self._connection = connection
        self._subjects = Subjects(namespace)
        self.node_ids = node_ids
        self.streams: dict[str, FakeStream] = {}
        self.silent: set[str] = set()
        self.lagging: dict[str, int] = {}
        self.trimmed: dict[str, int] = {}
        self.own: dict[tuple[str, int, str], FakePartition] = {}
        self.damaged: dict[tuple[str, int, str], str] = {}
        self.asked: Counter[str] = Counter()
        self.measures = True
        self.files: dict[str, tuple[str, str, Log]] = {}
        self.waits = True
        self.partitions_known: dict[str, int] = {}
        self.controllers = "majority"
        self._polls: set[asyncio.Task[None]] = set()
        self._turn = 0

    def add_stream(self, name: str, uid: str = "", partitions: int = 1) -> FakeStream:
        """Make a stream, or make it again under another ``uid``."""
        self.streams[name] = FakeStream(name, uid or f"uid-{name}", [FakePartition() for _ in range(partitions)])
        return self.streams[name]

    async def start(self) -> None:
        """Subscribe, and return when the NATS server knows it."""
        namespace = self._subjects.namespace
        await self._connection.subscribe(self._subjects.info(), cb=self._on_control)
        await self._connection.subscribe(f"{namespace}.*.*.read", cb=self._on_read)
        await self._connection.subscribe(f"{namespace}.*.*.read.*", cb=self._on_read)
        await self._connection.flush()

    async def stop(self) -> None:
        """Stop and drop waiting requests."""
        polls = list(self._polls)
        for waiting in polls:
            waiting.cancel()
        await asyncio.gather(*polls, return_exceptions=True)

    async def _on_control(self, message: Msg) -> None:
        request = frames.decode(message.data, cluster_pb2.ControlRequest)
        description = describer(request)
        if description is None or self.controllers == "silent" or (request.linearizable and self.controllers == "minority"):
            return
        response = description(image_from_pb(self._image({} if request.linearizable else self.partitions_known)))
        response.operationId, response.metadataLeader = request.operationId, self.node_ids[0]
        if response.HasField("cluster"):
            response.cluster.metadataLeader = self.node_ids[0]
        await message.respond(frames.encode(response))

    def _add_files(self, own: tuple[str, str, Log], request: client_pb2.ReadRequest, head: client_pb2.ReadResponse) -> None:
        head.host, head.folder, log = own
        for span in spans_of(log, request.offset, request.rangeEnd):
            head.fileBases.append(span.base_offset)
            head.fileBegins.append(span.begin)
            head.fileEnds.append(span.end)

    def _image(self, partitions_known: dict[str, int]) -> cluster_pb2.Image:
        image = cluster_pb2.Image(index=1, nodes=[cluster_pb2.Node(nodeId=n, incarnation=1) for n in self.node_ids])
        for stream in self.streams.values():
            count = partitions_known.get(stream.name, len(stream.partitions))
            if not count:
                continue
            described = image.streams.add(name=stream.name, uid=stream.uid, subject=stream.name)
            for number, partition in enumerate(stream.partitions[:count]):
                described.config.compaction = partition.compacted
                described.partitions.add(
                    partition=number,
                    replicas=sorted(self.node_ids),
                    isr=self.node_ids,
                    leader=self.node_ids[0],
                    leaderEpoch=partition.leader_epoch,
                    epoch=1,
                    status=cluster_pb2.ONLINE,
                )
        return image

    async def _on_read(self, message: Msg) -> None:
        _, stream, partition, _, *named = message.subject.split(".")
        self._turn += 1
        node = named[0] if named else self.node_ids[self._turn % len(self.node_ids)]
        self.asked[node] += 1
        if node in self.silent:
            return
        request = frames.decode(message.data, client_pb2.ReadRequest)
        if request.boundsOnly and request.waitMs and self.waits:
            waiting = asyncio.create_task(self._tell_later(message, node, stream, int(partition), request), name="a long poll")
            self._polls.add(waiting)
            waiting.add_done_callback(self._polls.discard)
            return
        head, batches = self.answer(node, stream, int(partition), request)
        await message.respond(frames.read_response_header(head) + b"".join(batches))

    async def _tell_later(self, message: Msg, node: str, name: str, number: int, request: client_pb2.ReadRequest) -> None:
        """Answer when there are new records, or after the wait."""
        give_up_at = time.monotonic() + request.waitMs / 1000
        head, _ = self.answer(node, name, number, request)
        while head.error == _Error.OK and head.highWatermark < request.offset and time.monotonic() < give_up_at:
            await asyncio.sleep(_POLL_S)
            head, _ = self.answer(node, name, number, request)
        await message.respond(frames.read_response_header(head))

    def answer(
        self, node: str, name: str, number: int, request: client_pb2.ReadRequest
    ) -> tuple[client_pb2.ReadResponse, list[bytes]]:
        head = client_pb2.ReadResponse(node=node, leader=self.node_ids[0], nextOffset=request.offset)
        stream = self.streams.get(name)
        if stream is None or number >= len(stream.partitions):
            head.error = _Error.NO_SUCH_PARTITION
            return head, []
        partition = self.own.get((name, number, node), stream.partitions[number])
        high_watermark = min(partition.high_watermark, self.lagging.get(node, partition.high_watermark))
        head.streamUid, head.leaderEpoch, head.compacted = stream.uid, partition.leader_epoch, partition.compacted
        head.highWatermark = high_watermark
        head.compactedEnd, head.deletesEnd = partition.compacted_end, partition.deletes_end
        head.logStartOffset = max(partition.log_start_offset, self.trimmed.get(node, 0))
        if request.streamUid and request.streamUid != stream.uid:
            head.error = _Error.WRONG_STREAM
        elif high_watermark < request.minHighWatermark:
            head.error = _Error.NOT_READY
        elif request.lastEpoch and not partition.has_last(request):
            head.error, head.cutEndOffset = _Error.CUT, partition.cut_at(request)
        elif request.byTimestamp:
            head.nextOffset = partition.offset_at(request.timestamp)
        elif request.boundsOnly:
            head.endEpoch = partition.epoch_below(request.rangeEnd if request.HasField("rangeEnd") else high_watermark + 1)
            if (
                request.HasField("rangeEnd")
                and not head.logStartOffset <= request.offset <= request.rangeEnd <= high_watermark + 1
            ):
                head.error = _Error.OFFSET_OUT_OF_RANGE
            elif request.HasField("rangeEnd") and self.measures:
                partition.measure(request, head)
            if request.asksFiles and node in self.files:
                self._add_files(self.files[node], request, head)
        elif not head.logStartOffset <= request.offset <= high_watermark + 1:
            head.error = _Error.OFFSET_OUT_OF_RANGE
        elif (name, number, node) in self.damaged:
            head.error, head.detail = _Error.UNKNOWN, self.damaged.pop((name, number, node))
        else:
            end_offset = request.endOffset if request.HasField("endOffset") else None
            batches, head.nextOffset = partition.read(request.offset, request.maxBytes, end_offset, request.leftOut)
            wanted = filter_of(request)
            if wanted:
                head.selected, head.lookedEpoch = True, partition.leader_epoch
                batches = _selected(batches, wanted)
            return head, batches
        return head, []


def _selected(batches: list[bytes], wanted: Filter) -> list[bytes]:
    """Return the matching records of each batch."""
    whole = [parse_batch(memoryview(batch)) for batch in batches]
    return [keep_records(batch, mask) for batch in whole if (mask := wanted.mask(batch)).any()]


@contextmanager
def fake_node_in_thread(url: str, namespace: str = "liftpy") -> Iterator[FakeNode]:
    """Yield a FakeNode with its own thread, for tests that block, such as those with Spark."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fake-node", daemon=True)
    thread.start()

    def call(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    connection = call(open_connection(url, name="fake-node"))
    node = FakeNode(connection, namespace)
    try:
        call(node.start())
        yield node
    finally:
        call(connection.close())  # first, so that no request starts another long poll
        call(node.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
