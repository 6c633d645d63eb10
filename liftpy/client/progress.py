"""Progress of a reader in one partition: builds the next request and checks the answers. Pure.

``ReadProgress`` checks the CRC of each batch once, and keeps these invariants:

- R1: no record above the high watermark (HW) is delivered.
- R2: records are delivered in order, without gaps and duplicates.
- R6: records that were read are still in the log.
- R9: a stream with another uid is another stream.

It takes the bytes of an answer and returns checked slices of batches, or raises an error. A retryable error means that
another replica may have a better answer.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from liftpy.client.batch_view import BatchSlice
from liftpy.client.positions import Bounds, out_of_range
from liftpy.core.base.ids import is_name
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import MAX_BATCH_BYTES, RecordBatch, split_batches
from liftpy.core.wire.chunking import Assembly
from liftpy.core.wire.filters import NOTHING_LEFT_OUT, Filter
from liftpy.core.wire.frames import check_partition_address
from liftpy.errors import (
    DamagedBatchError,
    LiftError,
    LogTruncatedError,
    NotFoundError,
    OffsetOutOfRangeError,
    ProtocolError,
    TombstonesMissedError,
    UnavailableError,
)

MAX_DECOMPRESSED_BYTES = MAX_BATCH_BYTES
"""Maximum decompressed size of the batches taken from one answer, in bytes. One batch is always taken."""
_MOST_BEHIND = 8
"""Number of consecutive answers with a lower HW after which the reader no longer trusts the highest HW that it has seen."""
_Error = client_pb2.ReadResponse.Error
_Isolation = client_pb2.ReadRequest.Isolation
FINAL = (NotFoundError, OffsetOutOfRangeError, LogTruncatedError, TombstonesMissedError)
"""Errors that end a reader, whichever replica reports them. ``ErrorConfirmation`` asks a second replica first."""


class NotServedError(UnavailableError):
    """This replica does not serve the range now. The reader retries, and may ask another replica.

    ``leader``: the leader that the replica named, '' if unknown.
    """

    code = "NOT_SERVED"

    def __init__(self, text: str, leader: str = "", high_watermark: int = -1) -> None:
        super().__init__(text)
        self.leader = leader
        self.high_watermark = high_watermark


class ErrorConfirmation:
    """Requires that a second node, or the leader, confirms an error that would end a reader.

    So a single wrong answer cannot end a reader.
    """

    def __init__(self) -> None:
        self._last_error: type[LiftError] | None = None

    def ask_again(self, error: LiftError, leader: str) -> NotServedError:
        """Return a retryable error at the first report of ``error``. Raise ``error`` itself at the second report."""
        if type(error) is self._last_error:
            raise error
        self._last_error = type(error)
        return NotServedError(f"The client asks a second node. The first answer was: {error}", leader)


@dataclass(slots=True)
class ReadProgress:
    """State of one reader in one partition.

    Attributes:
        next_offset: First offset that was not delivered yet, inclusive.
        end_offset: Offset to stop before, exclusive. None: never stop.
        uid: Uid of the stream. If it is empty, the first answer sets it.
        high_watermark: Highest high watermark that an answer contained, inclusive.
        floor_high_watermark: A replica with a lower high watermark must not answer. It is the end of a planned range
            [R5].
        last_offset: Offset of the last delivered record.
        leader_epoch: LeaderEpoch of the last delivered record. 0: none. LeaderEpochs never fall along a log [D14].
        node: Node that answered last.
        node_epoch: Highest LeaderEpoch of an answer. No record up to ``high_watermark`` has a higher one.
    """

    stream: str
    partition: int
    next_offset: int
    end_offset: int | None = None
    uid: str = ""
    floor_high_watermark: int = -1
    high_watermark: int = -1
    last_offset: int = -1
    leader_epoch: int = 0
    node: str = ""
    node_epoch: int = 0
    wanted: Filter = NOTHING_LEFT_OUT
    """Filter of subjects and keys. Nodes do not send records that do not match, and the position moves past them."""
    left_out: int = 0
    """Bit set of the columns that the reader does not need (``liftpy.core.wire.filters``)."""
    scanned_bytes: int = field(init=False, default=0)
    """Size in the log of the batches that the last answer covers, in bytes. 0 if the node sent the batches as stored."""
    committed: bool = True
    """True if only committed records are read. False: the leader sends uncommitted records, too, which may be lost."""
    moves_end: bool = False
    """True if ``end_offset`` moves up to the offset below which the answering replica has compacted its log [R11].

    Compaction may delete a record in the range because a later record has the same key. The later record must then be
    read, too. If False, the reader gets exactly the requested range.
    """
    compacted_end: int = field(init=False, default=0)
    """Highest offset (exclusive) below which an answering replica had compacted. A reader that reaches it misses no key."""
    tombstones: tuple[str, int] | None = None
    """Node of the last answer, and the offset below which its log may lack tombstones. None: no node has answered."""
    refuses_missed_tombstones: bool = False
    """True if ``accept`` raises TombstonesMissedError. With ``moves_end`` it always does."""
    missed_tombstones: bool = field(init=False, default=False)
    """True if compaction deleted tombstones before the reader reached them, and the reader had read older records.

    Deleted keys then still seem to have a value. With ``moves_end`` or ``refuses_missed_tombstones``, ``accept`` raises
    TombstonesMissedError instead [R12].
    """
    compacted: bool = False
    """True if an earlier answer has said that the stream is compacted.

    A single answer is not enough: a wrong one would make the reader skip offsets.
    """
    assembly: Assembly = field(init=False, default_factory=Assembly)
    """Incomplete batch at ``next_offset``, if it needs several messages. Any replica may send the next one."""
    suspect: tuple[str, int] | None = None
    """Node that last sent damaged bytes, and their offset. None: no node. The reader reports the damage to it [S14]."""
    leader: str = field(init=False, default="")
    """Leader that the last answer names. '': none, or not known."""
    _request_id: int = field(init=False, default=0)
    _behind_count: int = field(init=False, default=0)
    """Number of consecutive answers without records whose high watermark is below ``high_watermark``."""

    @property
    def done(self) -> bool:
        return self.end_offset is not None and self.next_offset >= self.end_offset

    def request(self, max_bytes: int, wait_ms: int, request_id: int = 0) -> client_pb2.ReadRequest:
        """Return the next read request. A replica that lacks records which this reader has must not answer it."""
        partial = self.assembly.held
        self._request_id = request_id
        return client_pb2.ReadRequest(
            stream=self.stream,
            partition=self.partition,
            requestId=request_id,
            position=partial.position,
            batchCrc=partial.crc,
            offset=self.next_offset,
            maxBytes=max_bytes,
            waitMs=wait_ms,
            streamUid=self.uid,
            isolation=_Isolation.COMMITTED if self.committed else _Isolation.UNCOMMITTED,
            minHighWatermark=max(self.next_offset - 1, self.floor_high_watermark) if self.committed else -1,
            lastOffset=self.last_offset,
            lastEpoch=self.leader_epoch,
            filterSubjects=self.wanted.subjects,
            filterKeys=self.wanted.keys,
            leftOut=self.left_out,
        )

    def expect(self, request_id: int) -> None:
        """Let ``accept`` take the answer to the request ``request_id``, instead of the answer to the newest request."""
        self._request_id = request_id

    def accept(self, answer: bytes | memoryview) -> list[BatchSlice]:
        """Check the answer of a replica, advance the position, and return the new slices.

        If the answer is not acceptable, a LiftError is raised and the position stays. The result is empty while a large batch arrives
        in pieces. The next request gets the next piece.
        """
        head, body = self._checked(answer)
        check_head(head, self.uid, self.stream, self.partition, self.next_offset)
        self.scanned_bytes = head.lookedBytes
        self._learn_compaction(head)
        if not head.compacted:
            self.compacted = False
        batches = whole_batches(self.assembly, head, body)
        if batches is None:
            self._answered_by(head)
            return []
        slices: list[BatchSlice] = []
        position, epoch, last_offset = self.next_offset, self.leader_epoch, self.last_offset
        size_bytes = 0
        is_complete = True
        for batch in self._split(batches, head.node):
            if batch.next_offset <= position:
                continue
            size_bytes += batch.header.body_size_bytes
            if size_bytes > MAX_DECOMPRESSED_BYTES and position > self.next_offset:
                is_complete = False  # the next request asks for the rest
                break
            self._check_batch(batch, position, epoch, head)
            wanted = BatchSlice.between(batch, position, self.end_offset)
            if wanted:
                slices.append(wanted)
            position, epoch, last_offset = batch.next_offset, batch.leader_epoch, batch.last_offset
        scanned_offset = head.nextOffset - 1 if self.wanted and is_complete and not head.pieceTotal else -1
        if (
            scanned_offset > last_offset
            and head.lookedEpoch >= epoch
            and (scanned_offset <= head.highWatermark or not self.committed)
        ):
            position, epoch, last_offset = scanned_offset + 1, head.lookedEpoch, scanned_offset
        self._move(head, position, epoch, is_complete)
        self.last_offset = last_offset
        return slices

    def _checked(self, answer: bytes | memoryview) -> tuple[client_pb2.ReadResponse, memoryview]:
        """Return (header, body) of an answer to the newest request. Raise ProtocolError if it contradicts the request."""
        place, last = (self.stream, self.partition), (self.last_offset, self.leader_epoch)
        head, body = decode_answer(answer, place, self._request_id, self.uid, last)
        self.leader = head.leader
        return head, body

    def learn_compacted(self, compacted_end: int) -> None:
        """Store that the log below the offset ``compacted_end`` (exclusive) was compacted when earlier records were read.

        If the read has a moving end, it then ends there at the earliest.
        """
        self.compacted_end = max(self.compacted_end, compacted_end)
        if self.moves_end and self.end_offset is not None:
            self.end_offset = max(self.end_offset, self.compacted_end)

    def _learn_compaction(self, head: client_pb2.ReadResponse) -> None:
        """Store how far the answering replica has compacted its log, from the header of its answer.

        Raises TombstonesMissedError if it has removed tombstones that this read did not reach, and that the read needs.
        """
        known = head.deletesEnd
        # another replica may lack tombstones of older records that were read from the one before
        if self.tombstones is not None:
            known = self.tombstones[1] if self.tombstones[0] == head.node else 0
        if head.deletesEnd > max(known, self.next_offset):
            if self.moves_end or self.refuses_missed_tombstones:
                raise TombstonesMissedError(
                    f"Cannot read all keys of {self.stream}/{self.partition}: compaction on {head.node or 'a replica'} dropped "
                    f"tombstones below offset {head.deletesEnd} before this read reached them at offset {self.next_offset}. Deleted "
                    "keys would look alive. Read again from the start. If it happens again, raise delete_retention_s of the stream."
                )
            self.missed_tombstones = True
        self.learn_compacted(head.compactedEnd)
        self.tombstones = head.node, head.deletesEnd

    def _split(self, body: memoryview, node: str) -> list[RecordBatch]:
        try:
            return split_batches(body)
        except DamagedBatchError as error:
            self.suspect = (node, max(error.offset, self.next_offset))
            raise

    def complaint(self) -> client_pb2.ReadRequest | None:
        """Return a request that reports damaged records to the node that sent them, once per damage.

        None: no node has sent damaged records. The request reads no records.
        """
        suspect, self.suspect = self.suspect, None
        if suspect is None:
            return None
        return client_pb2.ReadRequest(boundsOnly=True, streamUid=self.uid, minHighWatermark=-1, badOffset=suspect[1])

    def _check_batch(self, batch: RecordBatch, position: int, epoch: int, head: client_pb2.ReadResponse) -> None:
        where = f"{self.stream}/{self.partition} from {head.node}"
        if batch.base_offset > position and not self.wanted:
            if not head.compacted:
                self.suspect = (head.node, position)  # a batch with a wrong header has another offset
                raise ProtocolError(
                    f"{where}: gap in the answer: requested offset {position}, received {batch.base_offset}. Read again. "
                    "If this repeats, run `liftpy spark audit`."
                )
            self._may_skip(head)
        if batch.last_offset > head.highWatermark and self.committed:
            raise ProtocolError(
                f"{where}: offset {batch.last_offset} is above the high watermark {head.highWatermark}. Read again. "
                "If this repeats, run `liftpy spark audit`."
            )
        if batch.leader_epoch < epoch:
            raise ProtocolError(
                f"{where}: LeaderEpoch {batch.leader_epoch} at offset {batch.base_offset} follows the higher epoch "
                f"{epoch}. Read again. If this repeats, run `liftpy spark audit`."
            )

    def _move(self, head: client_pb2.ReadResponse, position: int, epoch: int, is_complete: bool) -> None:
        if head.compacted and is_complete:  # compaction may have removed the last requested records
            behind = min(head.nextOffset, head.highWatermark + 1)
            if behind > position:
                self._may_skip(head)
                position = behind
        committed = max(head.highWatermark, self.high_watermark)
        if position == self.next_offset and committed >= position and not self.done:
            self._behind_count += head.highWatermark < position
            if self._behind_count < _MOST_BEHIND:
                text = f"Node {head.node} returned nothing at offset {position}, although offset {committed} is committed."
                raise NotServedError(f"{text} The client asks another node.", head.leader)
            self.high_watermark = head.highWatermark
        self._behind_count = 0
        self.next_offset = position if self.end_offset is None else min(position, self.end_offset)
        self.leader_epoch = epoch
        self._answered_by(head)

    def _may_skip(self, head: client_pb2.ReadResponse) -> None:
        """Check whether the reader may skip offsets for which the answer has no records, because the stream is compacted.

        The first answer of this kind raises NotServedError, so that another replica or the leader must confirm it.
        """
        if self.compacted:
            return
        self.compacted = True
        text = f"{head.node} says that {self.stream}/{self.partition} is compacted, and leaves offsets out"
        raise NotServedError(f"The client asks a second node. The first answer was: {text}", head.leader)

    def _answered_by(self, head: client_pb2.ReadResponse) -> None:
        self.uid = self.uid or head.streamUid
        self.node, self.node_epoch = head.node, max(self.node_epoch, head.leaderEpoch)
        self.high_watermark = max(self.high_watermark, head.highWatermark)


def whole_batches(assembly: Assembly, head: client_pb2.ReadResponse, body: memoryview) -> memoryview | None:
    """Return the batches in the body of an answer. None: it is a piece of a large batch, and ``assembly`` waits for the next one."""
    piece = frames.piece_in(head, body)
    batches = body if piece is None else assembly.add_piece(piece)
    if batches is not None:
        assembly.forget()
    return batches


def decode_answer(
    answer: bytes | memoryview, place: tuple[str, int], request_id: int, uid: str, last: tuple[int, int] = (-1, 0)
) -> tuple[client_pb2.ReadResponse, memoryview]:
    """Return (header, body) of an answer. Raise ProtocolError if it contradicts itself or the request.

    ``place``: requested stream and partition. ``uid``: uid of the stream, '' for any. ``last``: offset and LeaderEpoch of the last
    record that the reader has, epoch 0: none.
    """
    head, body = frames.decode_read_response(answer)
    check_partition_address(head, place[1], stream=place[0], requestId=request_id)
    last_offset, last_epoch = last
    wrong = ""
    if not (is_name(head.node) or not head.node) or not (is_name(head.leader) or not head.leader):
        wrong = "the names of its nodes are none"  # they become part of a subject
    elif head.error == _Error.OK and uid and head.streamUid != uid:
        wrong = f"it serves the stream with uid {head.streamUid[:64]!r}, which was not asked for"
    elif head.error == _Error.WRONG_STREAM and (not uid or head.streamUid == uid):
        wrong = "it refuses the stream that it has"
    elif head.error == _Error.CUT and not (last_epoch and 0 <= head.cutEndOffset <= last_offset):
        wrong = f"it says that the log is cut at {head.cutEndOffset}, behind what was read"
    elif head.highWatermark < -1 or head.logStartOffset < 0:
        wrong = f"HW {head.highWatermark}, log start {head.logStartOffset}"
    if wrong:
        raise ProtocolError(f"The answer of a node is invalid: {wrong}. The client asks another node.")
    return head, body


def check_head(head: client_pb2.ReadResponse, uid: str, stream: str, partition: int, offset: int) -> None:
    """Raise the error that the header ``head`` of an answer reports. Return if it reports none.

    ``uid``: requested stream, '' for any. ``offset``: requested offset, for the error text.
    """
    error: LiftError | None = None
    name, text = f"{stream}/{partition}", f"{head.node or 'a replica'}: {head.detail or 'no detail'}"
    match head.error:
        case _Error.OK:
            pass
        case _Error.WRONG_STREAM:
            error = NotFoundError(
                f"{name}: the stream with uid {uid} was deleted and created again. Start a new consumer. [{text}]"
            )
        case _Error.OFFSET_OUT_OF_RANGE if offset < head.logStartOffset:
            error = out_of_range(name, offset, head.logStartOffset, head.highWatermark)
        case _Error.CUT:
            error = LogTruncatedError(
                (
                    f"{name}: records before offset {offset} that this client has read no longer exist. They were not "
                    f"committed, or an unclean election lost them. Records below {head.cutEndOffset} are unchanged: read "
                    f"again from there. [{text}]"
                ),
                head.cutEndOffset,
            )
        case _Error.BAD_REQUEST:
            error = ProtocolError(
                f"{name}: a node rejected the read request as malformed. Check that nodes and client have compatible "
                f"versions. [{text}]"
            )
        case _:
            reason = client_pb2.ReadResponse.Error.Name(head.error) if head.error in _Error.values() else str(head.error)
            error = NotServedError(
                f"{name}: this replica does not serve the read: {reason}. The client asks another node. [{text}]",
                head.leader,
                head.highWatermark,
            )
    if error is not None:
        raise error


def bounds_of(head: client_pb2.ReadResponse) -> Bounds:
    """Return the bounds of the partition from an answer's header."""
    return Bounds(
        uid=head.streamUid,
        node=head.node,
        leader=head.leader,
        leader_epoch=head.leaderEpoch,
        log_start_offset=head.logStartOffset,
        high_watermark=head.highWatermark,
        compacted=head.compacted,
        end_epoch=head.endEpoch,
        deletes_end=head.deletesEnd,
    )


