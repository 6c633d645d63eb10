"""Answers read requests: which records, up to which offset, and which requests wait [R1, R4, R6, R7, R9]. Pure.

A committed read ends at this replica's high watermark, an uncommitted one (leader only) at its log end. A request with
``boundsOnly`` asks for the bounds of the log. Only a leader with a lease, whose high watermark has reached the start of
its epoch, returns the current bounds [D8]. Other nodes return the bounds that they know, and say that they do not lead.

A reader at the end may wait (long poll) until the next commit or its time limit. Waiting readers are limited by number
per partition and by bytes per node. A reader beyond the limit is answered at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from liftpy.config import NS_PER_S
from liftpy.core.base.ids import PartitionKey, quote
from liftpy.core.base.instruments import Instruments
from liftpy.core.log.log import READERS
from liftpy.core.log.range_reads import Portion, measure, read_narrow, read_portion, read_selected, spans_of
from liftpy.core.partition.shell import PartitionShell
from liftpy.core.replication.log_offsets import OffsetCheck, OffsetCheckResult
from liftpy.core.replication.phases import RoleName
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2 as pb
from liftpy.core.wire.batch import parse_header
from liftpy.core.wire.chunking import PartialBatch, room_bytes
from liftpy.core.wire.decode_errors import REFUSED, counter_name
from liftpy.core.wire.envelope import ChecksumError
from liftpy.core.wire.filters import LEAVABLE, MAX_FILTER_BYTES, MAX_KEYS, MAX_SUBJECTS, Filter
from liftpy.core.wire.frames import MisdirectedError, check_partition_address
from liftpy.errors import LiftError, OffsetOutOfRangeError, ProtocolError

MAX_WAIT_MS = 30_000
MAX_WAITING = 4096
"""Maximum number of waiting readers (long poll) of one partition."""
MAX_WAITING_BYTES = 32 << 20
"""Maximum memory of waiting readers of a node, with their reply subjects and Python objects, in bytes."""
MAX_REQUEST_BYTES = 2048 + MAX_FILTER_BYTES + 4 * (MAX_SUBJECTS + MAX_KEYS)
"""Maximum size of a ReadRequest with a stream, a uid and a filter. One of liftpy's clients has 150 bytes and its filter."""
WAITING_COST_BYTES = 1500
"""Memory of a waiting reader besides its request and its reply subject, in bytes. The value was measured."""
TOO_LARGE = f"{REFUSED}read request, too large"
NOT_WAITED = "reader_not_waited"
NOT_SERVED = "read_dropped"
FILE_OFFERS = "local_files_served"
_HEADER_ROOM_BYTES = 4096
_DEFAULT_BYTES = 1024 * 1024
_E = pb.ReadResponse

Chunks = Sequence[bytes | memoryview]
Asker = TypeVar("Asker")
"""Address of a reader: a reply subject, or its substitute in a simulation."""
GiveState = Callable[[int, int, int], tuple[int, int, int, bytes] | None]
"""Function that returns a piece of the deduplication state.

Arguments: end offset, position, maximum bytes. Result: end offset, total bytes, position and data of the piece. None: retry
later.
"""
_Told = TypeVar("_Told", contravariant=True)


def filter_of(request: pb.ReadRequest) -> Filter:
    """Return the filter of a read request. Raise ConfigError or InvalidNameError if it is invalid."""
    return Filter(tuple(request.filterSubjects), tuple(request.filterKeys))


def is_selective(request: pb.ReadRequest) -> bool:
    """Return whether the request has a filter, so that it selects only some of the records."""
    return bool(request.backwards or request.filterSubjects or request.filterKeys)


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """Location of a partition's files, for readers on the same host. ``host``: name of the host. ``folder``: path of the directory."""

    host: str
    folder: str


class ReplicaSource:
    """One partition as ``Reads`` sees it: its log, its offsets, and whether it may answer."""

    def __init__(self, partition: PartitionShell) -> None:
        self.log = partition.log
        self._replica = partition.replica
        self._partition = partition

    @property
    def compacted(self) -> bool:
        """True if records may be missing between two offsets, because of compaction."""
        return self.log.may_have_gaps

    @property
    def high_watermark(self) -> int:
        """Last offset that committed reads may see, inclusive."""
        return self._replica.high_watermark

    @property
    def leader_epoch(self) -> int:
        return self._replica.state.leader_epoch

    @property
    def leader(self) -> str:
        return self._replica.state.leader

    @property
    def leads(self) -> bool:
        """True if the metadata names this node as leader. The replica may not act as leader yet."""
        return self.leader == self._replica.node_id

    @property
    def may_serve(self) -> bool:
        """True if the replica may serve reads: its log works and agrees with the leader's log, and its HW is of this epoch [R7].

        It need not be an ISR member, so that services on a restarted node can read at once. A candidate also serves, up to its
        HW.
        """
        agrees = self._replica.may_serve_committed() or self._replica.role is RoleName.CANDIDATE
        return agrees and not self._partition.storage_failed

    def may_answer_latest(self, now_ns: int) -> bool:
        """Return whether the HW of this replica is certainly the latest one [D8]. If not, the reader must ask the leader."""
        return not self.leads or (self._partition.ingest.is_subscribed and self._replica.may_answer_latest(now_ns))

    def check_reader_offset(self, last_offset: int, last_epoch: int, now_ns: int) -> OffsetCheckResult:
        return self._replica.check_reader_offset(last_offset, last_epoch, now_ns)


