"""Reads: ReadRequest on ``.read`` (any replica of the ISR, a queue group) and ``.read.<node>`` (this one) [R1, R6, R7, R9].

A committed read goes up to this replica's HW, an uncommitted one (leader only) to its log end. A reader at the end may wait
(long poll): it is answered by the next commit or when its time is over, whichever comes first. Waiting readers are bounded;
one too many is answered at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from liftpy.errors import LiftError, OffsetOutOfRangeError, ProtocolError
from liftpy.ids import PartitionKey
from liftpy.log.log import Log
from liftpy.log.pieces import read_portion
from liftpy.log.rechecks import READERS
from liftpy.replica.lineage import Judgement, Lineage
from liftpy.wire import frames
from liftpy.wire._pb import client_pb2 as pb
from liftpy.wire.batch import parse_header
from liftpy.wire.inboxes import InboxRule
from liftpy.wire.pieces import Held, room_bytes
from liftpy.wire.subjects import Subjects
from sidecar import clock
from sidecar.bus.connection import BusConnection, Listener
from sidecar.timers import Timer, Timers

MAX_WAIT_MS = 30_000
MAX_WAITING = 4096
_HEADER_ROOM_BYTES = 4096
_DEFAULT_BYTES = 1024 * 1024
_E = pb.ReadResponse


class ReadSource(Protocol):
    """What a read needs to know of its replica."""

    log: Log
    compacted: bool

    @property
    def high_watermark(self) -> int:
        """Inclusive: up to where reads may see."""

    @property
    def leader_epoch(self) -> int:
        """In which the replica leads or follows."""

    @property
    def leader(self) -> str:
        """The partition's leader, '' when there is none."""

    @property
    def leads(self) -> bool:
        """Whether this replica is the leader."""

    @property
    def may_answer_latest(self) -> bool:
        """Whether its HW may be told as the partition's latest [D8]."""

    @property
    def may_serve_reads(self) -> bool:
        """Whether its log agrees with its leader's and its HW is one of the current epoch [R7]."""

    def judge_reader(self, last_offset: int, last_epoch: int) -> Judgement:
        """Whether a reader's last record lies on this log [R6]."""


@dataclass(slots=True)
class _Waiting:
    reply: str
    request: pb.ReadRequest
    offset: int
    """First offset that is wanted; answered when the end passes it."""
    timer: Timer