@dataclass(frozen=True, slots=True)
class RangeFacts:
    """Facts about the committed offset range from ``start`` (inclusive) to ``end`` (exclusive), from the leader.

    If a reader splits the range at ``borders``, no batch is sent twice.

    Attributes:
        size_bytes: Stored size of its batches.
        borders: First offsets of its batches above ``start``, ascending.
        positions: Size of the range before each border, in bytes.
        before_epoch: LeaderEpoch of the record before ``start``. 0: not known.
        end_epoch: LeaderEpoch of the record before ``end``. 0: not known.
    """

    start: int
    end: int
    size_bytes: int = 0
    borders: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    before_epoch: int = 0
    end_epoch: int = 0


@dataclass(frozen=True, slots=True)
class RangeFiles:
    """Files that contain a range, on the host of a node.

    ``host``: id of the machine, '' if unknown. ``spans``: (base offset of the file, first byte, exclusive end byte) of
    each file, in order.
    """

    host: str
    folder: str
    spans: tuple[tuple[int, int, int], ...]


def files_of(head: client_pb2.ReadResponse) -> RangeFiles:
    """Return the segment files that the answer with the header ``head`` names. Raise ProtocolError if they are invalid."""
    bases, begins, ends = tuple(head.fileBases), tuple(head.fileBegins), tuple(head.fileEnds)
    ascending = all(low < high for low, high in itertools.pairwise(bases))
    if not len(bases) == len(begins) == len(ends) or not ascending or any(a >= b for a, b in zip(begins, ends, strict=True)):
        raise ProtocolError(
            f"Node {head.node} returned an invalid list of segment files: base offsets {bases[:4]}, bytes from "
            f"{begins[:4]} to {ends[:4]}. Retry. If this repeats, check the version of the node."
        )
    return RangeFiles(head.host, head.folder, tuple(zip(bases, begins, ends, strict=True)))