class ReadShell(Protocol[_Told]):
    """Interface of the code around ``Reads``: it sends answers and runs timers."""

    @property
    def max_payload(self) -> int:
        """Maximum size of a message that NATS accepts now, in bytes."""

    def has_room_for(self, asker: _Told) -> bool:
        """Return whether one more answer probably reaches ``asker`` now."""

    def now_ns(self) -> int: ...

    def answer(self, asker: _Told, chunks: Chunks) -> None: ...

    def request_failed(self, asker: _Told, error: Exception) -> None: ...

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` once at ``at_ns`` or soon after. Return a function that cancels the call."""


@dataclass(frozen=True, slots=True)
class _WaitingReader(Generic[Asker]):
    asker: Asker
    request: pb.ReadRequest
    offset: int
    """First requested offset. The read gets its answer when the readable end passes this offset."""
    cancel: Callable[[], None]
    cost_bytes: int


@dataclass(slots=True)
class ReadBudget:
    """Memory budget for the waiting readers of all partitions of one node, in bytes."""

    max_bytes: int = MAX_WAITING_BYTES
    used_bytes: int = 0

    def try_reserve(self, cost_bytes: int) -> bool:
        if self.used_bytes + cost_bytes > self.max_bytes:
            return False
        self.used_bytes += cost_bytes
        return True


class Reads(Generic[Asker]):
    """Answers the read requests for one partition, from one replica."""

    __slots__ = (
        "_budget", "_counters", "_files", "_key", "_next_id", "_node_id", "_shell", "_source", "_times", "_waiting",
        "give_state", "record_count", "size_bytes",
    )  # fmt: skip

    def __init__(
        self,
        key: PartitionKey,
        node_id: str,
        source: ReplicaSource,
        shell: ReadShell[Asker],
        counters: Counter[str],
        budget: ReadBudget | None = None,
        instruments: Instruments | None = None,
        files: PartitionFiles | None = None,
    ) -> None:
        """Create the reads of the partition ``key`` on the node ``node_id``.

        Args:
            key: Partition.
            node_id: Id of this node.
            source: Replica of the partition.
            shell: Sends answers and runs timers.
            counters: Counters of the node, by reason.
            budget: Memory of all waiting readers of the node. None: a budget of its own.
            instruments: Metrics of the node. None: metrics of its own.
            files: Location of the files for readers on this host. None: the node does not offer them.
        """
        self._files = files
        self._times = (instruments or Instruments()).reads
        self.record_count = 0
        """Number of records sent to readers, including repeated ones."""
        self.size_bytes = 0
        """Size of the batches that were read, in bytes."""
        self._budget = budget or ReadBudget()
        self._key = key
        self._node_id = node_id
        self._source = source
        self._shell = shell
        self._counters = counters
        self._waiting: dict[int, _WaitingReader[Asker]] = {}
        self._next_id = 1
        self.give_state: GiveState | None = None
        """Function that returns pieces of the deduplication state. None: backups get no state."""

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def waiting_bytes(self) -> int:
        return sum(waiting.cost_bytes for waiting in self._waiting.values())

    def answer_request(self, frame: bytes | memoryview, asker: Asker) -> None:
        """Answer the read request ``frame`` exactly once, now or later.

        A damaged request gets no answer, because the answer could reach the wrong reader. ``asker``: destination of the answer.
        """
        if len(frame) > MAX_REQUEST_BYTES:
            self._counters[TOO_LARGE] += 1
            return
        try:
            request = frames.decode(frame, pb.ReadRequest)
            check_partition_address(request, self._key.partition, stream=self._key.stream)
        except ProtocolError as error:
            self._counters[counter_name(error)] += 1
            if not isinstance(error, ChecksumError | MisdirectedError):
                self.reject(asker, str(error))
            return
        if request.HasField("badOffset"):
            outcome = self._source.log.complaint(request.badOffset, READERS, self._shell.now_ns())
            self._counters[outcome.value] += 1
        self._answer(asker, request, may_wait=True)

    def reject(self, asker: Asker, text: str) -> None:
        """Reject a request of ``asker`` that cannot be decoded. ``text``: reason that the answer contains."""
        self._send(asker, pb.ReadRequest(), self._head(0, _E.BAD_REQUEST, text))

    def advanced(self) -> None:
        """Answer the waiting requests that new records allow, because the HW or the log end has risen."""
        if self._waiting:
            ends = (self._end_offset(pb.ReadRequest.COMMITTED), self._end_offset(pb.ReadRequest.UNCOMMITTED))
            for number, waiting in list(self._waiting.items()):
                if waiting.offset < ends[waiting.request.isolation]:
                    self._finish(number)

    def close(self) -> None:
        for number in list(self._waiting):
            waiting = self._leave(number)
            self._refuse(waiting.asker, waiting.request, _E.NO_SUCH_PARTITION, "this node is removing its replica")

    # ---- who waits -----------------------------------------------------------------------------------------------------
    def _may_wait(self, asker: Asker, request: pb.ReadRequest, offset: int) -> bool:
        """Let the request wait for records from ``offset`` on, until its own time limit. Return whether it waits.

        False: a limit for waiting requests is reached, and the caller answers at once.
        """
        cost_bytes = WAITING_COST_BYTES + request.ByteSize() + (len(asker) if isinstance(asker, str) else 0)
        if len(self._waiting) >= MAX_WAITING or not self._budget.try_reserve(cost_bytes):
            self._counters[NOT_WAITED] += 1
            return False
        number = self._next_id
        self._next_id += 1
        wait_ns = min(request.waitMs, MAX_WAIT_MS) * 1_000_000
        cancel = self._shell.call_at(self._shell.now_ns() + wait_ns, lambda: self._request_expired(number))
        self._waiting[number] = _WaitingReader(asker, request, offset, cancel, cost_bytes)
        return True

    def _leave(self, number: int) -> _WaitingReader[Asker]:
        waiting = self._waiting.pop(number)
        waiting.cancel()
        self._budget.used_bytes -= waiting.cost_bytes
        return waiting

    def _request_expired(self, number: int) -> None:
        if number in self._waiting:
            self._finish(number)

    def _finish(self, number: int) -> None:
        waiting = self._leave(number)
        self._answer(waiting.asker, waiting.request, may_wait=False)

    # ---- answers -------------------------------------------------------------------------------------------------------
    def _answer(self, asker: Asker, request: pb.ReadRequest, *, may_wait: bool) -> None:
        try:
            refusal = self._why_not(request)
            if refusal is not None:
                self._refuse(asker, request, *refusal)
            elif self._is_served_here(asker, request):
                self._serve(asker, request, may_wait)
        except OffsetOutOfRangeError as error:
            self._refuse(asker, request, _E.OFFSET_OUT_OF_RANGE, str(error))
        except LiftError as error:
            self._counters["read_failed"] += 1
            self._refuse(asker, request, _E.UNKNOWN, f"{error.code}: {error}")
        except Exception as error:  # in a commit or a timer it would end the node: it concerns this request alone [A15]
            self._shell.request_failed(asker, error)

    def _why_not(self, request: pb.ReadRequest) -> tuple[int, str] | None:
        source = self._source
        if request.streamUid and request.streamUid != self._key.uid:
            return _E.WRONG_STREAM, f"the stream of this name is {self._key.uid}, not {quote(request.streamUid)}"
        try:
            filter_of(request)
        except LiftError as error:
            return _E.BAD_REQUEST, str(error)
        if request.isolation not in (pb.ReadRequest.COMMITTED, pb.ReadRequest.UNCOMMITTED):
            return _E.BAD_REQUEST, f"isolation {request.isolation} is not known"
        if request.isolation == pb.ReadRequest.UNCOMMITTED and not source.leads:
            return _E.NOT_LEADER, "uncommitted records are read from the leader"
        if not source.may_serve:
            return _E.NOT_READY, "this replica is not in sync yet"
        if request.boundsOnly and not source.may_answer_latest(self._shell.now_ns()):
            return _E.NOT_READY, "the new leader's HW has not reached its epoch's start yet"
        return None

    def _is_served_here(self, asker: Asker, request: pb.ReadRequest) -> bool:
        """Return whether this replica can serve the reader. If not, reject the request.

        The last record that the reader has read must be in this log [R6]. This replica's HW must not be below the HW that the
        reader knows.
        """
        source = self._source
        if request.lastEpoch:
            offset_check = source.check_reader_offset(request.lastOffset, request.lastEpoch, self._shell.now_ns())
            if offset_check.outcome is not OffsetCheck.SAME:
                cut = offset_check.outcome is OffsetCheck.CUT
                detail = f"(offset {request.lastOffset}, LeaderEpoch {request.lastEpoch}) is not on this log"
                head = self._head(0, _E.CUT if cut else _E.NOT_READY, detail)
                head.cutEndOffset = offset_check.end_offset
                self._counters["reader_of_lost_records"] += cut
                self._send(asker, request, head)
                return False
        if source.high_watermark < request.minHighWatermark:
            self._refuse(
                asker,
                request,
                _E.NOT_READY,
                f"the high watermark is {source.high_watermark}, below the requested {request.minHighWatermark}",
            )
            return False
        return True

    def _serve(self, asker: Asker, request: pb.ReadRequest, may_wait: bool) -> None:
        log = self._source.log
        end_offset = self._end_offset(request.isolation)
        offset = log.offset_for_timestamp(request.timestamp) if request.byTimestamp else request.offset
        if request.byTimestamp:
            offset = min(offset, end_offset)
        if request.boundsOnly:
            waits = may_wait and request.waitMs and offset >= end_offset and not request.HasField("rangeEnd")
            if not (waits and not request.byTimestamp and self._may_wait(asker, request, offset)):
                self._answer_bounds(asker, request, self._head(offset))
        elif offset < log.log_start_offset or offset > end_offset:
            bounds = f"{log.log_start_offset} to {end_offset}"
            self._refuse(asker, request, _E.OFFSET_OUT_OF_RANGE, f"offset {offset} is outside {bounds}")
        elif request.backwards or offset < end_offset:
            self._serve_batches(asker, request, offset, end_offset)
        elif not (may_wait and request.waitMs and self._may_wait(asker, request, offset)):
            self._send(asker, request, self._head(offset))

    def _answer_bounds(self, asker: Asker, request: pb.ReadRequest, head: pb.ReadResponse) -> None:
        """Answer a request for the bounds of the partition, or for the size of a range of offsets.

        A range must be completely in the log and committed, otherwise the request is rejected. ``head``: answer that the method
        completes.
        """
        log, committed_end = self._source.log, self._source.high_watermark + 1
        end = request.rangeEnd if request.HasField("rangeEnd") else committed_end
        if request.HasField("rangeEnd"):
            if not log.log_start_offset <= request.offset <= end <= committed_end:
                bounds = f"{log.log_start_offset} to {committed_end}"
                self._refuse(
                    asker, request, _E.OFFSET_OUT_OF_RANGE, f"the range [{request.offset}, {end}) is not within {bounds}"
                )
                return
            size = measure(log, request.offset, end, every_bytes=request.borderBytes, every_records=request.borderRecords)
            head.rangeBytes, head.beforeEpoch = size.size_bytes, self._epoch_below(request.offset)
            head.borders.extend(size.borders)
            head.borderPositions.extend(size.positions)
            if request.asksFiles and self._files is not None:
                self._add_files(request, self._files, head)
        if request.asksState and self.give_state is not None:
            self._add_state(request, self.give_state, head)
        head.endEpoch = self._epoch_below(end)
        self._send(asker, request, head)

    def _add_state(self, request: pb.ReadRequest, give_state: GiveState, head: pb.ReadResponse) -> None:
        """Add to the answer ``head`` a piece of the state of producers and message ids.

        The state includes producers and message ids of deleted records [A16].

        ``give_state``: function that returns the piece.
        """
        room = max(1, self._shell.max_payload - _HEADER_ROOM_BYTES)
        piece = give_state(request.stateEnd, request.statePosition, room)
        head.stateLater, head.stateBytes = piece is None, 0
        if piece is not None:
            head.stateEnd, head.stateBytes, head.statePosition, head.stateData = piece

    def _add_files(self, request: pb.ReadRequest, files: PartitionFiles, head: pb.ReadResponse) -> None:
        self._counters[FILE_OFFERS] += 1
        head.host, head.folder = files.host, files.folder
        for span in spans_of(self._source.log, request.offset, request.rangeEnd):
            head.fileBases.append(span.base_offset)
            head.fileBegins.append(span.begin)
            head.fileEnds.append(span.end)

    def _epoch_below(self, offset: int) -> int:
        """Return the LeaderEpoch of the record before ``offset``. 0: it is not known."""
        log = self._source.log
        return log.epochs.epoch_at(offset - 1) if offset > log.log_start_offset else log.epochs.before_start

    def _serve_batches(self, asker: Asker, request: pb.ReadRequest, offset: int, end_offset: int) -> None:
        if not self._shell.has_room_for(asker):  # a flood of reads must not cost a look into the log for each
            self._counters[NOT_SERVED] += 1
            return
        began_ns = self._shell.now_ns()
        wanted = request.maxBytes or _DEFAULT_BYTES
        max_payload = self._shell.max_payload
        room = room_bytes(max_payload, min(_HEADER_ROOM_BYTES, max_payload // 4), wanted)
        partial = PartialBatch(request.position, request.batchCrc)
        read = self._read_portion(request, offset, wanted, room, end_offset, partial)
        head, piece = self._head(read.next_offset), read.piece
        head.lookedBytes = read.scanned_bytes
        if is_selective(request) and read.next_offset != offset:
            head.lookedEpoch = self._source.log.epochs.epoch_at(read.next_offset - (not request.backwards))
        if piece is not None and not request.HasField("position"):
            text = f"the batch at offset {offset} has {piece.total_bytes} bytes, more than one message of this NATS server's: "
            self._refuse(
                asker, request, _E.UNKNOWN, f"{text}Upgrade the client to a version that reads large batches in parts."
            )
            return
        if piece is not None:
            head.pieceTotal, head.piecePosition, head.pieceCrc = piece.total_bytes, piece.position, piece.crc
            self._counters["batch_chunks_sent"] += 1
        elif request.byTimestamp and read.chunks:
            head.firstTimestamp = parse_header(read.chunks[0]).timestamp_ns
        self._send(asker, request, head, read.chunks)
        self.record_count += _records_in(read, offset, is_whole=not is_selective(request) and not self._source.compacted)
        self.size_bytes += read.size_bytes
        self._times.observe((self._shell.now_ns() - began_ns) / NS_PER_S)

    def _read_portion(
        self, request: pb.ReadRequest, offset: int, max_bytes: int, room: int, end_offset: int, partial: PartialBatch
    ) -> Portion:
        log = self._source.log
        if not is_selective(request):
            if request.HasField("endOffset"):
                end_offset = min(end_offset, request.endOffset)
            left_out = request.leftOut & LEAVABLE
            if left_out:
                return read_narrow(log, left_out, offset, max_bytes, room, end_offset=end_offset, held=partial)
            return read_portion(log, offset, max_bytes, room, end_offset=end_offset, held=partial)
        wanted, backwards = filter_of(request), request.backwards
        return read_selected(log, wanted, offset, max_bytes, room, end_offset=end_offset, backwards=backwards, held=partial)

    def _end_offset(self, isolation: int) -> int:
        if isolation == pb.ReadRequest.UNCOMMITTED:
            return self._source.log.log_end_offset
        return self._source.high_watermark + 1

    def _head(self, next_offset: int, error: int = _E.OK, detail: str = "") -> pb.ReadResponse:
        source = self._source
        return pb.ReadResponse(
            error=error,  # type: ignore[arg-type]
            detail=detail,
            streamUid=self._key.uid,
            node=self._node_id,
            leaderEpoch=source.leader_epoch,
            highWatermark=source.high_watermark,
            logStartOffset=source.log.log_start_offset,
            nextOffset=next_offset,
            compacted=source.compacted,
            leader=source.leader,
            compactedEnd=source.log.horizon.end_offset,
            deletesEnd=source.log.horizon.deletes_end,
        )

    def _refuse(self, asker: Asker, request: pb.ReadRequest, error: int, detail: str) -> None:
        self._send(asker, request, self._head(0, error, detail))

    def _send(self, asker: Asker, request: pb.ReadRequest, head: pb.ReadResponse, batches: Chunks = ()) -> None:
        if request.HasField("partition"):
            head.stream, head.partition, head.requestId = self._key.stream, self._key.partition, request.requestId
        head.selected = is_selective(request)
        self._shell.answer(asker, (frames.read_response_header(head, batches), *batches))


def _records_in(read: Portion, offset: int, *, is_whole: bool) -> int:
    """Return the number of records in an answer that begins at ``offset``, for the metrics.

    ``is_whole``: True if the answer has all records from ``offset`` on. A batch in pieces counts when its first piece is sent.
    """
    if read.piece is not None:
        return 0 if read.piece.position else parse_header(read.chunks[0]).record_count
    if is_whole:
        return max(read.next_offset - offset, 0)
    count = 0
    for chunk in read.chunks:
        position = 0
        while position < len(chunk):
            header = parse_header(chunk, position)
            count, position = count + header.record_count, position + header.size_bytes
    return count