class ReadService:
    """Reads of one partition on one node."""

    def __init__(
        self,
        bus: BusConnection,
        subjects: Subjects,
        key: PartitionKey,
        node_id: str,
        source: ReadSource,
        inboxes: InboxRule,
        timers: Timers,
        counters: Counter[str],
    ) -> None:
        self._bus = bus
        self._key = key
        self._node_id = node_id
        self._source = source
        self._inboxes = inboxes
        self._timers = timers
        self._counters = counters
        self._shared_subject = subjects.read(key.stream, key.partition)
        self._own = bus.listen(subjects.read_from(key.stream, key.partition, node_id), self._arrived)
        self._shared: Listener | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._next_id = 1

    @property
    def waiting_count(self) -> int:
        """Readers in a long poll."""
        return len(self._waiting)

    def share(self, wanted: bool) -> None:
        """Join or leave the queue group of the replicas that answer anybody's reads."""
        if wanted and self._shared is None:
            self._shared = self._bus.listen(self._shared_subject, self._arrived, queue=self._shared_subject)
        elif not wanted and self._shared is not None:
            self._shared.close()
            self._shared = None

    def close(self) -> None:
        """Stop listening and answer everybody who waits: not here any more."""
        self.share(False)
        self._own.close()
        for number in list(self._waiting):
            waiting = self._waiting.pop(number)
            self._timers.cancel(waiting.timer)
            self._refuse(waiting.reply, _E.NO_SUCH_PARTITION, "this node gives the partition up")

    def advanced(self) -> None:
        """HW or log end has moved, or readiness has changed: answer those who waited for it."""
        if self._waiting:
            ends = (self._end_offset(pb.ReadRequest.COMMITTED), self._end_offset(pb.ReadRequest.UNCOMMITTED))
            for number, waiting in list(self._waiting.items()):
                if waiting.offset < ends[waiting.request.isolation]:
                    self._finish(number)

    def _expired(self, number: int) -> None:
        if number in self._waiting:
            self._finish(number)

    def _finish(self, number: int) -> None:
        waiting = self._waiting.pop(number)
        self._timers.cancel(waiting.timer)
        self._answer(waiting.reply, waiting.request, may_wait=False)

    def _arrived(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        if not self._inboxes.allows(reply):
            self._counters["reply refused"] += 1
            return
        inbox = reply.decode()
        try:
            request = frames.decode(payload, pb.ReadRequest)
        except ProtocolError as error:
            self._counters["bad frame"] += 1
            self._refuse(inbox, _E.BAD_REQUEST, str(error))
            return
        if request.HasField("badOffset"):
            outcome = self._source.log.complaint(request.badOffset, READERS, clock.now_ns())
            self._counters[outcome.value] += 1
        self._answer(inbox, request, may_wait=True)

    def _answer(self, reply: str, request: pb.ReadRequest, *, may_wait: bool) -> None:
        try:
            refusal = self._why_not(request)
            if refusal is not None:
                self._refuse(reply, *refusal)
            elif self._is_served_here(reply, request):
                self._serve(reply, request, may_wait)
        except OffsetOutOfRangeError as error:
            self._refuse(reply, _E.OFFSET_OUT_OF_RANGE, str(error))
        except LiftError as error:
            self._counters["failed reads"] += 1
            self._refuse(reply, _E.UNKNOWN, f"{error.code}: {error}")

    def _why_not(self, request: pb.ReadRequest) -> tuple[int, str] | None:
        source = self._source
        if request.streamUid and request.streamUid != self._key.uid:
            return _E.WRONG_STREAM, f"the stream of this name is {self._key.uid}, not {request.streamUid}"
        if request.isolation not in (pb.ReadRequest.COMMITTED, pb.ReadRequest.UNCOMMITTED):
            return _E.BAD_REQUEST, f"isolation {request.isolation} is not known"
        if request.isolation == pb.ReadRequest.UNCOMMITTED and not source.leads:
            return _E.NOT_LEADER, "uncommitted records are read from the leader"
        if not source.may_serve_reads:
            return _E.NOT_READY, "this replica is not in sync yet"
        if request.boundsOnly and not source.may_answer_latest:
            return _E.NOT_READY, "the new leader's HW has not reached its epoch's start yet"
        return None

    def _is_served_here(self, reply: str, request: pb.ReadRequest) -> bool:
        """Whether what was read before lies on this log [R6], and what is committed here reaches as far as the reader knows."""
        source = self._source
        if request.lastEpoch:
            judgement = source.judge_reader(request.lastOffset, request.lastEpoch)
            if judgement.lineage is not Lineage.SAME:
                cut = judgement.lineage is Lineage.CUT
                detail = f"(offset {request.lastOffset}, LeaderEpoch {request.lastEpoch}) is not on this log"
                head = self._head(0, _E.CUT if cut else _E.NOT_READY, detail)
                head.cutEndOffset = judgement.end_offset
                self._counters["readers of lost records"] += cut
                self._send(reply, head, ())
                return False
        if source.high_watermark < request.minHighWatermark:
            self._refuse(reply, _E.NOT_READY, f"HW is {source.high_watermark}, below {request.minHighWatermark}")
            return False
        return True

    def _serve(self, reply: str, request: pb.ReadRequest, may_wait: bool) -> None:
        log = self._source.log
        end_offset = self._end_offset(request.isolation)
        offset = log.offset_for_timestamp(request.timestamp) if request.byTimestamp else request.offset
        if request.byTimestamp:
            offset = min(offset, end_offset)
        if request.boundsOnly:
            self._send(reply, self._head(offset), ())
            return
        if offset < log.log_start_offset or offset > end_offset:
            bounds = f"{log.log_start_offset} to {end_offset}"
            self._refuse(reply, _E.OFFSET_OUT_OF_RANGE, f"offset {offset} is outside {bounds}")
            return
        if offset == end_offset:
            if may_wait and request.waitMs and len(self._waiting) < MAX_WAITING:
                self._wait(reply, request, offset)
            else:
                self._send(reply, self._head(offset), ())
            return
        wanted = request.maxBytes or _DEFAULT_BYTES
        room = room_bytes(self._bus.max_payload, min(_HEADER_ROOM_BYTES, self._bus.max_payload // 4), wanted)
        held = Held(request.position, request.batchCrc)
        read = read_portion(log, offset, wanted, room, end_offset=end_offset, held=held)
        head = self._head(read.next_offset)
        if read.piece is not None and not request.HasField("position"):
            text = f"the batch at offset {offset} has {read.piece.total_bytes} bytes, more than one message of this NATS server's: "
            self._refuse(reply, _E.UNKNOWN, f"{text}upgrade the reader to a version that takes pieces")
            return
        if read.piece is not None:
            head.pieceTotal, head.piecePosition, head.pieceCrc = read.piece.total_bytes, read.piece.position, read.piece.crc
            self._counters["pieces of batches sent"] += 1
        elif request.byTimestamp and read.chunks:
            head.firstTimestamp = parse_header(read.chunks[0]).timestamp_ns
        self._send(reply, head, read.chunks)

    def _wait(self, reply: str, request: pb.ReadRequest, offset: int) -> None:
        number = self._next_id
        self._next_id += 1
        timer = Timer(lambda: self._expired(number))
        self._waiting[number] = _Waiting(reply, request, offset, timer)
        wait_ns = min(request.waitMs, MAX_WAIT_MS) * 1_000_000
        self._timers.set(timer, clock.now_ns() + wait_ns)

    def _end_offset(self, isolation: int) -> int:
        """Exclusive end of what a reader of ``isolation`` may see."""
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
        )

    def _refuse(self, reply: str, error: int, detail: str) -> None:
        self._send(reply, self._head(0, error, detail), ())

    def _send(self, reply: str, head: pb.ReadResponse, batches: object) -> None:
        self._bus.send(reply, (frames.read_response_header(head), *batches))  # type: ignore[misc]