def facts_of(head: client_pb2.ReadResponse, start: int, end: int) -> RangeFacts:
    """Return the facts about the offsets ``start`` to ``end`` (exclusive) in the answer with the header ``head``.

    Raise ProtocolError if they are invalid.
    """
    size_bytes, borders, positions = head.rangeBytes, tuple(head.borders), tuple(head.borderPositions)
    marks = [(start, 0), *zip(borders, positions, strict=False), (end, size_bytes)]
    ascending = all(low[0] < high[0] and low[1] < high[1] for low, high in itertools.pairwise(marks))
    if len(borders) != len(positions) or (borders and not ascending) or head.beforeEpoch > head.endEpoch:
        raise ProtocolError(
            f"Node {head.node} returned invalid batch boundaries for the offsets {start} to {end}: "
            f"{borders[:4]} at the bytes {positions[:4]} of {size_bytes}. Retry. If this repeats, check the "
            "version of the node."
        )
    return RangeFacts(start, end, size_bytes, borders, positions, head.beforeEpoch, head.endEpoch)


@dataclass(slots=True)
class BackwardProgress(ReadProgress):
    """Progress of a reader that goes from higher to lower offsets. It ends without an error if retention moves the log start.

    ``next_offset``: exclusive. All records from this offset on are delivered. ``end_offset``: lowest offset to read,
    inclusive. None: the log start.
    """

    log_start_offset: int = 0

    @property
    def done(self) -> bool:
        return self.next_offset <= max(self.end_offset or 0, self.log_start_offset)

    def request(self, max_bytes: int, wait_ms: int, request_id: int = 0) -> client_pb2.ReadRequest:
        """Return the request for the next lower offsets. The replica answers at once, because it need not wait for new records."""
        request = ReadProgress.request(self, max_bytes, 0, request_id)
        request.backwards = True
        return request

    def accept(self, answer: bytes | memoryview) -> list[BatchSlice]:
        """Check an answer and return its slices, the last one first. Records inside a slice are in ascending order.

        Raises the errors of ``ReadProgress.accept``.
        """
        head, body = self._checked(answer)
        is_deleted = head.error == client_pb2.ReadResponse.OFFSET_OUT_OF_RANGE and self.next_offset < head.logStartOffset
        if not is_deleted:
            check_head(head, self.uid, self.stream, self.partition, self.next_offset)
        self.log_start_offset = max(self.log_start_offset, head.logStartOffset)
        self._answered_by(head)
        if is_deleted:
            return []
        batches = whole_batches(self.assembly, head, body)
        return [] if batches is None else self._slice_batches(head, batches)

    def _slice_batches(self, head: client_pb2.ReadResponse, batches: memoryview) -> list[BatchSlice]:
        slices: list[BatchSlice] = []
        position, epoch = self.next_offset, self.leader_epoch
        size_bytes = 0
        whole_answer = not head.pieceTotal
        for batch in reversed(self._split(batches, head.node)):
            size_bytes += batch.header.body_size_bytes
            if size_bytes > MAX_DECOMPRESSED_BYTES and position < self.next_offset:
                whole_answer = False  # the next request asks for the rest
                break
            self._check_below(batch, position, epoch, head)
            piece = BatchSlice.between(batch, max(self.end_offset or 0, self.log_start_offset), position)
            if piece:
                slices.append(piece)
            position, epoch = min(position, max(batch.base_offset, self.log_start_offset)), batch.leader_epoch
        if whole_answer and head.nextOffset < position:
            position, epoch = max(head.nextOffset, self.log_start_offset), head.lookedEpoch
        if position == self.next_offset and not self.done:
            raise NotServedError(
                f"Node {head.node} returned nothing below offset {position}. The client asks another node.", head.leader
            )
        self.next_offset = self.last_offset = position
        self.leader_epoch = epoch
        return slices

    def _check_below(self, batch: RecordBatch, position: int, epoch: int, head: client_pb2.ReadResponse) -> None:
        where = f"{self.stream}/{self.partition} from {head.node}, backwards"
        follows = batch.next_offset >= position or bool(self.wanted) or head.compacted
        if batch.base_offset >= position or not follows:
            self.suspect = (head.node, max(position - 1, 0))
            raise ProtocolError(
                f"{where}: requested records below offset {position}, received {batch.base_offset}. Read again. If "
                "this repeats, run `liftpy spark audit`."
            )
        if batch.last_offset > head.highWatermark:
            raise ProtocolError(
                f"{where}: offset {batch.last_offset} is above the high watermark {head.highWatermark}. Read again. "
                "If this repeats, run `liftpy spark audit`."
            )
        if epoch and batch.leader_epoch > epoch:
            raise ProtocolError(
                f"{where}: LeaderEpoch {batch.leader_epoch} at offset {batch.base_offset} is below the older epoch "
                f"{epoch}. Read again. If this repeats, run `liftpy spark audit`."
            )
